"""Sessions that outlive their transports: RSocket 1.0, and 0.2 where it says the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio

from rsocket_trio import (
    ConnectionClosed,
    ConnectionLost,
    Keepalive,
    Lease,
    RejectedResume,
    RejectedSetup,
    Responder,
    ResumeOptions,
    RSocketError,
)
from tests.conformance.raw import (
    APPLICATION_ERROR,
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    INVALID_SETUP,
    KEEPALIVE,
    REJECTED_RESUME,
    REJECTED_SETUP,
    REQUEST_N,
    RESUME,
    RS02,
    RS10,
    C,
    F,
    I,
    L,
    Log,
    N,
    R,
    Raw,
    Wire,
    ask,
    both,
    cancel,
    channel,
    complete,
    error,
    ext,
    forget,
    frame,
    keepalive,
    lease,
    parsed,
    payload,
    request_n,
    settle,
    stream,
)
from tests.conformance.resuming import (
    OPTIONS,
    TOKEN,
    Harbour,
    Side,
    begin,
    client,
    come_back,
    cut,
    expect_refused,
    position_of,
    resume,
    resume_ok,
    server,
)

clause = pytest.mark.clause

TICK = 12
"""Bytes of the frame of one tick."""
STREAM = 10
"""Bytes of the request that asks for them."""


def tick(number: int) -> bytes:
    return payload(1, b"tick %d" % number)


def with_options(**changes: Any) -> ResumeOptions:
    return attrs.evolve(OPTIONS, **changes)


# A server: the session goes on


@both
@clause("RS10-RSM-03", "RS10-RSM-14", "RS10-RSM-15", "RS10-RSM-06", "RS10-CON-02", "RS10-SETUP-07")
@clause("RS02-RSM-04", "RS02-RSM-13", "RS02-RSM-14", "RS02-RSM-24", "RS02-RSM-02", "RS02-SETUP-07")
@pytest.mark.parametrize("got", [0, 1, 2, 3])
async def test_a_server_sends_again_exactly_what_is_missing_and_goes_on(
    autojump_clock: object, wire: Wire, got: int
) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 3))
        await peer.expect(*map(tick, range(3)))
        await cut(peer)
        peer = await come_back(harbour, wire, got=got * TICK, sent=STREAM)
        await peer.expect(*map(tick, range(got, 3)))
        await peer.send(request_n(1, 2))
        await peer.expect(tick(3), tick(4))
        assert await position_of(peer) == STREAM + 10
    assert log.seen == [("stream", b"", None), "stopped"]


@both
@clause("RS10-RSM-14", "RS10-RSM-15", "RS02-RSM-13", "RS02-RSM-14")
async def test_what_a_client_sends_again_is_taken_once_and_what_was_lost_is_taken_then(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(channel(1, 5, b"hi"))
        await peer.expect(request_n(1, 4))
        await peer.send(payload(1, b"one"))
        await peer.send_bytes((9).to_bytes(3, "big") + payload(1, b"two")[:8])  # half a frame
        await settle()
        await cut(peer)
        peer = await come_back(harbour, wire, got=10, sent=12 + 9)
        await peer.send(payload(1, b"two"), payload(1, b"back"))
        while (got := await peer.receive()).type == REQUEST_N:
            pass
        assert got == parsed(payload(1, b"back"))
    assert log.seen[:4] == [("channel", b"hi"), ("item", b"one"), ("item", b"two"), ("item", b"back")]


@both
@clause("RS10-RSM-15", "RS02-RSM-14", "RS10-RSM-04")
async def test_fragments_are_sent_again_as_they_were(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder, fragment_size=64) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(ask(1, bytes(100)))
        first = await peer.receive()
        rest = await peer.receive()
        assert (first.flags & F, len(first.body), rest.flags & C, len(rest.body)) == (F, 58, C, 42)
        await cut(peer)
        peer = await come_back(harbour, wire, got=64, sent=106)
        assert await peer.receive() == rest
        assert await position_of(peer) == 106


@both
@clause("RS10-RSM-15", "RS02-RSM-14")
async def test_what_happened_while_there_was_no_transport_is_sent_behind_what_was_lost(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()

    @log.responder.setup
    async def meet(terms: Any, connection: Any) -> None:
        log.seen.append(connection)

    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        connection: Any = log.seen.pop()
        await connection.fire_and_forget(b"seen")
        await peer.expect(forget(2, b"seen"))
        await connection.fire_and_forget(b"lost")
        await settle()
        await cut(peer)
        assert connection.status == "suspended"
        await connection.fire_and_forget(b"later")
        peer = await come_back(harbour, wire, got=10, sent=0)
        await peer.expect(forget(4, b"lost"), forget(6, b"later"))
        assert connection.status == "open"
        del connection
        log.seen.clear()


@both
@clause("RS10-RSM-24", "RS02-RSM-18", "RS10-RSM-11", "RS02-RSM-11")
async def test_a_resume_can_be_repeated_when_its_answer_was_lost(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 2))
        await peer.expect(tick(0), tick(1))
        await cut(peer)
        for _ in range(3):
            peer = await harbour.peer()
            await peer.send(resume(wire, got=TICK))
            await cut(peer)
        peer = await come_back(harbour, wire, got=TICK, sent=STREAM)
        await peer.expect(tick(1))
        await peer.send(request_n(1, 1))
        await peer.expect(tick(2))


@both
@clause("RS10-RSM-02", "RS02-RSM-03")
async def test_the_application_sees_one_connection_with_its_first_setup(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.setup
    def gate(terms: Any, connection: Any) -> None:
        log.seen.append((terms.dialect, terms.data_mime, terms.resume))

    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire, data_mime=b"a/b")
        await peer.expect_alive()
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=0)
        await peer.expect_alive()
    assert log.seen == [(wire.name, "a/b", True)]


# A server: which frames count


@both
@clause("RS10-RSM-04", "RS10-RSM-05", "RS10-RSM-06", "RS02-RSM-05", "RS02-RSM-06", "RS02-RSM-07")
async def test_positions_count_the_bytes_of_tracked_frames_without_their_length(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()

    @log.responder.extension(7)
    def extended(stream_id: int, body: bytes) -> None: ...

    untracked = [
        (keepalive(b"x" * 9, respond=False), 0),
        (wire.push(b"push"), 0),
        (ext(7, b"on the connection"), 0),
        (ext(7, b"on a stream", stream_id=1), 0),
        (lease(1000, 1), 0),
        (frame(0x2A, I, 1, b"of a type that is not known"), 0),
    ]
    counted = [
        (ask(1, b"wait"), 10),
        (forget(3, b"note"), 10),
        (stream(5, 1, b"0"), 11),
        (channel(7, 1, b"stay"), 14),
        (request_n(5, 3), 10),
        (payload(7, b"item"), 10),
        (frame(0x0A, N | 0x100, 7, b"\x00\x00\x01md"), 11),
        (cancel(1), 6),
        (error(7, APPLICATION_ERROR, b"no"), 12),
        (payload(7, b"late"), 10),
        (cancel(99), 6),
    ]
    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        total = 0
        for one, size in [*untracked, *counted, *untracked]:
            await peer.send(one)
            await settle()
            total += size
            await cut(peer)
            peer = await harbour.peer()
            await peer.send(resume(wire))
            await peer.expect(resume_ok(total))


@both
@clause("RS10-RSM-22", "RS02-RSM-21", "RS02-KA-04", "RS10-RSM-06", "RS02-KA-05")
async def test_keepalives_say_how_far_a_server_got(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(keepalive(b"?"), forget(1, b"note"))
        await peer.send(keepalive(b"!"))
        got = [await peer.receive(), await peer.receive()]
        assert [one.body[8:] for one in got] == [b"?", b"!"]
        assert got[1] == parsed(keepalive(b"!", respond=False, position=10))


# A server: what it refuses


@both
@clause("RS10-RSM-18", "RS02-RSM-17", "RS10-RSM-09", "RS02-RSM-09")
@pytest.mark.parametrize("token", [b"", b"nobody's", bytes(65535)], ids=len)
async def test_an_unknown_token_is_refused(autojump_clock: object, wire: Wire, token: bytes) -> None:
    async with server(wire, Log().responder) as harbour:
        await expect_refused(harbour, resume(wire, token))


@both
@clause("RS10-RSM-02", "RS02-RSM-24", "RS02-RSM-03")
@pytest.mark.parametrize("version", [(1, 1), (0, 0), (0, 2), (1, 0), (2, 0)])
async def test_a_resume_of_another_version_than_the_sessions_is_refused(
    autojump_clock: object, wire: Wire, version: tuple[int, int]
) -> None:
    if version == wire.version:
        version = (7, 7)
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        await cut(peer)
        await expect_refused(harbour, resume(wire._replace(version=version)))


@both
@clause("RS10-RSM-02", "RS02-RSM-24", "RS02-RSM-03")
async def test_a_session_is_that_of_its_own_dialect_where_several_are_served(
    autojump_clock: object, wire: Wire
) -> None:
    other = RS02 if wire is RS10 else RS10
    async with server(wire, Log().responder, dialects=[RS10.name, RS02.name]) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=0)
        await peer.expect_alive()
        await cut(peer)
        await expect_refused(harbour, resume(other))


@clause("RS10-RSM-02", "RS10-RES-01")
@pytest.mark.parametrize("dialects", [[RS10.name], [RS10.name, RS02.name]])
async def test_a_resume_whose_version_is_swapped_is_understood(autojump_clock: object, dialects: list[str]) -> None:
    async with server(RS10, Log().responder, dialects=dialects) as harbour:
        peer = await begin(harbour, RS10)
        await peer.expect_alive()
        await cut(peer)
        peer = await harbour.peer()
        await peer.send(resume(RS10._replace(version=(0, 1))))
        await peer.expect(resume_ok(0))
        await peer.expect_alive()


POSITIONS = [
    pytest.param(3 * TICK + 1, 0, id="ahead of us"),
    pytest.param(2**63 - 1, 0, id="far ahead of us"),
    pytest.param(0, 0, id="trimmed already"),
    pytest.param(TICK + 1, 0, id="inside a frame"),
    pytest.param(TICK, STREAM + 1, id="the client keeps too little"),
]


@both
@clause("RS10-RSM-19", "RS02-RSM-18", "RS10-RSM-09", "RS10-RSM-22")
@pytest.mark.parametrize(("got", "first"), POSITIONS)
async def test_positions_that_cannot_be_served_are_refused_and_end_the_session(
    autojump_clock: object, wire: Wire, got: int, first: int
) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 3))
        await peer.expect(*map(tick, range(3)))
        await peer.send(keepalive(respond=False, position=TICK))
        await settle()
        await cut(peer)
        assert log.seen == [("stream", b"", None)]
        await expect_refused(harbour, resume(wire, got=got, first=first))
        assert log.seen == [("stream", b"", None), "stopped"]
        assert b"unknown" in await expect_refused(harbour, resume(wire, got=TICK))


@both
@clause("RS10-RSM-19", "RS02-RSM-18")
async def test_whoever_asks_for_what_cannot_be_leaves_a_connected_session_alone(
    autojump_clock: object, wire: Wire
) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 1))
        await peer.expect(tick(0))
        await expect_refused(harbour, resume(wire, got=5))
        await peer.send(request_n(1, 1))
        await peer.expect(tick(1))


@both
@clause("RS10-RSM-22", "RS02-RSM-21")
@pytest.mark.parametrize("position", [TICK, TICK - 1, 0, 3 * TICK + 1, 2**63 - 1])
async def test_a_position_that_says_nothing_new_is_ignored(autojump_clock: object, wire: Wire, position: int) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 3))
        await peer.expect(*map(tick, range(3)))
        await peer.send(keepalive(respond=False, position=TICK), keepalive(respond=False, position=position))
        await settle()
        await cut(peer)
        peer = await come_back(harbour, wire, got=TICK, sent=STREAM)
        await peer.expect(tick(1), tick(2))


@both
@clause("RS10-RSM-20", "RS02-RSM-19", "RS10-RSM-09")
async def test_a_resume_after_setup_breaks_the_protocol(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        await peer.send(resume(wire))
        await peer.expect_failure(CONNECTION_ERROR)
        await expect_refused(harbour, resume(wire))


@both
@clause("RS10-RSM-20", "RS02-RSM-19")
async def test_a_resume_after_resume_breaks_the_protocol(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=0)
        await peer.send(resume(wire))
        await peer.expect_failure(CONNECTION_ERROR)
        await expect_refused(harbour, resume(wire))


@both
@clause("ALL-RCT-04", "RS10-CON-02", "RS02-CON-01")
@pytest.mark.parametrize("broken", ["cut short", "token longer than the frame", "on a stream"])
async def test_a_resume_that_is_none_is_no_way_to_begin(autojump_clock: object, wire: Wire, broken: str) -> None:
    first = {
        "cut short": resume(wire)[:-1],
        "token longer than the frame": resume(wire)[:10] + b"\xff\xff" + resume(wire)[12:],
        "on a stream": resume(wire, stream_id=1),
    }[broken]
    async with server(wire, Log().responder) as harbour:
        rightful = await begin(harbour, wire)
        await rightful.expect_alive()
        peer = await harbour.peer()
        await peer.send(first)
        await peer.expect_failure(INVALID_SETUP)
        await rightful.expect_alive()


@both
@clause("RS10-UNX-14", "RS10-UNX-17")
async def test_a_setup_on_a_resumed_session_means_nothing(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=0)
        await peer.send(wire.setup(token=TOKEN))
        await peer.expect_alive()


@both
@clause("RS10-RSM-23", "RS02-RSM-22")
async def test_a_token_in_use_is_not_taken_for_another_session(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        rightful = await begin(harbour, wire)
        await rightful.expect_alive()
        for _ in range(2):
            other = await begin(harbour, wire)
            await other.expect_failure(REJECTED_SETUP)
            await rightful.expect_alive()
            await cut(rightful)
            other = await begin(harbour, wire)
            await other.expect_failure(REJECTED_SETUP)
            rightful = await come_back(harbour, wire, got=0, sent=0)
        await rightful.send(error(0, CONNECTION_CLOSE))
        await cut(rightful)
        other = await begin(harbour, wire)
        await other.expect_alive()


@both
@clause("RS10-RSM-23", "RS02-RSM-22", "RS02-SETUP-06")
@pytest.mark.parametrize("token", [b"", b"x", bytes(range(256)) * 255 + bytes(255)], ids=len)
async def test_a_token_is_any_bytes(autojump_clock: object, wire: Wire, token: bytes) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire, token)
        await peer.expect_alive()
        await cut(peer)
        peer = await harbour.peer()
        await peer.send(resume(wire, token))
        await peer.expect(resume_ok(0))


# A server: transports of one session


@both
@clause("RS10-RSM-24", "RS02-RSM-23")
async def test_a_resume_replaces_a_transport_that_is_still_open(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        old = await begin(harbour, wire)
        await old.send(stream(1, 2))
        await old.expect(tick(0), tick(1))
        new = await come_back(harbour, wire, got=TICK, sent=STREAM)
        await old.expect_end()
        await new.expect(tick(1))
        await new.send(request_n(1, 1))
        await new.expect(tick(2))


@both
@clause("RS10-RSM-24", "RS02-RSM-23", "RS10-RSM-15", "RS02-RSM-14")
async def test_what_the_old_transport_brings_as_the_new_one_comes_counts_once(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        for turn in range(40):
            token = b"%d" % turn
            old = await begin(harbour, wire, token)
            new = await harbour.peer()
            await settle()
            note = forget(1, b"note")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(old.send, note)
                nursery.start_soon(new.send, resume(wire, token))
            got = await new.receive()
            assert got in (parsed(resume_ok(0)), parsed(resume_ok(len(note))))
            if got == parsed(resume_ok(0)):
                await new.send(note)
            assert await position_of(new) == len(note)
            await settle()
            assert log.seen == [("note", b"note", None)]
            log.seen.clear()


@both
@clause("RS10-RSM-24", "RS02-RSM-23")
@pytest.mark.parametrize("suspended", [False, True])
async def test_of_two_clients_with_one_token_at_once_one_goes_on(
    autojump_clock: object, wire: Wire, suspended: bool
) -> None:
    async with server(wire, Log().responder) as harbour:
        first = await begin(harbour, wire)
        await first.send(stream(1, 1))
        await first.expect(tick(0))
        if suspended:
            await cut(first)
        one, other = await harbour.peer(), await harbour.peer()
        await one.send(resume(wire))
        await other.send(resume(wire))
        await settle()
        alive = []
        for peer in (one, other):
            try:
                await peer.expect(resume_ok(STREAM), tick(0))
                await peer.send(request_n(1, 1))
                await peer.expect(tick(1))
                alive.append(peer)
            except (AssertionError, trio.BrokenResourceError):
                await trio.aclose_forcefully(peer.stream)
        (winner,) = alive
        assert await position_of(winner) == STREAM + 10


@both
@clause("RS10-RSM-08", "RS02-RSM-08", "RS10-RSM-23")
async def test_a_session_waits_for_its_time_and_is_forgotten_then(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder, with_options(session_seconds=30)) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(ask(1, b"wait"))
        for _ in range(3):
            await settle()
            await cut(peer)
            await trio.sleep(29)
            peer = await come_back(harbour, wire, got=0, sent=10)
            await trio.sleep(29)
        await cut(peer)
        await trio.sleep(29)
        assert log.seen == [("request", b"wait", None)]
        await trio.sleep(2)
        assert log.seen == [("request", b"wait", None), "cancelled"]
        unknown = await expect_refused(harbour, resume(wire, b"never known"))
        assert await expect_refused(harbour, resume(wire)) == unknown


@both
@clause("RS10-RSM-08", "RS02-RSM-08")
async def test_a_token_is_unknown_as_soon_as_its_session_is_over(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.fire_and_forget("slow")
    async def slow(request: Any) -> None:
        log.seen.append("slow")
        await trio.sleep(0.9)

    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(ask(1, b"wait"))
        await settle()
        await peer.send(error(0, CONNECTION_ERROR, b"enough"))
        await settle()
        await expect_refused(harbour, resume(wire))
    assert log.seen == [("request", b"wait", None), "cancelled"]


@both
@clause("RS10-RSM-01", "RS02-RSM-01")
async def test_a_client_that_does_not_ask_for_resumption_has_none(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        peer = await harbour.peer()
        await peer.send(wire.setup(), ask(1, b"wait"))
        await peer.expect_alive()
        await cut(peer)
        assert log.seen == [("request", b"wait", None), "cancelled"]


@both
@clause("RS10-RSM-01", "RS02-RSM-01", "RS10-SETUP-07", "RS02-SETUP-07", "RS10-RSM-17", "RS02-RSM-16")
async def test_a_server_without_resumption_refuses_it(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder, None) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_failure(REJECTED_SETUP)
        await expect_refused(harbour, resume(wire))


@both
@clause("RS10-RSM-16", "RS02-RSM-15")
@pytest.mark.parametrize("code", [CONNECTION_ERROR, CONNECTION_CLOSE])
async def test_a_client_that_gives_up_after_its_answer_cannot_come_back(
    autojump_clock: object, wire: Wire, code: int
) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(ask(1, b"wait"))
        await settle()
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=10)
        await peer.send(error(0, code, b"I can't go on"))
        await cut(peer)
        assert log.seen == [("request", b"wait", None), "cancelled"]
        await expect_refused(harbour, resume(wire))


@both
@clause("RS10-RSM-25", "RS10-RSM-08")
async def test_of_too_many_sessions_the_one_that_waits_longest_ends(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder, with_options(sessions=2)) as harbour:
        connected = await begin(harbour, wire, b"connected")
        await connected.expect_alive()
        tokens = [b"1", b"2", b"3", b"4"]
        for token in tokens:
            peer = await begin(harbour, wire, token)
            await peer.expect_alive()
            await cut(peer)
            await trio.sleep(1)
        for token in tokens[:2]:
            await expect_refused(harbour, resume(wire, token))
        for token in tokens[2:]:
            peer = await harbour.peer()
            await peer.send(resume(wire, token))
            await peer.expect(resume_ok(0))
        await connected.expect_alive()


@both
@clause("RS10-RSM-25")
async def test_sessions_that_wait_with_too_many_bytes_end_from_the_oldest_on(
    autojump_clock: object, wire: Wire
) -> None:
    options = with_options(sessions_bytes=2500)
    async with server(wire, Log().responder, options) as harbour:
        tokens = [b"1", b"2", b"3"]
        for token in tokens:
            peer = await begin(harbour, wire, token)
            await peer.send(ask(1, bytes(994)))
            await peer.expect(payload(1, bytes(994), N | C))
            await cut(peer)
        await expect_refused(harbour, resume(wire, b"1"))
        for token in tokens[1:]:
            peer = await harbour.peer()
            await peer.send(resume(wire, token, got=1000))
            await peer.expect(resume_ok(1000))


@both
@clause("RS10-RSM-25")
async def test_what_sessions_queue_while_they_wait_is_bounded_as_well(autojump_clock: object, wire: Wire) -> None:
    responder = Responder()

    @responder.request_stream
    async def big(request: Any) -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(0.1)
            yield bytes(10_000)

    async with server(wire, responder, with_options(sessions_bytes=200_000)) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 300))
        await peer.receive()
        await cut(peer)
        await trio.sleep(40)
        await expect_refused(harbour, resume(wire, got=10_006))


@both
@clause("RS10-RSM-25", "RS10-RSM-22", "RS02-RSM-21")
async def test_a_full_store_asks_and_then_waits_until_it_is_told(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder, with_options(store_bytes=1024), fragment_size=1024) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 10_000))
        seen: list[Raw] = []
        asked = 0
        for _ in range(5):
            kept = sum(6 + len(got.body) for got in seen)
            while True:
                with trio.move_on_after(1):
                    got = await peer.receive()
                    if got.type == KEEPALIVE:
                        assert got.flags == R
                        asked += 1
                    else:
                        seen.append(got)
                    continue
                break
            total = sum(6 + len(got.body) for got in seen)
            assert 1024 - 16 < total - kept <= 1024
            await peer.expect_silence(3)
            await peer.send(keepalive(respond=False, position=total))
        assert asked == 5
        assert [got.body for got in seen] == [b"tick %d" % number for number in range(len(seen))]


# A server: leases


@both
@clause("RS10-RSM-21", "RS02-RSM-20", "RS02-RSM-03")
async def test_a_lease_begins_anew_with_one_of_the_servers(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        yield Lease(3, 60)
        await trio.sleep_forever()

    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire, flags=L)
        await peer.expect(lease(60_000, 3))
        await peer.send(ask(1, b"x"))
        await peer.expect(payload(1, b"x", N | C))
        await cut(peer)
        await trio.sleep(10)
        peer = await come_back(harbour, wire, got=7, sent=7)
        await peer.expect(lease(50_000, 2))
        await peer.send(ask(3, b"y"), ask(5, b"z"))
        await peer.expect_in_any_order(payload(3, b"y", N | C), payload(5, b"z", N | C))


# A client: what it asks


@both
@clause("RS10-RSM-11", "RS02-RSM-11", "RS02-RSM-04", "RS10-RSM-03", "RS02-RES-01", "RS10-RES-01", "RS02-RES-03")
async def test_a_client_resumes_with_its_token_and_its_positions(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side:
        assert len(side.token) == 16
        await side.connection.fire_and_forget(b"lost")
        peer = await side.resumed(got=0, sent=0)
        await peer.expect(forget(1, b"lost"))
        await peer.send(forget(2, b"a request of ours"))
        await settle()
        peer = await side.resumed(got=23, sent=10)
        await side.connection.fire_and_forget(b"new")
        await peer.expect(forget(3, b"new"))
        peer = await side.lost()
        assert (await peer.receive()).flags == 0  # it may not be ignored


@both
@clause("RS10-RSM-23", "RS02-RSM-22")
async def test_tokens_cannot_be_guessed(autojump_clock: object, wire: Wire) -> None:
    tokens = set()
    for _ in range(20):
        async with client(wire) as side:
            tokens.add(side.token)
    assert {len(token) for token in tokens} == {16}
    assert len(tokens) == 20
    for place in range(16):
        assert len({token[place] for token in tokens}) > 5


@both
@clause("RS10-RSM-10", "RS10-RSM-12", "RS02-RSM-10")
async def test_a_client_says_nothing_but_resume_until_it_is_answered(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(0.5, 2), options=with_options(answer_seconds=60)) as side:
        await side.connection.fire_and_forget(b"before")
        peer = await side.asked(got=0)
        await side.connection.fire_and_forget(b"meanwhile")
        await peer.expect_silence(30)
        await peer.send(resume_ok(0))
        await peer.expect(forget(1, b"before"), forget(3, b"meanwhile"))


@both
@clause("RS10-RSM-14", "RS10-RSM-15", "RS02-RSM-13", "RS02-RSM-14", "RS02-SID-07")
@pytest.mark.parametrize("got", [0, 1, 2, 3])
async def test_a_client_sends_again_exactly_what_is_missing(autojump_clock: object, wire: Wire, got: int) -> None:
    frames = [forget(1, b"1"), forget(3, b"22"), forget(5, b"333")]
    async with client(wire) as side:
        for text in (b"1", b"22", b"333"):
            await side.connection.fire_and_forget(text)
        await side.peer.expect(*frames)
        peer = await side.resumed(got=0, sent=sum(map(len, frames[:got])))
        await peer.expect(*frames[got:])
        await side.connection.fire_and_forget(b"next")
        await peer.expect(forget(7, b"next"))


@both
@clause("RS10-RSM-15", "RS02-RSM-14", "RS02-RSM-06")
async def test_credit_and_cancels_are_sent_again(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side:
        async with side.connection.request_stream(b"s", initial_request_n=2, refill=False) as items:
            await side.peer.expect(stream(1, 2, b"s"))
            items.request_n(5)
            await side.peer.expect(request_n(1, 5))
        await side.peer.expect(cancel(1))
        peer = await side.resumed(got=0, sent=11)
        await peer.expect(request_n(1, 5), cancel(1))


@both
@clause("RS10-RSM-15", "RS02-RSM-13", "RS10-RSM-24")
async def test_a_stream_goes_on_where_it_was_whatever_the_server_sends_again(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as side, side.connection.request_stream(b"s", initial_request_n=9) as items:
        await side.peer.expect(stream(1, 9, b"s"))
        await side.peer.send(payload(1, b"0"), payload(1, b"1"))
        await side.peer.send_bytes(b"\x00\x00\x07" + payload(1, b"2")[:3])
        await settle()
        peer = await side.resumed(got=14, sent=11)
        await peer.send(payload(1, b"2"), complete(1))
        assert [item.data async for item in items] == [b"0", b"1", b"2"]


@both
@clause("RS10-RSM-22", "RS02-RSM-21", "RS10-RSM-11")
async def test_a_client_does_not_keep_what_a_keepalive_confirms(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(1, 100)) as side:
        for text in (b"1", b"22", b"333"):
            await side.connection.fire_and_forget(text)
        await side.peer.expect(forget(1, b"1"), forget(3, b"22"), forget(5, b"333"))
        await side.peer.send(forget(2, b"x"))
        await side.peer.expect(keepalive(position=7))
        await side.peer.send(keepalive(respond=False, position=7))
        for position in (8, 3, 1000):  # inside a frame, old, never reached
            await side.peer.send(keepalive(respond=True, position=position))
            await side.peer.expect(keepalive(respond=False, position=7))
        peer = await side.resumed(got=7, first=7, sent=15)
        await peer.expect(forget(5, b"333"))


# A client: answers


@both
@clause("RS10-RSM-13", "RS02-RSM-12", "RS10-RSM-12", "RS10-RSM-09", "RS02-RSM-09")
@pytest.mark.parametrize(
    ("code", "kind"), [(REJECTED_RESUME, RejectedResume), (CONNECTION_ERROR, ConnectionLost), (0x3FF, ConnectionLost)]
)
async def test_a_refusal_ends_it_and_is_not_tried_again(
    autojump_clock: object, wire: Wire, code: int, kind: type[RSocketError]
) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        await peer.send(error(0, code, b"no way back"))
        await peer.expect_end()
        await settle()
        assert [type(one) for one in outcome] == [kind]
        assert "no way back" in str(outcome[0])
        assert side.connection.status == "closed"
        await side.harbour.expect_nobody(300)
        with pytest.raises(kind):
            await side.connection.fire_and_forget(b"more")


class waiting:  # noqa: N801
    """A request that waits for its answer for as long as the block; the list gets what became of it."""

    def __init__(self, side: Side) -> None:
        self._connection = side.connection
        self._peer = side.peer
        self.outcome: list[object] = []

    async def __aenter__(self) -> list[object]:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._ask)
        await self._peer.expect(ask(1, b"q"))
        return self.outcome

    async def __aexit__(self, *error: Any) -> None:
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(*error)

    async def _ask(self) -> None:
        try:
            self.outcome.append((await self._connection.request_response(b"q")).data)
        except RSocketError as error:
            self.outcome.append(error)


@both
@clause("RS10-RSM-24", "RS02-RSM-25", "RS10-RSM-16", "RS02-RSM-15")
@pytest.mark.parametrize("sent", [6, 3, 8, 14, 2**63 - 1])
async def test_an_answer_that_cannot_be_gone_on_from_ends_it(autojump_clock: object, wire: Wire, sent: int) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        await side.connection.fire_and_forget(b"")
        await side.peer.expect(forget(3))
        await side.peer.send(keepalive(position=7))
        await side.peer.expect(keepalive(respond=False))
        peer = await side.asked(got=0, first=7)
        await peer.send(resume_ok(sent))
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(2)
        assert [type(one) for one in outcome] == [ConnectionLost]
        assert f"{sent}" in str(outcome[0])
        await side.harbour.expect_nobody(300)


@both
@clause("RS10-RSM-12", "RS10-RSM-24")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(keepalive(), id="KEEPALIVE"),
        pytest.param(payload(1, b"x", N | C), id="PAYLOAD"),
        pytest.param(frame(0x0E, 0, 0, bytes(7)), id="RESUME_OK cut short"),
        pytest.param(frame(0x0E, 0, 1, bytes(8)), id="RESUME_OK on a stream"),
        pytest.param(frame(RESUME, 0, 0, bytes(22)), id="RESUME"),
        pytest.param(error(1, APPLICATION_ERROR), id="ERROR on a stream"),
        pytest.param(frame(0x2A), id="an unknown type"),
    ],
)
async def test_anything_else_than_an_answer_breaks_the_protocol(
    autojump_clock: object, wire: Wire, answer: bytes
) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        await peer.send(answer)
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(2)
        assert [type(one) for one in outcome] == [ConnectionLost]
        await side.harbour.expect_nobody(300)


@both
@clause("RS10-RSM-24", "RS02-RSM-26")
async def test_a_client_that_gets_no_answer_tries_again(autojump_clock: object, wire: Wire) -> None:
    options = with_options(answer_seconds=3, first_delay=1, longest_delay=4)
    async with client(wire, options=options) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        waited = []
        for _ in range(4):
            began = trio.current_time()
            await peer.expect_silence(2.9)
            await peer.expect_end()
            assert trio.current_time() - began == pytest.approx(3)
            peer = await side.asked(got=0)
            waited.append(round(trio.current_time() - began - 3))
        assert waited == [2, 4, 4, 4]
        await peer.send(resume_ok(7), payload(1, b"answer", N | C))
        await settle()
        assert outcome == [b"answer"]


@both
@clause("RS10-RSM-24", "RS02-RSM-26", "RS02-RSM-08")
@pytest.mark.parametrize("dead", ["no answer", "nobody there", "closed at once"])
async def test_a_client_tries_until_the_time_of_its_session_is_over(
    autojump_clock: object, wire: Wire, dead: str
) -> None:
    options = with_options(session_seconds=40)
    async with client(wire, options=options) as side, waiting(side) as outcome:
        side.harbour.closed = dead == "nobody there"
        await cut(side.peer)

        async def accept() -> None:
            while dead != "nobody there":
                stream = await side.harbour.accept()
                if dead == "closed at once":
                    await trio.aclose_forcefully(stream)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await trio.sleep(39)
            assert outcome == []
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert [type(one) for one in outcome] == [ConnectionLost]
        assert "40 s" in str(outcome[0])
        tries = side.harbour.tries
        assert tries > 5
        await trio.sleep(100)
        assert side.harbour.tries == tries


@both
@clause("RS10-RSM-24", "RS02-RSM-26")
async def test_an_answer_that_breaks_off_is_tried_again(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        await peer.send_bytes(b"\x00\x00\x0e" + resume_ok(7)[:13])
        peer = await side.resumed(got=0, sent=0)
        await peer.expect(ask(1, b"q"))
        await peer.send(payload(1, b"answer", N | C))
        await settle()
        assert outcome == [b"answer"]


@both
@clause("RS10-RSM-20", "RS10-UNX-18", "RS02-UNX-05")
async def test_what_belongs_to_the_beginning_means_nothing_to_a_client_later(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as side:
        await side.peer.send(resume_ok(0), resume(wire))
        await side.peer.expect_alive()
        peer = await side.resumed(got=0, sent=0)
        await peer.send(resume_ok(0), resume_ok(99), resume(wire), error(0, REJECTED_RESUME))
        await peer.expect_alive()


# A client: leases, silence, the end


@both
@clause("RS10-RSM-21", "RS02-RSM-20", "RS02-RSM-03")
async def test_a_client_waits_for_a_lease_anew_and_grants_its_own_again(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, lease=True) as side:
        await side.peer.expect(lease(2**31 - 1, 2**31 - 1))
        await side.peer.send(lease(60_000, 5))
        await side.connection.fire_and_forget(b"one")
        await side.peer.expect(forget(1, b"one"))
        await trio.sleep(1)
        peer = await side.resumed(got=0, sent=9)
        got = await peer.receive()
        assert got.type == 0x02
        assert side.connection.lease is not None
        assert side.connection.lease.number_of_requests == 0
        with trio.move_on_after(20) as scope:
            await side.connection.fire_and_forget(b"two")
        assert scope.cancelled_caught
        await peer.send(lease(60_000, 1))
        await settle()
        await side.connection.fire_and_forget(b"two")
        while (got := await peer.receive()).type == KEEPALIVE:
            pass
        assert got == parsed(forget(3, b"two"))


@both
@clause("RS10-KA-07", "RS02-KA-06", "RS10-RSM-24")
async def test_a_silent_transport_is_left_for_another(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(2, 5)) as side, waiting(side) as outcome:
        old = side.peer
        for _ in range(2):
            await old.expect(keepalive())
        side.peer = await side.harbour.met()
        assert await side.peer.receive() == parsed(resume(wire, side.token))
        await side.peer.send(resume_ok(7))
        await old.expect_end()
        await side.peer.expect_silence(1.9)
        await side.peer.expect(keepalive())
        await side.peer.send(payload(1, b"answer", N | C))
        await settle()
        assert outcome == [b"answer"]


@both
@clause("RS10-RSM-16", "RS02-RSM-15", "RS10-ERR-09")
async def test_a_client_that_leaves_says_that_nobody_comes_back(autojump_clock: object, wire: Wire) -> None:
    harbours: list[Harbour] = []
    async with client(wire) as side:
        harbours.append(side.harbour)
        peer = side.peer
        side.peer = await side.harbour.peer()  # not that of the client, which is still to be read from
    assert (await peer.receive()).error_code == CONNECTION_CLOSE
    await peer.expect_end()
    assert harbours[0].tries == 2


@both
@clause("RS10-SETUP-07", "RS02-SETUP-07", "RS10-RSM-01")
async def test_a_client_hears_that_a_server_does_not_resume(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side:
        await side.peer.send(error(0, REJECTED_SETUP, b"resumption is not offered here"))
        with pytest.raises(RejectedSetup, match="not offered"):
            await side.connection.request_response(b"x")
        await side.harbour.expect_nobody(100)


@both
@clause("RS10-RSM-16", "RS10-ERR-09")
async def test_a_server_that_announced_its_end_is_not_asked_to_resume(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        await side.peer.send(error(0, CONNECTION_CLOSE))
        await settle()
        await cut(side.peer)
        await side.harbour.expect_nobody(100)
        assert [type(one) for one in outcome] == [ConnectionClosed]
