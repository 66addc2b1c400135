"""``ping``: the round trips that it shows, and how it ends where a ping is lost or there are none."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio
import trio.testing

from rsocket_trio import Responder, serve
from rsocket_trio.cli.interactions import measure
from rsocket_trio.services import Bearer
from tests.cli.commands import run
from tests.rows import Rows

TIME = r"\d+\.\d{3} ms"
SUMMARY = rf"min {TIME}, median {TIME}, max {TIME}\n"


@asynccontextmanager
async def serving(responder: Responder) -> AsyncIterator[str]:
    """Serve in the test, and give the URI."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, ["tcp://127.0.0.1:0"], grace=0))
        yield uri
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def accepting(handle: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Accept connections of TCP that ``handle`` serves, and give the URI."""
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_the_round_trips_are_shown_with_minimum_median_and_maximum() -> None:
    async with serving(Responder()) as uri:
        with Rows() as row:
            for dialect in ("1.0", "0.2", "0.1", "ext", "streamux"):
                with row(dialect):
                    result = await run("ping", uri, "--dialect", dialect, "-n", "3", "--interval", "0")
                    lines = "".join(f"ping {number}: {TIME}\n" for number in (1, 2, 3))
                    assert (result.code, result.stderr) == (0, "")
                    assert re.fullmatch(lines + SUMMARY, result.stdout)


async def test_a_dialect_without_pings_is_code_1() -> None:
    async with serving(Responder()) as uri:
        result = await run("ping", uri, "--dialect", "0.0")

    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("Unsupported: reactivesocket/0.0 ")


async def test_a_ping_without_an_answer_is_lost_and_code_3() -> None:
    async def say_nothing(stream: trio.SocketStream) -> None:
        async for _ in stream:
            pass

    async with accepting(say_nothing) as uri:
        result = await run("ping", uri, "-n", "2", "--interval", "0", "--timeout", "0.1")

    assert (result.code, result.stdout) == (3, "ping 1: lost\nping 2: lost\n")
    assert result.stderr == "rsocket-trio: 2 of 2 pings were lost\n"


async def test_a_connection_that_is_lost_on_the_way_is_code_3_and_what_was_measured_is_shown() -> None:
    async def answer_once(stream: trio.SocketStream) -> None:
        received = b""
        for number in (1, 2):
            while received.count(b"\x0c\x80") < number:
                received += await stream.receive_some()
            if number == 1:
                await stream.send_all(bytes.fromhex("00000e 00000000 0c00 0000000000000000"))

    async with accepting(answer_once) as uri:
        result = await run("ping", uri, "--interval", "0")

    assert result.code == 3
    assert re.fullmatch(f"ping 1: {TIME}\n{SUMMARY}", result.stdout)
    assert result.stderr.startswith("ConnectionLost: ")


async def test_other_ends_have_their_codes() -> None:
    guarded = Responder(auth_required=True)
    guarded.authenticate(lambda credentials, where: "ann" if credentials == Bearer("sesame") else None)
    async with serving(guarded) as uri:
        refused = await run("ping", uri)
        admitted = await run("ping", uri, "-n", "1", "--auth-bearer", "sesame")
    absent = await run("ping", uri)
    wrong = [await run("ping", uri, *words) for words in (["-n", "0"], ["--interval", "-1"], ["--timeout", "0"])]

    assert (refused.code, refused.stderr) == (4, "RejectedSetup: not allowed\n")  # a KEEPALIVE may be answered before
    assert (admitted.code, admitted.stderr) == (0, "")
    assert (absent.code, absent.stderr) == (3, f"ConnectionLost: {uri}: connection refused\n")
    assert [(each.code, each.stderr.count("\n")) for each in wrong] == [(2, 1)] * 3


class Peer:
    """Answers pings after the given seconds."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.pinged_at: list[float] = []

    async def ping(self) -> float:
        """Return the time of the next answer."""
        self.pinged_at.append(trio.current_time())
        seconds = self.seconds.pop(0)
        await trio.sleep(seconds)
        return seconds


class Lines:
    """Collects the lines of the output."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def write_line(self, data: bytes) -> None:
        """Note a line."""
        await trio.lowlevel.checkpoint()
        self.lines.append(data.decode())


async def test_pings_are_an_interval_apart_and_a_late_answer_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    peer, output = Peer(0.25, 1.5, 0.5), Lines()
    await measure(peer, output, count=3, interval=1, seconds=2)  # type: ignore[arg-type]

    assert peer.pinged_at == [0, 1, 2.5]
    assert output.lines == [
        "ping 1: 250.000 ms",
        "ping 2: 1500.000 ms",
        "ping 3: 500.000 ms",
        "min 250.000 ms, median 500.000 ms, max 1500.000 ms",
    ]
