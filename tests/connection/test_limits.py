"""Limits of one connection: what is beyond them is refused, honest use is not touched, time and credit among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    Channel,
    Connection,
    ConnectionLost,
    Incoming,
    Keepalive,
    Limits,
    Payload,
    Responder,
    current_connection,
)
from tests.conformance import raw
from tests.conformance.raw import (
    CONNECTION_ERROR,
    INVALID,
    KEEPALIVE,
    PAYLOAD,
    REJECTED,
    RS10,
    C,
    F,
    Log,
    M,
    N,
    RawPeer,
    ask,
    bare_server,
    cancel,
    channel,
    client,
    complete,
    forget,
    frame,
    keepalive,
    payload,
    request_n,
    server,
    settle,
    setup,
    sized,
    slow_server,
    stream,
)
from tests.each_row import ALL_CASES, each_row

MIB = 1024 * 1024


def counting() -> tuple[Responder, list[int]]:
    """A responder that answers a request with its size, and notes the sizes of fire-and-forget."""
    responder, sizes = Responder(), []

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        sizes.append(len(request.data))

    @responder.request_response
    async def size(request: Payload) -> bytes:
        return b"%d" % len(request.data)

    return responder, sizes


TIMES = 20 if ALL_CASES else 5


async def test_the_largest_frame_passes_again_and_again(autojump_clock: object) -> None:
    responder, sizes = counting()
    async with server(RS10, responder) as peer:
        for number in range(TIMES):
            await peer.send(forget(1 + 2 * number, bytes(2**24 - 7)))
            await settle()
        await peer.expect_alive()
    assert sizes == [2**24 - 7] * TIMES


@pytest.mark.clause("RS10-FRAG-08")
async def test_64_mib_and_more_in_fragments_end_their_stream_only(autojump_clock: object) -> None:
    piece = bytes(16 * MIB - 16)
    async with server(RS10, counting()[0]) as peer:
        await peer.send(ask(1, piece, F), *[payload(1, piece, N | F)] * 4)
        await peer.expect_error(1, INVALID)
        await peer.send(payload(1, piece, N | F), payload(1, piece))
        await peer.expect_alive()


@pytest.mark.clause("RS10-FRAG-08")
async def test_the_sum_of_unfinished_payloads_is_bounded_and_comes_back(autojump_clock: object) -> None:
    async with server(RS10, counting()[0], limits=Limits(reassembly_size=1000)) as peer:
        await peer.send(ask(1, bytes(400), F), ask(3, bytes(400), F), ask(5, bytes(400), F))
        await peer.expect_error(5, INVALID)
        await peer.send(ask(7, bytes(100), F), payload(7, bytes(1)), payload(1, bytes(50)))
        await peer.expect_in_any_order(payload(7, b"101", N | C), payload(1, b"450", N | C))
        await peer.send(payload(3, bytes(550), N | F), payload(3, bytes(51)))
        await peer.expect_error(3, INVALID)
        for stream_id in range(11, 31, 2):
            await peer.send(ask(stream_id, bytes(900), F), payload(stream_id, bytes(100)))
            await peer.expect(payload(stream_id, b"1000", N | C))


@pytest.mark.clause("RS10-FRAG-08")
async def test_frames_of_64_bytes_pass_and_tiny_ones_without_end_do_not(autojump_clock: object) -> None:
    def part(stream_id: int, metadata: int, data: int) -> bytes:
        return frame(PAYLOAD, N | F | M, stream_id, sized(bytes(metadata)) + bytes(data))

    async def answered(peer: RawPeer, stream_id: int, size: int, *parts: bytes) -> None:
        await peer.send(ask(stream_id, b"", F), *parts, payload(stream_id, b"x"))
        await peer.expect(payload(stream_id, b"%d" % size, N | C))

    async with server(RS10, counting()[0]) as peer:
        await answered(peer, 1, 1101 * 55 + 1, *[payload(1, bytes(55), N | F)] * 1101)
        await answered(peer, 3, 1, *[payload(3, b"", N | F)] * 1023)
        await answered(peer, 5, 1, *[part(5, 32, 0)] * 1100)
        for stream_id, tiny in ((7, payload(7, bytes(31), N | F)), (9, part(9, 31, 0))):
            await peer.send(ask(stream_id, b"", F), *[tiny] * 1024, payload(stream_id, b"x"))
            await peer.expect_error(stream_id, INVALID)
        await peer.expect_alive()


async def test_requests_that_are_taken_back_at_once_end_the_connection(autojump_clock: object) -> None:
    async with server(RS10, Log().responder) as peer:
        for number in range(2000):
            await peer.send(ask(1 + 2 * number, b"wait"), cancel(1 + 2 * number))
        await peer.expect_alive()
        await peer.send(ask(5001, b"wait"), cancel(5001))
        await peer.expect_failure(CONNECTION_ERROR)


async def test_streams_that_gave_an_item_may_be_cancelled_at_any_rate(autojump_clock: object) -> None:
    async with server(RS10, Log().responder) as peer:
        for second in range(20):
            ids = [1 + 2 * (300 * second + number) for number in range(300)]
            await peer.send(*[stream(one, 1) for one in ids])
            for _ in ids:
                await peer.receive()
            await peer.send(*[cancel(one) for one in ids])
            await trio.sleep(1)
        await peer.expect_alive()


async def test_a_fire_and_forget_above_the_limit_of_streams_is_dropped(autojump_clock: object) -> None:
    log = Log()
    async with server(RS10, log.responder, limits=Limits(streams=1)) as peer:
        await peer.send(ask(1, b"wait"), ask(3), forget(5, b"x"), ask(7, b"x", F))
        for stream_id in (3, 7):
            await peer.expect_error(stream_id, REJECTED)
        await peer.expect_alive()
    assert ("note", b"x", None) not in log.seen


async def test_reading_pauses_while_replies_wait_and_goes_on_when_they_were_read(autojump_clock: object) -> None:
    responder, sizes = counting()
    async with slow_server(RS10, responder, limits=Limits(reply_size=MIB)) as peer:
        await peer.send(setup(lifetime=5000))
        await settle()
        for number in range(40):
            await peer.send(keepalive(bytes(65000)), forget(1 + 2 * number, b"x"))
        await trio.sleep(4)
        assert 15 <= len(sizes) <= 19
        for _ in range(40):
            assert len((await peer.receive()).body) == 65008
        await peer.expect_alive()
        assert len(sizes) == 40


async def test_what_the_setup_handler_holds_up_is_in_order_and_credit_for_it_counts(autojump_clock: object) -> None:
    log = Log()

    @log.responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(1)

    async with bare_server(RS10, log.responder) as peer:
        await peer.send(setup(), stream(1, 1, b"9"), request_n(1, 2), ask(3, b"wait"), cancel(3), cancel(77))
        await peer.expect(*[payload(1, b"tick %d" % number) for number in range(3)])
        await peer.expect_alive()
        assert ("request", b"wait", None) not in log.seen


async def test_a_lifetime_that_the_setup_brings_nearer_counts_at_once(autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder(), limits=Limits(setup_timeout=60)) as peer:
        await trio.sleep(10)
        await peer.send(raw.setup(lifetime=2_000))
        started = trio.current_time()
        await peer.expect_error(0, raw.CONNECTION_ERROR)
        assert trio.current_time() - started == pytest.approx(2)


@each_row("pieces", [1, 100])
async def test_a_setup_in_pieces_over_five_seconds_is_honest(pieces: int, autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder()) as peer:
        setup = raw.prefixed(raw.setup(data=bytes(1000)))
        step = len(setup) // pieces + 1
        for start in range(0, len(setup), step):
            await peer.send_bytes(setup[start : start + step])
            await trio.sleep(5 / pieces)
        await peer.expect_alive()


async def test_a_setup_that_is_not_whole_in_time_is_closed(autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder()) as peer:
        started = trio.current_time()
        for byte in raw.prefixed(raw.setup())[:15]:
            await peer.send_bytes(bytes([byte]))
            await trio.sleep(0.6)
        with trio.fail_after(5):
            assert await peer.stream.receive_some() == b""
        assert trio.current_time() - started == pytest.approx(10)


def test_an_interval_above_the_lifetime_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Keepalive: an interval of 10 s is above the max_lifetime of 2.5 s$"):
        Keepalive(interval=10, max_lifetime=2.5)
    assert Keepalive(interval=2, max_lifetime=2).interval == 2


@each_row(("interval", "max_lifetime"), [(0, 1), (1, 0), (-1, 1), (2**31, 1), (1, float("inf"))])
def test_terms_that_31_bits_cannot_say_are_refused(interval: float, max_lifetime: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Keepalive(interval=interval, max_lifetime=max_lifetime)


KIB = 1024
QUIRK = ["ignores_credit"]
ITEM = 1 + 256
"""Bytes that an item of one byte counts."""
"""Bytes that one read may bring above a limit."""


class End(NamedTuple):
    """A stream that a peer sends on beyond its credit of 2, as its reader holds it."""

    peer: RawPeer
    items: Incoming
    connection: Connection


@asynccontextmanager
async def at_a_client(**options: Any) -> AsyncIterator[End]:
    async with (
        client(RS10, quirks=QUIRK, **options) as (connection, peer),
        connection.request_stream(b"s", initial_request_n=2) as items,
    ):
        await peer.expect(stream(1, 2, b"s"))
        yield End(peer, items, connection)


@asynccontextmanager
async def at_a_server(**options: Any) -> AsyncIterator[End]:
    responder = Responder()
    held: list[tuple[Channel, Connection]] = []
    left = trio.Event()

    @responder.request_channel(initial_request_n=2)
    async def hold(channel: Channel) -> None:
        held.append((channel, current_connection()))
        await left.wait()

    times = options.pop("keepalive", Keepalive())
    async with bare_server(RS10, responder, quirks=QUIRK, **options) as peer:
        interval, lifetime = int(times.interval * 1000), int(times.max_lifetime * 1000)
        await peer.send(setup(keepalive=interval, lifetime=lifetime), channel(1, 9))
        await peer.expect(request_n(1, 2))
        yield End(peer, *held[0])
        left.set()


either = each_row("role", [at_a_client, at_a_server], ids=["client", "server"])


async def expect_answer(peer: RawPeer) -> None:
    """A KEEPALIVE was answered, whatever credit was granted before."""
    while (await peer.receive()).type != KEEPALIVE:
        pass


@either
async def test_items_beyond_the_credit_wait_for_their_reader(autojump_clock: object, role: Any) -> None:
    async with role() as end:
        for number in range(20):
            await end.peer.send(payload(1, b"%d" % number))
        await end.peer.send(*(payload(1, b"%d" % number) for number in range(20, 99)), payload(1, b"99", N | C))
        await settle()
        assert [item.data async for item in end.items] == [b"%d" % number for number in range(100)]
        assert end.connection.faults.peer_faults == 0


@either
async def test_above_the_inbox_reading_pauses_and_nothing_is_lost(autojump_clock: object, role: Any) -> None:
    async with role(limits=Limits(inbox_size=100 * KIB)) as end:
        stock = end.connection._engine.receive_budget
        for number in range(1000):
            await end.peer.send(payload(1, b"%d" % (number % 10)))
            await settle()
        await end.peer.send(complete(1), keepalive(b"alive?"))
        await settle()
        # Each counts its byte and the constant: one more than fits is taken, and no further read made.
        assert stock.size == (100 * KIB // ITEM + 1) * ITEM
        await end.peer.expect_silence(1)
        got = [item.data async for item in end.items]
        assert got == [b"%d" % (number % 10) for number in range(1000)]
        await expect_answer(end.peer)
        assert stock.size == 0


@either
async def test_a_pause_in_which_nothing_is_taken_ends_the_connection(
    autojump_clock: object, role: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with role(limits=Limits(inbox_size=10 * KIB, silence=30)) as end:
        start = trio.current_time()
        await end.peer.send(*[payload(1, bytes(1000))] * 20)
        error = await end.connection.wait_closed()
        assert isinstance(error, ConnectionLost)
        assert 30 <= trio.current_time() - start <= 40
        assert end.connection.faults.peer_faults == 0
    assert "reading was paused for 30 s, because nobody here took what had come" in caplog.text


async def test_without_the_name_the_second_early_item_ends_the_stream(autojump_clock: object) -> None:
    responder = Responder()

    @responder.request_channel(initial_request_n=2)
    async def hold(channel: Channel) -> None:
        async for _ in channel:
            pass

    async with server(RS10, responder) as peer:
        await peer.send(channel(1, 9), *[payload(1, b"x")] * 2)
        await peer.expect_error(1, 0x204)
