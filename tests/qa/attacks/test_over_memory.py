"""Replies that nobody reads, over memory streams and a clock that jumps, and a loss that many callers hear of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest
import trio
import trio.testing

from rsocket_trio import ConnectionLost, Responder, serve_stream
from tests.conformance import draft_frames, old_frames, raw, raw_streamux
from tests.conformance.raw import settle
from tests.each_row import ALL_CASES
from tests.memory import traced

MIB = 2**20


@contextmanager
def bounded(growth: int) -> Iterator[None]:
    """Within this block no more than so many bytes are allocated at once beyond what was before."""
    with traced() as memory:
        yield
        peak = memory.peak()
    assert peak <= growth, f"grew by {peak / MIB:.1f} MiB"


@asynccontextmanager
async def unread_server(name: str, responder: Responder) -> AsyncIterator[trio.abc.SendStream]:
    """A server whose answers nobody reads: its first write never ends."""
    to_server, server_reads = trio.testing.memory_stream_one_way_pair()
    server_writes, nobody = trio.testing.lockstep_stream_one_way_pair()
    theirs = trio.StapledStream(server_writes, server_reads)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder, theirs, dialects=[name]))
        yield to_server
        await trio.aclose_forcefully(nobody)
        await trio.aclose_forcefully(to_server)
        nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


FLOODS = [
    pytest.param(old_frames.RS01.name, old_frames.RS01.prefixed(old_frames.RS01.setup(lifetime=5000)), old_frames.RS01.prefixed(old_frames.RS01.keepalive(bytes(1000))), 5, id="0.1 KEEPALIVE"),  # noqa: E501
    pytest.param(draft_frames.RSX.name, raw.prefixed(draft_frames.setup(draft_frames.keepalives(lifetime=5000))), raw.prefixed(draft_frames.beat(bytes(1000))), 5, id="draft KEEPALIVE"),  # noqa: E501
    pytest.param("streamux/1", raw_streamux.WIDE.says, raw_streamux.WIDE.ping(1), 90, id="streamux ping"),
    pytest.param("streamux/1", raw_streamux.WIDE.says, raw_streamux.WIDE.cancel(1), 90, id="streamux cancel"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "first", "one", "patience"), FLOODS)
async def test_answers_that_nobody_reads_stop_the_reading_and_then_the_connection(
    autojump_clock: object, name: str, first: bytes, one: bytes, patience: float
) -> None:
    async with unread_server(name, Responder()) as stream:
        await stream.send_all(first)
        await settle()
        block = one * (65536 // len(one))
        sent = 256 * len(block)
        started = trio.current_time()
        # What the server has not read is the memory stream's, and counts here once as well.
        with bounded(sent + 4 * MIB):
            for _ in range(256):
                await stream.send_all(block)
                await settle()
        with trio.fail_after(2 * patience):
            while True:
                try:
                    await stream.send_all(one)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
                await trio.sleep(0.5)
        assert trio.current_time() - started >= patience * 0.9


MANY = 10_000 if ALL_CASES else 1000


async def test_a_lost_connection_fails_thousands_of_callers_each_with_its_own_error(autojump_clock: object) -> None:
    failed: list[BaseException] = []
    async with raw.client(raw.RS10) as (connection, peer), trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await connection.request_response(b"?")
            failed.append(caught.value)

        for _ in range(MANY):
            nursery.start_soon(ask)
        await settle()
        await trio.aclose_forcefully(peer.stream)
    assert len({id(error) for error in failed}) == MANY
