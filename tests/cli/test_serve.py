"""``serve`` as a process: what it prints, how it stops, and every way to name something that can't be served."""

from __future__ import annotations

import signal
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise, product
from pathlib import Path

import pytest
import trio
import trustme

from rsocket_trio import Canceled, Connection, ConnectionClosed, ConnectionLost, Rejected, open_connection
from rsocket_trio.rsocket.dialects import ALL
from tests.cli.commands import Running, run, started
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


@asynccontextmanager
async def serve(directory: Path, *arguments: str) -> AsyncIterator[tuple[Running, list[str]]]:
    """The process, and the URIs that it prints."""
    async with started("serve", "app:responder", *arguments, cwd=directory) as server:
        count = sum("://" in each and before != "--origin" for before, each in pairwise(("", *arguments)))
        lines = [await server.line() for _ in range(count)]
        assert all(line.startswith("listening ") for line in lines), lines
        yield server, [line.removeprefix("listening ") for line in lines]


async def until_it_drains(connection: Connection) -> None:
    """Ask until the server takes no more requests: so it has got its signal."""
    try:
        while True:
            await connection.request_response()
    except Rejected:
        return


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "h2://127.0.0.1:0"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_signal_lets_an_open_stream_finish_and_ends_it_with_0(
    number: signal.Signals, listen: str, app: Path
) -> None:
    async with serve(app, "--listen", listen) as (server, (uri,)):
        async with open_connection(uri) as connection, connection.request_channel() as channel:
            await channel.send(b"before")
            assert (await anext(channel)).data == b"before"

            server.process.send_signal(number)
            await until_it_drains(connection)

            await channel.send(b"after")
            assert (await anext(channel)).data == b"after"
            await channel.send_eof()
            assert [item async for item in channel] == []
        assert await server.end() == (0, "")


async def test_a_stream_that_does_not_finish_is_cancelled_after_the_grace_period(app: Path) -> None:
    async with serve(app, "--listen", "tcp://127.0.0.1:0", "--grace", "0.1") as (server, (uri,)):
        async with open_connection(uri) as connection, connection.request_stream() as items:
            await anext(items)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises((Canceled, ConnectionClosed, ConnectionLost)):
                await anext(items)
        assert await server.end() == (0, "")


async def test_a_second_ctrl_c_does_not_wait_for_the_grace_period(app: Path) -> None:
    listen = ("--listen", "tcp://127.0.0.1:0", "--grace", "1000")
    async with (
        serve(app, *listen) as (server, (uri,)),
        open_connection(uri) as connection,
        connection.request_stream() as items,
    ):
        await anext(items)
        server.process.send_signal(signal.SIGINT)
        await until_it_drains(connection)
        server.process.send_signal(signal.SIGINT)
        assert await server.end() == (-signal.SIGINT, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_socket_file_is_gone_at_the_end(number: signal.Signals, app: Path) -> None:
    path = app / "socket"
    async with serve(app, "--listen", f"unix://{path}", "--unix-mode", "600") as (server, uris):
        assert uris == [f"unix://{path}"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        server.process.send_signal(number)
        assert await server.end() == (0, "")
    assert not path.exists()


@pytest.mark.parametrize("workers", [[], ["--workers", "1"]], ids=["here", "in a worker"])
async def test_pages_are_let_in_by_their_origin(workers: list[str], app: Path) -> None:
    allowed = ["--origin", "https://a.example:8443", "--origin", "https://b.example"]
    async with serve(app, "--listen", "ws://127.0.0.1:0/", *allowed, *workers) as (_, [uri]):
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


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "h2://127.0.0.1:0"])
async def test_a_server_that_is_killed_is_a_lost_connection(listen: str, app: Path) -> None:
    async with (
        serve(app, "--listen", listen) as (server, (uri,)),
        open_connection(uri) as connection,
        connection.request_channel() as channel,
    ):
        await channel.send(b"before")
        await anext(channel)
        server.process.kill()
        with pytest.raises(ConnectionLost):
            await anext(channel)


async def test_every_uri_is_printed_in_order_and_serves_every_dialect(app: Path) -> None:
    wanted = ["--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0/rsocket", f"unix://{app}/socket"]
    wanted += ["--listen", "h2://127.0.0.1:0/rsocket"]
    async with serve(app, *wanted) as (_, uris):
        assert [uri.partition(":")[0] for uri in uris] == ["tcp", "ws", "h2", "unix"]
        for uri in uris:
            assert not uri.endswith(":0")
            for dialect in ("rsocket/1.0", "reactivesocket/0.2"):
                result = await run("request", uri, "--dialect", dialect)
                assert (result.code, result.stdout) == (0, f"{dialect}\n")


async def test_a_dialect_that_is_not_named_is_not_served(app: Path) -> None:
    async with serve(app, "--listen", "tcp://127.0.0.1:0", "--dialect", "rsocket/1.0") as (_, (uri,)):
        assert (await run("request", uri)).code == 0
        for command in ("request", "fnf", "push"):
            refused = await run(command, uri, "--dialect", "reactivesocket/0.2", "--data", "x")
            assert refused.code == 4
            assert refused.stderr.startswith("InvalidSetup: ")


async def test_another_websocket_path_gets_404(app: Path) -> None:
    async with serve(app, "--listen", "ws://127.0.0.1:0/rsocket") as (_, (uri,)):
        address = uri.removeprefix("ws://").removesuffix("/rsocket")
        host, _, port = address.partition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            lines = ["GET /other HTTP/1.1", f"Host: {address}", "Upgrade: websocket", "Connection: Upgrade"]
            lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13", "", ""]
            await stream.send_all("\r\n".join(lines).encode())
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 404")


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

    async with serve(app, *OVER_TLS, *files) as (_, uris):
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

    async with serve(app, *listen, *workers) as (_, (bound,)):
        ask = ("request", bound, "--trust-cert", "ours.pem")
        known = await run(*ask, "--cert", "ada.pem", cwd=app)
        stranger = await run(*ask, "--cert", "eve.pem", cwd=app)
        nobody = await run(*ask, cwd=app)

    assert (known.code, known.stdout, known.stderr) == (0, "rsocket/1.0\n", "")
    for refused in (stranger, nobody):
        assert (refused.code, refused.stdout) == (3, "")
        assert refused.stderr.startswith("ConnectionLost: ")


async def test_a_responder_inside_something_is_found(app: Path) -> None:
    async with started("serve", "app:Space.inner", "--listen", "tcp://127.0.0.1:0", cwd=app) as server:
        assert (await server.line()).startswith("listening tcp://127.0.0.1:")


async def test_a_failing_handler_is_logged_and_the_server_goes_on(app: Path) -> None:
    (app / "app.py").write_text(APP.replace("return current_connection().setup.dialect", "return 1 // 0"))
    async with serve(app, "--listen", "tcp://127.0.0.1:0") as (server, (uri,)):
        for _ in range(2):
            result = await run("request", uri)
            assert result.stderr == "ApplicationError: internal error\n"
        server.process.send_signal(signal.SIGINT)
        code, stderr = await server.end()
    assert code == 0
    assert "ZeroDivisionError" in stderr


WRONG = {
    "no module named 'absent', here or among the installed ones": (2, ["absent:responder"]),
    "no module named 'absent', here": (2, ["absent.deeper:responder"]),
    "module 'app' has no 'nothing'": (2, ["app:nothing"]),
    "app:number is an int, not a Responder": (2, ["app:number"]),
    "'app': MODULE:RESPONDER is needed": (2, ["app"]),
    "'.app:responder': MODULE:RESPONDER is needed": (2, [".app:responder"]),
    "'app:': MODULE:RESPONDER is needed": (2, ["app:"]),
    "'app.py:responder' names a file: write app:responder\n": (2, ["app.py:responder"]),
    "'app.py' names a file: write app:responder\n": (2, ["app.py"]),
    "'./app.py:Space.inner' names a file: write app:Space.inner\n": (2, ["./app.py:Space.inner"]),
    "'shop/app.py:responder' names a file: write shop.app:responder\n": (2, ["shop/app.py:responder"]),
    "while it was imported: failing.py line 2: ZeroDivisionError: division by zero": (1, ["failing:responder"]),
    "while it was imported: refused.py line 2: TypeError: request_response takes an": (1, ["refused:responder"]),
    "while it was imported: typo.py line 1: SyntaxError": (1, ["typo:responder"]),
    "ModuleNotFoundError: No module named 'missing'": (1, ["needy:responder"]),
    "line 1: SystemExit: 3": (1, ["leaving:responder"]),
    "where to listen is missing": (2, ["app:responder", "--grace", "1"]),
    "not a URI like tcp://host:port": (2, ["app:responder", "--listen", "7878"]),
    "cannot listen on unix:///nowhere/at/all": (1, ["app:responder", "--listen", "unix:///nowhere/at/all"]),
    "tls://127.0.0.1:0 needs a certificate": (2, ["app:responder", "--listen", "tls://127.0.0.1:0"]),
    "cannot use the certificate and key of typo.py": (
        1,
        ["app:responder", "--listen", "tls://127.0.0.1:0", "--cert", "typo.py"],
    ),
    "--client-ca asks for certificates": (2, ["app:responder", "--client-ca", "typo.py"]),
    "cannot use certificates of typo.py": (
        1,
        ["app:responder", "--listen", "tls://127.0.0.1:0", "--cert", "both.pem", "--client-ca", "typo.py"],
    ),
    f"the known ones are {', '.join(ALL)}": (2, ["app:responder", "--dialect", "rsocket/9"]),
    "quirk 'odd'": (2, ["app:responder", "--quirk", "odd"]),
    "origin 'app.example' is no scheme, host and port": (2, ["app:responder", "--origin", "app.example"]),
    "origin 'https://app.example/page' is no scheme": (
        2,
        ["app:responder", "--origin", "*", "--origin", "https://app.example/page"],
    ),
    "three octal digits": (2, ["app:responder", "--unix-mode", "999"]),
}


@each_row(("said", "code", "arguments"), [(said, *case) for said, case in WRONG.items()], ids=WRONG)
async def test_what_cannot_be_served_is_one_line(said: str, code: int, arguments: list[str], app: Path) -> None:
    (app / "failing.py").write_text("import os\n1 / 0\n")
    (app / "refused.py").write_text("import rsocket_trio\nrsocket_trio.Responder().request_response(lambda: 1)\n")
    (app / "typo.py").write_text("def f(:\n")
    (app / "needy.py").write_text("import missing\n")
    (app / "leaving.py").write_text("raise SystemExit(3)\n")
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(app / "both.pem")
    if not {"--listen", "--grace"} & set(arguments):
        arguments = [*arguments, "--listen", "tcp://127.0.0.1:0"]

    result = await run("serve", *arguments, cwd=app)

    assert said in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)


async def test_an_address_in_use_is_one_line(app: Path) -> None:
    async with serve(app, "--listen", "tcp://127.0.0.1:0") as (_, (uri,)):
        result = await run("serve", "app:responder", "--listen", uri, cwd=app)

    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == f"rsocket-trio: cannot listen on {uri}: address already in use\n"


COLLECTOR = """
import gc
from rsocket_trio import Responder

responder = Responder()
{wish}

@responder.request_response
def thresholds(request):
    return str(gc.get_threshold())
"""


@each_row(
    ("wish", "found", "more"),
    [
        ("", "(10000, 10, 10)", ()),
        ("gc.set_threshold(500, 5, 5)", "(500, 5, 5)", ()),
        ("", "(10000, 10, 10)", ("--workers", "1")),
        *([("gc.set_threshold(500, 5, 5)", "(500, 5, 5)", ("--workers", "1"))] if ALL_CASES else []),
    ],
)
async def test_the_collector_looks_less_often_unless_the_application_has_a_wish(
    wish: str, found: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(COLLECTOR.format(wish=wish))
    async with serve(tmp_path, "tcp://127.0.0.1:0", *more) as (_, uris), open_connection(uris[0]) as connection:
        assert (await connection.request_response(b"")).text == found
