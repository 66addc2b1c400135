"""Handlers as Python programmers write them: wrapped, partial, bound, cached, or plain functions round async ones.

Forms are read from the outermost function, and what a plain function returns is awaited, iterated, or refused by name.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Channel,
    Outgoing,
    Payload,
    Responder,
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


def test_a_wrapper_that_takes_other_arguments_than_it_should_is_refused_although_what_it_wraps_would_do() -> None:
    @functools.wraps(echo)
    async def wrapper(request: Payload, other: object) -> None:
        return

    with pytest.raises(TypeError, match=r"\(request, other\) is an async function"):
        Responder().request_response(wrapper)


@each_row("wrap", [in_plain, functools.partial, as_lambda, without_wraps])
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


class Service:
    """Functions of a class, in every way that it can have them."""

    responder = Responder()

    def __init__(self, name: bytes) -> None:
        self.name = name

    async def greet(self, request: Payload) -> bytes:
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
    names = ("greet", "of_class", "of_nobody")
    for name in names:
        responder.request_response(name)(getattr(ada, name))
    responder.request_stream(ada.count_wrapped)
    async with connected_pair(responder) as pair:
        said = [(await pair.client.request_response(b"!", route=name)).data for name in names]
        assert said == [b"ada!", b"Service!", b"static!"]
        async with pair.client.request_stream() as items:
            assert [item.data async for item in items] == [b"ada", b"ada"]
    async with connected_pair(Service.responder) as pair:
        for name in ("inside", "below"):
            assert (await pair.client.request_response(b"!", route=name)).data == name.encode() + b"!"


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
