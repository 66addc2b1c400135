"""The attacks in the other dialects, over memory streams and a clock that jumps.

RSocket 1.0 and ReactiveSocket 0.2 have theirs beside the limits of the conformance tests, and so has most of Streamux.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple

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


class Old(NamedTuple):
    """0.0 or 0.1, as these attacks speak it."""

    old: old_frames.OldWire
    first: int = 2

    def __str__(self) -> str:
        return self.old.name

    def log(self) -> Any:
        return old_frames.OldLog()

    def server(self, responder: Responder, **options: Any) -> AbstractAsyncContextManager[Any]:
        return raw.server(self.old, responder, **options)

    def bare_server(self, responder: Responder, **options: Any) -> AbstractAsyncContextManager[Any]:
        return raw.bare_server(self.old, responder, **options)

    def client(self, **options: Any) -> AbstractAsyncContextManager[tuple[Connection, Any]]:
        return raw.client(self.old, **options)

    def setup(self, **fields: Any) -> bytes:
        return self.old.setup(**fields)

    def framed(self, *frames: bytes) -> bytes:
        return self.old.prefixed(*frames)

    def ask(self, stream_id: int, data: bytes = b"") -> bytes:
        return self.old.ask(stream_id, data)

    def stream(self, stream_id: int, n: int) -> bytes:
        return self.old.stream(stream_id, n)

    def request_n(self, stream_id: int, n: int) -> bytes:
        return self.old.request_n(stream_id, n)

    def cancel(self, stream_id: int) -> bytes:
        return self.old.cancel(stream_id)

    def item(self, stream_id: int, data: bytes = b"", *, follows: bool = False) -> bytes:
        return self.old.item(stream_id, data, follows=follows)

    def error(self, stream_id: int, text: bytes) -> bytes:
        return self.old.error(stream_id, text=text)

    async def expect_alive(self, peer: Any) -> None:
        await peer.expect_alive()

    async def expect_rejected(self, peer: Any, stream_id: int) -> None:
        await peer.expect_error(stream_id, raw.REJECTED)

    async def expect_failure(self, peer: Any) -> None:
        await peer.expect_failure()

    async def expect_invalid_setup(self, peer: Any) -> None:
        await peer.expect_failure(old_frames.INVALID_SETUP)


class Draft(NamedTuple):
    """The extension draft of 2.0."""

    first: int = 1

    def __str__(self) -> str:
        return str(draft_frames.RSX.name)

    def log(self) -> Any:
        return raw.Log()

    def server(self, responder: Responder, **options: Any) -> AbstractAsyncContextManager[Any]:
        return raw.server(draft_frames.RSX, responder, **options)

    def bare_server(self, responder: Responder, **options: Any) -> AbstractAsyncContextManager[Any]:
        return raw.bare_server(draft_frames.RSX, responder, **options)

    def client(self, **options: Any) -> AbstractAsyncContextManager[tuple[Connection, Any]]:
        return raw.client(draft_frames.RSX, **options)

    def setup(self, **fields: Any) -> bytes:
        return draft_frames.setup(draft_frames.keepalives(), **fields)

    def framed(self, *frames: bytes) -> bytes:
        return raw.prefixed(*frames)

    def ask(self, stream_id: int, data: bytes = b"") -> bytes:
        return raw.ask(stream_id, data)

    def stream(self, stream_id: int, n: int) -> bytes:
        return raw.stream(stream_id, n)

    def request_n(self, stream_id: int, n: int) -> bytes:
        return raw.request_n(stream_id, n)

    def cancel(self, stream_id: int) -> bytes:
        return raw.cancel(stream_id)

    def item(self, stream_id: int, data: bytes = b"", *, follows: bool = False) -> bytes:
        return raw.payload(stream_id, data, raw.N | (raw.F if follows else 0))

    def error(self, stream_id: int, text: bytes) -> bytes:
        return raw.error(stream_id, raw.APPLICATION_ERROR, text)

    async def expect_alive(self, peer: Any) -> None:
        await peer.send(draft_frames.beat(b"alive?"))
        await peer.expect(draft_frames.beat(b"alive?", respond=False))

    async def expect_rejected(self, peer: Any, stream_id: int) -> None:
        await peer.expect_error(stream_id, raw.REJECTED)

    async def expect_failure(self, peer: Any) -> None:
        await peer.expect_failure(raw.CONNECTION_ERROR)

    async def expect_invalid_setup(self, peer: Any) -> None:
        await peer.expect_failure(raw.INVALID_SETUP)


RS00, RS01, RSX = Old(old_frames.RS00), Old(old_frames.RS01), Draft()
Dialect = Old | Draft
dialects = pytest.mark.parametrize("dialect", [RS00, RS01, RSX], ids=str)


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


@dialects
async def test_a_setup_byte_by_byte_ends_at_its_deadline(autojump_clock: object, dialect: Dialect) -> None:
    async with dialect.bare_server(Responder(), limits=Limits(setup_timeout=3)) as peer:
        for byte in dialect.framed(dialect.setup(data=bytes(100)))[:29]:
            await peer.send_bytes(bytes([byte]))
            await trio.sleep(0.1)
        await peer.expect_silence(0.05)
        await peer.expect_end()
        assert trio.current_time() == pytest.approx(3, abs=0.1)


@dialects
async def test_a_setup_above_its_limit_is_refused(autojump_clock: object, dialect: Dialect) -> None:
    async with dialect.bare_server(Responder()) as peer:
        await peer.send(dialect.setup(data=bytes(65536)))
        await dialect.expect_invalid_setup(peer)


@pytest.mark.parametrize(
    ("dialect", "prefix"),
    [
        pytest.param(RS00, MOST.to_bytes(4, "big"), id="0.0"),
        pytest.param(RS01, MOST.to_bytes(4, "big"), id="0.1"),
        pytest.param(RSX, b"\xff\xff\xff", id="draft"),
    ],
)
async def test_the_largest_length_is_refused_as_soon_as_it_is_announced(
    autojump_clock: object, dialect: Dialect, prefix: bytes
) -> None:
    async with dialect.server(Responder(), limits=Limits(frame_size=2**20)) as peer:
        await settle()
        with bounded(MIB):
            await peer.send_bytes(prefix)
            await dialect.expect_failure(peer)


async def test_streamux_refuses_a_chunk_of_a_gigabyte_as_soon_as_it_is_announced(autojump_clock: object) -> None:
    wide = raw_streamux.Mux(0, 30)
    async with raw_streamux.server(raw_streamux.Log().responder, wide) as peer:
        await settle()
        with bounded(MIB):
            await peer.send(wide.header(0, 2**30 - 1, 0, 1))
            await peer.expect_end()


# Payloads


@dialects
async def test_fragments_without_end_are_cancelled_and_their_rest_is_skipped(
    autojump_clock: object, dialect: Dialect
) -> None:
    async with dialect.client() as (connection, peer), trio.open_nursery() as nursery:
        told: list[str] = []
        nursery.start_soon(tell, connection, told)
        assert await peer.receive()
        with bounded(4 * MIB):
            for _ in range(20):
                await peer.send(*[dialect.item(dialect.first, b"", follows=True)] * 1000)
                await settle()
        await peer.expect(dialect.cancel(dialect.first))
        await settle()
        assert "1024 fragments below 32 bytes" in told[0]


@dialects
async def test_unfinished_payloads_are_bounded_together(autojump_clock: object, dialect: Dialect) -> None:
    limits = Limits(reassembly_size=MIB)
    async with dialect.client(limits=limits) as (connection, peer), trio.open_nursery() as nursery:
        told: list[str] = []
        for _ in range(40):
            nursery.start_soon(tell, connection, told)
        for _ in range(40):
            await peer.receive()
        with bounded(2 * MIB):
            for number in range(40):
                await peer.send(dialect.item(dialect.first + 2 * number, bytes(64 * KIB), follows=True))
                await settle()
        assert len(told) == 24
        assert all(f"more than {MIB} bytes in unfinished payloads" in text for text in told)
        nursery.cancel_scope.cancel()


async def tell(connection: Connection, told: list[str]) -> None:
    """Ask, and tell how that failed."""
    try:
        await connection.request_response(b"?")
    except RSocketError as error:
        told.append(str(error))


@dialects
async def test_an_error_of_a_megabyte_of_text_is_a_line_for_its_caller(
    autojump_clock: object, dialect: Dialect
) -> None:
    async with dialect.client() as (connection, peer), trio.open_nursery() as nursery:
        told: list[str] = []
        nursery.start_soon(tell, connection, told)
        await peer.receive()
        await peer.send(dialect.error(dialect.first, b"\x1b[31m\n\xff" * 150_000))
        await settle()
        assert len(told[0]) <= 1100
        assert told[0].isprintable()


# Streams


@dialects
async def test_requests_that_are_taken_back_at_once_end_the_connection(
    autojump_clock: object, dialect: Dialect
) -> None:
    log = dialect.log()
    async with dialect.server(log.responder) as peer:
        ids = range(dialect.first, dialect.first + 2 * 2000, 2)
        for one in ids:
            await peer.send(dialect.ask(one, b"wait"), dialect.cancel(one))
        await dialect.expect_alive(peer)
        one = 9000 + dialect.first
        await peer.send(dialect.ask(one, b"wait"), dialect.cancel(one))
        await dialect.expect_failure(peer)
    assert log.seen.count("cancelled") == sum(type(one) is tuple for one in log.seen)


@dialects
async def test_streams_above_the_limit_are_rejected_and_the_others_go_on(
    autojump_clock: object, dialect: Dialect
) -> None:
    log = dialect.log()
    async with dialect.server(log.responder, limits=Limits(streams=10)) as peer:
        ids = [dialect.first + 2 * number for number in range(200)]
        await peer.send(*[dialect.ask(one, b"wait") for one in ids])
        for one in ids[10:]:
            await dialect.expect_rejected(peer, one)
        await settle()
        assert len(log.seen) == 10
        await peer.send(dialect.cancel(ids[0]))
        await settle()
        await peer.send(dialect.stream(ids[-1] + 2, 1))
        got = await peer.receive()
        assert (got.stream_id, got.body) == (ids[-1] + 2, b"tick 0")


@dialects
async def test_frames_for_streams_that_never_were_are_ignored_without_a_word(
    autojump_clock: object, dialect: Dialect
) -> None:
    log = dialect.log()
    async with dialect.server(log.responder) as peer:
        for one in (1, 2, 77, 78, 10_001):
            frames = [dialect.item(one, b"x"), dialect.cancel(one), dialect.request_n(one, 9), dialect.error(one, b"?")]
            await peer.send(*frames * 50)
        await dialect.expect_alive(peer)
        assert log.seen == []


@dialects
async def test_the_largest_credit_three_times_over_lets_items_flow(autojump_clock: object, dialect: Dialect) -> None:
    async with dialect.server(dialect.log().responder, limits=Limits(outbox_size=2000)) as peer:
        await peer.send(dialect.stream(dialect.first, MOST), *[dialect.request_n(dialect.first, MOST)] * 3)
        for number in range(1000):
            assert (await peer.receive()).body == b"tick %d" % number


@dialects
async def test_items_beyond_the_credit_end_their_stream_at_the_second(autojump_clock: object, dialect: Dialect) -> None:
    async with (
        dialect.client() as (connection, peer),
        connection.request_stream(b"?", initial_request_n=4, refill=False) as items,
    ):
        await peer.receive()
        with bounded(4 * MIB):
            for _ in range(20):
                await peer.send(*[dialect.item(dialect.first, bytes(1000))] * 100)
                await settle()
        await peer.expect(dialect.cancel(dialect.first))
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
