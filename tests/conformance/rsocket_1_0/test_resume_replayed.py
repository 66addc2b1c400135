"""A RESUME that somebody recorded: what its client has said since gives it away, and the session stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.conformance.raw import (
    C,
    Log,
    N,
    Wire,
    ask,
    both,
    forget,
    keepalive,
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
    expect_refused,
    position_of,
    resume,
    server,
    tick,
    with_options,
)

clause = pytest.mark.clause


@both
@clause("RS10-RSM-19", "RS02-RSM-18", "RS10-RSM-09", "RS10-RSM-22")
@pytest.mark.parametrize("got", [0, 1, TICK - 1, TICK, 2 * TICK - 1])
@pytest.mark.parametrize("confirmed", ["a keepalive", "a resume"])
async def test_a_resume_from_before_what_the_client_confirmed_leaves_a_session_that_waits(
    autojump_clock: object, wire: Wire, got: int, confirmed: str
) -> None:
    log = Log()
    async with server(wire, log.responder, with_options(session_seconds=60)) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 3))
        await peer.expect(*map(tick, range(3)))
        if confirmed == "a keepalive":
            await peer.send(keepalive(respond=False, position=2 * TICK))
            await settle()
        else:
            await cut(peer)
            peer = await come_back(harbour, wire, got=2 * TICK, sent=STREAM)
            await peer.expect(tick(2))
        await cut(peer)
        for _ in range(3):
            await trio.sleep(15)
            assert b"is below 24" in await expect_refused(harbour, resume(wire, got=got))
            assert log.seen == [("stream", b"", None)]
        peer = await come_back(harbour, wire, got=2 * TICK, sent=STREAM)
        await peer.expect(tick(2))
        await peer.send(request_n(1, 1))
        await peer.expect(tick(3))


@both
@clause("RS10-RSM-19", "RS02-RSM-18")
async def test_a_refused_replay_gives_a_session_that_waits_no_more_time(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder, with_options(session_seconds=60)) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 1))
        await peer.expect(tick(0))
        await peer.send(keepalive(respond=False, position=TICK))
        await settle()
        await cut(peer)
        await trio.sleep(59)
        await expect_refused(harbour, resume(wire, got=0))
        await trio.sleep(2)
        assert log.seen == [("stream", b"", None), "stopped"]
        assert b"unknown" in await expect_refused(harbour, resume(wire, got=TICK))


@both
@clause("RS10-RSM-19", "RS02-RSM-18")
async def test_a_refused_replay_leaves_a_client_that_is_connected_on_its_transport(
    autojump_clock: object, wire: Wire
) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 3))
        await peer.expect(*map(tick, range(3)))
        await peer.send(keepalive(respond=False, position=2 * TICK))
        await settle()
        for got in (0, TICK):
            await expect_refused(harbour, resume(wire, got=got))
            assert await position_of(peer) == STREAM
        await peer.send(request_n(1, 1))
        await peer.expect(tick(3))


@both
@clause("RS10-RSM-19", "RS02-RSM-18")
async def test_an_answer_to_a_request_of_the_servers_shows_that_the_client_got_it(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()

    @log.responder.setup
    async def meet(terms: Any, connection: Any) -> None:
        log.seen.append(connection)

    async with server(wire, log.responder) as harbour, trio.open_nursery() as nursery:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        connection: Any = log.seen.pop()
        nursery.start_soon(connection.request_response, b"who?")
        await peer.expect(ask(2, b"who?"))
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=0)  # nothing came of it yet
        await peer.expect(ask(2, b"who?"))
        await peer.send(payload(2, b"me", N | C))
        await settle()
        await cut(peer)
        assert b"is below 10" in await expect_refused(harbour, resume(wire, got=0))
        peer = await come_back(harbour, wire, got=10, sent=8)
        assert await position_of(peer) == 8
        del connection


@both
@clause("RS10-RSM-19")
async def test_what_a_client_no_longer_keeps_it_does_not_have_again(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(forget(1, b"note"))
        assert await position_of(peer) == 10
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, first=10, sent=10)
        assert await position_of(peer) == 10
        await cut(peer)
        for first in (0, 9):
            assert b"is below 10" in await expect_refused(harbour, resume(wire, got=0, first=first))
        peer = await come_back(harbour, wire, got=0, first=10, sent=10)
        assert await position_of(peer) == 10


@both
@clause("RS10-RSM-19")
@pytest.mark.parametrize("got", [1, TICK + 1], ids=["inside of a frame", "beyond what was sent"])
async def test_a_position_that_never_was_is_no_replay_whatever_the_client_keeps(
    autojump_clock: object, wire: Wire, got: int
) -> None:
    async with server(wire, Log().responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 1))
        await peer.expect(tick(0))
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, first=STREAM, sent=STREAM)
        await peer.expect(tick(0))
        await cut(peer)
        assert b"can't be served" in await expect_refused(harbour, resume(wire, got=got, first=0))
        assert b"unknown" in await expect_refused(harbour, resume(wire, got=0, first=STREAM))
