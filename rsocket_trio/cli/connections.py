"""Connections of commands: opening one, their TLS contexts, the options of listening, and ``--capture``."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import click
import trio

from rsocket_trio import Connection, ConnectionLost, PayloadLike, open_connection
from rsocket_trio.capture import Capture
from rsocket_trio.cli.exit_codes import Failure, complain
from rsocket_trio.cli.options import FILE, LEVELS, MANY, Row, uri
from rsocket_trio.cli.watching import Secrets, Watch, watched
from rsocket_trio.client.open import open_uri
from rsocket_trio.client.options import ConnectionOptions
from rsocket_trio.rsocket.dialect import DIALECTS
from rsocket_trio.rsocket.peers import PEERS
from rsocket_trio.rsocket.quirks import with_quirks
from rsocket_trio.signatures import completed
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import HeadersLike
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.transports.websocket.length_prefix import LENGTH

logger = logging.getLogger(__name__)

FORMATS = ("parquet", "jsonl")
"""The formats of a capture."""
RETRY_INTERVAL = 1.0
"""Seconds between two attempts to connect."""
# fmt: off
LISTENING: Final = (
    Row("listen",       "--listen", "Where to serve it; may be given several times.",
                        {**MANY, "required": True, "type": uri, "metavar": "URI"}),
    Row("listen_cert",  "--listen-cert", "The certificate for tls, wss and h2s of --listen, PEM.", {"type": FILE}),
    Row("listen_key",   "--listen-key", "Its key, PEM, if not in the same file.", {"type": FILE}),
    Row("level",        "--log", "Show log lines from this level on.",
                        {"type": click.Choice(LEVELS), "default": "info"}),
)
"""Options of commands that are servers and clients at once."""
# fmt: on
TLS_PARAMETERS: Final = tuple(row.parameter for row in LISTENING)

Options: TypeAlias = ConnectionOptions[PayloadLike, HeadersLike]


@attrs.frozen(kw_only=True)
class Dial:
    """The address of a connection, the options of ``open_connection``, and those of the command."""

    uri: str
    options: Options
    retries: int = 0
    watch: Watch = attrs.field(factory=Watch)


@asynccontextmanager
async def connected(dial: Dial) -> AsyncIterator[Connection]:
    """Open the connection for the block. Raise ``ConnectionLost`` if every attempt to connect failed."""
    tries_left = dial.retries
    while True:
        async with AsyncExitStack() as stack:
            try:
                connection = await _open(dial, stack)
            except ConnectionLost as error:
                if not tries_left:
                    raise
                logger.info("%s; trying again, %d times at most", error, tries_left)
            else:
                yield connection
                return
        tries_left -= 1
        await trio.sleep(RETRY_INTERVAL)


async def _open(dial: Dial, stack: AsyncExitStack) -> Connection:
    if not dial.watch:
        return await stack.enter_async_context(open_connection(dial.uri, **dial.options))
    options = completed(open_connection, dial.options)
    peer = options["peer"]
    quirks = (*options["quirks"], *(PEERS[peer].quirks if peer is not None else ()))
    record = DIALECTS.get(options["dialect"])
    if record is not None:
        record = with_quirks(record, quirks)
    secrets = Secrets()

    def wrap(transport: Transport) -> Transport:
        has_length = record is not None and record.length_on_messages and transport.is_message_based
        return watched(transport, record, dial.watch, secrets, LENGTH if has_length else 0)

    return await stack.enter_async_context(open_uri(dial.uri, options, wrap=wrap))


def client_tls(
    trust: str | None, cert: str | None, key: str | None, *, untrusted: bool = False
) -> ssl.SSLContext | None:
    """Return the TLS context of a client, or ``None`` for the system's default. Raise ``Failure`` naming the file."""
    if not (trust or cert or untrusted):
        return None
    with naming(f"certificates of {trust}"):
        context = ssl.create_default_context(cafile=trust)
    if untrusted:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        load_certificate(context, cert, key)
    return context


def server_tls(cert: str, key: str | None, client_ca: str | None = None) -> ssl.SSLContext:
    """Return the TLS context of a server. With ``client_ca``, clients must show a certificate of these authorities.

    Raise ``Failure`` naming the file.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, cert, key)
    if client_ca is not None:
        with naming(f"certificates of {client_ca}"):
            context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Load a certificate chain and its key, which may be in the same file."""
    with naming(f"the certificate and key of {cert if key is None else f'{cert} and {key}'}"):
        context.load_cert_chain(cert, key)


@contextmanager
def naming(files: str) -> Iterator[None]:
    """Raise ``Failure`` naming the files that the block can't use, and the reason."""
    try:
        yield
    except ssl.SSLError as error:
        why = (error.reason or "no PEM file").lower().replace("_", " ")
        raise Failure(f"cannot use {files}: {why}") from error
    except OSError as error:
        raise Failure(f"cannot use {files}: {error.strerror or error}") from error


@contextmanager
def captured(directory: str | None, format: str = "parquet") -> Iterator[Capture | None]:
    """Provide a capture into that directory for as long as the block; ``None`` without a directory.

    Raise ``OSError`` naming a directory that can't be written to, and ``Failure`` if pyarrow is missing.
    """
    if directory is None:
        yield None
        return
    try:
        capture = Capture(directory, format=format)
    except ModuleNotFoundError as error:
        raise Failure(f"{error}") from error
    try:
        yield capture
    finally:
        capture.close()
        if capture.dropped or capture.error is not None:
            why = f": {capture.error}" if capture.error is not None else ""
            complain(f"rsocket-trio: the capture lacks {capture.dropped} frames{why}")


def listening_tls(
    ctx: click.Context, given: Mapping[str, Any]
) -> tuple[tuple[str, ...], str, Callable[[], ssl.SSLContext] | None]:
    """Return the addresses, the level of log lines, and what makes the TLS context of the ``LISTENING`` options.

    Raise ``UsageError`` for an address that needs a certificate where none is given.
    """
    for address in given["listen"]:
        if given["listen_cert"] is None and parse_uri(address).uses_tls:
            raise click.UsageError(f"{address} needs a certificate: --listen-cert", ctx)
    has_cert = given["listen_cert"] is not None
    ssl_context = partial(server_tls, given["listen_cert"], given["listen_key"]) if has_cert else None
    return given["listen"], given["level"], ssl_context
