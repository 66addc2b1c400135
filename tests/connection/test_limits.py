"""Limits of one connection at their defaults: what is beyond them is refused, and honest use is not touched."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Limits, Payload, Responder
from tests.conformance.raw import (
    CONNECTION_ERROR,
    INVALID,
    INVALID_SETUP,
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


@each_row("size", [65536, 65537])
async def test_a_setup_above_its_limit_is_invalid(autojump_clock: object, size: int) -> None:
    async with bare_server(RS10, Responder()) as peer:
        await peer.send(setup(data=bytes(size - len(setup()))))
        if size == 65536:
            await peer.expect_alive()
        else:
            await peer.expect_failure(INVALID_SETUP)


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
