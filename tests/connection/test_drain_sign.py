"""A connection whose peer drains: after the first sign nothing new is sent, and what crosses the end is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Connection, ConnectionClosed, Drained, Payload, Rejected, Responder
from tests.connection.pairs import Pair, connected_pair, echo_responder, settle

DIALECTS = ("rsocket/1.0", "reactivesocket/0.2", "reactivesocket/0.1", "rsocket/2.0-draft")
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


async def drained(ask: Callable[[], Awaitable[object]], connection: Connection) -> None:
    """New requests are not sent, and say so."""
    assert connection.status == "draining"
    with pytest.raises(Rejected, match="the connection is closing") as refused:
        await ask()
    assert type(refused.value) is Drained


@each_dialect
async def test_the_sign_comes_before_the_first_refusal(dialect: str, autojump_clock: MockClock) -> None:
    states: list[str] = []
    async with connected_pair(echo_responder(), dialect=dialect) as pair, trio.open_nursery() as nursery:
        pair.client.on_state(states.append)
        async with pair.client.request_stream(initial_request_n=2, refill=False) as items:
            await anext(items)
            nursery.start_soon(partial(pair.server.drain, grace=5))
            await settle()
            await drained(partial(pair.client.request_response, b"x"), pair.client)
            await drained(partial(pair.client.fire_and_forget, b"x"), pair.client)
            assert pair.server._engine.session.receiver.refused == 0  # type: ignore[attr-defined]
            assert (await anext(items)).data == b"1"
            items.request_n(1)
            assert (await anext(items)).data == b"2"
            assert await pair.client.ping() >= 0
        await pair.client.wait_closed()
        await drained_for_good(pair)
    assert states == ["draining", "closed"]


async def drained_for_good(pair: Pair) -> None:
    with pytest.raises(Drained, match="the peer closed the connection"):
        await pair.client.request_response(b"x")
    with pytest.raises(Drained, match="the peer closed the connection"):
        await pair.client.metadata_push(b"x")


@each_dialect
async def test_requests_that_cross_the_end_are_refused_in_every_dialect(
    dialect: str, autojump_clock: MockClock
) -> None:
    async with connected_pair(echo_responder(), dialect=dialect) as pair, trio.open_nursery() as nursery:
        heard: list[type[Exception]] = []

        async def ask() -> None:
            with pytest.raises(Drained, match="no new requests") as refused:
                await pair.client.request_response(b"x")
            heard.append(refused.type)

        pair.client_wire.hold()
        nursery.start_soon(ask)
        await settle()
        nursery.start_soon(pair.server.drain)
        await settle()
        assert heard == []
        pair.client_wire.release()
        await settle()
        assert heard == [Drained]
        assert (pair.client.status, pair.server.status) == ("closed", "closed")


@each_dialect
async def test_requests_without_an_answer_are_served_until_the_grace_is_over(
    dialect: str, autojump_clock: MockClock
) -> None:
    got: list[bytes] = []
    responder = echo_responder()

    @responder.fire_and_forget
    async def note(request: Payload) -> None:
        got.append(request.data)

    responder.metadata_push(got.append)
    async with (
        connected_pair(responder, dialect=dialect) as pair,
        pair.client.request_stream(initial_request_n=1, refill=False) as items,
    ):
        await anext(items)
        # A client that has not heard: its server gives no sign before a refusal.
        pair.server._engine.session.drain()
        for _ in range(3):
            await pair.client.fire_and_forget(b"note")
            await pair.client.metadata_push(b"push")
            await trio.sleep(1)
        await pair.server.drain(grace=1)
    assert sorted(got) == [b"note"] * 3 + [b"push"] * 3


async def test_a_forwarder_says_in_other_words_that_its_own_server_drains(autojump_clock: MockClock) -> None:
    forwarder = Responder()
    async with connected_pair(echo_responder()) as behind:

        @forwarder.request_response
        async def forward(request: Payload) -> Payload:
            return await behind.client.request_response(request)

        async with connected_pair(forwarder) as front:
            behind.server._engine.session.drain()
            with pytest.raises(Rejected, match="another connection is closing") as refused:
                await front.client.request_response(b"x")
            assert type(refused.value) is Rejected
            assert (behind.client.status, front.client.status) == ("draining", "open")


async def test_a_request_that_waited_to_be_written_did_not_run(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair, trio.open_nursery() as nursery:
        heard: dict[bytes, type[Exception]] = {}

        async def ask(data: bytes) -> None:
            with pytest.raises(ConnectionClosed) as closed:
                await pair.client.request_response(data)
            heard[data] = closed.type

        pair.client_wire.hold()
        nursery.start_soon(ask, b"written, perhaps")
        await settle()
        nursery.start_soon(ask, b"waits behind it")
        await settle()
        await pair.server.drain()
        await settle()
        assert heard == {b"written, perhaps": ConnectionClosed, b"waits behind it": Drained}
