"""``ping``: the round trips that it shows, and how it ends where a ping is lost or there are none."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio
import trio.testing

from rsocket_trio import Responder
from tests.cli.commands import hosting, run
from tests.rows import Rows

TIME = r"\d+\.\d{3} ms"
SUMMARY = rf"min {TIME}, median {TIME}, max {TIME}\n"


@asynccontextmanager
async def accepting(handle: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Accept connections of TCP that ``handle`` serves, and give the URI."""
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_the_round_trips_are_shown_with_minimum_median_and_maximum() -> None:
    async with hosting(Responder()) as uri:
        with Rows() as row:
            for dialect in ("1.0", "0.2", "0.1", "ext", "streamux"):
                with row(dialect):
                    result = await run("ping", uri, "--dialect", dialect, "-n", "3", "--interval", "0")
                    lines = "".join(f"ping {number}: {TIME}\n" for number in (1, 2, 3))
                    assert (result.code, result.stderr) == (0, "")
                    assert re.fullmatch(lines + SUMMARY, result.stdout)


async def test_a_dialect_without_pings_is_code_1() -> None:
    async with hosting(Responder()) as uri:
        result = await run("ping", uri, "--dialect", "0.0")

    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("Unsupported: reactivesocket/0.0 ")


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
