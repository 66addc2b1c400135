"""Connecting, refusing, and what concerns the connection as a whole: RSocket 1.0, and 0.2 where it says the same."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import (
    ConnectionLost,
    InvalidSetup,
    Keepalive,
    Limits,
    Payload,
    Rejected,
    RejectedResume,
    RejectedSetup,
    Responder,
    RSocketError,
    UnsupportedSetup,
    current_connection,
)
from tests.conformance.raw import (
    APPLICATION_ERROR,
    CONNECTION_ERROR,
    INVALID_SETUP,
    KEEPALIVE,
    METADATA_PUSH,
    REJECTED,
    REJECTED_RESUME,
    REJECTED_SETUP,
    RS02,
    RS10,
    UNSUPPORTED_SETUP,
    C,
    F,
    Log,
    M,
    N,
    RawPeer,
    S,
    Wire,
    ask,
    bare_server,
    both,
    client,
    client_that_said,
    error,
    ext,
    forget,
    frame,
    keepalive,
    parsed,
    payload,
    resume,
    server,
    settle,
    setup,
    sized,
    slow_server,
    stream,
)

clause = pytest.mark.clause


# SETUP


@both
@clause("RS10-CON-01", "RS10-SETUP-01", "RS02-SETUP-01", "RS02-CON-01", "RS10-FRM-01", "RS02-FRM-01")
async def test_a_client_says_setup_first_and_at_once(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(
        wire,
        setup=Payload(b"data", b"meta"),
        data_mime="a/b",
        metadata_mime="c/d",
        keepalive=Keepalive(0.5, 2),
    ) as (_, _, first):
        assert first == parsed(
            wire.setup(
                keepalive=500, lifetime=2000, data_mime=b"a/b", metadata_mime=b"c/d", metadata=b"meta", data=b"data"
            )
        )


@clause("RS02-SETUP-03", "RS02-CON-04")
async def test_a_client_can_ask_for_strictness(autojump_clock: object) -> None:
    async with client_that_said(RS02, strict=True) as (_, _, first):
        assert first.flags == S


@clause("RS02-SETUP-03", "RS02-CON-04")
async def test_the_strict_flag_reaches_the_application_which_may_refuse(autojump_clock: object) -> None:
    log = Log()

    @log.responder.setup
    def gate(terms: Any, connection: object) -> None:
        if terms.strict:
            raise UnsupportedSetup(b"nothing of this is known here")

    async with bare_server(RS02, log.responder) as peer:
        await peer.send(RS02.setup(flags=S))
        assert await peer.expect_failure(UNSUPPORTED_SETUP) == b"nothing of this is known here"


@clause("RS10-SETUP-03")
async def test_the_strict_flag_means_nothing_in_1_0(autojump_clock: object) -> None:
    seen = []
    responder = Responder()

    @responder.setup
    def gate(terms: Any, connection: object) -> None:
        seen.append(terms.strict)

    async with bare_server(RS10, responder) as peer:
        await peer.send(RS10.setup(flags=S))
        await peer.expect_alive()
    assert seen == [False]


@both
@clause("RS10-SETUP-02", "RS10-SETUP-05", "RS02-SETUP-05", "RS10-CON-05")
async def test_the_application_sees_the_setup_as_it_was_sent(autojump_clock: object, wire: Wire) -> None:
    seen: list[Any] = []
    responder = Responder()

    @responder.setup
    def gate(terms: Any, connection: object) -> None:
        seen.append(terms)

    async with bare_server(wire, responder) as peer:
        odd = bytes(range(128, 255)) + b"\x00"
        await peer.send(
            wire.setup(keepalive=1, lifetime=7000, metadata_mime=odd, data_mime=b"", metadata=b"", data=b"\xff")
        )
        await peer.expect_alive()
    (terms,) = seen
    assert terms.payload == Payload(b"\xff", b"")
    assert terms.metadata_mime.encode("latin-1") == odd
    assert terms.data_mime == ""
    assert (terms.keepalive_interval, terms.max_lifetime) == (0.001, 7)


@both
@clause("RS10-CON-09", "RS02-CON-03", "RS10-CON-02")
@pytest.mark.parametrize(
    ("refusal", "code", "text"),
    [
        (RejectedSetup("not you"), REJECTED_SETUP, b"not you"),
        (InvalidSetup("not so"), INVALID_SETUP, b"not so"),
        (UnsupportedSetup("not here"), UNSUPPORTED_SETUP, b"not here"),
        (RuntimeError("secret"), REJECTED_SETUP, b"internal error"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_setup_that_the_application_refuses_is_answered_and_closed(
    autojump_clock: object, wire: Wire, refusal: Exception, code: int, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()

    @log.responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(1)
        raise refusal

    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(), ask(1, b"x"), forget(3, b"y"), wire.push(b"z"))
        assert await peer.expect_failure(code) == text
    assert log.seen == []
    caplog.clear()
    refusal.__traceback__ = None


@both
@clause("RS10-CON-13", "RS02-CON-05", "RS10-CON-12")
async def test_nothing_runs_and_nothing_is_answered_while_the_application_considers_the_setup(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()

    @log.responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(3)

    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(), ask(1, b"x"), forget(3, b"y"), wire.push(b"z"))
        await peer.expect_alive()
        await peer.expect_silence(2.5)
        assert log.seen == []
        await peer.expect(payload(1, b"x", N | C))
        assert sorted(log.seen, key=str) == [("note", b"y", None), ("push", b"z"), ("request", b"x", None)]


@both
@clause("RS10-CON-05", "RS10-CON-14", "RS02-CON-06", "RS10-CON-12")
async def test_a_client_without_leases_may_ask_at_once(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer):
        await connection.fire_and_forget(b"x")
        await peer.expect(forget(1, b"x"))


REFUSALS = [
    (INVALID_SETUP, InvalidSetup),
    (UNSUPPORTED_SETUP, UnsupportedSetup),
    (REJECTED_SETUP, RejectedSetup),
    (REJECTED_RESUME, RejectedResume),
    (CONNECTION_ERROR, ConnectionLost),
]


@both
@clause("RS10-CON-12", "RS10-CON-14", "RS02-CON-06", "RS10-ERR-04")
@pytest.mark.parametrize(("code", "kind"), REFUSALS)
async def test_a_client_that_is_refused_hears_why(
    autojump_clock: object, wire: Wire, code: int, kind: type[RSocketError]
) -> None:
    async with client(wire) as (connection, peer):
        await peer.send(error(0, code, "grün".encode()))
        with pytest.raises(kind, match="grün") as caught:
            await connection.request_response(b"x")
        assert caught.value.code == code  # type: ignore[attr-defined]
        del caught
        await peer_reads_to_the_end(peer)


@both
@clause("RS10-CON-12", "RS02-CON-06")
@pytest.mark.parametrize(
    "nothing",
    [
        pytest.param((frame(METADATA_PUSH, M, 0, b"\x00\x00\x00"),), id="metadata push"),
        pytest.param((keepalive(respond=False),), id="the answer to a keepalive"),
        pytest.param((setup(),), id="SETUP"),
        pytest.param((frame(0x2A, 0x200),), id="a frame to be ignored"),
        pytest.param((ext(7, flags=0x200),), id="EXT"),
        pytest.param((resume(),), id="RESUME"),
    ],
)
async def test_what_shows_no_acceptance_leaves_the_refusal_its_meaning(
    autojump_clock: object, wire: Wire, nothing: tuple[bytes, ...]
) -> None:
    async with client(wire) as (connection, peer):
        await peer.send(*nothing, error(0, REJECTED_SETUP, b"no"))
        with pytest.raises(RejectedSetup):
            await connection.request_response(b"x")


ACCEPTED = [
    pytest.param((keepalive(respond=True),), (keepalive(respond=False),), id="keepalive"),
    pytest.param((forget(2, b"x"),), (), id="request"),
    pytest.param((payload(1, b"item"),), (), id="response"),
    pytest.param((error(1, APPLICATION_ERROR),), (), id="error on a stream"),
]


@both
@clause("RS10-CON-12", "RS10-UNX-16", "RS02-CON-06", "RS02-UNX-05")
@pytest.mark.parametrize(("sign", "answer"), ACCEPTED)
async def test_what_shows_acceptance_takes_the_refusal_its_meaning(
    autojump_clock: object, wire: Wire, sign: tuple[bytes, ...], answer: tuple[bytes, ...]
) -> None:
    responder = Log().responder
    async with client(wire, responder) as (connection, peer), connection.request_stream(b"s", initial_request_n=5):
        await peer.expect(stream(1, 5, b"s"))
        await peer.send(*sign, error(0, REJECTED_SETUP, b"too late"))
        await peer.expect(*answer)
        await peer.expect_alive()


@both
@clause("RS10-GEN-03", "RS02-GEN-04", "RS10-CON-08", "RS10-SID-03", "RS10-SID-04", "RS02-SID-03")
async def test_both_sides_ask_on_one_connection(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    answers = []

    @log.responder.request_response("unused")
    async def unused(request: Payload) -> Payload:
        return request

    @log.responder.fire_and_forget("unused")
    async def also_unused(request: Payload) -> None: ...

    @log.responder.setup
    async def gate(terms: object, connection: Any) -> None:
        connection.state.ready = True

    @log.responder.extension(77)
    def call_back(stream_id: int, body: bytes) -> None:
        trio.lowlevel.spawn_system_task(ask_back, current_connection())

    async def ask_back(connection: Any) -> None:
        for _ in range(3):
            answers.append((await connection.request_response(b"q")).data)

    async with server(wire, log.responder) as peer:
        await peer.send(ext(77), ask(1, b"x"))
        got = {await peer.receive(), await peer.receive()}
        assert got == {parsed(ask(2, b"q")), parsed(payload(1, b"x", N | C))}
        for number in (2, 4, 6):
            await peer.send(payload(number, b"%d" % number, N | C))
            if number < 6:
                await peer.expect(ask(number + 2, b"q"))
        await settle()
        assert answers == [b"2", b"4", b"6"]


@both
@clause("RS10-SID-03", "RS02-SID-03")
async def test_a_client_counts_its_streams_in_odd_numbers_from_one(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer):
        for number in (1, 3, 5):
            await connection.fire_and_forget(b"x")
            await peer.expect(forget(number, b"x"))


@both
@clause("RS10-RSM-01", "RS02-RSM-01", "RS10-SETUP-07", "RS02-SETUP-07")
async def test_a_client_does_not_ask_for_resumption_by_itself(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(wire) as (_, _, first):
        assert first.flags == 0


@clause("RS10-GEN-04", "RS02-GEN-03", "RS10-SETUP-08", "RS02-CON-07")
async def test_a_server_of_both_dialects_speaks_the_one_that_the_client_names(autojump_clock: object) -> None:
    for wire, metadata in ((RS10, b"m"), (RS02, sized(b"m"))):
        log = Log()
        async with bare_server(wire, log.responder, dialects=[RS10.name, RS02.name]) as peer:
            await peer.send(wire.setup(), frame(METADATA_PUSH, M, 0, metadata))
            await peer.expect_alive()
            assert log.seen == [("push", b"m")]


@both
@clause("RS10-TRN-02", "RS02-TRN-02")
async def test_after_the_error_that_ends_a_connection_nothing_has_effect(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(frame(0x2A), ask(1, b"x"), keepalive(b"x"), forget(3, b"y"), wire.push(b"z"))
        await peer.expect_error(0, CONNECTION_ERROR)
        await peer.send(ask(5, b"x"), keepalive(b"x"))
        await peer.expect_end()
    assert log.seen == []


@both
@clause("RS10-TRN-02", "RS02-TRN-02", "ALL-RCT-05", "RS10-FRM-05")
async def test_a_frame_above_the_limit_is_refused_from_its_length_alone(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder, limits=Limits(frame_size=1000)) as peer:
        await peer.send(ask(1, bytes(994)))
        await peer.expect(payload(1, bytes(994), N | C))
        await peer.send_bytes((1001).to_bytes(3, "big"))
        await peer.expect_failure(CONNECTION_ERROR)


# Metadata push, extensions, priorities


@both
@clause("RS10-MP-01", "RS02-MP-01", "RS02-MD-04", "RS10-MD-04")
async def test_metadata_push_goes_both_ways(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(wire.push(b"hello"), wire.push(b""))
        await peer.expect_alive()
        assert log.seen == [("push", b"hello"), ("push", b"")]
    async with client(wire) as (connection, peer):
        await connection.metadata_push(b"hello")
        await peer.expect(wire.push(b"hello"))


@clause("RS10-MP-02")
async def test_metadata_push_without_its_flag_is_metadata_all_the_same(autojump_clock: object) -> None:
    log = Log()
    async with server(RS10, log.responder) as peer:
        await peer.send(frame(METADATA_PUSH, 0, 0, b"hello"))
        await peer.expect_alive()
    assert log.seen == [("push", b"hello")]


@both
@clause("RS10-EXT-02", "RS02-EXT-01")
async def test_an_extension_that_is_known_is_handed_over_as_it_is(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.extension(0x7FFFFFFF)
    def take(stream_id: int, body: bytes) -> None:
        log.seen.append((stream_id, body))

    async with server(wire, log.responder) as peer:
        await peer.send(ext(0x7FFFFFFF, sized(b"m") + b"x", flags=M), ext(0xFFFFFFFF, b"", stream_id=8))
        await peer.expect_alive()
    assert log.seen == [(0, sized(b"m") + b"x"), (8, b"")]


@both
@clause("RS10-QOS-01")
async def test_keepalive_is_answered_while_a_large_item_is_written_in_fragments(
    autojump_clock: object, wire: Wire
) -> None:
    size = 4_000_000
    log = Log()
    async with slow_server(wire, log.responder, fragment_size=65536) as peer:
        await peer.send(wire.setup(), ask(1, b"x" * 1_000_000, F))
        for _ in range(2):
            await peer.send(payload(1, b"x" * 1_000_000, N | F))
        await peer.send(payload(1, b"x" * 1_000_000))
        total = len((await peer.receive()).body)
        await peer.send(keepalive(b"k"))
        before = 0
        while total < size:
            got = await peer.receive()
            if got.type == KEEPALIVE:
                before = total
            else:
                total += len(got.body)
        assert 0 < before < size / 2


@both
@clause("RS10-RSM-20", "RS02-RSM-19", "RS10-RSM-17")
async def test_a_resume_while_the_setup_is_considered_ends_the_connection(autojump_clock: object, wire: Wire) -> None:
    responder = Responder()

    @responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep_forever()

    async with bare_server(wire, responder) as peer:
        await peer.send(wire.setup(), resume(wire.version))
        await peer.expect_failure(CONNECTION_ERROR)


@both
@clause("RS10-ERR-07", "RS10-ERR-05", "RS02-ERR-05")
async def test_a_rejected_request_reached_no_handler_and_raises_rejected(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer), trio.open_nursery() as nursery:

        async def request() -> None:
            with pytest.raises(Rejected, match="no"):
                await connection.request_response(b"x")

        nursery.start_soon(request)
        await peer.receive()
        await peer.send(error(1, REJECTED, b"no"))


async def peer_reads_to_the_end(peer: RawPeer) -> None:
    with trio.fail_after(5):
        while await peer.stream.receive_some():
            pass
