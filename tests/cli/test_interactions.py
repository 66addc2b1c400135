"""The commands that make one request, as processes, against a server in the test."""

from __future__ import annotations

import json
import signal
import ssl
from pathlib import Path

import pytest
import trio
import trustme

from rsocket_trio.mux.framing import Framing24
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialects import ALL, RSOCKET_1_0
from rsocket_trio.rsocket.frames import CancelFrame, Frame, PayloadFrame, RequestFrame, RequestNFrame
from tests.cli.commands import PATIENCE, run, serving, started
from tests.each_row import each_row
from tests.rows import Rows

ROUTING = "message/x.rsocket.routing.v0"


async def test_a_request_shows_its_one_answer() -> None:
    async with serving() as served:
        result = await run("request", served.uri, "--route", "echo", "--data", "hallo")

    assert (result.code, result.stdout, result.stderr) == (0, "hallo\n", "")


async def test_a_stream_shows_its_items_one_a_line() -> None:
    async with serving() as served:
        result = await run("stream", served.uri, "--route", "count", "--data", "3")

    assert (result.code, result.stdout, result.stderr) == (0, "0\n1\n2\n", "")


@pytest.mark.parametrize("stdin", [b"one\ntwo\n", b"one\ntwo", b"one\r\ntwo\r\n"])
async def test_a_channel_sends_each_line_of_its_input(stdin: bytes) -> None:
    async with serving() as served:
        result = await run("channel", served.uri, "--route", "echo", "--data", "-", stdin=stdin)

    assert (result.code, result.stdout, result.stderr) == (0, "one\ntwo\n", "")


async def test_a_channel_answers_each_line_before_the_next_is_written() -> None:
    async with serving() as served, started("channel", served.uri, "--route", "echo", "--data", "-") as command:
        for text in ("one", "two", "three"):
            await command.write(text.encode() + b"\n")
            assert await command.line() == text
        await command.close("stdin")
        assert await command.end() == (0, "")


@pytest.mark.parametrize(("opening", "shown"), [("--empty-opening", "a\nb\n"), ("--first-opens", "opened with a\nb\n")])
async def test_a_channel_sends_the_data_that_it_is_given(opening: str, shown: str) -> None:
    async with serving() as served:
        result = await run("channel", served.uri, "-r", "echo", "--data", "a", "--data", "b", opening)

    assert (result.code, result.stdout) == (0, shown)


async def test_what_is_never_answered_arrives() -> None:
    async with serving() as served:
        for arguments in (["fnf", "-r", "log", "--data", "1"], ["push", "--metadata", "2"], ["push", "--data", "3"]):
            served.arrived = trio.Event()
            result = await run(arguments[0], served.uri, *arguments[1:])
            assert (result.code, result.stdout, result.stderr) == (0, "", "")
            with trio.fail_after(PATIENCE):
                await served.arrived.wait()

        assert served.got == [b"1", b"2", b"3"]


async def test_a_peer_that_answers_no_sign_of_life_got_its_message_all_the_same() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with listener, started("fnf", uri, "--data", "x") as process:
        async with await listener.accept() as stream:
            request = await Peer(stream).request()
        assert request.payload.data == b"x"
        assert await process.end() == (0, "")


async def test_bytes_that_are_no_text_pass_through() -> None:
    every_byte = bytes(range(256))
    async with serving() as served:
        result = await run("request", served.uri, "--route", "echo", "--data", "-", stdin=every_byte)

    assert result.stdout.encode("utf-8", "surrogateescape") == every_byte + b"\n"


@each_row("dialect", ["rsocket/1.0", "reactivesocket/0.2"])
@each_row("uri", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "ws://127.0.0.1:0/rsocket", "unix", "h2://127.0.0.1:0/"])
async def test_every_transport_is_spoken_in_every_dialect(uri: str, dialect: str, tmp_path: Path) -> None:
    uri = f"unix://{tmp_path}/socket" if uri == "unix" else uri
    async with serving(uri) as served:
        result = await run("request", served.uri, "-r", "facts", "--dialect", dialect)

    facts = json.loads(result.stdout)
    assert (facts["dialect"], facts["transport"]) == (dialect, uri.partition("://")[0])


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    """A server's context, and the path of the certificate that a client has to trust."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return context, str(tmp_path / "ca.pem")


@pytest.mark.parametrize("uri", ["tls://127.0.0.1:0", "wss://127.0.0.1:0/rsocket", "h2s://127.0.0.1:0/"])
async def test_tls_needs_a_certificate_that_is_trusted(uri: str, certificates: tuple[ssl.SSLContext, str]) -> None:
    context, authority = certificates
    async with serving(uri, ssl_context=context) as served:
        trusting = await run("request", served.uri, "-r", "echo", "--data", "x", "--trust-cert", authority)
        careless = await run("request", served.uri, "-r", "echo", "--data", "x", "--allow-untrusted")
        doubting = await run("request", served.uri, "-r", "echo", "--data", "x")

    assert (trusting.code, trusting.stdout) == (careless.code, careless.stdout) == (0, "x\n")
    assert doubting.code == 3
    assert doubting.stderr.startswith(f"ConnectionLost: {served.uri}: certificate verify failed")
    assert doubting.stderr.count("\n") == 1


OPTIONS: list[tuple[list[str], dict[str, object]]] = [
    (["--data", "x"], {"data": "x", "data_mime": "application/octet-stream"}),
    (["--data-mime", "json"], {"data_mime": "application/json"}),
    (
        ["--setup-data", "hi", "--setup-metadata", "m"],
        {"setup_data": "hi", "setup_metadata": [["text/plain", "m"]]},
    ),
    (["--keepalive", "2.5", "--lifetime", "7"], {"keepalive": 2.5, "lifetime": 7}),
    (["--keepalive", "100"], {"keepalive": 100, "lifetime": 300}),
    (["-H", "X-One: two"], {"x_one": "two"}),
    (["-H", "X-One=1"], {"x_one": "1"}),
    (["--lease"], {"lease": True}),
    (["-d", "@file.txt"], {"data": "from a file\n"}),
    (["--dialect", "0.2"], {"dialect": "reactivesocket/0.2"}),
    (
        ["-m", "1", "--metadata-mime", "text/css", "-m", "2", "--metadata-mime", "text/csv"],
        {"metadata": [[ROUTING, "\5facts"], ["text/css", "1"], ["text/csv", "2"]]},
    ),
    (["--metadata-mime", "routing"], {"metadata_mime": ROUTING, "metadata": "\5facts"}),
    (
        ["--metadata", "m"],
        {"metadata": [[ROUTING, "\5facts"], ["text/plain", "m"]]},
    ),
]


async def test_an_option_reaches_the_server(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("from a file\n")
    async with serving("ws://127.0.0.1:0/") as served:
        with Rows() as row:
            for flags, expected in OPTIONS:
                with row(flags):
                    result = await run("request", served.uri, "--route", "facts", *flags, cwd=tmp_path)
                    assert (result.code, result.stderr) == (0, "")
                    facts = json.loads(result.stdout)
                    assert {key: facts[key] for key in expected} == expected


async def test_debug_shows_a_line_for_each_frame() -> None:
    async with serving() as served:
        result = await run("request", served.uri, "-r", "echo", "-d", "a\nb", "--debug")

    setup, request, answer = result.stderr.splitlines()
    assert setup.startswith("-> SETUP, stream 0, major 1, minor 0, keepalive_interval 20, max_lifetime 90, ")
    assert request == "-> REQUEST_RESPONSE, stream 1, metadata of 9 bytes, 'a\\nb'"
    assert answer == "<- PAYLOAD, stream 1, metadata of 9 bytes, 'a\\nb', next, complete"


async def test_a_stack_trace_comes_before_the_line() -> None:
    result = await run("request", "tcp://127.0.0.1:1", "--stacktrace")

    lines = result.stderr.splitlines()
    assert any("Traceback" in line for line in lines)
    assert lines[-1] == "ConnectionLost: tcp://127.0.0.1:1: connection refused"


async def test_retrying_waits_for_a_server_to_come(tmp_path: Path) -> None:
    uri = f"unix://{tmp_path}/socket"
    async with started("request", uri, "-r", "echo", "-d", "x", "--retry", "10", "--log", "info") as command:
        assert "trying again, 10 times at most" in await command.line("stderr")
        async with serving(uri):
            assert await command.line() == "x"
            assert (await command.end())[0] == 0


async def test_retrying_ends_with_the_reason() -> None:
    result = await run("request", "tcp://127.0.0.1:1", "--retry", "1")

    assert (result.code, result.stderr) == (3, "ConnectionLost: tcp://127.0.0.1:1: connection refused\n")


async def test_what_a_push_cannot_carry_is_one_line() -> None:
    async with serving() as served:
        nothing = await run("push", served.uri)
        both = await run("push", served.uri, "-m", "a", "-d", "b")

    assert (nothing.code, nothing.stderr) == (2, "rsocket-trio: a push needs metadata\n")
    assert (both.code, both.stderr.count("\n")) == (2, 1)
    assert "data cannot go with it" in both.stderr


class Peer:
    """A server that is nothing but frames: it sees what a command puts onto the wire."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._framing = Framing24()
        self._frames: list[bytes] = []

    async def receive(self) -> Frame:
        while not self._frames:
            chunk = await self._stream.receive_some()
            assert chunk, "the end"
            self._frames += self._framing.feed(bytes(chunk))
        return RSOCKET_1_0.codec.decode(self._frames.pop(0))

    async def request(self) -> RequestFrame:
        await self.receive()  # the SETUP
        request = await self.receive()
        assert isinstance(request, RequestFrame)
        return request

    async def send(self, *frames: Frame) -> None:
        await self._stream.send_all(self._framing.join([RSOCKET_1_0.codec.encode(frame) for frame in frames]))


@pytest.mark.parametrize("command", ["stream", "channel"])
async def test_the_limit_rate_is_the_first_grant_and_topped_up_at_half(command: str) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with listener, started(command, uri, "--limit-rate", "4") as process:
        async with await listener.accept() as stream:
            peer = Peer(stream)
            assert (await peer.request()).initial_n == 4
            if command == "channel":
                assert await peer.receive() == PayloadFrame(1, Payload(), next=False, complete=True)
            await peer.send(*(PayloadFrame(1, Payload(b"item")) for _ in range(2)))
            assert await peer.receive() == RequestNFrame(1, 2)
            await peer.send(PayloadFrame(1, Payload(), next=False, complete=True))
            assert [await process.line(), await process.line()] == ["item", "item"]
        assert await process.end() == (0, "")


async def test_taking_asks_for_no_more_than_is_taken_and_then_cancels() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with listener, started("stream", uri, "--take", "2") as process:
        async with await listener.accept() as stream:
            peer = Peer(stream)
            assert (await peer.request()).initial_n == 2
            await peer.send(*(PayloadFrame(1, Payload(b"item")) for _ in range(2)))
            assert await peer.receive() == CancelFrame(1)
        assert await process.end() == (0, "")
        assert [await process.line(), await process.line(), await process.line()] == ["item", "item", ""]


@pytest.mark.parametrize("limit", [[], ["--limit-rate", "2"], ["--limit-rate", "100"]])
async def test_taking_stops_after_so_many_items(limit: list[str]) -> None:
    async with serving() as served:
        result = await run("stream", served.uri, "-r", "count", "--data", "100", "--take", "7", *limit)

    assert (result.code, result.stdout.split()) == (0, list("0123456"))


async def test_a_channel_stops_after_so_many_items_though_its_input_goes_on() -> None:
    arguments = ("-r", "echo", "--data", "-", "--take", "2")
    async with serving() as served, started("channel", served.uri, *arguments) as command:
        await command.write(b"a\nb\nc\n")
        assert [await command.line(), await command.line(), await command.line()] == ["a", "b", ""]
        assert await command.end() == (0, "")


# What goes wrong


async def test_a_route_without_a_handler_is_one_line() -> None:
    async with serving() as served:
        result = await run("request", served.uri, "--route", "x")

    assert (result.code, result.stdout) == (5, "")
    assert result.stderr == "Rejected: no request_response handler for route 'x'\n"


@pytest.mark.parametrize(
    ("command", "route", "missing"), [("request", "never", "answer"), ("stream", "first", "end"), ("fnf", "log", "")]
)
async def test_what_takes_too_long_is_given_up(command: str, route: str, missing: str) -> None:
    async with serving() as served:
        result = await run(command, served.uri, "--route", route, "--timeout", "2")

        if missing:
            with trio.fail_after(PATIENCE):
                await served.cancelled.wait()
    assert result.code == (8 if missing else 0)
    assert result.stderr == (f"TooSlowError: no {missing} within 2 s\n" if missing else "")


async def test_a_websocket_path_that_is_not_served_is_one_line() -> None:
    async with serving("ws://127.0.0.1:0/rsocket") as served:
        result = await run("request", served.uri.replace("/rsocket", "/other"))

    assert result.code == 3
    assert "404" in result.stderr
    assert result.stderr.count("\n") == 1


async def test_a_server_that_is_none_of_ours_is_one_line() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with listener, started("channel", uri, "--data", "-") as process:
        stream = await listener.accept()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await stream.aclose()
        code, stderr = await process.end()

    assert code == 3
    assert stderr.startswith("ConnectionLost: ")


WRONG = {
    "not a URI like tcp://host:port": ["127.0.0.1:7878"],
    "unknown scheme": ["http://127.0.0.1:7878"],
    "is not a number from 0 to 65535": ["tcp://127.0.0.1:port"],
    f"the known ones are {', '.join(ALL)}": ["tcp://127.0.0.1:1", "--dialect", "rsocket/9"],
    "quirk 'odd'": ["tcp://127.0.0.1:1", "--quirk", "odd"],
    "route of 256 bytes, limit 255": ["URI", "--route", "r" * 256],
    "'jsn' is no MIME type": ["tcp://127.0.0.1:1", "--metadata-mime", "jsn"],
    "a header is written": ["ws://127.0.0.1:1", "-H", "nonsense"],
    "only ws, wss, h2 and h2s have a handshake": ["tcp://127.0.0.1:1", "-H", "X-One: 1"],
    "credentials are written user:password": ["tcp://127.0.0.1:1", "-u", "secret"],
    "not both": ["tcp://127.0.0.1:1", "-u", "a:b", "--auth-bearer", "c"],
    "no such option": ["tcp://127.0.0.1:1", "--trace"],
    "data given 2 times": ["URI", "--data", "a", "--data", "b"],
    "does not exist": ["tls://127.0.0.1:1", "--trust-cert", "/nowhere.pem"],
    "must be between 0.001": ["tcp://127.0.0.1:1", "--keepalive", "0.0001"],
    "missing argument 'URI'": [],
}


async def test_wrong_usage_is_one_line_and_exit_code_2() -> None:
    async with serving() as served:
        with Rows() as row:
            for said, arguments in WRONG.items():
                with row(said):
                    result = await run("request", *(served.uri if each == "URI" else each for each in arguments))
                    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
                    assert said in result.stderr
                    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--trust-cert", "broken.pem"], "rsocket-trio: cannot use certificates of broken.pem"),
        (["--cert", "broken.pem"], "rsocket-trio: cannot use"),
    ],
    ids=["trust", "cert"],
)
async def test_a_file_that_is_no_certificate_is_one_line(flags: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("nothing")

    result = await run("request", "tls://127.0.0.1:1", *flags, cwd=tmp_path)

    assert result.code == 1
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


# Leaving early


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "h2://127.0.0.1:0"])
async def test_ctrl_c_ends_a_client_quietly_and_cancels_its_stream(uri: str) -> None:
    async with serving(uri) as served, started("stream", served.uri, "-r", "first") as command:
        assert await command.line() == "first"
        command.process.send_signal(signal.SIGINT)

        assert await command.end() == (130, "")
        await served.cancelled.wait()


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "h2://127.0.0.1:0"])
async def test_a_client_that_is_killed_cancels_its_stream(uri: str) -> None:
    async with serving(uri) as served, started("stream", served.uri, "-r", "first") as command:
        assert await command.line() == "first"
        command.process.kill()
        await served.cancelled.wait()


async def test_ctrl_c_ends_a_channel_that_waits_for_its_input() -> None:
    async with serving() as served, started("channel", served.uri, "-r", "echo", "--data", "-") as command:
        await command.write(b"a\n")
        assert await command.line() == "a"
        command.process.send_signal(signal.SIGINT)

        assert await command.end() == (130, "")


async def test_a_reader_that_has_enough_ends_a_stream_quietly() -> None:
    async with serving() as served, started("stream", served.uri, "-r", "endless") as command:
        assert await command.line() == "x" * 1000
        await command.close("stdout")

        assert await command.end() == (0, "")
        await served.cancelled.wait()


async def test_a_reader_that_is_slow_holds_the_stream_back_but_not_the_connection() -> None:
    async with (
        serving() as served,
        started("stream", served.uri, "-r", "endless", "--keepalive", "0.05", "--debug") as command,
    ):
        lines = [await command.line("stderr")]
        # Items fill the pipe that nobody reads, then the credit, and signs of life still come and go.
        while not (len(lines) > 256 and all("KEEPALIVE" in line for line in lines[-6:])):
            lines.append(await command.line("stderr"))
        assert await command.line() == "x" * 1000
        command.process.send_signal(signal.SIGINT)
        await command.close("stdout")
        while await command.line("stderr"):
            pass
        assert await command.process.wait() == 130
