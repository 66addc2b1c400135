"""A server's sessions go on over another transport, and what counts for that: 1.0 and 0.2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.raw import (
    APPLICATION_ERROR,
    REQUEST_N,
    C,
    F,
    I,
    Log,
    N,
    Wire,
    ask,
    both,
    cancel,
    channel,
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
    STREAM,
    TICK,
    begin,
    come_back,
    cut,
    position_of,
    resume,
    resume_ok,
    server,
    tick,
)

clause = pytest.mark.clause


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
