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
    Lease,
    Payload,
    ReconnectingClient,
    RejectedResume,
    RejectedSetup,
    Responder,
    ResumeOptions,
    Setup,
    connect_forever,
)
from rsocket_trio.services import Call
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


async def ask_typed(client: ReconnectingClient) -> None:
    assert await client.request_response("x", reply=bytes) == b"done x"


async def read(client: ReconnectingClient) -> None:
    async with client.request_stream(b"x") as items:
        assert [item.data async for item in items] == [b"1", b"2"]


async def read_batches(client: ReconnectingClient) -> None:
    async with client.request_stream(b"x") as items:
        batches = [batch async for batch in batches_of(items)]
    assert [item.data for batch in batches for item in batch] == [b"1", b"2"]


async def read_objects(client: ReconnectingClient) -> None:
    async with client.request_stream(b"x", items=int) as items:
        assert [item async for item in items] == [1, 2]


async def talk(client: ReconnectingClient) -> None:
    async with client.request_channel(b"x") as channel:
        await channel.send(b"one")
        assert (await anext(channel)).data == b"said one"
        await channel.send_eof()
        assert [item async for item in channel] == []


async def talk_in_one_go(client: ReconnectingClient) -> None:
    async with client.request_channel(b"x") as channel:
        await channel.send_many(item for item in (b"one", b"two"))
        await channel.send_eof()
        assert [item.data async for item in channel] == [b"said one", b"said two"]


async def say_nothing(client: ReconnectingClient) -> None:
    async with client.request_channel(b"x") as channel:
        await channel.send_eof()
        await channel.wait_send_closed()
        assert [item async for item in channel] == []


async def wait_for_room(client: ReconnectingClient) -> None:
    async with client.request_channel(b"x") as channel:
        assert channel.room == 0
        assert await channel.wait_room() > 0


async def batches_of(items: Incoming) -> AsyncIterator[list[Payload]]:
    while batch := await items.receive_batch():
        yield batch


CALLS = (ask, ask_typed, read, read_batches, read_objects, talk, talk_in_one_go, say_nothing, wait_for_room)


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


async def test_a_connection_that_worked_is_left_at_once(autojump_clock: MockClock) -> None:
    busy, told = Busy(), Told()
    async with service(busy.responder), connect_forever(URI, backoff=EXACT, on_state=told) as client:
        await ask(client)
        await trio.sleep(5)
        busy.refuse()
        first = client.connection
        await read(client)

        assert first is not None
        # Nothing is open on it any more, and its server does not end it.
        await settle()
        assert first.status == "closed"
        assert client.connection not in (first, None)
        assert trio.current_time() - told.started == 5
        assert told.states == ["connecting", "connected", "draining", "connecting", "connected"]
        busy.connections.clear()
        del first


async def test_interceptors_see_one_call(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=2)
    calls: list[tuple[str, int, str | None]] = []

    async def watch(call: Call) -> AsyncIterator[None]:
        try:
            yield
        finally:
            calls.append((call.interaction, call.items_received, None if call.error is None else str(call.error)))

    async with service(busy.responder), connect_forever(URI, backoff=EXACT, around=[watch]) as client:
        await ask(client)
        busy.refuse()
        await read(client)
        busy.refuse()
        await talk(client)
        busy.connections.clear()

    assert calls == [("request_response", 1, None), ("request_stream", 2, None), ("request_channel", 1, None)]


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


async def test_what_runs_goes_on_and_what_waits_for_a_permit_moves(autojump_clock: MockClock) -> None:
    busy = Busy()

    @busy.responder.lease
    async def policy(setup: Setup) -> AsyncIterator[Lease]:
        yield Lease(1, 1000)
        await trio.sleep_forever()

    async with (
        service(busy.responder),
        connect_forever(URI, backoff=EXACT, lease=True) as client,
        trio.open_nursery() as nursery,
    ):

        async def work() -> None:
            with pytest.raises(Canceled, match="the connection is closing"):
                await client.request_response(b"long")

        nursery.start_soon(work)
        await settle()
        nursery.start_soon(ask, client)
        await settle()
        assert busy.asked == ["long"]
        nursery.start_soon(partial(busy.connections[0].drain, grace=3))
        await settle()
        assert busy.asked == ["long", "x"]
        await trio.sleep(4)
        busy.connections.clear()


async def test_a_session_that_can_be_resumed_is_left_as_well(autojump_clock: MockClock) -> None:
    busy = Busy()
    resume = ResumeOptions()
    async with (
        service(busy.responder, resume=resume),
        connect_forever(URI, backoff=EXACT, resume=resume) as client,
        trio.open_nursery() as nursery,
    ):
        async with client.request_channel(b"c") as channel:
            await channel.send(b"one")
            await anext(channel)
            nursery.start_soon(partial(busy.connections[0].drain, grace=5))
            await settle()
            await ask(client)
            await channel.send(b"two")
            assert (await anext(channel)).data == b"said two"
        await settle()
        assert [connection.status for connection in busy.connections] == ["closed", "open"]
        busy.connections.clear()


async def test_requests_without_an_answer_get_through_a_drain(autojump_clock: MockClock) -> None:
    busy = Busy()
    async with (
        service(busy.responder),
        connect_forever(URI, backoff=EXACT) as client,
        trio.open_nursery() as nursery,
    ):
        async with client.request_channel(b"c") as channel:
            await channel.send(b"one")
            await anext(channel)
            busy.refuse()
            await client.fire_and_forget(b"before the sign")
            await client.metadata_push(b"before the sign")
            await settle()
            nursery.start_soon(partial(busy.connections[0].drain, grace=5))
            await settle()
            await client.fire_and_forget(b"after it")
            await client.metadata_push(b"after it")
            await settle()
        busy.connections.clear()
    assert busy.asked == ["c", "before the sign", "after it"]
    assert busy.pushed == [b"before the sign", b"after it"]


async def test_credit_that_was_granted_by_hand_is_granted_again(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=1)
    async with service(busy.responder), connect_forever(URI, backoff=EXACT) as client:
        async with client.request_stream(b"x", initial_request_n=1, refill=False) as items:
            items.request_n(1)
            await trio.sleep(0.5)
            items.request_n(1)
            assert [item.data async for item in items] == [b"1", b"2"]
        busy.connections.clear()


async def test_a_stream_whose_block_is_left_meanwhile_is_not_opened(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=2)
    reading = trio.Event()

    async def read_on(items: Incoming) -> None:
        reading.set()
        with pytest.raises(Drained):
            await anext(items)

    async with (
        service(busy.responder),
        connect_forever(URI, backoff=EXACT) as client,
        trio.open_nursery() as nursery,
    ):
        async with client.request_stream(b"x") as items:
            nursery.start_soon(read_on, items)
            await settle()
            assert busy.refused == [1, 1]
        await trio.sleep(5)
        assert busy.refused == [1, 1, 0]
        with pytest.raises(Drained):
            await items.receive_batch()
        busy.connections.clear()
    assert busy.asked == []


async def test_a_stream_that_waits_hears_of_the_refusal_that_ends_the_client(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=1)
    busy.most_connections = 1
    async with service(busy.responder), connect_forever(URI, backoff=EXACT) as client:
        async with client.request_channel(b"x") as channel:
            for use in (partial(channel.send, b"one"), channel.receive_batch, channel.wait_room, channel.__anext__):
                with pytest.raises(RejectedSetup, match="one is enough"):
                    await use()
        busy.connections.clear()


async def test_a_stream_that_waits_ends_with_the_client(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=1000)

    async def read_on(items: Incoming) -> None:
        with pytest.raises(ConnectionClosed):
            await anext(items)

    async with service(busy.responder), trio.open_nursery() as nursery:
        async with connect_forever(URI, backoff=EXACT) as client:
            await client.connected()
            items = client.request_stream(b"x")
            stream = await items.__aenter__()
            nursery.start_soon(read_on, stream)
            await trio.sleep(3)
        await settle()
        await items.__aexit__(None, None, None)
        busy.connections.clear()


async def test_a_deadline_of_the_caller_ends_the_wait(autojump_clock: MockClock) -> None:
    busy = Busy(refusing=1000)
    async with service(busy.responder), connect_forever(URI, backoff=EXACT, deadlines=True) as client:
        for call in (ask, read, talk):
            start = trio.current_time()
            with pytest.raises(trio.TooSlowError), trio.fail_after(5):
                await call(client)
            assert trio.current_time() - start == 5
        busy.connections.clear()


async def test_the_end_of_the_grace_period_is_heard_and_not_sent_again(autojump_clock: MockClock) -> None:
    busy = Busy()

    async def drain_soon() -> None:
        await settle()
        await busy.connections[-1].drain(grace=2)

    async with (
        service(busy.responder),
        connect_forever(URI, backoff=EXACT) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(drain_soon)
        with pytest.raises(Canceled, match="the connection is closing"):
            await client.request_response(b"long")
        await ask(client)
        busy.connections.clear()
    assert busy.asked == ["long", "x"]


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
