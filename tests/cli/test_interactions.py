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
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
from rsocket_trio.rsocket.frames import CancelFrame, Frame, PayloadFrame, RequestFrame, RequestNFrame
from tests.cli.commands import PATIENCE, run, serving, started
from tests.rows import Rows

ROUTING = "message/x.rsocket.routing.v0"


async def test_a_request_shows_its_one_answer() -> None:
    async with serving() as served:
        result = await run("request", served.uri, "--route", "echo", "--data", "hallo")

    assert (result.code, result.stdout, result.stderr) == (0, "hallo\n", "")


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
    (["--data-mime", "json"], {"data_mime": "application/json"}),
    (["--setup-data", "hi", "--setup-metadata", "m"], {"setup_data": "hi", "setup_metadata": [["text/plain", "m"]]}),
    (["--keepalive", "2.5", "--lifetime", "7"], {"keepalive": 2.5, "lifetime": 7}),
    (["-H", "X-One: two"], {"x_one": "two"}),
    (["-d", "@file.txt"], {"data": "from a file\n"}),
    (["--dialect", "0.2"], {"dialect": "reactivesocket/0.2"}),
    (
        ["-m", "1", "--metadata-mime", "text/css", "-m", "2", "--metadata-mime", "text/csv"],
        {"metadata": [[ROUTING, "\5facts"], ["text/css", "1"], ["text/csv", "2"]]},
    ),
    (["--metadata-mime", "routing"], {"metadata_mime": ROUTING, "metadata": "\5facts"}),
    (["--metadata", "m"], {"metadata": [[ROUTING, "\5facts"], ["text/plain", "m"]]}),
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
    assert setup.startswith("-> SETUP stream 0: major 1, minor 0, keepalive interval 20 s, max lifetime 90 s, ")
    assert request == '-> REQUEST_RESPONSE stream 1: 9 bytes of metadata, data "a\\nb"'
    assert answer == '<- PAYLOAD stream 1: next, complete, 9 bytes of metadata, data "a\\nb"'


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


# What goes wrong


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


WRONG = {
    "quirk 'odd'": ["tcp://127.0.0.1:1", "--quirk", "odd"],
    "route of 256 bytes, limit 255": ["URI", "--route", "r" * 256],
    "only ws, wss, h2 and h2s have a handshake": ["tcp://127.0.0.1:1", "-H", "X-One: 1"],
    "credentials are written user:password": ["tcp://127.0.0.1:1", "-u", "secret"],
    "not both": ["tcp://127.0.0.1:1", "-u", "a:b", "--auth-bearer", "c"],
    "data given 2 times": ["URI", "--data", "a", "--data", "b"],
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


# Leaving early


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "h2://127.0.0.1:0"])
async def test_ctrl_c_ends_a_client_quietly_and_cancels_its_stream(uri: str) -> None:
    async with serving(uri) as served, started("stream", served.uri, "-r", "first") as command:
        assert await command.line() == "first"
        command.process.send_signal(signal.SIGINT)

        assert await command.end() == (130, "")
        await served.cancelled.wait()


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
