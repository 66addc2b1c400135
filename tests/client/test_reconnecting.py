"""A client that outlives its connections: its states, its tries, and everything that connections can do."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import rsocket_trio
from rsocket_trio import (
    Backoff,
    Connection,
    ResumeOptions,
    RSocketError,
    connect_forever,
    serve,
)
from rsocket_trio.connection.connection import Requester
from rsocket_trio.connection.protocols import ALL
from tests.client.reconnecting import DELAYS, EXACT, URI, Told, busy_responder, service
from tests.connection.pairs import connected_pair, settle

# What the state is


async def test_the_states_are_told_in_their_order(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, backoff=EXACT, on_state=told) as client:
        assert repr(client) == f"<ReconnectingClient {URI}, connecting>"
        await client.connected()
        running.crash()
        await trio.sleep(0.15)
        assert repr(client) == f"<ReconnectingClient {URI}, connecting>"
        await running.start()
        await client.connected()
        assert repr(client) == f"<ReconnectingClient {URI}, connected>"

    assert told.states == ["connecting", "connected", "lost", "connecting", "connecting", "connected", "closed"]


async def test_a_server_that_closes_in_good_order_is_reconnected_to(autojump_clock: MockClock) -> None:
    told = Told()
    async with connect_forever(URI, backoff=EXACT, on_state=told) as client, trio.open_nursery() as nursery:
        for number in range(2):
            async with trio.open_nursery() as servers:
                await servers.start(serve, busy_responder([]), [URI])
                assert (await client.request_response(b"%d" % number)).data == b"done %d" % number
                servers.cancel_scope.cancel()
        nursery.cancel_scope.cancel()

    assert [state for state in told.states if state != "connecting"] == ["connected", "lost"] * 2 + ["closed"]


# With everything else


@pytest.mark.parametrize("dialect", ALL)
async def test_every_dialect_comes_back(dialect: str, autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    async with service(busy_responder(asked)) as running, connect_forever(URI, dialect=dialect) as client:
        for number in range(3):
            assert (await client.request_response(b"%d" % number)).data == b"done %d" % number
            assert (await client.connected()).dialect == dialect
            running.cut()
            await settle()

    assert asked == [b"0", b"1", b"2"]


async def test_a_session_is_resumed_first_and_a_new_one_begun_when_that_fails(autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    told = Told()
    resume = ResumeOptions()
    async with (
        service(busy_responder(asked), resume=resume) as running,
        connect_forever(URI, backoff=EXACT, resume=resume, on_state=told) as client,
    ):
        first = await client.connected()
        async with client.request_stream(initial_request_n=8) as items:
            await anext(items)
            running.cut()
            assert (await client.request_response(b"resumed")).data == b"done resumed"
            assert (await anext(items)).data == b"2"
            assert client.connection is first
            assert told.states == ["connecting", "connected"]

            running.crash()
            await trio.sleep(1)
            await running.start(resume=resume)  # a server that has forgotten the session
            with pytest.raises(RSocketError):
                await anext(items)
        assert (await client.request_response(b"anew")).data == b"done anew"
        assert client.connection is not first

    assert asked == [b"", b"resumed", b"anew"]
    assert told.states == ["connecting", "connected", "lost", "connecting", "connected", "closed"]


# What the types say, and what a connection says of its end


def test_every_request_of_a_connection_is_one_of_the_client() -> None:
    requests = {name for name in vars(Requester) if name.startswith("request_")}
    requests |= {"fire_and_forget", "metadata_push", "ping"}

    # Declared once: both have the very same functions.
    for name in requests:
        assert getattr(Connection, name) is getattr(rsocket_trio.ReconnectingClient, name) is vars(Requester)[name]


async def test_a_connection_says_why_it_is_over(autojump_clock: MockClock) -> None:
    reasons: list[RSocketError] = []

    async def wait(connection: Connection) -> None:
        reasons.append(await connection.wait_closed())

    async with connected_pair() as pair, trio.open_nursery() as nursery:
        nursery.start_soon(wait, pair.client)
        nursery.start_soon(wait, pair.client)
        await settle()
        with trio.move_on_after(1) as given_up:
            await wait(pair.client)
        assert given_up.cancelled_caught
        assert reasons == []
        await pair.server_wire.aclose()
    await wait(pair.client)

    assert [str(reason) for reason in reasons] == ["the peer closed the transport, and no frame ever came"] * 3
    assert len({id(reason) for reason in reasons}) == 3


# When it tries again


async def test_pauses_double_up_to_the_longest(autojump_clock: MockClock) -> None:
    told = Told()
    with trio.move_on_after(sum(DELAYS) + 1):
        async with connect_forever(URI, backoff=EXACT, on_state=told):
            await trio.sleep_forever()

    assert told.tries[0] == 0
    assert told.pauses == DELAYS
    assert told.states == ["connecting"] * 10 + ["closed"]


@pytest.mark.parametrize("field", ["first_delay", "longest_delay", "jitter"])
def test_a_retry_is_checked_when_it_is_made(field: str) -> None:
    wrong: Any = "soon"
    with pytest.raises(ValueError, match=rf"Backoff\.{field} of -1"):
        Backoff(**{field: -1})
    with pytest.raises(TypeError, match=rf"Backoff\.{field} is a number"):
        Backoff(**{field: wrong})


async def test_a_server_that_hangs_up_at_once_is_not_hammered(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, backoff=EXACT, on_state=told):
        for pause in (0.0, *DELAYS[:5]):
            await trio.sleep(pause)
            await settle()
            running.cut()
        await settle()

    assert told.pauses == DELAYS[:5]


async def test_after_a_connection_that_held_the_pauses_begin_anew(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, backoff=EXACT, on_state=told) as client:
        for held in (1, 1, 11, 10):
            await client.connected()
            await trio.sleep(held)
            running.cut()
            await settle()
        await client.connected()

    assert told.pauses == [1.1, 1.2, 11.1, 10.2]
