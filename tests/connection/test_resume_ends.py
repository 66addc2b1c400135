"""How a session ends that may have no transport: by leaving, by draining, by a server that stops."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from rsocket_trio import (
    Connection,
    ConnectionClosed,
    RSocketError,
    open_connection_over,
    serve,
)
from rsocket_trio.transports.backlog import QUIET_TIME
from tests.connection.resuming import (
    OPTIONS,
    Book,
    Network,
    each,
    pair,
    settle,
)


@each
async def test_a_client_that_leaves_ends_the_session_at_once(autojump_clock: object, dialect: str) -> None:
    book = Book()
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, book.responder, [network], resume=OPTIONS, dialects=[dialect]))
        async with open_connection_over(network.connect, resume=OPTIONS, dialect=dialect) as client:
            with trio.move_on_after(1):
                await client.request_response(b"wait")
            await trio.sleep(1)
            nursery.start_soon(swallow, client, b"wait")
            await settle()
        await settle()
        assert book.seen == [b"wait", "Cancelled"] * 2
        nursery.cancel_scope.cancel()


async def swallow(connection: Connection, data: bytes) -> None:
    with pytest.raises(RSocketError):
        await connection.request_response(data)


@each
async def test_leaving_without_a_link_does_not_wait_for_one(autojump_clock: object, dialect: str) -> None:
    started = 0.0
    async with pair(None, dialect) as both:
        await both.network.cut(down=True)
        await trio.sleep(1)
        started = trio.current_time()
        states, server = both.client_states, both.server
        both.stop_serving()
    assert trio.current_time() - started < 2
    assert states == ["suspended", "closed"]
    assert server.status == "closed"
    del server, both


@each
async def test_a_drain_ends_well_when_the_link_comes_back_in_time(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"wait")).data)

        nursery.start_soon(ask)
        await settle()
        await both.network.cut(down=True)
        nursery.start_soon(partial(both.client.drain, grace=30))
        await settle()
        with pytest.raises(ConnectionClosed):
            await both.client.request_response(b"new")
        book.go_on.set()
        await trio.sleep(2)
        both.network.down = False
        await trio.sleep(10)
        assert answers == [b"wait"]
        assert both.client_states == ["suspended", "draining", "closed"]
        assert both.server.status == "closed"


@each
async def test_a_server_that_stops_waits_for_nobody_who_is_away(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect, grace=4) as both, trio.open_nursery() as nursery:
        nursery.start_soon(swallow, both.client, b"wait")
        await settle()
        await both.network.cut(down=True)
        both.stop_serving()
        await trio.sleep(2 * QUIET_TIME)  # nobody else comes to its listener
        assert (both.server.status, book.seen) == ("closed", [b"wait", "Cancelled"])
        assert "its client is away" in str(await both.server.wait_closed())
        await trio.sleep(61)
        assert both.client.status == "closed"


@each
async def test_a_server_that_stops_lets_a_resumed_session_finish(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"wait")).data)

        await both.network.cut()
        await trio.sleep(1)
        assert both.client.status == "open"
        nursery.start_soon(ask)
        await settle()
        both.stop_serving()
        await trio.sleep(3)
        assert (both.client.status, both.server.status) == ("draining", "draining")
        book.go_on.set()
        await trio.sleep(1)
        assert answers == [b"wait"]
        assert (both.client.status, both.server.status) == ("closed", "closed")
        with pytest.raises(ConnectionClosed):
            await both.client.request_response(b"x")
        assert len(both.network.links) == 2
