"""Each limit that shows on one connection: what its attacker gets, and the honest use that it must not touch."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Connection, Limits, Payload, Responder
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
    Wire,
    ask,
    bare_server,
    both,
    cancel,
    client,
    error,
    forget,
    frame,
    keepalive,
    payload,
    prefixed,
    request_n,
    server,
    settle,
    sized,
    slow_server,
    stream,
)

clause = pytest.mark.clause
MIB = 1024 * 1024


def counting() -> tuple[Responder, list[int]]:
    """A responder of fire-and-forget that notes the sizes."""
    responder, sizes = Responder(), []

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        sizes.append(len(request.data))

    @responder.request_response
    async def size(request: Payload) -> bytes:
        return b"%d" % len(request.data)

    return responder, sizes


# SETUP


@both
async def test_a_client_that_says_nothing_is_closed_without_a_word(autojump_clock: object, wire: Wire) -> None:
    async with bare_server(wire, Responder()) as peer:
        await peer.expect_silence(9.99)
        await peer.expect_end()
        assert trio.current_time() == pytest.approx(10, abs=0.1)


@both
async def test_half_a_setup_does_not_hold_the_deadline_off(autojump_clock: object, wire: Wire) -> None:
    async with bare_server(wire, Responder(), limits=Limits(setup_timeout=3)) as peer:
        data = prefixed(wire.setup(data=bytes(100)))
        for byte in data[:29]:
            await peer.send_bytes(bytes([byte]))
            await trio.sleep(0.1)
        await peer.expect_silence(0.05)
        await peer.expect_end()


@both
async def test_setup_in_100_pieces_over_5_seconds_is_accepted(autojump_clock: object, wire: Wire) -> None:
    async with bare_server(wire, Log().responder) as peer:
        data = prefixed(wire.setup(data=bytes(100)))
        for number in range(100):
            start = number * len(data) // 100
            await peer.send_bytes(data[start : (number + 1) * len(data) // 100])
            await trio.sleep(0.05)
        await peer.expect_alive()
        await trio.sleep(30)
        await peer.expect_alive()


@both
async def test_the_deadline_ends_with_the_frame_and_not_with_the_applications_answer(
    autojump_clock: object, wire: Wire
) -> None:
    responder, sizes = counting()

    @responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(60)

    async with bare_server(wire, responder) as peer:
        await peer.send(wire.setup(), forget(1, b"x"))
        await trio.sleep(59)
        await peer.expect_alive()
        assert sizes == []
        await trio.sleep(2)
        assert sizes == [1]


@both
async def test_a_setup_above_its_limit_is_invalid(autojump_clock: object, wire: Wire) -> None:
    fixed = len(wire.setup())
    for size, accepted in ((65536, True), (65537, False)):
        async with bare_server(wire, Responder()) as peer:
            await peer.send(wire.setup(data=bytes(size - fixed)))
            if accepted:
                await peer.expect_alive()
            else:
                await peer.expect_failure(INVALID_SETUP)


@both
async def test_a_setup_far_above_its_limit_is_refused_from_its_length_alone(autojump_clock: object, wire: Wire) -> None:
    async with bare_server(wire, Responder()) as peer:
        await peer.send_bytes(b"\xff\xff\xff")
        await peer.expect_failure(INVALID_SETUP)


# Frames and payloads


@clause("RS10-FRM-04", "RS10-FRM-03", "RS02-FRM-03")
async def test_the_largest_frame_passes_20_times_in_turn(autojump_clock: object) -> None:
    responder, sizes = counting()
    async with server(RS10, responder) as peer:
        for number in range(20):
            await peer.send(forget(1 + 2 * number, bytes(2**24 - 1 - 6)))
            await settle()
        await peer.expect_alive()
    assert sizes == [2**24 - 7] * 20


@both
async def test_a_frame_above_the_configured_limit_ends_the_connection(autojump_clock: object, wire: Wire) -> None:
    responder, sizes = counting()
    async with server(wire, responder, limits=Limits(frame_size=100)) as peer:
        await peer.send(forget(1, bytes(94)))
        await peer.expect_alive()
        await peer.send(forget(3, bytes(95)))
        await peer.expect_failure(CONNECTION_ERROR)
    assert sizes == [94]


@clause("RS10-FRAG-08")
async def test_64_mib_and_more_in_fragments_end_their_stream_only(autojump_clock: object) -> None:
    responder, sizes = counting()
    piece = bytes(16 * MIB - 16)
    async with server(RS10, responder) as peer:
        await peer.send(stream(3, 1))
        await peer.expect_error(3, REJECTED)
        await peer.send(ask(1, piece, F))
        for _ in range(4):
            await peer.send(payload(1, piece, N | F))
        await peer.expect_error(1, INVALID)
        await peer.send(payload(1, piece, N | F), payload(1, piece))
        await peer.expect_alive()
        assert sizes == []


@both
@clause("RS10-FRAG-08")
async def test_the_sum_of_unfinished_payloads_is_bounded_and_comes_back(autojump_clock: object, wire: Wire) -> None:
    responder, _ = counting()
    async with server(wire, responder, limits=Limits(reassembly_size=1000)) as peer:
        await peer.send(ask(1, bytes(400), F), ask(3, bytes(400), F), ask(5, bytes(400), F))
        await peer.expect_error(5, INVALID)
        await peer.send(ask(7, bytes(100), F), payload(7, bytes(1)), payload(1, bytes(50)))
        await peer.expect_in_any_order(payload(7, b"101", N | C), payload(1, b"450", N | C))
        await peer.send(payload(3, bytes(550), N | F), payload(3, bytes(51)))
        await peer.expect_error(3, INVALID)
        for stream_id in range(11, 31, 2):
            await peer.send(ask(stream_id, bytes(900), F), payload(stream_id, bytes(100)))
            await peer.expect(payload(stream_id, b"1000", N | C))


@clause("RS10-FRAG-08")
async def test_a_thousand_streams_of_100_kb_in_fragments_at_once_pass(autojump_clock: object) -> None:
    responder, sizes = counting()
    piece = bytes(25_000)
    async with server(RS10, responder) as peer:
        for flags in (F, N | F, N | F, N):
            for number in range(1000):
                stream_id = 1 + 2 * number
                one = forget(stream_id, piece, F) if flags == F else payload(stream_id, piece, flags)
                await peer.send(one)
            await settle()
        await peer.expect_alive()
    assert sizes == [100_000] * 1000


@both
@clause("RS10-FRAG-08")
async def test_frames_of_64_bytes_pass_and_tiny_ones_without_end_do_not(autojump_clock: object, wire: Wire) -> None:
    responder, _ = counting()
    first = bytes.fromhex("00003d 00000001 1080") + bytes(55)
    more = bytes.fromhex("00003d 00000001 28a0") + bytes(55)
    async with server(wire, responder) as peer:
        await peer.send_bytes(first + 1_100 * more)
        await peer.send(payload(1, b"x"))
        await peer.expect(payload(1, b"%d" % (1_101 * 55 + 1), N | C))
        await peer.send(ask(3, b"", F), *[payload(3, b"", N | F)] * 1023, payload(3, b"x"))
        await peer.expect(payload(3, b"1", N | C))
        await peer.send(ask(5, b"", F), *[payload(5, b"", N | F)] * 1024, payload(5, b"x"))
        await peer.expect_error(5, INVALID)
        await peer.expect_alive()


@both
@clause("RS10-FRAG-08")
async def test_a_client_takes_an_answer_in_frames_of_64_bytes(autojump_clock: object, wire: Wire) -> None:
    answers: list[Payload] = []

    async def ask_for(connection: Connection) -> None:
        answers.append(await connection.request_response(b"?"))

    async with client(wire) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(ask_for, connection)
        await peer.receive()
        await peer.send_bytes(1_101 * (bytes.fromhex("00003d 00000001 28a0") + bytes(55)))
        await peer.send(payload(1, b"x", N | C))
    assert answers == [Payload(bytes(1_101 * 55) + b"x")]


@both
@clause("RS10-FRAG-08")
async def test_metadata_and_data_of_a_fragment_count_together(autojump_clock: object, wire: Wire) -> None:
    responder, _ = counting()

    def part(stream_id: int, metadata: int, data: int) -> bytes:
        return frame(PAYLOAD, N | F | M, stream_id, sized(bytes(metadata)) + bytes(data))

    async with server(wire, responder) as peer:
        await peer.send(ask(1, b"", F), *[part(1, 32, 0)] * 1_100, payload(1, b"x"))
        await peer.expect(payload(1, b"1", N | C))
        await peer.send(
            ask(3, b"", F), *[part(3, 31, 0)] * 1_022, part(3, 16, 16), *[payload(3, bytes(31), N | F)] * 1_024
        )
        await peer.send(payload(3, b"x"))
        await peer.expect(payload(3, b"%d" % (16 + 31 * 1_024 + 1), N | C))
        await peer.send(ask(5, b"", F), *[part(5, 31, 0)] * 1_024)
        await peer.expect_error(5, INVALID)
        await peer.send(ask(7, b"", F), *[payload(7, bytes(31), N | F)] * 1_024)
        await peer.expect_error(7, INVALID)
        await peer.expect_alive()


# Streams and cancels


@both
async def test_streams_above_the_limit_are_rejected_and_room_comes_back(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder, limits=Limits(streams=3)) as peer:
        await peer.send(ask(1, b"wait"), stream(3, 1), ask(5, b"wait"), ask(7), forget(9, b"x"), ask(11, b"x", F))
        got = {(one.stream_id, one.type) for one in [await peer.receive() for _ in range(3)]}
        assert got == {(3, 0x0A), (7, 0x0B), (11, 0x0B)}
        await peer.expect_alive()
        assert ("note", b"x", None) not in log.seen
        for stream_id in (13, 15, 17):
            await peer.send(cancel(stream_id - 12 if stream_id == 13 else stream_id - 2))
            await settle()
            await peer.send(ask(stream_id, b"wait"))
            await peer.expect_alive()


async def test_10_000_streams_are_accepted_and_one_more_each_time_one_ends(autojump_clock: object) -> None:
    log = Log()
    async with server(RS10, log.responder) as peer:
        opened = [stream(1 + 2 * number, 1) for number in range(10_000)]
        await peer.send(*opened)
        for _ in opened:
            await peer.receive()
        await peer.send(ask(30_001))
        await peer.expect_error(30_001, REJECTED)
        for number in range(100):
            await peer.send(cancel(1 + 2 * number))
            await settle()
            await peer.send(stream(40_001 + 2 * number, 1))
            await peer.expect(payload(40_001 + 2 * number, b"tick 0"))


@both
@pytest.mark.parametrize("ending", [cancel, lambda stream_id: error(stream_id, INVALID)], ids=["CANCEL", "ERROR"])
async def test_a_flood_of_requests_that_are_taken_back_ends_the_connection(
    autojump_clock: object, wire: Wire, ending: object
) -> None:
    assert callable(ending)
    log = Log()
    async with server(wire, log.responder) as peer:
        for number in range(2000):
            await peer.send(ask(1 + 2 * number, b"wait"), ending(1 + 2 * number))
        await peer.expect_alive()
        await peer.send(ask(5001, b"wait"), ending(5001))
        await peer.expect_failure(CONNECTION_ERROR)


async def test_streams_that_gave_an_item_may_be_cancelled_at_any_rate(autojump_clock: object) -> None:
    async with server(RS10, Log().responder) as peer:
        for second in range(60):
            ids = [1 + 2 * (300 * second + number) for number in range(300)]
            await peer.send(*[stream(one, 1) for one in ids])
            for _ in ids:
                await peer.receive()
            await peer.send(*[cancel(one) for one in ids])
            await trio.sleep(1)
            if second % 10 == 0:
                await peer.expect_alive()


async def test_200_unanswered_cancels_a_second_may_go_on_for_ever(autojump_clock: object) -> None:
    async with server(RS10, Log().responder, limits=Limits(cancels=200)) as peer:
        for second in range(60):
            ids = [1 + 2 * (200 * second + number) for number in range(200)]
            await peer.send(*[frame for one in ids for frame in (ask(one, b"wait"), cancel(one))])
            await trio.sleep(1)
            await peer.expect_alive()


# Replies and held frames


@both
async def test_a_thousand_keepalives_in_a_burst_are_answered_when_they_are_read(
    autojump_clock: object, wire: Wire
) -> None:
    async with slow_server(wire, Log().responder) as peer:
        await peer.send(wire.setup(), *[keepalive(b"%d" % number) for number in range(1000)])
        await settle()
        for number in range(1000):
            await peer.expect(keepalive(b"%d" % number, respond=False))


@both
async def test_reading_pauses_while_replies_wait_and_goes_on_when_they_were_read(
    autojump_clock: object, wire: Wire
) -> None:
    responder, sizes = counting()
    async with slow_server(wire, responder, limits=Limits(reply_size=MIB)) as peer:
        await peer.send(wire.setup(lifetime=5000))
        await settle()
        for number in range(40):
            await peer.send(keepalive(bytes(65000)), forget(1 + 2 * number, b"x"))
        await trio.sleep(4)
        assert 15 <= len(sizes) <= 19
        for _ in range(40):
            assert len((await peer.receive()).body) == 65008
        await peer.expect_alive()
        assert len(sizes) == 40


@both
async def test_a_peer_that_never_reads_its_replies_is_closed_after_its_lifetime(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()
    async with slow_server(wire, log.responder) as peer:
        await peer.send(wire.setup(lifetime=5000), ask(1, b"wait"))
        await settle()
        for number in range(5000):
            await peer.send(keepalive(b"%d" % number))
        await trio.sleep(4)
        assert "cancelled" not in log.seen
        for _ in range(2):
            await trio.sleep(0.9)  # what comes is not read, and so is no sign of life
            await peer.send(keepalive(b"more"))
        await trio.sleep(2)
        assert "cancelled" in log.seen


@both
async def test_a_client_is_as_patient_with_its_server(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, Log().responder, limits=Limits(reply_frames=8)) as (_, peer):
        for _ in range(4):
            await peer.send(*[keepalive(b"%d" % number) for number in range(1000)])
        for _ in range(4):
            for number in range(1000):
                await peer.expect(keepalive(b"%d" % number, respond=False))


@both
@pytest.mark.parametrize("limits", [Limits(), Limits(held_frames=10), Limits(held_size=100)], ids=repr)
async def test_requests_wait_for_the_gate_and_all_of_them_run_in_the_end(
    autojump_clock: object, wire: Wire, limits: Limits
) -> None:
    responder, sizes = counting()

    @responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(3)

    async with bare_server(wire, responder, limits=limits) as peer:
        await peer.send(wire.setup(), *[forget(1 + 2 * number, bytes(number)) for number in range(300)])
        await trio.sleep(2.9)
        assert sizes == []
        await trio.sleep(0.2)
        await peer.expect_alive()
        assert sorted(sizes) == list(range(300))


@both
async def test_reading_pauses_while_the_gate_holds_enough(autojump_clock: object, wire: Wire) -> None:
    responder, sizes = counting()

    @responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(3)

    async with bare_server(wire, responder, limits=Limits(held_frames=10)) as peer:
        await peer.send(wire.setup())
        await peer.send(*[forget(1 + 2 * number, b"x") for number in range(9)])
        await peer.expect_alive()
        await peer.send(forget(101, b"x"))
        await settle()
        await peer.send(keepalive(b"waits"))
        await peer.expect_silence(2.9)
        await peer.expect(keepalive(b"waits", respond=False))
        assert len(sizes) == 10


@both
async def test_what_the_gate_holds_is_in_order_and_credit_for_it_counts(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(1)

    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(), stream(1, 1, b"9"), request_n(1, 2), ask(3, b"wait"), cancel(3), cancel(77))
        await peer.expect(*[payload(1, b"tick %d" % number) for number in range(3)])
        await peer.expect_alive()
        assert ("request", b"wait", None) not in log.seen


@both
async def test_a_gate_that_refuses_drops_what_it_held(autojump_clock: object, wire: Wire) -> None:
    responder, sizes = counting()

    @responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep_forever()

    async with bare_server(wire, responder) as peer:
        await peer.send(wire.setup(lifetime=4000), *[forget(1 + 2 * number, b"x") for number in range(9)])
        await trio.sleep(1)
        await peer.send(frame(0x2A))
        await peer.expect_failure(CONNECTION_ERROR)
        assert sizes == []
