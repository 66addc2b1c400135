"""What a server refuses to a client that would resume: 1.0 and 0.2."""

from __future__ import annotations

import attrs
import pytest

from tests.conformance.raw import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    INVALID_SETUP,
    REJECTED_SETUP,
    RS02,
    RS10,
    Log,
    Wire,
    both,
    error,
    keepalive,
    request_n,
    settle,
    stream,
)
from tests.conformance.resuming import (
    STREAM,
    TICK,
    TOKEN,
    begin,
    come_back,
    cut,
    expect_refused,
    resume,
    resume_ok,
    server,
    tick,
)

clause = pytest.mark.clause


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
        await expect_refused(harbour, resume(attrs.evolve(wire, version=version)))


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
        await peer.send(resume(attrs.evolve(RS10, version=(0, 1))))
        await peer.expect(resume_ok(0))
        await peer.expect_alive()


POSITIONS = [
    pytest.param(3 * TICK + 1, 0, id="ahead of us"),
    pytest.param(2**63 - 1, 0, id="far ahead of us"),
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
