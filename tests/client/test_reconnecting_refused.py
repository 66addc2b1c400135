"""Requests that a server refused because it drains: the client sends them over its next connection by itself."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    Canceled,
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Drained,
    Incoming,
    Payload,
    ReconnectingClient,
    RejectedResume,
    RejectedSetup,
    Responder,
    Setup,
    connect_forever,
)
from tests.client.reconnecting import EXACT, URI, Told, service
from tests.connection.pairs import settle

DIALECTS = ("rsocket/1.0", "reactivesocket/0.2", "reactivesocket/0.1", "rsocket/2.0-draft")
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


class Busy:
    """A server, its connections, and what its handlers were asked. ``refusing`` of them take no request from the start.

    A connection that refuses so gives no other sign, as one whose sign comes too late.
    """

    def __init__(self, refusing: int = 0) -> None:
        self.refusing = refusing
        self.most_connections = math.inf
        self.connections: list[Connection] = []
        self.asked: list[str] = []
        self.pushed: list[bytes] = []
        self.responder = responder = Responder()

        @responder.setup
        def meet(setup: Setup, connection: Connection) -> None:
            if len(self.connections) == self.most_connections:
                raise RejectedSetup("one is enough")
            self.connections.append(connection)
            if len(self.connections) <= self.refusing:
                self.refuse()

        @responder.request_response
        async def answer(request: Payload) -> bytes:
            self.asked.append(request.text)
            if request.data == b"long":
                await trio.sleep_forever()
            return b"done " + request.data

        @responder.request_stream
        async def count(request: Payload) -> AsyncIterator[bytes]:
            self.asked.append(request.text)
            yield b"1"
            yield b"2"

        @responder.request_channel
        async def talk(channel: Channel) -> None:
            self.asked.append(channel.request.text)
            async for item in channel:
                await channel.send(b"said " + item.data)

        @responder.fire_and_forget
        def note(request: Payload) -> None:
            self.asked.append(request.text)

        @responder.metadata_push
        def pushed(metadata: bytes) -> None:
            self.pushed.append(metadata)

    def refuse(self) -> None:
        """Have the last connection take no more requests, without a sign before the first refusal."""
        self.connections[-1]._engine.session.drain()

    @property
    def refused(self) -> list[int]:
        """How many requests each connection refused."""
        return [connection._engine.session.receiver.refused for connection in self.connections]  # type: ignore[attr-defined]


async def ask(client: ReconnectingClient) -> None:
    assert (await client.request_response(b"x")).data == b"done x"


async def read(client: ReconnectingClient) -> None:
    async with client.request_stream(b"x") as items:
        assert [item.data async for item in items] == [b"1", b"2"]


async def read_batches(client: ReconnectingClient) -> None:
    async with client.request_stream(b"x") as items:
        batches = [batch async for batch in batches_of(items)]
    assert [item.data for batch in batches for item in batch] == [b"1", b"2"]


async def talk(client: ReconnectingClient) -> None:
    async with client.request_channel(b"x") as channel:
        await channel.send(b"one")
        assert (await anext(channel)).data == b"said one"
        await channel.send_eof()
        assert [item async for item in channel] == []


async def batches_of(items: Incoming) -> AsyncIterator[list[Payload]]:
    while batch := await items.receive_batch():
        yield batch


CALLS = (ask, read, read_batches, talk)


@each_dialect
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_what_was_refused_runs_once_over_the_next_connection(
    call: Callable[[ReconnectingClient], Awaitable[None]], dialect: str, autojump_clock: MockClock
) -> None:
    busy, told = Busy(refusing=1), Told()
    async with (
        service(busy.responder),
        connect_forever(URI, dialect=dialect, backoff=EXACT, on_state=told) as client,
    ):
        await client.connected()
        await settle()
        await call(client)
        await settle()

        assert busy.asked == ["x"]
        assert busy.refused == [1, 0]
        # The next one is opened at once, and what was refused is sent over it at once.
        assert told.pauses == [0]
        assert trio.current_time() == told.started
        busy.connections.clear()


async def test_requests_that_no_server_takes_are_sent_at_most_twice_a_second(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=1000)
    async with (
        service(busy.responder),
        connect_forever(URI, backoff=EXACT) as client,
        trio.open_nursery() as nursery,
    ):
        for call in (ask, read, talk):
            nursery.start_soon(call, client)
        seen: list[int] = []
        for _ in range(20):
            await trio.sleep(1)
            seen.append(sum(busy.refused))
        # Three that wait; pauses of up to ten seconds lie between the connections.
        assert max(later - sooner for sooner, later in zip([0, *seen], seen, strict=False)) <= 6
        assert 6 < seen[-1] <= 3 * 2 * 20
        nursery.cancel_scope.cancel()
        busy.connections.clear()
    assert busy.asked == []


async def test_without_waiting_a_refused_request_says_that_it_did_not_run(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=1)
    async with service(busy.responder), connect_forever(URI, backoff=EXACT, wait=False) as client:
        await client.connected()
        await settle()
        async with client.request_stream(b"x") as items:
            with pytest.raises(Drained, match="no new requests"):
                await anext(items)
            with pytest.raises(Drained, match="no new requests"):
                await items.receive_batch()
        await client.connected()
        await ask(client)
        busy.refuse()
        with pytest.raises(Drained, match="no new requests"):
            await client.request_response(b"y")
        busy.connections.clear()
    assert busy.asked == ["x"]


# insist


async def test_insist_repeats_what_may_have_run_until_it_has_an_answer(autojump_clock: MockClock) -> None:
    busy = Busy()
    tries: list[float] = []
    errors: list[Exception] = [
        *(ConnectionLost("cut"), ConnectionClosed("left"), Canceled("the connection is closing")),
        RejectedResume("unknown resume token"),
    ]

    async def call() -> str:
        tries.append(trio.current_time() - started)
        if errors:
            raise errors.pop(0)
        return (await client.request_response(b"x")).text

    async with service(busy.responder), connect_forever(URI, backoff=EXACT, wait=False) as client:
        started = trio.current_time()
        assert await client.insist(call) == "done x"
        busy.connections.clear()
    assert tries == [0, 0, 1, 1, 2]


async def test_insist_waits_for_a_connection_and_passes_every_other_error_on(autojump_clock: MockClock) -> None:
    busy = Busy()

    async def fail() -> None:
        raise Canceled("the handler gave up")

    async with service(busy.responder) as running, connect_forever(URI, backoff=EXACT) as client:
        with pytest.raises(Canceled, match="the handler gave up"):
            await client.insist(fail)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.insist, partial(client.request_response, b"x"))
            running.cut()
        busy.connections.clear()
    with pytest.raises(ConnectionClosed, match="closed by this side"):
        await client.insist(fail)
