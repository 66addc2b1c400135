"""Which calls wait for a connection, and which fail with the one that they had?"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    ConnectionLost,
    ReconnectingClient,
    RSocketError,
    Unsupported,
    connect_forever,
)
from tests.client.reconnecting import CALLS, DELAYS, EXACT, URI, busy_responder, service
from tests.connection.pairs import settle

# What waits, and what does not


async def test_a_call_waits_for_the_first_connection(autojump_clock: MockClock) -> None:
    answers: list[bytes] = []

    async def ask(client: ReconnectingClient) -> None:
        answers.append((await client.request_response(b"x")).data)

    async with connect_forever(URI, backoff=EXACT) as client, trio.open_nursery() as nursery:
        nursery.start_soon(ask, client)
        await trio.sleep(2)
        assert (answers, client.connection) == ([], None)
        async with service():
            connection = await client.connected()
            assert client.connection is connection
            await settle()
            assert answers == [b"done x"]


async def test_the_callers_deadline_bounds_the_wait_and_leaves_no_trace(autojump_clock: MockClock) -> None:
    async with connect_forever(URI, backoff=EXACT) as client:
        for call in CALLS.values():
            with pytest.raises(trio.TooSlowError), trio.fail_after(2):
                await call(client)
        with pytest.raises(trio.TooSlowError), trio.fail_after(2):
            await client.connected()
        assert client._changes.first is None


async def test_without_waiting_a_call_fails_at_once_and_says_why(autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    async with connect_forever(URI, backoff=EXACT, wait=False) as client:
        with pytest.raises(ConnectionLost, match="no connection: the first one is being made"):
            await client.request_response()
        await settle()
        began = trio.current_time()
        for call in CALLS.values():
            with pytest.raises(ConnectionLost, match=f"no connection: {URI}: nobody listens"):
                await call(client)
        async with service(busy_responder(asked)) as running:
            began += DELAYS[0]
            await client.connected()
            assert (await client.request_response(b"x")).data == b"done x"
            running.cut()
            await settle()
            with pytest.raises(ConnectionLost, match="no connection: the peer closed the transport") as caught:
                await client.request_response(b"x")
            assert isinstance(caught.value.__cause__, ConnectionLost)
        assert trio.current_time() == pytest.approx(began)

    assert asked == [b"x"]


# What is in progress


@pytest.mark.parametrize("call", ["request", "stream", "channel"])
async def test_a_call_in_progress_fails_and_is_not_repeated(call: str, autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    failed: list[RSocketError] = []

    async def keep_at_it() -> None:
        try:
            await CALLS[call](client)
        except RSocketError as error:
            failed.append(error)

    async with service(busy_responder(asked)) as running, connect_forever(URI, backoff=EXACT) as client:
        first = await client.connected()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_at_it)
            await settle()
            assert len(asked) == 1
            running.cut()
            await settle()
            assert [type(error) for error in failed] == [ConnectionLost]
        assert await client.connected() is not first
        await trio.sleep(20)
        assert len(asked) == 1
        assert (await client.request_response(b"new")).data == b"done new"

    assert running.served == 2


async def test_every_call_reaches_the_connection_of_the_moment(autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    async with service(busy_responder(asked)) as running, connect_forever(URI, backoff=EXACT) as client:
        for _ in range(2):
            await client.fire_and_forget(b"note")
            await client.metadata_push(b"push")
            assert await client.ping() == 0
            async with client.request_channel(b"channel") as channel:
                await channel.send(b"hello")
                assert (await anext(channel)).data == b"hello"
            running.cut()
            await settle()
        with pytest.raises(Unsupported):
            async with client.request_subscription():
                pass

    assert asked == [b"note", b"push", b"channel"] * 2
