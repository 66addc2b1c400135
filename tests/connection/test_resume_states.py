"""What both sides are told of a session whose transport is lost, and when its time is over."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
import trio.testing

from rsocket_trio import (
    ConnectionLost,
    Keepalive,
    RejectedResume,
    Responder,
    RSocketError,
    open_connection_over,
    serve,
)
from tests.connection.resuming import (
    CLIENTS,
    OPTIONS,
    SERVERS,
    Book,
    Network,
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


async def test_a_connection_without_resumption_is_never_suspended(autojump_clock: object) -> None:
    network, states = Network(), list[str]()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Responder(), [network], resume=OPTIONS))
        async with open_connection_over(network.connect) as client:
            client.on_state(states.append)
            await settle()
            assert not client.can_resume
            await network.cut()
            assert states == ["closed"]
            with pytest.raises(ConnectionLost):
                await client.request_response(b"x")
        nursery.cancel_scope.cancel()


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
async def test_a_server_that_forgot_the_session_refuses(autojump_clock: object, dialect: str) -> None:
    shorter = attrs.evolve(OPTIONS, session_seconds=5)
    async with pair(None, dialect, server_options=shorter) as both:
        await both.network.cut(down=True)
        await trio.sleep(10)
        assert both.server.status == "closed"
        both.network.down = False
        with pytest.raises(RejectedResume, match="unknown"):
            await both.client.request_response(b"x")
        assert both.client.status == "closed"


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


async def test_who_is_told_of_states_may_fail_without_harm(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(state: str) -> None:
        raise RuntimeError(f"told of {state}")

    async with pair(Book().responder) as both:
        both.client.on_state(fail)
        both.server.on_state(fail)
        later: list[str] = []
        both.client.on_state(later.append)
        await both.network.cut()
        assert (await both.client.request_response(b"x")).data == b"x"
        assert later == ["suspended", "open"]
    assert "told of suspended" in caplog.text


async def test_who_is_told_of_a_loss_may_leave_at_once(autojump_clock: object) -> None:
    async with pair(Book().responder) as both:

        def leave(state: str) -> None:
            if state == "suspended":
                both.client._leave()

        both.client.on_state(leave)
        await both.network.cut()
        await trio.sleep(1)
        assert both.client.status == "closed"
        assert len(both.network.links) == 1
