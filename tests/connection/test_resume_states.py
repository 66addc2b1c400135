"""What both sides are told of a session whose transport is lost, and when its time is over."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from rsocket_trio import (
    ConnectionLost,
    Keepalive,
    RSocketError,
)
from tests.connection.resuming import (
    CLIENTS,
    OPTIONS,
    SERVERS,
    Book,
    each,
    numbers,
    pair,
    settle,
)


@each
async def test_both_sides_are_told_of_their_states(autojump_clock: object, dialect: str) -> None:
    async with pair(None, dialect) as both:
        assert (both.client.status, both.server.status) == ("open", "open")
        assert both.client.can_resume
        assert both.server.can_resume
        await both.network.cut()
        assert (both.client.status, both.server.status) == ("suspended", "suspended")
        assert both.client.can_resume
        await trio.sleep(1)
        assert (both.client.status, both.server.status) == ("open", "open")
        await both.network.cut(down=True)
        await trio.sleep(70)
        assert (both.client.status, both.server.status) == ("closed", "closed")
        assert [one.can_resume for one in (both.client, both.server)] == [False, False]
        told = ["suspended", "open", "suspended", "closed"]
        assert both.client_states == told
        assert both.server_states == told


@each
async def test_when_the_time_is_over_everybody_who_waits_hears_of_it(autojump_clock: object, dialect: str) -> None:
    book = Book()
    options = attrs.evolve(OPTIONS, session_seconds=20)
    async with pair(book.responder, dialect, options=options) as both, trio.open_nursery() as nursery:
        errors: list[object] = []

        async def ask() -> None:
            try:
                await both.client.request_response(b"wait")
            except RSocketError as error:
                errors.append(error)

        nursery.start_soon(ask)
        await settle()
        await both.network.cut(down=True)
        nursery.start_soon(ask)
        await trio.sleep(19)
        assert errors == []
        assert book.seen == [b"wait"]
        await trio.sleep(2)
        assert [type(error) for error in errors] == [ConnectionLost] * 2
        assert "20 s" in str(errors[0])
        assert book.seen == [b"wait", "Cancelled"]
        with pytest.raises(ConnectionLost):
            await both.client.ping()
        errors.clear()


@each
async def test_a_silent_link_is_left_for_another(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with (
        pair(book.responder, dialect, keepalive=Keepalive(2, 7)) as both,
        both.client.request_stream(b"50", initial_request_n=5) as items,
    ):
        assert (await anext(items)).data == b"0"
        both.network.link.deaf = {CLIENTS, SERVERS}
        started = trio.current_time()
        assert [item.data async for item in items] == numbers(50)[1:]
        assert 5 < trio.current_time() - started < 9
        assert both.client_states == ["suspended", "open"]
        assert both.server_states == ["suspended", "open"]
