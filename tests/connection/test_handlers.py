"""How handlers run: their forms, generators whose yield is a send, plain functions inline, cancellation, tasks."""

from __future__ import annotations

import contextvars
import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    ConnectionClosed,
    Limits,
    Outgoing,
    Payload,
    Responder,
    Setup,
    current_connection,
)
from rsocket_trio.connection.sender import ITEMS_PER_TURN
from rsocket_trio.forms import Kind
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.services.codec_choice import ANSWERS
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.each_row import each_row

# The five rows in which ``yield x`` has to mean ``await out.send(x)``.


async def test_a_timeout_around_yields_ends_the_block_and_the_handler_goes_on(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        with trio.move_on_after(2.5):
            while True:
                yield b"tick"
                await trio.sleep(1)
        yield b"last word"

    async with connected_pair(responder) as pair, pair.client.request_stream() as items:
        assert [item.data async for item in items] == [b"tick"] * 3 + [b"last word"]


async def test_a_nursery_around_yields_whose_task_fails_raises_that_and_no_generator_exit(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()

    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("in the background")

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            while True:
                yield b"tick"
                await trio.sleep(0.4)

    async with connected_pair(responder) as pair:
        got: list[bytes] = []
        async with pair.client.request_stream() as items:
            with pytest.raises(ApplicationError, match="internal error"):  # noqa: PT012
                async for item in items:
                    got.append(item.data)
        assert got == [b"tick"] * 3

    (record,) = caplog.records
    assert record.exc_info is not None
    group = record.exc_info[1]
    assert isinstance(group, ExceptionGroup)
    assert [type(error) for error in group.exceptions] == [ValueError]


async def test_a_nursery_around_yields_ends_quietly_when_the_peer_cancels(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                while True:
                    yield b"tick"
        finally:
            ended.append("handler")

    async with connected_pair(responder) as pair:
        async with pair.client.request_stream(initial_request_n=1) as items:
            await anext(items)
        await settle()
        assert ended == ["handler"]
        assert await pair.client.ping() == 0

    assert caplog.records == []


# Forms


async def test_a_yield_of_something_else_raises_there_and_the_stream_goes_on(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[object]:
        yield b"a"
        yield b"b"
        try:
            yield object()
        except TypeError as error:
            yield str(error)

    async with connected_pair(responder) as pair, pair.client.request_stream(b"") as items:
        got = [item.text async for item in items]

    assert got[:2] == ["a", "b"]
    assert "stream: object can't be encoded as application/json" in got[2]


async def test_a_handler_that_never_waits_lets_others_run(autojump_clock: MockClock) -> None:
    made = 0
    seen: list[int] = []
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(2000):
            made += 1
            yield b"item"

    async def look() -> None:
        while made < 2000:
            seen.append(made)
            await trio.lowlevel.checkpoint()

    async with (
        connected_pair(responder) as pair,
        pair.client.request_stream(b"", initial_request_n=10_000) as items,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(look)
        assert len([item async for item in items]) == 2000

    assert max(later - earlier for earlier, later in pairwise(seen)) <= 2 * ITEMS_PER_TURN


async def test_each_yield_waits_for_credit(autojump_clock: MockClock) -> None:
    responder = Responder()
    yielded: list[int] = []

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"%d" % number
            yielded.append(number)

    async with (
        connected_pair(responder) as pair,
        pair.client.request_stream(initial_request_n=3, refill=False) as items,
    ):
        await settle()
        assert yielded == [0, 1, 2]
        assert [(await anext(items)).data for _ in range(3)] == [b"0", b"1", b"2"]
        await trio.sleep(1)
        assert yielded == [0, 1, 2]
        items.request_n(2)
        await settle()
        assert yielded == [0, 1, 2, 3, 4]

    assert pair.client_said.credit == [2]


# Cancellation


async def test_a_cancel_before_the_first_step_keeps_the_handler_from_being_called(autojump_clock: MockClock) -> None:
    responder = Responder()
    called: list[str] = []

    @responder.request_response
    async def one(request: Payload) -> bytes:
        called.append("response")
        return b""

    @responder.request_response("inline")
    def at_once(request: Payload) -> bytes:
        called.append("inline")
        return b""

    @responder.request_stream
    async def many(request: Payload) -> AsyncIterator[bytes]:
        called.append("stream")
        yield b""

    @responder.request_channel
    async def both(channel: Channel) -> None:
        called.append("channel")

    routing = b"message/x.rsocket.routing.v0"
    async with raw.bare_server(raw.RS10, responder) as peer:
        await peer.send(raw.setup(metadata_mime=routing))
        inline = raw.frame(raw.REQUEST_RESPONSE, raw.M, 9, raw.sized(b"\x06inline"))
        for request in (raw.ask(1), raw.stream(3, 1), raw.channel(5, 1), inline):
            stream_id = int.from_bytes(request[:4], "big")
            await peer.send(request, raw.cancel(stream_id))
        await settle()
        assert called == []
        await peer.send(raw.ask(7))
        assert (await peer.receive()).stream_id == 7

    assert called == ["response"]


@each_row("before", [False, True], ids=["new tasks", "pooled tasks"])
async def test_a_cancel_hits_its_own_request_only(before: bool, autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[bytes] = []

    @responder.request_response
    async def wait(request: Payload) -> bytes:
        try:
            await trio.sleep(1)
        except BaseException:
            ended.append(request.data)
            raise
        return request.data

    async with raw.server(raw.RS10, responder) as peer:
        if before:
            await peer.send(raw.ask(101), raw.ask(103), raw.ask(105))
            for _ in range(3):
                await peer.receive()
        await peer.send(raw.ask(1, b"1"), raw.ask(3, b"3"), raw.ask(5, b"5"))
        await settle()
        await peer.send(raw.cancel(3))
        assert {(await peer.receive()).body, (await peer.receive()).body} == {b"1", b"5"}
        # A CANCEL for what has ended changes nothing, whoever runs in that task now.
        await peer.send(raw.ask(7, b"7"), raw.cancel(1), raw.cancel(5), raw.cancel(3))
        assert (await peer.receive()).body == b"7"

    assert ended == [b"3"]


async def test_a_handler_that_fails_while_it_is_cancelled_is_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while dying")

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.ask(1))
        await settle()
        await peer.send(raw.cancel(1))
        await peer.expect_alive()

    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "while dying" in caplog.text


# The receive task never waits for a handler.


async def test_a_stuck_handler_delays_no_keepalive(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def stuck(request: Payload) -> bytes:
        with trio.CancelScope(shield=True):
            await trio.sleep(30)
        return b""

    @responder.metadata_push
    async def stuck_too(metadata: bytes) -> None:
        await trio.sleep(30)

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await trio.sleep(30)

    async with raw.server(raw.RS10, responder) as peer:
        await peer.expect_alive(b"in the gate")
        await trio.sleep(31)
        await peer.send(raw.ask(1), raw.RS10.push(b"x"))
        await peer.expect_alive(b"beside handlers")


async def test_an_inline_answer_above_the_outbox_mark_waits_and_the_reader_does_not(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    def bulk(request: Payload) -> bytes:
        return bytes(600_000)

    limits = Limits(outbox_size=1_000_000)
    done: list[int] = []

    async def ask(connection: Connection) -> None:
        done.append(len((await connection.request_response()).data))

    async with connected_pair(responder, server_limits=limits) as pair:
        pair.server_wire.hold()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask, pair.client)
            await settle()
            outbox = pair.server._engine.session.outbox
            assert outbox.size <= 1_000_000 + 600_000
            # Keepalives are still read, and pushed metadata too.
            read = pair.server._engine.session
            await pair.client.metadata_push(b"x")
            await settle()
            assert pair.server.faults.dropped == 1
            assert not read.is_congested
            pair.server_wire.release()

    assert done == [600_000] * 8


async def test_a_waiting_task_keeps_no_call_alive(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def typed(text: str) -> str:
        return "answer"

    async with connected_pair(responder, data_mime="text/plain") as pair:
        await pair.client.request_response(b"marked in a call" + bytes(100))
        await settle()
        assert payloads_with(b"marked") == 0


def payloads_with(beginning: bytes) -> int:
    """Return how many payloads live whose data begins like this."""
    import gc

    return sum(type(one) is Payload and one.data.startswith(beginning) for one in gc.get_objects())


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def in_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """Waits a moment first."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return await function(*args, **kwargs)

    return wrapper


def in_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hands on what the function returns."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def without_wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    """As many write it who do not know ``functools.wraps``."""

    def wrapper(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
        return function(*args, **kwargs)

    return wrapper


def with_database(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the function an argument of its own: the wrapper takes other arguments than what it wraps."""

    @functools.wraps(function)
    async def wrapper(request: Payload) -> Any:
        return await function(request, "database")

    return wrapper


def as_lambda(function: Callable[..., Any]) -> Callable[..., Any]:
    """A lambda."""
    return lambda request: function(request)  # noqa: PLW0108


async def echo(request: Payload) -> bytes:
    await trio.lowlevel.checkpoint()
    return b"<" + request.data + b">"


async def twice(request: Payload) -> AsyncIterator[bytes]:
    yield request.data
    await trio.lowlevel.checkpoint()
    yield request.data


async def push_twice(request: Payload, out: Outgoing) -> None:
    await out.send(request.data)
    await out.send(request.data)


async def answer(channel: Channel) -> None:
    async for item in channel:
        await channel.send(item.data.upper())


@each_row("wrap", [in_async, in_plain, without_wraps, functools.partial, staticmethod, as_lambda])
async def test_a_request_is_answered_by_a_wrapped_function(wrap: Decorator, autojump_clock: MockClock) -> None:
    responder = Responder()
    responder.request_response(wrap(echo))
    async with connected_pair(responder) as pair:
        for _ in range(2):
            assert (await pair.client.request_response(b"x")).data == b"<x>"
        assert pair.server.faults.handler_errors == 0


async def test_the_form_is_that_of_the_outermost_function_and_not_of_what_it_wraps(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    @with_database
    async def look_up(request: Payload, database: str) -> bytes:
        return request.data + database.encode()

    @responder.request_response("from items")
    @functools.wraps(twice)
    async def collect(request: Payload) -> bytes:
        return b"".join([item async for item in twice(request)])

    @responder.request_stream("from one")
    @functools.wraps(echo)
    async def repeat(request: Payload) -> AsyncIterator[bytes]:
        yield await echo(request)

    assert responder._find(Interaction.REQUEST_STREAM, "from one").kind is Kind.GENERATOR
    async with connected_pair(responder) as pair:
        assert (await pair.client.request_response(b"x")).data == b"xdatabase"
        assert (await pair.client.request_response(b"x", route="from items")).data == b"xx"
        async with pair.client.request_stream(b"x", route="from one") as items:
            assert [item.data async for item in items] == [b"<x>"]


@each_row("wrap", [in_plain, functools.partial])
async def test_a_stream_is_served_by_a_wrapped_generator(wrap: Decorator, autojump_clock: MockClock) -> None:
    responder = Responder()
    responder.request_stream(wrap(twice))
    async with connected_pair(responder) as pair:
        async with pair.client.request_stream(b"x") as got:
            assert [item.data async for item in got] == [b"x", b"x"]
        assert pair.server.faults.handler_errors == 0


async def test_plain_functions_may_say_what_they_return(autojump_clock: MockClock) -> None:
    responder = Responder()

    class Numbers:
        """An async iterable that is no generator."""

        def __init__(self, last: int) -> None:
            self.number, self.last = 0, last

        def __aiter__(self) -> Numbers:
            return self

        async def __anext__(self) -> bytes:
            if self.number == self.last:
                raise StopAsyncIteration
            self.number += 1
            return b"%d" % self.number

    @responder.request_stream
    def numbers(request: Payload) -> AsyncIterator[bytes]:
        return Numbers(3)

    @responder.request_stream("push")
    def pushed(request: Payload, out: Outgoing) -> Coroutine[Any, Any, None]:
        return push_twice(request, out)

    @responder.request_channel
    def converse(channel: Channel) -> Awaitable[None]:
        return answer(channel)

    @responder.request_response
    def ask(request: Payload) -> Awaitable[bytes]:
        return echo(request)

    async with connected_pair(responder) as pair:
        async with pair.client.request_stream() as items:
            assert [item.data async for item in items] == [b"1", b"2", b"3"]
        async with pair.client.request_stream(b"x", route="push") as items:
            assert [item.data async for item in items] == [b"x", b"x"]
        assert (await pair.client.request_response(b"y")).data == b"<y>"


def items_at_once(request: Any) -> Any:
    return [request.data]


def returns_list(request: Any) -> list[bytes]:
    return [request.data]


@each_row("function", [items_at_once, returns_list, without_wraps(twice), as_lambda(twice)])
@each_row("name", ["request_stream", "request_subscription", "request_channel", "lease"])
def test_a_plain_function_that_says_nothing_of_the_kind_is_refused_when_it_is_registered(
    name: str, function: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError, match=rf"{name} takes .*{re.escape(function.__name__)}.* is a plain function"):
        getattr(Responder(), name)(function)


def no_items(request: Payload) -> AsyncIterator[bytes]:
    return cast("AsyncIterator[bytes]", [request.data])


@each_row(
    ("name", "function", "told"),
    [
        (
            "request_stream",
            no_items,
            "request_stream handler no_items returned list, not an async generator or another async iterable",
        ),
        (
            "request_response",
            lambda request: twice(request),  # noqa: PLW0108
            "request_response handler <lambda> returned async_generator, not a payload: request_stream answers items",
        ),
        (
            "request_response",
            lambda request: {1, object()},
            "request_response handler <lambda>: set can't be encoded as application/json: object can't be encoded; "
            + ANSWERS,
        ),
    ],
)
async def test_a_result_that_does_not_fit_is_told_of_by_name(
    name: str,
    function: Callable[..., Any],
    told: str,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    responder = Responder()
    getattr(responder, name)(function)
    async with connected_pair(responder) as pair:
        with pytest.raises(ApplicationError, match="internal error"):  # noqa: PT012
            if name == "request_response":
                await pair.client.request_response()
            else:
                async with pair.client.request_stream() as items:
                    await anext(items)
    assert told in caplog.text.replace("test_handlers.", "")


# What runs where


async def test_a_coroutine_of_a_plain_function_goes_on_in_its_context_and_can_be_cancelled(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    ended: list[str] = []

    async def work(request: Payload) -> bytes:
        assert current_connection() is not None
        try:
            await trio.sleep(10)
        finally:
            ended.append(user.get())
        return user.get().encode()

    @responder.request_response
    @responder.fire_and_forget
    @responder.metadata_push
    @in_plain
    def begin(request: Payload) -> Awaitable[bytes]:
        user.set("ada")
        return work(request)

    async with connected_pair(responder) as pair:
        assert (await pair.client.request_response()).data == b"ada"
        with trio.move_on_after(1):
            await pair.client.request_response()
        await settle()
        assert ended == ["ada"] * 2
        await pair.client.fire_and_forget()
        await pair.client.metadata_push(b"x")
        await trio.sleep(11)
        assert ended == ["ada"] * 4
        assert pair.server.faults.handler_errors == 0


# Methods and caches


class Greeter:
    """Says in its representation what no log is to have."""

    def __repr__(self) -> str:
        return "Greeter(password='sesame')"

    def __call__(self, request: Payload) -> bytes:
        raise ValueError("bad day")


async def test_an_object_that_serves_is_called_by_its_class_and_by_nothing_that_it_holds(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()
    responder.request_response(Greeter())
    with pytest.raises(TypeError, match=r"request_stream takes .*; Greeter\(request\) is a plain function"):
        responder.request_stream(Greeter())  # type: ignore[type-var]
    async with connected_pair(responder) as pair:
        with pytest.raises(ApplicationError):
            await pair.client.request_response()
    assert "handler Greeter of request_response failed" in caplog.text
    assert "sesame" not in caplog.text


number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)
anything: contextvars.ContextVar[object] = contextvars.ContextVar("anything", default=None)


@each_row("idle", [0, 1, 32])
async def test_a_connection_keeps_no_more_idle_tasks_than_its_limit(idle: int, autojump_clock: MockClock) -> None:
    responder = Responder()
    tasks: set[trio.lowlevel.Task] = set()

    @responder.request_response
    async def one(request: Payload) -> bytes:
        tasks.add(trio.lowlevel.current_task())
        await trio.sleep(1)
        return b""

    async with connected_pair(responder, server_limits=Limits(idle_workers=idle)) as pair:
        await pair.client.ping()  # the server's send task begins with the first thing to send
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(pair.client.request_response)
        await settle()
        assert len(tasks) == 100
        assert trio.lowlevel.current_statistics().tasks_living == before + idle
        tasks.clear()


async def test_a_value_that_only_equals_the_former_and_one_more_variable_stay_in_their_request(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()
    ours: list[int] = []
    seen: list[tuple[bool, int]] = []

    @responder.request_response
    async def one(request: Payload) -> bytes:
        seen.append((anything.get() is ours, number.get()))
        if request.data == b"equal":
            anything.set([])
        elif request.data == b"more":
            number.set(1)
        return b""

    anything.set(ours)
    async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
        for what in (b"equal", b"more", b"nothing") * 30:
            nursery.start_soon(pair.client.request_response, what)

    assert seen == [(True, 0)] * 90


async def test_streams_at_their_limit_refuse_the_next_and_take_one_more_each_time_one_ends(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()

    @responder.request_response
    async def cling(request: Payload) -> bytes:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return b""

    async with raw.server(raw.RS10, responder, limits=Limits(streams=3)) as peer:
        await peer.send(raw.ask(1), raw.ask(3), raw.ask(5), raw.ask(7))
        await peer.expect_error(7, raw.REJECTED)
        # A handler that clings to its life after CANCEL goes on counting.
        await settle()
        await peer.send(raw.cancel(1))
        await settle()
        await peer.send(raw.ask(9))
        await peer.expect_error(9, raw.REJECTED)
        await trio.sleep(6)
        assert {(await peer.receive()).stream_id for _ in range(2)} == {3, 5}
        await peer.send(raw.ask(11), raw.ask(13), raw.ask(15))
        await trio.sleep(6)
        assert {(await peer.receive()).stream_id for _ in range(3)} == {11, 13, 15}


async def test_every_call_is_a_checkpoint(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    async def calls(connection: Connection) -> None:
        with trio.testing.assert_checkpoints():
            await connection.fire_and_forget(b"x")
        with trio.testing.assert_checkpoints():
            await connection.request_response(b"x")
        with trio.testing.assert_checkpoints():
            await connection.metadata_push(b"x")
        with trio.testing.assert_checkpoints():
            await connection.ping()
        with trio.testing.assert_checkpoints():
            await connection.send_extension(99)
        stream = connection.request_stream()
        with trio.testing.assert_checkpoints():
            await stream.__aenter__()
        await stream.__aexit__(None, None, None)
        channel = connection.request_channel()
        with trio.testing.assert_checkpoints():
            await channel.__aenter__()
        with trio.testing.assert_checkpoints():
            await channel.send_eof()
        await channel.__aexit__(None, None, None)

    async with connected_pair(responder) as pair:
        await calls(pair.client)
        with trio.testing.assert_checkpoints():
            await pair.client.drain()
        for call in (pair.client.fire_and_forget, pair.client.request_response, pair.client.ping, pair.client.drain):
            with trio.testing.assert_checkpoints(), suppress(ConnectionClosed):  # draining twice is none
                await call()
