"""A client that outlives its connections: its states and tries, what waits, what is sent again, how it ends."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Backoff,
    Canceled,
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Drained,
    Incoming,
    InvalidSetup,
    Payload,
    ReconnectingClient,
    RejectedResume,
    RejectedSetup,
    Responder,
    ResumeOptions,
    RSocketError,
    Setup,
    UnsupportedSetup,
    connect_forever,
)
from rsocket_trio.connection.protocols import ALL, STREAMUX
from rsocket_trio.transports.memory import listen_memory
from tests.client.reconnecting import (
    CALLS,
    DELAYS,
    EXACT,
    URI,
    Service,
    Told,
    busy_responder,
    next_item,
    request,
    service,
)
from tests.connection.pairs import settle

# What the state is


async def test_the_states_are_told_in_their_order(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, backoff=EXACT, on_state=told) as client:
        assert repr(client) == f"<ReconnectingClient {URI}, connecting, load 0>"
        await client.connected()
        running.crash()
        await trio.sleep(0.15)
        assert repr(client) == f"<ReconnectingClient {URI}, connecting, load 0>"
        await running.start()
        await client.connected()
        assert repr(client) == f"<ReconnectingClient {URI}, connected, load 0>"

    assert told.states == ["connecting", "connected", "lost", "connecting", "connecting", "connected", "closed"]


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


REFUSED_CALLS = (ask, read, read_batches, talk)


@each_dialect
@pytest.mark.parametrize("call", REFUSED_CALLS, ids=lambda call: call.__name__)
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


def remembering(accepted: list[Connection]) -> Responder:
    """A busy responder, and the connections that it accepted."""
    responder = busy_responder([])

    @responder.setup
    def remember(setup: Setup, connection: Connection) -> None:
        accepted.append(connection)

    return responder


async def test_open_streams_stay_with_a_connection_that_drains_and_new_calls_go_to_the_next(
    autojump_clock: MockClock,
) -> None:
    accepted: list[Connection] = []
    told = Told()
    async with (
        service(remembering(accepted)) as running,
        connect_forever(URI, backoff=EXACT, on_state=told) as client,
        trio.open_nursery() as nursery,
    ):
        async with client.request_stream() as items:
            assert (await anext(items)).data == b"1"
            first = client.connection
            nursery.start_soon(partial(accepted[0].drain, grace=5, announce=True))
            await settle()
            assert (await client.request_response(b"x")).data == b"done x"
            assert trio.current_time() == told.started
            assert first is not None
            assert first.status == "draining"
            assert client.connection is not first
            assert (await anext(items)).data == b"2"
            assert first.status == "draining"
        await trio.sleep(6)
        assert first.status == "closed"
        # Its end is nobody's loss.
        assert (await client.request_response(b"y")).data == b"done y"
        assert running.served == 2
        assert told.states == ["connecting", "connected", "draining", "connecting", "connected"]
        accepted.clear()
        del first


def listening(heard: list[Payload]) -> Responder:
    """It writes down what clients say when they connect."""
    responder = busy_responder([])

    @responder.setup
    def hear(setup: Setup, connection: Connection) -> None:
        heard.append(setup.payload)

    return responder


class Tokens:
    """Says another token each time; or raises."""

    def __init__(self, *errors: Exception) -> None:
        self.made = 0
        self.errors = list(errors)

    def now(self) -> Payload:
        if self.errors:
            raise self.errors.pop(0)
        self.made += 1
        return Payload(b"token %d" % self.made, b"metadata %d" % self.made)

    async def soon(self) -> Payload:
        await trio.sleep(0.01)
        return self.now()


@pytest.mark.parametrize("kind", ["now", "soon"])
async def test_a_setup_is_made_for_each_connection(autojump_clock: MockClock, kind: str) -> None:
    heard: list[Payload] = []
    tokens = Tokens()
    async with (
        service(listening(heard)) as running,
        connect_forever(URI, backoff=EXACT, setup=getattr(tokens, kind)) as client,
    ):
        for _ in range(3):
            await client.request_response(b"x")
            running.cut()
            await settle()

    assert heard == [Payload(b"token %d" % number, b"metadata %d" % number) for number in (1, 2, 3)]


@pytest.mark.parametrize("error", [OSError, trio.TooSlowError, trio.BrokenResourceError, ConnectionLost])
async def test_a_token_that_cannot_be_had_now_is_a_try_that_failed(
    autojump_clock: MockClock, error: type[Exception]
) -> None:
    heard: list[Payload] = []
    tokens, told = Tokens(error("nobody there"), error("nobody there")), Told()
    async with (
        service(listening(heard)),
        connect_forever(URI, backoff=EXACT, setup=tokens.now, on_state=told, wait=False) as client,
    ):
        await settle()
        with pytest.raises(ConnectionLost, match=r"no connection: .*nobody there"):
            await client.request_response(b"x")
        await client.connected()
        assert (await client.request_response(b"x")).data == b"done x"

    assert told.pauses == [0.1, 0.2]
    assert len(heard) == 1


@pytest.mark.parametrize("error", [KeyError, ValueError, TypeError, RejectedSetup])
@pytest.mark.parametrize("later", [False, True])
async def test_a_fault_of_the_function_leaves_the_block_as_itself(
    autojump_clock: MockClock, error: type[Exception], later: bool
) -> None:
    own = error("own")
    tokens = Tokens()
    async with service() as running:
        with pytest.raises(error) as caught:  # noqa: PT012
            async with connect_forever(URI, backoff=EXACT, setup=tokens.now) as client:
                if later:
                    await client.connected()
                tokens.errors.append(own)
                running.cut()
                await trio.sleep_forever()

    assert caught.value is own


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

    async with service(responder) as running, connect_forever(URI, backoff=EXACT, on_state=told) as client:
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


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"uri": "nowhere"}, ValueError, "nowhere"),
        ({"dialekt": "rsocket/1.0"}, TypeError, "dialekt"),
        ({"backoff": 5}, TypeError, "backoff is a Backoff, not int"),
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
            nursery.start_soon(ask, waiting, request)
            await settle()
        async with service(), connect_forever(URI) as busy:
            nursery.start_soon(ask, busy, request)
            nursery.start_soon(ask, busy, next_item)
            await busy.connected()
            await settle()
    for client in (waiting, busy):
        await ask(client, request)
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


@pytest.mark.parametrize(
    ("state", "kind"),
    [("connecting", KeyError), ("connected", ConnectionLost), ("lost", KeyboardInterrupt), ("closed", ValueError)],
)
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
