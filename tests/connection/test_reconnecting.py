"""A client that outlives its connections: when it tries again, what waits, what fails, and what ends it."""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import rsocket_trio
from rsocket_trio import (
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    InvalidSetup,
    NegotiationFailed,
    Payload,
    ReconnectingClient,
    RejectedSetup,
    Responder,
    ResumeOptions,
    Retry,
    RSocketError,
    Setup,
    StreamuxOptions,
    Unsupported,
    UnsupportedSetup,
    connect_forever,
    current_connection,
    open_connection,
    serve,
)
from rsocket_trio.connection.client import FRAGMENT_SIZE, LIMITS
from rsocket_trio.connection.dialects import ALL, STREAMUX
from rsocket_trio.connection.reconnecting import ConnectionTerms
from rsocket_trio.connection.requests import RequestTerms, StreamTerms
from rsocket_trio.connection.server import Server
from rsocket_trio.rsocket.extensions import Entry
from rsocket_trio.transports.memory import MemoryTransport, listen_memory
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle

URI = "memory://service"
EXACT = Retry(jitter=0.0)
DELAYS = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


class Service:
    """A server that can be cut off, stopped and started again."""

    def __init__(self, nursery: trio.Nursery, responder: Responder) -> None:
        self.responder = responder
        self.transports: list[MemoryTransport] = []
        self.served = 0
        self._nursery = nursery
        self._scope = trio.CancelScope()

    async def start(self, *, resume: ResumeOptions | None = None) -> None:
        """Listen, and know nothing of what was before."""
        self.server = Server(self.responder, ALL, LIMITS, FRAGMENT_SIZE, resume, (), StreamuxOptions(qa=True))
        await self._nursery.start(self._run)

    def cut(self) -> None:
        """Every connection breaks."""
        for transport in self.transports:
            transport.close()
        self.transports.clear()

    def crash(self) -> None:
        """Every connection breaks, and nobody listens or remembers any more."""
        self.cut()
        for connection in list(self.server.connections):
            connection.leave()
        self._scope.cancel()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listener = listen_memory("service")
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    while True:
                        transport = await listener.accept()
                        self.transports.append(transport)
                        self.served += 1
                        nursery.start_soon(self.server.serve_one, transport, trio.Event())
        finally:
            with trio.CancelScope(shield=True):
                await listener.aclose()


@asynccontextmanager
async def service(responder: Responder | None = None, *, resume: ResumeOptions | None = None) -> AsyncIterator[Service]:
    """A service that listens, and is gone at the end."""
    async with trio.open_nursery() as nursery:
        running = Service(nursery, responder or busy_responder([]))
        await running.start(resume=resume)
        yield running
        running.crash()


class Told:
    """What a client said of its state, and when."""

    def __init__(self) -> None:
        self.started = trio.current_time()
        self.states: list[str] = []
        self.tries: list[float] = []

    def __call__(self, state: str) -> None:
        self.states.append(state)
        if state == "connecting":
            self.tries.append(round(trio.current_time() - self.started, 6))

    @property
    def pauses(self) -> list[float]:
        """The seconds between one try and the next."""
        return [round(later - sooner, 6) for sooner, later in zip(self.tries, self.tries[1:], strict=False)]


def busy_responder(asked: list[bytes]) -> Responder:
    """It writes down what it was asked, then works on some of it for ever."""
    responder = Responder()

    @responder.request_response
    async def work(request: Payload) -> bytes:
        asked.append(request.data)
        if request.data == b"long":
            await trio.sleep_forever()
        return b"done " + request.data

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        asked.append(request.data)
        yield b"1"
        yield b"2"
        await trio.sleep_forever()

    @responder.request_subscription
    async def follow(request: Payload) -> AsyncIterator[bytes]:
        asked.append(request.data)
        yield b"1"
        await trio.sleep_forever()

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        asked.append(channel.request.data)
        async for message in channel:
            await channel.send(message)

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        asked.append(request.data)

    @responder.metadata_push
    def push(metadata: bytes) -> None:
        asked.append(metadata)

    return responder


# When it tries again


async def test_pauses_double_up_to_the_longest(autojump_clock: MockClock) -> None:
    told = Told()
    with trio.move_on_after(sum(DELAYS) + 1):
        async with connect_forever(URI, retry=EXACT, on_state=told):
            await trio.sleep_forever()

    assert told.tries[0] == 0
    assert told.pauses == DELAYS
    assert told.states == ["connecting"] * 10 + ["closed"]


async def test_jitter_shortens_each_pause_and_by_no_more_than_it_says(autojump_clock: MockClock) -> None:
    told = Told()
    with trio.move_on_after(30):
        async with connect_forever(URI, retry=Retry(first_delay=1, longest_delay=1, jitter=0.25), on_state=told):
            await trio.sleep_forever()

    assert len(told.pauses) >= 29
    assert all(0.75 <= pause <= 1 for pause in told.pauses)
    assert len(set(told.pauses)) > 20


def test_a_delay_is_a_matter_of_tries_and_chance() -> None:
    retry = Retry(first_delay=1, longest_delay=100, jitter=0.5)

    assert [retry.delay(tries, 0.0) for tries in (0, 1, 6, 7, 10**6)] == [1, 2, 64, 100, 100]
    assert [retry.delay(1, chance) for chance in (0.0, 0.5, 1.0)] == [2, 1.5, 1]
    assert ResumeOptions(first_delay=1, longest_delay=100, jitter=0.5).delay(1, 0.5) == 1.5


@pytest.mark.parametrize("field", ["first_delay", "longest_delay", "jitter", "answer_seconds"])
def test_a_retry_is_checked_when_it_is_made(field: str) -> None:
    wrong: Any = "soon"
    with pytest.raises(ValueError, match=rf"Retry\.{field} of -1"):
        Retry(**{field: -1})
    with pytest.raises(TypeError, match=rf"Retry\.{field} is a number"):
        Retry(**{field: wrong})


async def test_a_server_that_hangs_up_at_once_is_not_hammered(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, retry=EXACT, on_state=told):
        for pause in (0.0, *DELAYS[:5]):
            await trio.sleep(pause)
            await settle()
            running.cut()
        await settle()

    assert told.pauses == DELAYS[:5]


async def test_after_a_connection_that_held_the_pauses_begin_anew(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, retry=EXACT, on_state=told) as client:
        for held in (1, 1, 11, 10):
            await client.connected()
            await trio.sleep(held)
            running.cut()
            await settle()
        await client.connected()

    assert told.pauses == [1.1, 1.2, 11.1, 10.2]


async def test_a_try_that_is_not_answered_is_given_up(autojump_clock: MockClock) -> None:
    told = Told()
    mute = listen_memory("service")
    with trio.move_on_after(10):
        async with connect_forever(
            URI,
            dialect=STREAMUX,
            retry=Retry(first_delay=1, jitter=0, answer_seconds=2),
            wait=False,
            on_state=told,
        ) as client:
            await trio.sleep(6)
            with pytest.raises(ConnectionLost, match="no connection within 2 s"):
                await client.ping()
    await mute.aclose()

    assert told.states == ["connecting", "connecting", "closed"]


# What waits, and what does not


async def test_a_call_waits_for_the_first_connection(autojump_clock: MockClock) -> None:
    answers: list[bytes] = []

    async def ask(client: ReconnectingClient) -> None:
        answers.append((await client.request_response(b"x")).data)

    async with connect_forever(URI, retry=EXACT) as client, trio.open_nursery() as nursery:
        nursery.start_soon(ask, client)
        await trio.sleep(2)
        assert (answers, client.connection) == ([], None)
        async with service():
            connection = await client.connected()
            assert client.connection is connection
            await settle()
            assert answers == [b"done x"]


async def test_the_callers_deadline_bounds_the_wait_and_leaves_no_trace(autojump_clock: MockClock) -> None:
    async with connect_forever(URI, retry=EXACT) as client:
        for call in CALLS.values():
            with pytest.raises(trio.TooSlowError), trio.fail_after(2):
                await call(client)
        with pytest.raises(trio.TooSlowError), trio.fail_after(2):
            await client.connected()
        assert not client._changes


async def test_without_waiting_a_call_fails_at_once_and_says_why(autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    async with connect_forever(URI, retry=EXACT, wait=False) as client:
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


async def test_a_call_in_the_moment_of_the_loss_hears_of_it_at_once(autojump_clock: MockClock) -> None:
    heard: list[str] = []

    def ask_in_that_moment(status: str) -> None:
        assert client.connection is None
        nursery.start_soon(ask)

    async def ask() -> None:
        with pytest.raises(ConnectionLost) as error:
            await client.request_response()
        heard.append(str(error.value))

    async with service() as running, connect_forever(URI, retry=EXACT, wait=False) as client:
        for _ in range(10):  # either task may run first
            connection = await client.connected()
            connection.on_state(ask_in_that_moment)
            await settle()
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                running.cut()
                await settle()
            assert trio.current_time() == began

    assert heard == ["no connection: the peer closed the transport"] * 10


# What is in progress


async def _request(client: ReconnectingClient) -> None:
    await client.request_response(b"long")


async def _next_item(client: ReconnectingClient) -> None:
    async with client.request_stream(b"stream") as items:
        async for _ in items:
            pass


async def _channel(client: ReconnectingClient) -> None:
    async with client.request_channel(b"channel") as channel:
        await anext(channel)


async def _ping(client: ReconnectingClient) -> None:
    await client.ping()


async def _forget(client: ReconnectingClient) -> None:
    await client.fire_and_forget(b"note")


async def _push(client: ReconnectingClient) -> None:
    await client.metadata_push(b"push")


async def _subscription(client: ReconnectingClient) -> None:
    async with client.request_subscription(b"subscription"):
        pass


CALLS: dict[str, Callable[[ReconnectingClient], Awaitable[None]]] = {
    "request": _request,
    "stream": _next_item,
    "channel": _channel,
    "ping": _ping,
    "forget": _forget,
    "push": _push,
    "subscription": _subscription,
}


@pytest.mark.parametrize("call", ["request", "stream", "channel"])
async def test_a_call_in_progress_fails_and_is_not_repeated(call: str, autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    failed: list[RSocketError] = []

    async def keep_at_it() -> None:
        try:
            await CALLS[call](client)
        except RSocketError as error:
            failed.append(error)

    async with service(busy_responder(asked)) as running, connect_forever(URI, retry=EXACT) as client:
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


async def test_a_stream_fails_behind_what_came_and_the_next_one_is_new(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    async with service() as running, connect_forever(URI, retry=EXACT) as client:
        for _ in range(3):
            async with client.request_stream(initial_request_n=8) as items:
                seen += [(await anext(items)).text, (await anext(items)).text]
                running.cut()
                with pytest.raises(ConnectionLost):
                    await anext(items)

    assert seen == ["1", "2"] * 3


async def test_every_call_reaches_the_connection_of_the_moment(autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    async with service(busy_responder(asked)) as running, connect_forever(URI, retry=EXACT) as client:
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


async def test_pushed_metadata_and_subscriptions_work_where_the_dialect_has_them(autojump_clock: MockClock) -> None:
    async with service(), connect_forever(URI, dialect="reactivesocket/0.0") as client:
        async with client.request_subscription(initial_request_n=3, pushes=True) as items:
            assert await anext(items) == Payload(b"1")
        async with client.request_stream(pushes=True) as items:
            assert await anext(items) == Payload(b"1")


# What the state is


async def test_the_states_are_told_in_their_order(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, retry=EXACT, on_state=told) as client:
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
    async with connect_forever(URI, retry=EXACT, on_state=told) as client, trio.open_nursery() as nursery:
        for number in range(2):
            async with trio.open_nursery() as servers:
                await servers.start(serve, busy_responder([]), [URI])
                assert (await client.request_response(b"%d" % number)).data == b"done %d" % number
                servers.cancel_scope.cancel()
        nursery.cancel_scope.cancel()

    assert [state for state in told.states if state != "connecting"] == ["connected", "lost"] * 2 + ["closed"]


async def test_while_the_server_drains_new_calls_wait_and_old_streams_go_on(autojump_clock: MockClock) -> None:
    accepted: list[Connection] = []
    responder = busy_responder([])
    answers: list[bytes] = []

    @responder.setup
    def remember(setup: Setup, connection: Connection) -> None:
        accepted.append(connection)

    async def ask() -> None:
        answers.append((await client.request_response(b"x")).data)

    async def ask_impatiently() -> None:
        with pytest.raises(ConnectionLost, match="no connection: the last one drains"):
            await impatient.request_response(b"x")

    async with (
        service(responder),
        connect_forever(URI, retry=EXACT) as client,
        connect_forever(URI, retry=EXACT, wait=False) as impatient,
        trio.open_nursery() as nursery,
    ):
        await impatient.connected()
        async with client.request_stream() as items, impatient.request_stream() as others:
            await anext(items)
            await anext(others)
            for connection in accepted:
                nursery.start_soon(partial(connection.drain, grace=5, announce=True))
            await settle()
            nursery.start_soon(ask)
            nursery.start_soon(ask_impatiently)
            assert (await anext(items)).data == b"2"
            await trio.sleep(4)
            assert client.connection is None
            assert answers == []
        await client.connected()
        await settle()
        assert answers == [b"done x"]


# What ends it


@pytest.mark.parametrize("kind", [RejectedSetup, InvalidSetup, UnsupportedSetup])
async def test_a_refusal_ends_it(
    kind: type[RejectedSetup], caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caught: list[RSocketError] = []
    responder = Responder()
    told = Told()

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        raise kind("not you")

    async def ask() -> None:
        try:
            await client.request_response()
        except RSocketError as error:
            caught.append(error)

    async with service(responder) as running, connect_forever(URI, retry=EXACT, on_state=told) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        for call in CALLS.values():
            with pytest.raises(kind, match="not you"):
                await call(client)
        with pytest.raises(kind, match="not you"):
            await client.connected()
        await trio.sleep(60)

    assert [type(error) for error in caught] == [kind] * 2
    assert caught[0] is not caught[1]
    assert running.served == 1
    assert told.states == ["connecting", "connected", "closed"]
    assert [record.levelno for record in caplog.records if "not tried again" in record.message] == [logging.WARNING]


async def test_a_refusal_reaches_those_who_wait_for_a_connection(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.setup
    def gate(setup: Setup, connection: Connection) -> None:
        raise RejectedSetup("not you")

    async def ask(call: Callable[[ReconnectingClient], Awaitable[None]]) -> None:
        with pytest.raises(RejectedSetup, match="not you"):
            await call(client)

    async with connect_forever(URI, retry=EXACT) as client, trio.open_nursery() as nursery:
        for name in ("request", "stream", "channel"):
            nursery.start_soon(ask, CALLS[name])
        await trio.sleep(1)
        async with service(responder):
            await trio.sleep(5)


async def test_peers_that_share_no_terms_do_not_try_again(autojump_clock: MockClock) -> None:
    told = Told()
    options = StreamuxOptions(min_len=15, max_len=20)
    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: serve(
                Responder(), [URI], streamux=StreamuxOptions(max_len=10, rec_len=10), task_status=task_status
            )
        )
        async with connect_forever(URI, dialect=STREAMUX, streamux=options, on_state=told) as client:
            with pytest.raises(NegotiationFailed):
                await client.connected()
        nursery.cancel_scope.cancel()

    assert told.states == ["connecting", "closed"]


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"dialect": "rsocket/9"}, ValueError),
        ({"strict": True}, Unsupported),
        ({"limits": 5}, TypeError),
        ({"quirks": ["none"]}, ValueError),
        ({"headers": [("a", "b")]}, ValueError),
    ],
    ids=repr,
)
async def test_terms_that_cannot_be_said_end_it(terms: Any, error: type[Exception], autojump_clock: MockClock) -> None:
    told = Told()
    async with connect_forever(URI, on_state=told, **terms) as client:
        with pytest.raises(error):
            await client.connected()
        with pytest.raises(error) as again:
            await client.request_response()
        assert again.value is not client._ended

    assert told.states == ["connecting", "closed"]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"uri": "nowhere"}, ValueError, "nowhere"),
        ({"dialekt": "rsocket/1.0"}, TypeError, "dialekt"),
        ({"retry": 5}, TypeError, "retry is a Retry, not int"),
        ({"on_state": 5}, TypeError, "on_state is a function, not int"),
        ({"quirks": 5}, TypeError, "iterable"),
    ],
    ids=repr,
)
async def test_what_can_be_told_at_once_is_told_at_once(arguments: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        async with connect_forever(**{"uri": URI} | arguments):
            raise AssertionError("the block has begun")


# The block


async def test_after_the_block_everybody_hears_that_it_is_closed(autojump_clock: MockClock) -> None:
    caught: list[RSocketError] = []

    async def ask(client: ReconnectingClient, call: Callable[[ReconnectingClient], Awaitable[None]]) -> None:
        try:
            await call(client)
        except RSocketError as error:
            caught.append(error)

    async with trio.open_nursery() as nursery:
        async with connect_forever(URI) as waiting:
            nursery.start_soon(ask, waiting, _request)
            await settle()
        async with service(), connect_forever(URI) as busy:
            nursery.start_soon(ask, busy, _request)
            nursery.start_soon(ask, busy, _next_item)
            await busy.connected()
            await settle()
    for client in (waiting, busy):
        await ask(client, _request)
        assert client.connection is None

    assert [type(error) for error in caught] == [ConnectionClosed] * 5


@pytest.mark.parametrize("moment", ["dialling", "pausing", "waiting for an answer", "connected", "suspended"])
async def test_leaving_takes_no_time_whatever_it_is_doing(moment: str, autojump_clock: MockClock) -> None:
    told = Told()
    resume = ResumeOptions() if moment == "suspended" else None
    terms: dict[str, Any] = {"dialect": STREAMUX if moment == "waiting for an answer" else "rsocket/1.0"}
    async with trio.open_nursery() as nursery:
        running = Service(nursery, busy_responder([]))
        if moment in ("connected", "suspended"):
            await running.start(resume=resume)
        elif moment == "waiting for an answer":
            nursery.start_soon(listen_and_say_nothing)
            await settle()
        async with connect_forever(URI, on_state=told, resume=resume, **terms) as client:
            if moment != "dialling":
                await settle()
            if moment == "suspended":
                connection = await client.connected()
                running.crash()
                await settle()
                assert connection.status == "suspended"
            began = trio.current_time()
        assert trio.current_time() - began <= (1 if moment == "waiting for an answer" else 0)
        nursery.cancel_scope.cancel()

    assert told.states[-1] == "closed"


async def listen_and_say_nothing() -> None:
    listener = listen_memory("service")
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()


@pytest.mark.parametrize("error", [KeyError("own"), ExceptionGroup("own", [KeyError("one")]), ConnectionLost("own")])
@pytest.mark.parametrize("connected", [True, False])
async def test_the_users_own_error_leaves_the_block_alone(
    connected: bool, error: Exception, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        running = Service(nursery, Responder())
        if connected:
            await running.start()
        with pytest.raises(type(error)) as caught:  # noqa: PT012
            async with connect_forever(URI):
                await settle()
                raise error
        nursery.cancel_scope.cancel()

    assert caught.value is error


@pytest.mark.parametrize("state", ["connecting", "connected", "lost", "closed"])
@pytest.mark.parametrize("kind", [KeyError, ConnectionLost, ValueError, KeyboardInterrupt])
async def test_what_the_listener_raises_ends_the_block_and_leaves_it_alone(
    kind: type[BaseException], state: str, autojump_clock: MockClock
) -> None:
    error = kind("own")

    def fail(now: str) -> None:
        if now == state:
            raise error

    async with service() as running:
        with pytest.raises(kind) as caught:  # noqa: PT012
            async with connect_forever(URI, on_state=fail) as client:
                await client.connected()
                running.cut()
                if state != "closed":
                    await trio.sleep_forever()
        assert caught.value is error


@pytest.mark.parametrize("listening", [True, False])
def test_ctrl_c_ends_the_block_and_leaves_it_alone(listening: bool) -> None:
    states: list[str] = []
    left: list[BaseException] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            if listening:
                await nursery.start(serve, busy_responder([]), [URI])
            try:
                async with connect_forever(URI, on_state=states.append) as client:
                    if listening:
                        await client.connected()
                    await settle()
                    signal.raise_signal(signal.SIGINT)
                    await client.request_response(b"long")
            except BaseException as exc:
                left.append(exc)
                raise
            finally:
                nursery.cancel_scope.cancel()

    with pytest.raises(BaseException) as caught:  # noqa: PT011  # what Trio makes of it outside is Trio's
        trio.run(main, clock=MockClock(autojump_threshold=0))

    assert [type(error) for error in left] == [KeyboardInterrupt]
    assert caught.group_contains(KeyboardInterrupt) or isinstance(caught.value, KeyboardInterrupt)
    assert states[-1] == "closed"
    left.clear()


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
        connect_forever(URI, retry=EXACT, resume=resume, on_state=told) as client,
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


async def test_what_a_session_hears_that_would_go_on_is_no_refusal_of_a_new_one(autojump_clock: MockClock) -> None:
    told = Told()
    resume = ResumeOptions()
    async with (
        service(resume=resume) as running,
        connect_forever(URI, retry=EXACT, resume=resume, on_state=told) as client,
    ):
        await client.ping()
        running.crash()
        await settle()
        listener = listen_memory("service")
        transport = await listener.accept()
        assert raw.parsed((await transport.receive())[0]).type == raw.RESUME
        await transport.send([raw.error(0, raw.REJECTED_SETUP, b"not you")])
        await listener.aclose()
        await running.start(resume=resume)
        await settle()
        assert (await client.request_response(b"x")).data == b"done x"
        transport.close()

    assert told.states == ["connecting", "connected", "lost", "connecting", "connected", "closed"]


async def test_the_server_asks_the_client_over_each_connection(autojump_clock: MockClock) -> None:
    near, far = Responder(), Responder()

    @near.request_response
    def name(request: Payload) -> str:
        return "client"

    @far.request_response
    async def greet(request: Payload) -> str:
        return f"hello {(await current_connection().request_response()).text}"

    async with service(far) as running, connect_forever(URI, responder=near) as client:
        for _ in range(2):
            assert (await client.request_response()).text == "hello client"
            running.cut()
            await settle()


async def test_terms_that_can_be_read_once_only_serve_every_connection(autojump_clock: MockClock) -> None:
    seen: list[tuple[Any, ...]] = []
    responder = busy_responder([])

    @responder.setup
    def remember(setup: Setup, connection: Connection) -> None:
        seen.append(setup.entries)

    entries = iter([Entry("org.example/hello", True, False, 0, b"hi")])
    async with (
        service(responder) as running,
        connect_forever(URI, dialect="rsocket/2.0-draft", entries=entries) as client,
    ):
        await client.request_response()
        running.cut()
        await settle()
        await client.request_response()

    assert len(seen) == 2
    assert seen[0] == seen[1] != ()


async def test_over_tcp_a_server_is_found_again_where_it_was() -> None:
    states: list[str] = []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            servers = await nursery.start(run_server, "tcp://127.0.0.1:0")
            uri = servers.uri
            async with connect_forever(
                uri, retry=Retry(first_delay=0.01, longest_delay=0.02), on_state=states.append
            ) as client:
                connection = await client.connected()
                assert (await client.request_response(b"1")).data == b"done 1"
                servers.scope.cancel()
                await servers.gone.wait()
                await connection.wait_closed()
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(client.request_response, b"2")
                    await nursery.start(run_server, uri)
            nursery.cancel_scope.cancel()

    assert [state for state in states if state != "connecting"] == ["connected", "lost", "connected", "closed"]


class Running:
    """A server in a scope of its own."""

    def __init__(self) -> None:
        self.uri = ""
        self.scope = trio.CancelScope()
        self.gone = trio.Event()


async def run_server(uri: str, *, task_status: trio.TaskStatus[Running]) -> None:
    running = Running()
    with running.scope:
        async with trio.open_nursery() as nursery:
            [running.uri] = await nursery.start(serve, busy_responder([]), [uri])
            task_status.started(running)
    running.gone.set()


# What the types say, and what a connection says of its end


def test_the_named_arguments_are_those_of_a_connection() -> None:
    def keywords(function: object) -> set[str]:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
        return {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}

    assert set(ConnectionTerms.__annotations__) == keywords(open_connection)
    assert set(RequestTerms.__annotations__) == keywords(Connection.request_response)
    assert set(StreamTerms.__annotations__) == keywords(Connection.request_channel)
    assert keywords(Connection.request_stream) - set(StreamTerms.__annotations__) == {"pushes"}


def test_every_request_of_a_connection_is_one_of_the_client() -> None:
    requests = {name for name in vars(Connection) if name.startswith("request_")}
    requests |= {"fire_and_forget", "metadata_push", "ping"}

    assert {name for name in requests if not hasattr(rsocket_trio.ReconnectingClient, name)} == set()


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

    assert [str(reason) for reason in reasons] == ["the peer closed the transport"] * 3
    assert len({id(reason) for reason in reasons}) == 3
