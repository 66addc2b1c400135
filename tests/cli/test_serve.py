"""``serve`` as a process: what it prints, how it stops, and every way to name something that can't be served."""

from __future__ import annotations

import ssl
from itertools import product
from pathlib import Path

import pytest
import trustme

from rsocket_trio import Connection, Rejected, open_connection
from tests.cli.commands import app_served, run
from tests.each_row import ALL_CASES, each_row

OVER_TLS = ["tls://127.0.0.1:0", "wss://127.0.0.1:0/rsocket", "h2s://127.0.0.1:0/rsocket"]
APP = """
import trio
from rsocket_trio import Responder, current_connection

responder = Responder()

@responder.request_response
def facts(request):
    return current_connection().setup.dialect

@responder.request_channel
async def echo(channel):
    async for item in channel:
        await channel.send(item)

@responder.request_stream
async def stuck(request):
    yield b"first"
    await trio.sleep_forever()

class Space:
    inner = responder

number = 5
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A directory with the module ``app``."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


async def until_it_drains(connection: Connection) -> None:
    """Ask until the server takes no more requests: so it has got its signal."""
    try:
        while True:
            await connection.request_response()
    except Rejected:
        return


@pytest.mark.parametrize("workers", [[], ["--workers", "1"]], ids=["here", "in a worker"])
async def test_pages_are_let_in_by_their_origin(workers: list[str], app: Path) -> None:
    allowed = ["--origin", "https://a.example:8443", "--origin", "https://b.example"]
    async with app_served(app, "--listen", "ws://127.0.0.1:0/", *allowed, *workers) as (_, [uri]):
        for origin, allowed_here in {
            "https://a.example:8443": True,
            "https://b.example": True,
            "http://127.0.0.1:3000": True,
            "https://a.example": False,
            "null": False,
        }.items():
            result = await run("request", uri, "--header", f"Origin: {origin}")
            assert (result.code == 0) is allowed_here, f"{origin}: {result.stderr}"
            assert ("answered HTTP 403" in result.stderr) is not allowed_here


async def test_every_uri_is_printed_in_order_and_serves_every_dialect(app: Path) -> None:
    wanted = ["--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0/rsocket", f"unix://{app}/socket"]
    wanted += ["--listen", "h2://127.0.0.1:0/rsocket"]
    async with app_served(app, *wanted) as (_, uris):
        assert [uri.partition(":")[0] for uri in uris] == ["tcp", "ws", "h2", "unix"]
        for uri in uris:
            assert not uri.endswith(":0")
            for dialect in ("rsocket/1.0", "reactivesocket/0.2"):
                result = await run("request", uri, "--dialect", dialect)
                assert (result.code, result.stdout) == (0, f"{dialect}\n")


@each_row("split", [True, False], ids=["two files", "one file"])
async def test_all_schemes_of_tls_are_served_with_a_certificate(split: bool, app: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(app / "ca.pem")
    if split:
        certificate.cert_chain_pems[0].write_to_path(app / "cert.pem")
        certificate.private_key_pem.write_to_path(app / "key.pem")
        files = ["--cert", "cert.pem", "--key", "key.pem"]
    else:
        certificate.private_key_and_cert_chain_pem.write_to_path(app / "both.pem")
        files = ["--cert", "both.pem"]
    context = ssl.create_default_context(cafile=app / "ca.pem")

    async with app_served(app, *OVER_TLS, *files) as (_, uris):
        assert len(uris) == len(OVER_TLS)
        for uri in uris:
            async with open_connection(uri, ssl_context=context) as connection:
                assert (await connection.request_response()).data == b"rsocket/1.0"


@each_row(
    ("uri", "workers"),
    [
        ("tls://127.0.0.1:0", ()),
        ("wss://127.0.0.1:0/rsocket", ("--workers", "1")),
        ("h2s://127.0.0.1:0/rsocket", ()),
        *product(OVER_TLS, [(), ("--workers", "1")] if ALL_CASES else []),
    ],
)
async def test_with_client_ca_a_client_must_show_a_certificate_of_that_authority(
    uri: str, workers: tuple[str, ...], app: Path
) -> None:
    ours, theirs, strangers = trustme.CA(), trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(app / "ours.pem")
    theirs.cert_pem.write_to_path(app / "theirs.pem")
    ours.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(app / "both.pem")
    theirs.issue_cert("ada@example.org").private_key_and_cert_chain_pem.write_to_path(app / "ada.pem")
    strangers.issue_cert("eve@example.org").private_key_and_cert_chain_pem.write_to_path(app / "eve.pem")
    listen = ("--listen", uri, "--cert", "both.pem", "--client-ca", "theirs.pem")

    async with app_served(app, *listen, *workers) as (_, (bound,)):
        ask = ("request", bound, "--trust-cert", "ours.pem")
        known = await run(*ask, "--cert", "ada.pem", cwd=app)
        stranger = await run(*ask, "--cert", "eve.pem", cwd=app)
        nobody = await run(*ask, cwd=app)

    assert (known.code, known.stdout, known.stderr) == (0, "rsocket/1.0\n", "")
    for refused in (stranger, nobody):
        assert (refused.code, refused.stdout) == (3, "")
        assert refused.stderr.startswith("ConnectionLost: ")


WRONG = {
    "no module named 'absent', here or among the installed ones": (2, ["absent:responder"]),
    "module 'app' has no 'respnder': did you mean 'responder'?": (2, ["app:respnder"]),
    "module 'app' has no 'nothing'\n": (2, ["app:nothing"]),
    "app:number is an int, not a Responder": (2, ["app:number"]),
    "'app': MODULE:RESPONDER is needed": (2, ["app"]),
    "'app.py:responder' names a file: write app:responder\n": (2, ["app.py:responder"]),
    "while it was imported: failing.py line 2: ZeroDivisionError: division by zero": (1, ["failing:responder"]),
    "while it was imported: typo.py line 1: SyntaxError": (1, ["typo:responder"]),
    "where to listen is missing": (2, ["app:responder", "--grace", "1"]),
    "cannot listen on unix:///nowhere/at/all": (1, ["app:responder", "--listen", "unix:///nowhere/at/all"]),
    "tls://127.0.0.1:0 needs a certificate": (2, ["app:responder", "--listen", "tls://127.0.0.1:0"]),
    "--client-ca asks for certificates": (2, ["app:responder", "--client-ca", "typo.py"]),
    "origin 'app.example' is no scheme, host and port": (2, ["app:responder", "--origin", "app.example"]),
    "three octal digits": (2, ["app:responder", "--unix-mode", "999"]),
    "0 is not in the range x>=1": (2, ["app:responder", "--workers", "0"]),
    "resume needs one process": (2, ["app:responder", "--workers", "2", "--resume", "60"]),
    "cannot listen on unix:///nowhere/of/workers": (
        *(1, ["app:responder", "--workers", "2", "--listen", "unix:///nowhere/of/workers"]),
    ),
    "failing.py line 2: ZeroDivisionError: division": (1, ["failing:responder", "--workers", "1"]),
    "ended before it served: exit code 3": (1, ["leaving:responder", "--workers", "1"]),
}


@each_row(("said", "code", "arguments"), [(said, *case) for said, case in WRONG.items()], ids=WRONG)
async def test_what_cannot_be_served_is_one_line(said: str, code: int, arguments: list[str], app: Path) -> None:
    (app / "failing.py").write_text("import os\n1 / 0\n")
    (app / "typo.py").write_text("def f(:\n")
    (app / "leaving.py").write_text("import os\nos._exit(3)\n")
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(app / "both.pem")
    if not {"--listen", "--grace"} & set(arguments):
        arguments = [*arguments, "--listen", "tcp://127.0.0.1:0"]

    result = await run("serve", *arguments, cwd=app)

    assert said in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
