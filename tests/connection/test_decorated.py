"""Handlers as Python programmers write them: wrapped, partial, bound, cached, or plain functions round async ones.

Forms are read from the outermost function, and what a plain function returns is awaited, iterated, or refused by name.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    Lease,
    Outgoing,
    Payload,
    RejectedSetup,
    Responder,
    Setup,
    current_connection,
)
from rsocket_trio.forms import Kind
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.services.codec_choice import ANSWERS
from tests.connection.pairs import connected_pair, settle
from tests.each_row import each_row

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def in_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """Waits a moment first."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return await function(*args, **kwargs)

    return wrapper


def in_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Yields what the function yields."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for item in function(*args, **kwargs):
            yield item

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


def as_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing bound."""
    return functools.partial(function)


def as_object(function: Callable[..., Any]) -> Callable[..., Any]:
    """An object that can be called."""

    class Service:
        def __call__(self, *args: Any) -> Any:
            return function(*args)

    return Service()


def as_lambda(function: Callable[..., Any]) -> Callable[..., Any]:
    """A lambda."""
    return lambda request: function(request)  # noqa: PLW0108


def as_lambda_of_two(function: Callable[..., Any]) -> Callable[..., Any]:
    """A lambda of two arguments."""
    return lambda one, two: function(one, two)  # noqa: PLW0108


def as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method of the same kind."""

    class Service:
        pass

    return function.__get__(Service())  # type: ignore[no-any-return]


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


def unannotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function without annotations."""
    function.__annotations__ = {}
    return function


WRAPPERS = [in_async, in_plain, without_wraps, as_partial, staticmethod]


@each_row("wrap", [*WRAPPERS, as_object, as_lambda])
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


@each_row("two", [False, True])
def test_a_wrapper_that_takes_other_arguments_than_it_should_is_refused_although_what_it_wraps_would_do(
    two: bool,
) -> None:
    @functools.wraps(echo)
    async def wrapper(request: Payload, other: object) -> None:
        return

    with pytest.raises(TypeError, match=r"\(request, other\) is an async function"):
        Responder().request_response(wrapper)


@each_row("wrap", [in_generator, in_plain, as_partial, staticmethod, as_lambda, without_wraps])
@each_row("annotated", [True, False])
async def test_a_stream_is_served_by_a_wrapped_generator(
    wrap: Decorator, annotated: bool, autojump_clock: MockClock
) -> None:
    async def items(request: Payload) -> AsyncIterator[bytes]:
        async for item in twice(request):
            yield item

    responder = Responder()
    responder.request_stream(wrap(items if annotated else unannotated(items)))
    async with connected_pair(responder) as pair:
        async with pair.client.request_stream(b"x") as got:
            assert [item.data async for item in got] == [b"x", b"x"]
        assert pair.server.faults.handler_errors == 0


@each_row("wrap", [in_async, in_plain, as_partial, staticmethod, as_lambda_of_two])
@each_row("annotated", [True, False])
async def test_a_stream_is_served_by_a_wrapped_function_that_pushes(
    wrap: Decorator, annotated: bool, autojump_clock: MockClock
) -> None:
    async def push(request: Payload, out: Outgoing) -> None:
        await push_twice(request, out)

    responder = Responder()
    responder.request_stream(wrap(push if annotated else unannotated(push)))
    async with connected_pair(responder) as pair, pair.client.request_stream(b"x") as got:
        assert [item.data async for item in got] == [b"x", b"x"]


@each_row("wrap", [in_async, in_plain, without_wraps, as_partial, staticmethod, as_lambda])
async def test_a_channel_is_served_by_a_wrapped_function(wrap: Decorator, autojump_clock: MockClock) -> None:
    responder = Responder()
    responder.request_channel(wrap(answer))
    async with connected_pair(responder) as pair, pair.client.request_channel() as channel:
        await channel.send(b"x")
        assert (await anext(channel)).data == b"X"
        await channel.send_eof()
        with pytest.raises(StopAsyncIteration):
            await anext(channel)


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


async def test_annotations_that_wraps_copied_do_not_speak_for_the_wrapper(autojump_clock: MockClock) -> None:
    async def give(request: Payload) -> Awaitable[bytes]:
        return echo(request)

    responder = Responder()

    @responder.request_stream("items")
    @functools.wraps(give)
    def items(request: Payload) -> AsyncIterator[bytes]:
        return twice(request)

    @responder.request_stream("push")
    @functools.wraps(twice)
    def push(request: Payload, out: Outgoing) -> Awaitable[None]:
        return push_twice(request, out)

    async with connected_pair(responder) as pair:
        for route in ("items", "push"):
            async with pair.client.request_stream(b"x", route=route) as got:
                assert [item.data async for item in got] == [b"x", b"x"]


async def test_mocks_serve(autojump_clock: MockClock) -> None:
    responder = Responder()
    later, at_once = AsyncMock(return_value=b"later"), Mock(return_value=b"at once")
    chat, items = AsyncMock(return_value=None), Mock(side_effect=twice)
    responder.request_response("later")(later)
    responder.request_response("at once")(at_once)
    responder.request_channel(chat)
    responder.request_stream(items)
    async with connected_pair(responder) as pair:
        assert (await pair.client.request_response(b"x", route="later")).data == b"later"
        assert (await pair.client.request_response(route="at once")).data == b"at once"
        async with pair.client.request_channel() as channel:
            assert [item async for item in channel] == []
        async with pair.client.request_stream(b"x") as got:
            assert [item.data async for item in got] == [b"x", b"x"]
    assert later.await_count == 1
    assert chat.await_count == 1
    for mock in (later, at_once, chat, items):
        mock.reset_mock()  # they keep what they were called with


def items_at_once(request: Any) -> Any:
    return [request.data]


def returns_list(request: Any) -> list[bytes]:
    return [request.data]


@each_row("function", [items_at_once, returns_list])
@each_row("name", ["request_stream", "request_subscription", "request_channel", "lease"])
def test_a_plain_function_that_says_nothing_of_the_kind_is_refused_when_it_is_registered(
    name: str, function: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError, match=rf"{name} takes .*{function.__name__}.* is a plain function"):
        getattr(Responder(), name)(function)


@each_row(
    ("name", "function", "told"),
    [
        (
            "request_stream",
            lambda request: [request.data],
            "request_stream handler <lambda> returned list, not an async generator or another async iterable",
        ),
        (
            "request_stream",
            lambda request: echo(request),  # noqa: PLW0108
            "request_stream handler <lambda> returned coroutine, not an async generator or another async iterable",
        ),
        (
            "request_stream",
            lambda request, out: None,
            "request_stream handler <lambda> returned NoneType, not an awaitable",
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
    assert told in caplog.text.replace("test_decorated.", "")


async def test_a_channel_whose_lambda_returns_nothing_to_await_fails(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()
    responder.request_channel(lambda channel: None)  # type: ignore[type-var]
    async with connected_pair(responder) as pair, pair.client.request_channel() as channel:
        with pytest.raises(ApplicationError, match="internal error"):
            await anext(channel)
    assert "<locals>.<lambda> returned NoneType, not an awaitable" in caplog.text


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


@each_row("wrap", [in_async, in_plain, as_lambda_of_two, as_partial])
async def test_the_setup_handler_may_be_wrapped(wrap: Decorator, autojump_clock: MockClock) -> None:
    async def meet(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        if setup.payload.data == b"eve":
            raise RejectedSetup("not you")

    responder = Responder()
    responder.setup(wrap(meet))
    responder.request_response(echo)
    async with connected_pair(responder, setup=b"ada") as pair:
        assert (await pair.client.request_response(b"x")).data == b"<x>"
    async with connected_pair(responder, setup=b"eve") as pair:
        with pytest.raises(RejectedSetup, match="not you"):
            await pair.client.request_response(b"x")


@each_row("wrap", [in_generator, in_plain, as_lambda, as_partial])
async def test_a_lease_policy_may_be_wrapped(wrap: Decorator, autojump_clock: MockClock) -> None:
    async def permits(setup: Setup) -> AsyncIterator[Lease]:
        yield Lease(3, 10)
        await trio.sleep_forever()

    responder = Responder()
    responder.lease(wrap(permits))
    responder.request_response(echo)
    async with connected_pair(responder, lease=True) as pair:
        assert (await pair.client.request_response(b"x")).data == b"<x>"
        lease = pair.client.lease
        assert lease is not None
        assert lease.number_of_requests == 2


@each_row("wrap", [in_plain, as_partial, staticmethod, as_lambda_of_two])
async def test_a_function_of_on_error_may_be_wrapped(wrap: Decorator, autojump_clock: MockClock) -> None:
    heard: list[str] = []

    def report(error: Exception, call: object) -> None:
        heard.append(str(error))

    responder = Responder()
    responder.on_error(wrap(report))
    responder.request_response(lambda request: {b"": b""}[b"nothing"])
    async with connected_pair(responder) as pair:
        with pytest.raises(ApplicationError):
            await pair.client.request_response()
        await settle()
    assert heard == ["b'nothing'"]


# Methods and caches


class Service:
    """Functions of a class, in every way that it can have them."""

    responder = Responder()

    def __init__(self, name: bytes) -> None:
        self.name = name

    async def greet(self, request: Payload) -> bytes:
        return self.name + request.data

    def greet_at_once(self, request: Payload) -> bytes:
        return self.name + request.data

    async def count(self, request: Payload) -> AsyncIterator[bytes]:
        for _ in range(2):
            yield self.name

    @in_plain
    async def greet_wrapped(self, request: Payload) -> bytes:
        return self.name + request.data

    @in_plain
    async def count_wrapped(self, request: Payload) -> AsyncIterator[bytes]:
        for _ in range(2):
            yield self.name

    @classmethod
    async def of_class(cls, request: Payload) -> bytes:
        return cls.__name__.encode() + request.data

    @staticmethod
    async def of_nobody(request: Payload) -> bytes:
        return b"static" + request.data

    @responder.request_response("inside")
    @staticmethod
    async def inside(request: Payload) -> bytes:
        return b"inside" + request.data

    @staticmethod
    @responder.request_response("below")
    async def below(request: Payload) -> bytes:
        return b"below" + request.data


async def test_methods_serve_however_they_were_made(autojump_clock: MockClock) -> None:
    ada = Service(b"ada")
    responder = Responder()
    for name in ("greet", "greet_at_once", "greet_wrapped", "of_class", "of_nobody"):
        responder.request_response(name)(getattr(ada, name))
    for name in ("count", "count_wrapped"):
        responder.request_stream(name)(getattr(ada, name))
    async with connected_pair(responder) as pair:
        said = [
            (await pair.client.request_response(b"!", route=name)).data
            for name in ("greet", "greet_at_once", "greet_wrapped", "of_class", "of_nobody")
        ]
        assert said == [b"ada!", b"ada!", b"ada!", b"Service!", b"static!"]
        for name in ("count", "count_wrapped"):
            async with pair.client.request_stream(route=name) as items:
                assert [item.data async for item in items] == [b"ada", b"ada"]
    async with connected_pair(Service.responder) as pair:
        for name in ("inside", "below"):
            assert (await pair.client.request_response(b"!", route=name)).data == name.encode() + b"!"


async def test_a_cached_function_answers_from_its_cache(autojump_clock: MockClock) -> None:
    responder = Responder()
    asked: list[bytes] = []

    @responder.request_response
    @functools.cache
    def look_up(request: Payload) -> bytes:
        asked.append(request.data)
        return request.data.upper()

    async with connected_pair(responder) as pair:
        for _ in range(3):
            assert (await pair.client.request_response(b"x")).data == b"X"
    assert asked == [b"x"]


def test_a_cached_functions_arguments_are_counted() -> None:
    with pytest.raises(TypeError, match=r"request_response takes .*\(request, out\) is a plain function"):
        Responder().request_response(functools.cache(lambda request, out: b""))


async def test_a_failing_wrapped_handler_is_logged_by_the_name_of_what_it_wraps(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async def fail(name: bytes, request: Payload) -> bytes:
        raise ValueError("bad day")

    responder = Responder()
    responder.request_response("partial")(functools.partial(in_plain(fail), b"x"))
    async with connected_pair(responder) as pair:
        for _ in range(3):
            with pytest.raises(ApplicationError):
                await pair.client.request_response(route="partial")
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert "<locals>.fail of request_response 'partial' failed" in record.getMessage()


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
