"""TLS, credentials and a second server, through all of Spark: a read and a write that need each of them."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trustme
from pyspark.errors import PySparkException

from rsocket_trio import Connection, RejectedSetup, Responder, Setup
from rsocket_trio.metadata import AUTHENTICATION, SimpleAuthentication, decode_authentication, decode_composite
from rsocket_trio.replay import Element, Log, add_source
from rsocket_trio.spark import register
from tests.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 200
KNOWN = SimpleAuthentication("ada", "s3cret-one")
CREDENTIALS = {"auth.type": "simple", "auth.user": "ada", "auth.password": "s3cret-one"}


class Secured(Sink):
    """A server with TLS that lets only those in who have a certificate and the password."""

    def __init__(self, authority: trustme.CA, folder: Path) -> None:
        authority.cert_pem.write_to_path(folder / "ca.pem")
        client = authority.issue_cert("client")
        client.private_key_pem.write_to_path(folder / "key.pem")
        client.cert_chain_pems[0].write_to_path(folder / "client.pem")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        source = Log()
        trio.run(source.open)
        trio.run(source.append_all, {0: [Element(b"%d" % number) for number in range(ROWS)]})
        responder = Responder()
        responder.setup(self._admit)
        add_source(responder, "log", source)
        files = {"tls.ca": "ca.pem", "tls.cert": "client.pem", "tls.key": "key.pem"}
        self.options = {name: str(folder / file) for name, file in files.items()}
        super().__init__(1, responder, "tls://127.0.0.1:0", context)
        port = int(self.uri.rpartition(":")[2])
        # Nobody listens on port 1: the next one is tried.
        self.uris = f"tls://127.0.0.1:1,tls://127.0.0.1:{port}"

    def _admit(self, setup: Setup, connection: Connection) -> None:
        said = [
            entry.content for entry in decode_composite(setup.payload.metadata or b"") if entry.mime == AUTHENTICATION
        ]
        if len(said) != 1 or decode_authentication(said[0]) != KNOWN:
            raise RejectedSetup("who are you?")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(trustme.CA(), tmp_path_factory.mktemp("tls"))
    yield found
    found.stop()


def test_a_job_reads_and_writes_over_tls_with_credentials_and_the_server_that_is_there(
    spark: SparkSession, secured: Secured
) -> None:
    register(spark)
    options = {**secured.options, **CREDENTIALS}
    rows = spark.read.format("rsocket").options(route="log", positions="server", **options).load(secured.uris)
    writer = rows.write.format("rsocket").mode("append").options(route="orders", delivery="exactlyOnce", **options)
    writer.save(secured.uris)

    assert Counter(secured.rows()) == Counter(b"%d" % number for number in range(ROWS))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"auth.password": "s3cret-two"}, "who are you"),
        ({"tls.ca": None}, "certificate"),
        ({"tls.cert": None, "tls.key": None}, "(?i)certificate|handshake|closed|lost|could not connect"),
    ],
    ids=["password", "authority", "certificate"],
)
def test_who_is_not_let_in_hears_why_and_no_secret_is_shown(
    changed: dict[str, str | None], message: str, spark: SparkSession, secured: Secured
) -> None:
    given = secured.options | CREDENTIALS | {"reconnectMaxAttempts": "0"} | changed
    options = {name: value for name, value in given.items() if value is not None}
    register(spark)
    with pytest.raises(PySparkException, match=message) as caught:
        spark.read.format("rsocket").options(route="log", positions="server", **options).load(secured.uri).count()

    assert "s3cret" not in str(caught.value)
