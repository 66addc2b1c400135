"""The attacks in an old dialect, over memory streams and a clock that jumps.

RSocket 1.0 and ReactiveSocket 0.2 have theirs beside the limits of the conformance tests, and so has most of Streamux.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest
import trio
import trio.testing

from rsocket_trio import Connection, ConnectionLost, Limits, Responder, RSocketError, serve_stream
from tests.conformance import draft_frames, old_frames, raw, raw_streamux
from tests.conformance.raw import settle
from tests.each_row import ALL_CASES

KIB = 1024
MIB = 1024 * KIB
MOST = 2**31 - 1


OLD = old_frames.RS01
FIRST = 2


@contextmanager
def bounded(growth: int) -> Iterator[None]:
    """Within this block no more than so many bytes are allocated at once beyond what was before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= growth, f"grew by {peak / MIB:.1f} MiB"


# The beginning


async def test_a_setup_byte_by_byte_ends_at_its_deadline(autojump_clock: object) -> None:
    async with raw.bare_server(OLD, Responder(), limits=Limits(setup_timeout=3)) as peer:
        for byte in OLD.prefixed(OLD.setup(data=bytes(100)))[:29]:
            await peer.send_bytes(bytes([byte]))
            await trio.sleep(0.1)
        await peer.expect_silence(0.05)
        await peer.expect_end()
        assert trio.current_time() == pytest.approx(3, abs=0.1)


async def test_the_largest_length_is_refused_as_soon_as_it_is_announced(autojump_clock: object) -> None:
    async with raw.server(OLD, Responder(), limits=Limits(frame_size=2**20)) as peer:
        await settle()
        with bounded(MIB):
            await peer.send_bytes(MOST.to_bytes(4, "big"))
            await peer.expect_failure()


async def test_streamux_refuses_a_chunk_of_a_gigabyte_as_soon_as_it_is_announced(autojump_clock: object) -> None:
    wide = raw_streamux.Mux(0, 30)
    async with raw_streamux.server(raw_streamux.Log().responder, wide) as peer:
        await settle()
        with bounded(MIB):
            await peer.send(wide.header(0, 2**30 - 1, 0, 1))
            await peer.expect_end()


# Payloads


async def test_fragments_without_end_are_cancelled_and_their_rest_is_skipped(autojump_clock: object) -> None:
    async with raw.client(OLD) as (connection, peer), trio.open_nursery() as nursery:
        told: list[str] = []
        nursery.start_soon(tell, connection, told)
        assert await peer.receive()
        with bounded(4 * MIB):
            for _ in range(20):
                await peer.send(*[OLD.item(FIRST, b"", follows=True)] * 1000)
                await settle()
        await peer.expect(OLD.cancel(FIRST))
        await settle()
        assert "1024 fragments below 32 bytes" in told[0]


async def tell(connection: Connection, told: list[str]) -> None:
    """Ask, and tell how that failed."""
    try:
        await connection.request_response(b"?")
    except RSocketError as error:
        told.append(str(error))


# Streams


async def test_requests_that_are_taken_back_at_once_end_the_connection(autojump_clock: object) -> None:
    log = old_frames.OldLog()
    async with raw.server(OLD, log.responder) as peer:
        ids = range(FIRST, FIRST + 2 * 2000, 2)
        for one in ids:
            await peer.send(OLD.ask(one, b"wait"), OLD.cancel(one))
        await peer.expect_alive()
        one = 9000 + FIRST
        await peer.send(OLD.ask(one, b"wait"), OLD.cancel(one))
        await peer.expect_failure()
    assert log.seen.count("cancelled") == sum(type(one) is tuple for one in log.seen)


async def test_items_beyond_the_credit_end_their_stream_at_the_second(autojump_clock: object) -> None:
    async with (
        raw.client(OLD) as (connection, peer),
        connection.request_stream(b"?", initial_request_n=4, refill=False) as items,
    ):
        await peer.receive()
        with bounded(4 * MIB):
            for _ in range(20):
                await peer.send(*[OLD.item(FIRST, bytes(1000))] * 100)
                await settle()
        await peer.expect(OLD.cancel(FIRST))
        for _ in range(5):
            assert len((await anext(items)).data) == 1000
        with pytest.raises(RSocketError, match="more items than were granted"):
            await anext(items)


# Replies that nobody reads


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


async def test_the_end_of_a_connection_cancels_thousands_of_handlers(autojump_clock: object) -> None:
    log = raw.Log()
    async with raw.server(raw.RS10, log.responder) as peer:
        for start in range(0, MANY, 1000):
            await peer.send(*[raw.ask(2 * number + 1, b"wait") for number in range(start, start + 1000)])
        await settle()
        assert len(log.seen) == MANY
        await peer.send(raw.frame(0x2A))
        await peer.expect_failure(raw.CONNECTION_ERROR)
    assert log.seen.count("cancelled") == MANY
    assert len(log.seen) == 2 * MANY
