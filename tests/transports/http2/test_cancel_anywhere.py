"""A client or a server over HTTP/2 that is cancelled at any of its steps: everything ends, in bounded time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.http2.http2_handshake import accept_http2, share_http2
from rsocket_trio.transports.schemes import AcceptOptions, ConnectOptions
from tests.reliability.cancelling import MOST_STEPS, STRIDE, CancelAtStep
from tests.transports.http2.raw_http2 import ENDPOINT, Stream, serve_streams

BODY = bytes(300_000)
LONGEST = 10.0
"""Seconds of a clock that jumps."""


async def client(stream: Stream) -> None:
    """Open streams, and move more in each direction than a window takes."""
    async with share_http2(stream, ENDPOINT, Handshake(), ConnectOptions()) as shared:
        for _ in range(2):
            async with shared.open(ENDPOINT, ConnectOptions()) as lane:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lane.send, [BODY])
                    await receive(lane, len(BODY))
                await lane.finish()


async def receive(lane: Transport, size: int) -> None:
    """Receive so many bytes."""
    while size > 0:
        size -= sum(map(len, await lane.receive()))


async def server(stream: Stream) -> None:
    """Echo on every stream."""
    async with accept_http2(stream, ENDPOINT, Handshake(), AcceptOptions()) as accepted:
        await serve_streams(accepted, [], echoes=True)


async def forgiving(side: Callable[[Stream], Awaitable[None]], stream: Stream) -> None:
    """Run the other side, whose peer may go at any time, and close."""
    try:
        await side(stream)
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(stream)


async def cancelled(
    step: int, tested: Callable[[Stream], Awaitable[None]], other: Callable[[Stream], Awaitable[None]], *, before: bool
) -> bool:
    """Cancel one side at a step. Return whether it got that far."""
    ours, theirs = memory_stream_pair()
    cancelling = CancelAtStep(step, before=before)

    async def under_test() -> None:
        try:
            await tested(ours)
        finally:
            await trio.aclose_forcefully(ours)

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(forgiving, other, theirs)
        await cancelling.run(under_test)
    assert trio.current_time() - begun < LONGEST
    return cancelling.taken >= step


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("who", ["client", "server"])
async def test_it_ends_wherever_it_is_cancelled(who: str, before: bool, autojump_clock: MockClock) -> None:
    tested, other = (server, client) if who == "server" else (client, server)
    steps = 0
    while steps < MOST_STEPS and await cancelled(steps, tested, other, before=before):
        steps += STRIDE
    assert 10 < steps < MOST_STEPS
