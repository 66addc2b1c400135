"""What happens on streams: the sequences of each interaction, credit, errors and cancels, in both roles."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Invalid,
    Limits,
    Outgoing,
    Payload,
    Rejected,
    Responder,
    RSocketError,
)
from tests.conformance.raw import (
    APPLICATION_ERROR,
    CANCELED,
    INVALID,
    REJECTED,
    RS02,
    RS10,
    C,
    Log,
    M,
    N,
    Wire,
    ask,
    both,
    cancel,
    channel,
    client,
    complete,
    error,
    forget,
    parsed,
    payload,
    request_n,
    server,
    settle,
    sized,
    stream,
)

clause = pytest.mark.clause
MAX = 2**31 - 1


# Request/response


ERRORS = [
    (ApplicationError("a"), APPLICATION_ERROR, b"a"),
    (ApplicationError("b", code=0x301), 0x301, b"b"),
    (ApplicationError("c", code=0xFFFFFFFE), 0xFFFFFFFE, b"c"),
    (Rejected("d"), REJECTED, b"d"),
    (Canceled("e"), CANCELED, b"e"),
    (Invalid(b"\xff"), INVALID, b"\xff"),
]


@both
@clause("RS10-SEQ-01", "RS10-ERR-10", "RS10-ERR-05", "RS02-ERR-05", "RS02-SEQ-01", "RS10-ERR-07")
@pytest.mark.parametrize(("raised", "code", "data"), ERRORS, ids=lambda value: repr(value)[:30])
async def test_a_handler_chooses_the_error(
    autojump_clock: object, wire: Wire, raised: Exception, code: int, data: bytes
) -> None:
    responder = Responder()

    @responder.request_response
    async def fail(request: Payload) -> Payload:
        raise raised

    @responder.request_stream
    async def fail_later(request: Payload) -> AsyncIterator[bytes]:
        yield b"item"
        raise raised

    async with server(wire, responder) as peer:
        await peer.send(ask(1))
        assert await peer.expect_error(1, code) == data
        await peer.send(stream(3, 5))
        await peer.expect(payload(3, b"item"))
        assert await peer.expect_error(3, code) == data
        await peer.expect_alive()
    raised.__traceback__ = None


@both
@clause("RS10-SEQ-01", "RS10-ERR-06", "RS02-SEQ-01", "RS10-ERR-10")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (APPLICATION_ERROR, ApplicationError),
        (REJECTED, Rejected),
        (CANCELED, Canceled),
        (INVALID, Invalid),
        (0, ApplicationError),
        (3, ApplicationError),
        (0x101, ApplicationError),
        (0x102, ApplicationError),
        (0xFFFFFFFF, ApplicationError),
    ],
)
async def test_any_code_on_a_stream_ends_that_stream(
    autojump_clock: object, wire: Wire, code: int, kind: type[RSocketError]
) -> None:
    async with client(wire) as (connection, peer), connection.request_stream(b"s") as items:
        await peer.receive()
        await peer.send(payload(1, b"item"), error(1, code, b"text"))
        assert (await anext(items)).data == b"item"
        with pytest.raises(kind, match="text") as caught:
            await anext(items)
        assert caught.value.code == code  # type: ignore[attr-defined]
        await peer.send(payload(1, b"late"), request_n(1, 1), error(1, code))
        await peer.expect_alive()


@both
@clause("RS10-SEQ-02", "RS02-SEQ-01")
async def test_after_a_cancel_no_response_is_sent(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(ask(1, b"wait"), ask(3, b"x"), cancel(3))
        await settle()
        await peer.send(cancel(1))
        await peer.expect_alive()
        assert "cancelled" in log.seen


@both
@clause("RS10-SEQ-02", "RS10-SEQ-01", "RS02-SEQ-01")
async def test_a_caller_that_gives_up_sends_one_cancel_and_hears_nothing_more(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as (connection, peer):
        with trio.move_on_after(1):
            await connection.request_response(b"x")
        await peer.expect(ask(1, b"x"), cancel(1))
        await peer.send(payload(1, b"late", N | C))
        await peer.expect_alive()


@both
@clause("RS10-UNX-05", "RS02-UNX-03", "RS10-PAY-04")
@pytest.mark.parametrize("data", [b"", b"x"])
async def test_an_item_for_a_request_ends_it_even_without_complete(
    autojump_clock: object, wire: Wire, data: bytes
) -> None:
    async with client(wire) as (connection, peer), trio.open_nursery() as nursery:
        answers = []

        async def request() -> None:
            answers.append(await connection.request_response(b"x"))

        nursery.start_soon(request)
        await peer.receive()
        await peer.send(payload(1, data, N), payload(1, b"second", N | C))
        await peer.expect_alive()
        assert answers == [Payload(data)]


@both
@clause("RS10-PAY-02", "RS10-PAY-05", "RS02-PAY-04")
async def test_a_request_may_be_completed_without_an_item(autojump_clock: object, wire: Wire) -> None:
    # What C carries without N is dropped in 1.0, and is the answer in 0.2.
    kept = Payload(b"content") if wire is RS02 else Payload()
    async with client(wire) as (connection, peer), trio.open_nursery() as nursery:
        answers = []

        async def request() -> None:
            answers.append(await connection.request_response(b"x"))

        for number in (1, 3):
            nursery.start_soon(request)
            await peer.expect(ask(number, b"x"))
        await peer.send(payload(1, b"", C), payload(3, b"content", C))
        await settle()
        assert sorted(answers, key=lambda answer: len(answer.data)) == [Payload(), kept]


@both
@clause("RS10-MD-05", "RS02-GEN-04")
async def test_absent_and_empty_metadata_are_two_things(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer), connection.request_stream(Payload(b"q", b"")) as items:
        await peer.expect(stream(1, 256, sized(b"") + b"q", M))
        await peer.send(payload(1, b"a"), payload(1, sized(b"") + b"b", N | M), payload(1, sized(b"m"), N | C | M))
        assert [item async for item in items] == [Payload(b"a"), Payload(b"b", b""), Payload(b"", b"m")]


# Fire-and-forget


@both
@clause("RS10-SEQ-03", "RS02-SEQ-01")
async def test_fire_and_forget_is_never_answered(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.fire_and_forget("unused")
    async def unused(request: Payload) -> None: ...

    async with server(wire, log.responder) as peer:
        await peer.send(forget(1, b"a"), forget(3, b""), cancel(1), request_n(1, 1), error(1, CANCELED))
        await peer.expect_alive()
        assert log.seen == [("note", b"a", None), ("note", b"", None)]
    async with server(wire, Responder()) as peer:
        await peer.send(forget(1, b"a"))
        await peer.expect_alive()


@both
@clause("RS10-SEQ-03", "ALL-RCT-14")
async def test_what_comes_for_a_fire_and_forget_of_ours_is_ignored(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer):
        await connection.fire_and_forget(b"x")
        await peer.expect(forget(1, b"x"))
        await peer.send(payload(1, b"x", N | C), error(1, INVALID), cancel(1), request_n(1, 1))
        await peer.expect_alive()


# Streams and their credit


@both
@clause("RS10-SEQ-04", "RS02-SEQ-01")
async def test_cancelling_a_stream_stops_its_handler(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(stream(1, 2))
        await peer.expect(payload(1, b"tick 0"), payload(1, b"tick 1"))
        await peer.send(cancel(1), request_n(1, 5))
        await peer.expect_alive()
        assert log.seen == [("stream", b"", None), "stopped"]


@both
@clause("RS10-SEQ-05", "RS10-SEQ-04", "RS10-N-01")
async def test_a_reader_grants_credit_at_half_and_when_it_wants_to(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=4) as items:
            await peer.expect(stream(1, 4, b"s"))
            await peer.send(payload(1, b"a"), payload(1, b"b"))
            assert [(await anext(items)).data for _ in range(2)] == [b"a", b"b"]
            await peer.expect(request_n(1, 2))
            items.request_n(MAX)
            await peer.expect(request_n(1, MAX))
        await peer.expect(cancel(1))


@both
@clause("RS10-PAY-02", "RS10-PAY-04", "RS10-PAY-05", "RS02-PAY-02", "RS02-PAY-04")
async def test_next_and_complete_each_say_their_part(autojump_clock: object, wire: Wire) -> None:
    for last, wanted in (
        (payload(1, b"", N), [b"a", b""]),
        (payload(1, b"z", N | C), [b"a", b"z"]),
        (payload(1, b"", N | C), [b"a", b""]),
        (payload(1, b"", C), [b"a"]),
        (payload(1, b"content", C), [b"a", b"content"] if wire is RS02 else [b"a"]),
    ):
        async with client(wire) as (connection, peer), connection.request_stream(b"s") as items:
            await peer.receive()
            await peer.send(payload(1, b"a"), last, complete(1))
            assert [item.data async for item in items] == wanted


@both
@clause("RS10-SEQ-13", "RS02-SEQ-05")
async def test_streams_end_with_their_connection(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(ask(1, b"wait"), stream(3, 1), channel(5, 1))
        await settle()
        await peer.stream.aclose()
        await settle()
        assert {"cancelled", "stopped"} <= set(log.seen)


@clause("RS02-PAY-03")
async def test_in_0_2_an_item_needs_no_flag_if_it_carries_anything(autojump_clock: object) -> None:
    async with client(RS02) as (connection, peer), connection.request_stream(b"s") as items:
        await peer.receive()
        await peer.send(payload(1, b"a", 0), payload(1, b"", 0), payload(1, sized(b"m"), M), payload(1, sized(b""), M))
        await peer.send(complete(1))
        assert [item async for item in items] == [Payload(b"a"), Payload(b"", b"m"), Payload(b"", b"")]


@clause("RS02-PAY-04")
@pytest.mark.parametrize("last", ["00000001 2840 6563686f3a68656c6c6f", "00000001 2940 000000 6563686f3a68656c6c6f"])
async def test_in_0_2_an_answer_needs_no_flag_but_the_one_that_completes(autojump_clock: object, last: str) -> None:
    async with client(RS02) as (connection, peer), trio.open_nursery() as nursery:
        answers = []

        async def request() -> None:
            answers.append(await connection.request_response(b"hello"))

        nursery.start_soon(request)
        await peer.expect(ask(1, b"hello"))
        await peer.send(bytes.fromhex(last))
        await settle()
        assert [answer.data for answer in answers] == [b"echo:hello"]


@clause("RS02-PAY-04")
async def test_in_0_2_the_last_item_of_either_side_may_complete_without_another_flag(autojump_clock: object) -> None:
    log = Log()
    async with client(RS02) as (connection, peer), connection.request_stream(b"s") as items:
        await peer.receive()
        await peer.send(payload(1, b"a", 0), payload(1, sized(b"m"), C | M))
        assert [item async for item in items] == [Payload(b"a"), Payload(b"", b"m")]
        await peer.expect_alive()
    async with server(RS02, log.responder) as peer:
        await peer.send(channel(1, 9, b"hi"))
        await peer.expect(request_n(1, 4))
        await peer.send(payload(1, b"back", C))
        await peer.expect(payload(1, b"back"), complete(1))
        assert log.seen == [("channel", b"hi"), ("item", b"back"), "completed"]


# Channels


@both
@clause("RS10-SEQ-07", "RS02-SEQ-02", "RS10-CH-02", "RS02-CH-02", "RS10-CH-03", "RS02-CH-03")
async def test_a_channel_is_answered_with_credit_and_goes_on_with_payloads(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(channel(1, 9, b"open"))
        await peer.expect(request_n(1, 4))
        await peer.send(payload(1, b"one"), payload(1, b"back"))
        got = {await peer.receive(), await peer.receive()}
        assert got == {parsed(payload(1, b"back")), parsed(request_n(1, 2))}
        assert log.seen == [("channel", b"open"), ("item", b"one"), ("item", b"back")]


@both
@clause("RS10-CH-02", "RS10-CH-03", "RS02-CH-02", "RS02-CH-03", "RS10-FLOW-01", "RS02-FLOW-01")
async def test_a_requester_opens_one_channel_and_sends_nothing_without_credit(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as (connection, peer), connection.request_channel(b"open") as talk:
        await peer.expect(channel(1, 256, b"open"))
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for number in range(4):
                    await talk.send(b"%d" % number)
                await talk.send_eof()

            nursery.start_soon(send)
            await peer.expect_silence(5)
            await peer.send(request_n(1, 1))
            await peer.expect(payload(1, b"0"))
            await peer.expect_silence(5)
            await peer.send(request_n(1, 3))
            await peer.expect(payload(1, b"1"), payload(1, b"2"), payload(1, b"3"), complete(1))
        await peer.send(complete(1))


@both
@clause("RS10-CH-04", "RS10-SEQ-12", "RS10-SEQ-07", "RS10-SEQ-11", "RS02-SEQ-03")
async def test_a_channel_that_is_complete_when_it_opens_gets_no_credit(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(channel(1, 9, b"open", C))
        await peer.expect(complete(1))
        assert log.seen == [("channel", b"open"), "completed"]
        await peer.send(payload(1, b"more"))
        await peer.expect_alive()


@both
@clause("RS10-SEQ-06", "RS10-SEQ-11", "RS10-SEQ-12", "RS02-SEQ-03", "RS02-SEQ-04")
async def test_the_requesters_complete_ends_its_half_only(autojump_clock: object, wire: Wire) -> None:
    responder = Responder()

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        received = [item.data async for item in channel]
        await trio.sleep(1)
        await channel.send(b",".join(received))

    for last, wanted in ((complete(1), b"a"), (payload(1, b"b", N | C), b"a,b")):
        async with server(wire, responder) as peer:
            await peer.send(channel(1, 9))
            await peer.expect(request_n(1, 256))
            await peer.send(payload(1, b"a"), last)
            await peer.send(payload(1, b"late"), complete(1))
            await peer.expect(payload(1, wanted), complete(1))
            await peer.expect_alive()


@clause("RS10-SEQ-06")
async def test_in_1_0_the_responders_complete_ends_its_half_only(autojump_clock: object) -> None:
    async with client(RS10) as (connection, peer), connection.request_channel(b"c") as talk:
        await peer.receive()
        await peer.send(request_n(1, 5), payload(1, b"a", N | C))
        assert [item.data async for item in talk] == [b"a"]
        await talk.send(b"mine")
        await talk.send_eof()
        await peer.expect(payload(1, b"mine"), complete(1))
        await peer.expect_alive()


@clause("RS02-SEQ-04")
async def test_in_0_2_the_responders_complete_ends_both_halves(autojump_clock: object) -> None:
    async with client(RS02) as (connection, peer), connection.request_channel(b"c") as talk:
        await peer.receive()
        await peer.send(request_n(1, 5), payload(1, b"a", N | C))
        assert [item.data async for item in talk] == [b"a"]
        with pytest.raises(Canceled):
            await talk.send(b"mine")
        await peer.expect_alive()
    log = Log()
    async with server(RS02, log.responder) as peer:
        await peer.send(channel(1, 9))
        await peer.expect(request_n(1, 4))
        await peer.send(payload(1, b"leave"))
        await peer.expect(complete(1))
        await peer.send(payload(1, b"late"))
        await peer.expect_alive()


@clause("RS10-SEQ-06", "RS10-SEQ-10")
async def test_in_1_0_a_handler_that_returns_early_completes_and_cancels_the_rest(autojump_clock: object) -> None:
    log = Log()
    async with server(RS10, log.responder) as peer:
        await peer.send(channel(1, 9))
        await peer.expect(request_n(1, 4))
        await peer.send(payload(1, b"leave"))
        await peer.expect(complete(1), cancel(1))
        await peer.send(payload(1, b"late"))
        await peer.expect_alive()


@clause("RS10-SEQ-10")
async def test_in_1_0_the_responders_cancel_stops_the_requesters_half_only(autojump_clock: object) -> None:
    async with client(RS10) as (connection, peer), connection.request_channel(b"c") as talk:
        await peer.receive()
        await peer.send(request_n(1, 1), cancel(1), request_n(1, 7), payload(1, b"a"))
        assert (await anext(talk)).data == b"a"
        with pytest.raises(Canceled):
            await talk.send(b"mine")
        await peer.send(payload(1, b"b", N | C))
        assert [item.data async for item in talk] == [b"b"]
        await peer.expect_alive()


@clause("RS10-SEQ-06", "RS10-SEQ-10")
async def test_in_1_0_complete_and_cancel_of_the_responder_end_the_channel(autojump_clock: object) -> None:
    for ending in ((complete(1), cancel(1)), (cancel(1), complete(1))):
        async with client(RS10) as (connection, peer), connection.request_channel(b"c") as talk:
            await peer.receive()
            await peer.send(*ending)
            assert [item.data async for item in talk] == []
            with pytest.raises(Canceled):
                await talk.send(b"mine")
            await peer.send(error(1, INVALID), payload(1, b"late"))
            await peer.expect_alive()


@both
@clause("RS10-SEQ-08", "RS10-SEQ-06", "RS02-SEQ-04")
async def test_an_error_of_either_side_ends_both_halves_of_a_channel(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(channel(1, 9, b"stay"))
        await peer.expect(request_n(1, 4))
        await peer.send(payload(1, b"a"), error(1, APPLICATION_ERROR, b"x"), payload(1, b"late"))
        await peer.expect_alive()
        assert log.seen == [("channel", b"stay"), ("item", b"a"), "ApplicationError"]
    async with client(wire) as (connection, peer), connection.request_channel(b"c") as talk:
        await peer.receive()
        await peer.send(request_n(1, 5), error(1, REJECTED, b"x"))
        await settle()
        with pytest.raises(Rejected):
            await anext(talk)
        with pytest.raises(RSocketError):
            await talk.send(b"mine")
        await peer.expect_alive()


@both
@clause("RS10-SEQ-09", "RS10-SEQ-06")
async def test_the_requesters_cancel_ends_both_halves_even_after_its_complete(
    autojump_clock: object, wire: Wire
) -> None:
    for before in ((), (complete(1),)):
        log = Log()
        async with server(wire, log.responder) as peer:
            await peer.send(channel(1, 9, b"stay"))
            await peer.expect(request_n(1, 4))
            await peer.send(*before)
            await settle()
            await peer.send(cancel(1), payload(1, b"late"))
            await peer.expect_alive()
            assert log.seen[-1] in ("Cancelled", "completed")


@both
@clause("RS10-SEQ-09")
async def test_leaving_a_channel_after_completing_our_half_sends_cancel(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer):
        async with connection.request_channel(b"c") as talk:
            await talk.send_eof()
            await settle()
        await peer.expect(channel(1, 256, b"c"), complete(1), cancel(1))
        await peer.send(payload(1, b"late"))
        await peer.expect_alive()


@both
@clause("ALL-RCT-10", "RS10-FLOW-01")
async def test_surplus_items_of_a_responder_are_not_queued_and_the_stream_is_cancelled(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=2, refill=False) as items:
            await peer.receive()
            await peer.send(*[payload(1, b"%d" % number) for number in range(4)], complete(1))
            await peer.expect(cancel(1))
            assert [(await anext(items)).data for _ in range(3)] == [b"0", b"1", b"2"]
            with pytest.raises(RSocketError, match="more items than were granted"):
                await anext(items)
        await peer.expect_alive()


@both
@clause("ALL-RCT-10", "RS10-CH-03", "RS02-CH-03")
async def test_surplus_items_of_a_requester_are_not_queued_and_the_stream_is_invalid(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(channel(1, 9))
        await peer.expect(request_n(1, 4))
        await peer.send(*[payload(1, b"%d" % number) for number in range(6)])
        await peer.expect_error(1, INVALID)
        await peer.expect_alive()
        assert log.seen == [("channel", b""), *[("item", b"%d" % number) for number in range(5)], "RemoteProtocolError"]


@both
@clause("RS10-ERR-07", "RS10-SEQ-01")
async def test_a_request_that_no_handler_serves_is_rejected(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Responder()) as peer:
        await peer.send(ask(1), stream(3, 1), channel(5, 1))
        for stream_id in (1, 3, 5):
            await peer.expect_error(stream_id, REJECTED)
        await peer.expect_alive()


@both
@clause("RS10-UNX-01", "RS02-UNX-01")
async def test_a_hundred_things_that_make_no_sense_change_nothing(autojump_clock: object, wire: Wire) -> None:
    nonsense = [
        cancel(5),
        payload(7, b"x"),
        error(9, INVALID),
        request_n(11, 5),
        wire.push(b"x", 3),
        wire.setup(),
        error(0, 3),
        forget(2, b"x"),
        ask(0, b"x"),
        request_n(1, 0),
    ]
    async with server(wire, Log().responder, limits=Limits(reply_frames=8)) as peer:
        await peer.send(stream(1, 1))
        await peer.expect(payload(1, b"tick 0"))
        await peer.send(*nonsense * 10)
        await peer.send(request_n(1, 1))
        await peer.expect(payload(1, b"tick 1"))


@both
@clause("RS10-SEQ-04", "RS10-FLOW-01")
async def test_the_push_form_sees_the_credit(autojump_clock: object, wire: Wire) -> None:
    rooms = []
    responder = Responder()

    @responder.request_stream
    async def push(request: Payload, out: Outgoing) -> None:
        rooms.append(out.room)
        await out.send(b"a")
        rooms.append(out.room)

    async with server(wire, responder) as peer:
        await peer.send(stream(1, MAX))
        await peer.expect(payload(1, b"a"), complete(1))
    assert rooms == [MAX, MAX - 1]
