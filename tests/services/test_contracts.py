"""Contracts: one class for both ends, over every kind of client, and what is refused at once."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, cast

import attrs
import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    Payload,
    ReconnectingClient,
    Rejected,
    Responder,
    connect_forever,
    current_connection,
)
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.services import (
    Receiving,
    Service,
    Stream,
    TypedChannel,
    fire_and_forget,
    request_channel,
    request_response,
    request_stream,
)
from tests.connection.pairs import connected_pair, settle
from tests.services.interactions import served


@attrs.frozen
class Order:
    symbol: str
    amount: int


ORDER = Order("ACME", 3)


class Orders(Service, Protocol, route="orders"):
    @request_response
    async def place(self, order: Order) -> Order:
        """Place an order."""
        ...

    @request_response
    async def add(self, one: int, ten: int = 10, *, hundred: int = 100) -> int: ...
    @request_response("of.{symbol}")
    async def find(self, symbol: str) -> Order | None: ...
    @request_response
    async def greeting(self, name: str) -> str: ...
    @request_response
    async def size(self, data: bytes) -> int: ...
    @request_response
    async def upload(self, name: str, data: bytes) -> bytes: ...
    @request_response
    async def maybe(self, data: bytes | None) -> bytes | None: ...
    @request_response
    async def clear(self) -> None: ...
    @request_response
    async def raw(self, request: Payload) -> Payload: ...
    @request_response("optional.{key}")
    async def optional(self, key: int = 7, order: Order | None = None) -> str: ...
    @fire_and_forget
    async def note(self, order: Order) -> None: ...
    @request_stream("ticks.{symbol}")
    def ticks(self, symbol: str, count: int = 2) -> Stream[Order]: ...
    @request_channel
    def totals(self, factor: int) -> TypedChannel[int, Order]: ...


class Book:
    """Implements ``Orders``."""

    def __init__(self) -> None:
        self.notes: list[Order] = []

    async def place(self, order: Order) -> Order:
        if order.amount < 0:
            raise ApplicationError("negative")
        return Order(order.symbol, order.amount + 1)

    async def add(self, one: int, ten: int = 10, *, hundred: int = 100) -> int:
        return 100 * hundred + 10 * ten + one

    async def find(self, symbol: str) -> Order | None:
        return Order(symbol, 1) if symbol == "ACME" else None

    async def greeting(self, name: str) -> str:
        return f"hello {name}"

    async def size(self, data: bytes) -> int:
        return len(data)

    async def upload(self, name: str, data: bytes) -> bytes:
        return name.encode() + data

    async def maybe(self, data: bytes | None) -> bytes | None:
        return data

    async def clear(self) -> None:
        self.notes.clear()

    async def raw(self, request: Payload) -> Payload:
        return Payload(request.data, b"metadata")

    async def optional(self, key: int = 7, order: Order | None = None) -> str:
        return f"{key} {order}"

    async def note(self, order: Order) -> None:
        self.notes.append(order)

    @request_stream
    async def ticks(self, symbol: str, count: int = 2) -> AsyncIterator[Order]:
        for amount in range(count):
            yield Order(symbol, amount)

    @request_channel
    async def totals(self, orders: Receiving[Order], factor: int) -> AsyncIterator[int]:
        async for order in orders:
            yield order.amount * factor


def orders_responder(**options: Any) -> Responder:
    responder = Responder()
    responder.serve_as(Orders, Book(), **options)
    return responder


async def use(requester: Connection | ReconnectingClient) -> None:
    """Call every method."""
    orders = requester.remote(Orders)
    assert await orders.place(ORDER) == Order("ACME", 4)
    assert await orders.place(order=ORDER) == Order("ACME", 4)
    assert await orders.add(1) == 10101
    assert await orders.add(1, 2, hundred=3) == 321
    assert await orders.add(ten=0, one=5) == 10005
    assert await orders.find("ACME") == Order("ACME", 1)
    assert await orders.find("NONE") is None
    assert await orders.greeting("world") == "hello world"
    assert await orders.size(b"\xff\xff") == 2
    assert await orders.upload("a", b"\xff") == b"a\xff"
    assert await orders.maybe(b"\xff") == b"\xff"
    assert await orders.maybe(None) is None
    assert await orders.raw(Payload(b"data")) == Payload(b"data", b"metadata")
    assert await orders.optional() == "7 None"
    assert await orders.optional(5, ORDER) == f"5 {ORDER}"
    assert await orders.optional(order=ORDER) == f"7 {ORDER}"
    await orders.note(ORDER)
    assert await orders.clear() is None  # type: ignore[func-returns-value]
    async with orders.ticks("ACME") as ticks:
        assert [tick async for tick in ticks] == [Order("ACME", 0), Order("ACME", 1)]
    async with orders.ticks("ACME", count=600) as ticks:
        assert [tick.amount async for tick in ticks] == list(range(600))
    async with orders.totals(10) as totals:
        await totals.send(ORDER)
        assert await anext(aiter(totals)) == 30
        await totals.send_eof()
        assert [total async for total in totals] == []


@pytest.mark.parametrize(
    "mime", ["application/octet-stream", "application/json", "application/cbor", "application/msgpack"]
)
async def test_a_contract_works_over_one_connection(mime: str) -> None:
    async with connected_pair(orders_responder(), data_mime=mime) as pair:
        await use(pair.client)


@pytest.mark.parametrize("dialect", ["rsocket/1.0", "rsocket/2.0-draft"])
async def test_a_contract_works_over_a_client_that_reconnects(
    dialect: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with served(orders_responder()) as uri, connect_forever(uri, dialect=dialect) as client:
        await use(client)
        assert repr(client.remote(Orders)).startswith("<remote Orders of <")


async def test_a_handler_calls_the_contract_of_its_caller() -> None:
    responder = Responder()

    @responder.request_response("back")
    async def back(times: int) -> list[Order]:
        orders = current_connection().remote(Orders)
        return [await orders.place(Order("ACME", amount)) for amount in range(times)]

    async with connected_pair(responder, orders_responder()) as pair:
        reply = await pair.client.request_response(2, route="back", reply=list[Order])
        assert reply == [Order("ACME", 1), Order("ACME", 2)]


async def test_a_contract_inherits_methods_and_has_a_route_of_its_own() -> None:
    class Base(Service, Protocol, route="base"):
        @request_response
        async def greeting(self, name: str) -> str: ...

    class Derived(Base, Protocol, route="derived"):
        @request_response
        async def farewell(self, name: str) -> str: ...

    class Same(Base, Protocol):
        pass

    class Polite(Derived):
        async def greeting(self, name: str) -> str:
            return f"hello {name}"

        async def farewell(self, name: str) -> str:
            return f"goodbye {name}"

    responder = Responder()
    responder.serve_as(Derived, Polite())
    responder.serve_as(Same, Polite())

    async with connected_pair(responder) as pair:
        derived = pair.client.remote(Derived)
        assert await derived.greeting("a") + await derived.farewell("b") == "hello agoodbye b"
        assert await pair.client.remote(Base).greeting("a") == "hello a"
        assert await pair.client.request_response("a", route="derived.farewell", reply=str) == "goodbye a"


async def test_a_contract_needs_no_protocol_at_run_time_and_may_have_abstract_methods() -> None:
    class Plain(Service, route="plain"):
        @request_response
        @abstractmethod
        async def double(self, number: int) -> int:
            raise NotImplementedError

        def _help(self) -> str:
            return "a method of both ends"

    class Doubles(Plain):
        async def double(self, number: int) -> int:
            return 2 * number

    responder = Responder()
    responder.serve_as(Plain, Doubles())

    async with connected_pair(responder) as pair:
        plain = pair.client.remote(Plain)
        assert await plain.double(4) == 8
        assert plain._help() == "a method of both ends"


def test_a_public_method_of_a_contract_without_a_decorator_is_refused_where_the_class_is_made() -> None:
    with pytest.raises(
        TypeError, match=r"^Forgetful.cancel is no request: decorate it with request_response, .*_cancel"
    ):

        class Forgetful(Service, Protocol, route="forgetful"):
            @request_response
            async def place(self, number: int) -> int: ...

            async def cancel(self, number: int) -> None: ...

    with pytest.raises(TypeError, match=r"^Again.place is no request"):

        class Again(Orders, Service, Protocol):
            async def place(self, order: Order, urgent: bool = False) -> Order: ...


# Arguments


async def test_wrong_arguments_are_a_type_error_and_nothing_is_sent() -> None:
    async with connected_pair(orders_responder()) as pair:
        orders: Any = pair.client.remote(Orders)
        said = len(pair.client_said)
        with pytest.raises(TypeError, match=r"place\(\) missing 1 required positional argument: 'order'"):
            await orders.place()
        with pytest.raises(TypeError, match=r"takes from 1 to 2 positional arguments but 3 were given"):
            await orders.add(1, 2, 3)
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'note'"):
            await orders.place(ORDER, note="")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'symbol'"):
            orders.ticks()
        assert len(pair.client_said) == said


@pytest.mark.parametrize(
    ("symbol", "error"),
    [("", ValueError), ("a.b", ValueError), (None, TypeError), (b"ACME", TypeError), ("x" * 250, ValueError)],
)
async def test_an_argument_that_is_no_part_of_a_route_is_refused(symbol: Any, error: type[Exception]) -> None:
    async with connected_pair(orders_responder()) as pair:
        with pytest.raises(error):
            await pair.client.remote(Orders).find(symbol)


class Other(Service, Protocol, route="other"):
    @request_response
    async def place(self, order: Order) -> Order: ...


async def test_errors_of_the_implementation_reach_the_caller() -> None:
    async with connected_pair(orders_responder()) as pair:
        with pytest.raises(ApplicationError, match=r"^negative$"):
            await pair.client.remote(Orders).place(Order("ACME", -1))
        with pytest.raises(Rejected, match=r"^no request_response handler for route 'other.place'$"):
            await pair.client.remote(Other).place(ORDER)


async def test_a_default_of_the_contract_serves_an_implementation_without_one() -> None:
    class Given(Service, Protocol, route="given"):
        @request_response("of.{key}")
        async def text(self, key: int, one: int = 1, two: int = ...) -> str: ...
        @request_response
        async def placed(self, one: int, two: int = 2, /) -> str: ...

    class Without:
        async def text(self, key: int, one: int, two: int = 5) -> str:
            return f"{key} {one} {two}"

        async def placed(self, first: int, second: int, /) -> str:
            return f"{first} {second}"

    responder, implementation = Responder(), cast("Any", Without())
    responder.serve_as(Given, implementation)

    async with connected_pair(responder) as pair:
        given = pair.client.remote(Given)
        assert await given.text(3) == "3 1 5"
        assert await given.text(3, two=7) == "3 1 7"
        assert await given.placed(1) == "1 2"
        assert await given.placed(1, 3) == "1 3"


# Streams


async def test_a_stream_is_read_in_batches_and_with_credit_by_hand() -> None:
    responder = Responder()

    @responder.request_stream("numbers")
    async def numbers(count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    async with connected_pair(responder) as pair:
        opened = pair.client.request_stream(5, route="numbers", items=int, initial_request_n=2, refill=False)
        async with opened as stream:
            await settle()
            assert await stream.receive_batch() == [0, 1]
            stream.request_n(2)
            await settle()
            assert await anext(aiter(stream)) == 2
            assert await stream.receive_batch() == [3]
            with pytest.raises(ValueError, match="0"):
                stream.request_n(0)
            stream.request_n(9)
            assert [item async for item in stream] == [4]
            assert await stream.receive_batch() == []


async def test_a_stream_that_is_not_open_says_so() -> None:
    async with connected_pair(orders_responder()) as pair:
        orders = pair.client.remote(Orders)
        with pytest.raises(LocalProtocolError, match="use it under 'async with'"):
            await anext(aiter(orders.ticks("ACME")))
        with pytest.raises(LocalProtocolError, match="use it under 'async with'"):
            await orders.totals(1).send(ORDER)
        ticks = orders.ticks("ACME")
        async with ticks:
            pass
        with pytest.raises(LocalProtocolError, match="once only"):
            async with ticks:
                pass


async def test_an_item_that_cannot_be_sent_is_a_type_error_and_the_channel_goes_on() -> None:
    async with connected_pair(orders_responder()) as pair, pair.client.remote(Orders).totals(2) as totals:
        unfit: Any = pair.client
        with pytest.raises(TypeError, match="Connection can't be encoded as application/json"):
            await totals.send(unfit)
        await totals.send_many([Order("a", 1), Order("b", 2)])
        assert totals.room > 0
        await totals.send_eof()
        assert [total async for total in totals] == [2, 4]
        await totals.wait_send_closed()


# What is refused at once


class One(Service, Protocol, route="one"):
    @request_response
    async def place(self, order: Order) -> Order: ...


class OneStream(Service, Protocol, route="one"):
    @request_stream
    def place(self, order: Order) -> Stream[Order]: ...


class OneChannel(Service, Protocol, route="one"):
    @request_channel
    def place(self) -> TypedChannel[Order, Order]: ...


class Renamed:
    async def place(self, other: Order) -> Order:
        return other


class Wanting:
    async def place(self, order: Order, more: int) -> Order:
        return order


class Yields:
    async def place(self, order: Order) -> AsyncIterator[Order]:
        yield order


class Answers:
    async def place(self, order: Order) -> Order:
        return order


class NoMethod:
    place = 4


class NoChannel:
    async def place(self) -> None:
        return


class WithRawChannel:
    async def place(self, channel: Channel) -> None:
        async for item in channel:
            await channel.send(item.data)


async def test_an_implementation_gets_the_channel_that_it_annotates() -> None:
    responder = Responder()
    responder.serve_as(OneChannel, WithRawChannel())  # type: ignore[misc]  # payloads are the contract's objects in JSON

    async with (
        connected_pair(responder, data_mime="application/json") as pair,
        pair.client.remote(OneChannel).place() as channel,
    ):
        await channel.send(Order("ACME", 1))
        await channel.send_eof()
        assert [order async for order in channel] == [Order("ACME", 1)]


@pytest.mark.parametrize(
    ("contract", "implementation", "text"),
    [
        (One, Renamed(), r"Renamed.place does not fit One: missing a required argument: 'other'"),
        (One, Wanting(), r"Wanting.place does not fit One: missing a required argument: 'more'"),
        (One, Yields(), r"request_response takes one answer; Yields.place yields items"),
        (One, NoMethod(), r"NoMethod.place is no method"),
        (OneStream, Answers(), r"request_stream takes an async generator, .*; Answers.place is an async function"),
        (OneChannel, NoChannel(), r"request_channel takes a parameter of Receiving, .*; NoChannel.place has none"),
        (One, functools.partial, r"lacks place of One"),
        (Orders, Answers(), r"Answers lacks add, find, greeting, .*, ticks, totals of Orders$"),
        (One, Answers, r"Answers\.place does not fit One: missing a required argument: 'self'$"),
    ],
)
def test_an_implementation_that_does_not_fit_is_refused_by_name(contract: Any, implementation: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Responder().serve_as(contract, implementation)


def test_a_route_that_is_taken_is_refused_and_nothing_of_the_contract_is_served() -> None:
    responder = Responder()

    @responder.request_response("orders.clear")
    async def clear(request: Payload) -> None:
        return

    with pytest.raises(ValueError, match=r"request_response has a handler for route 'orders.clear' already: .*clear"):
        responder.serve_as(Orders, Book())

    assert [route.route for route in responder.routes] == ["orders.clear"]


def test_what_is_no_contract_is_refused() -> None:
    class Nothing(Service, Protocol):
        pass

    responder: Any = Responder()
    for contract, text in (
        (Nothing, "Nothing has no method that is decorated as a request"),
        (None, "a contract is a class, not NoneType"),
        ("Orders", "a contract is a class, not str"),
    ):
        with pytest.raises(TypeError, match=text):
            responder.serve_as(contract, Book())


def test_methods_that_no_route_can_be_made_of_are_refused_by_name() -> None:
    as_stream: Callable[[Any], Any] = request_stream

    class NoStream(Service, Protocol):
        @as_stream
        async def ticks(self, symbol: str) -> list[Order]: ...

    class NoParameter(Service, Protocol):
        @request_response("find.{key}")
        async def find(self, symbol: str) -> Order: ...

    class Long(Service, Protocol, route="x" * 251):
        @request_response
        async def find(self, symbol: str) -> Order: ...

    class Braces(Service, Protocol):
        @request_response("find.{key")
        async def find(self, key: str) -> Order: ...

    class Finds:
        async def find(self, symbol: str) -> Order:
            return Order(symbol, 1)

    responder: Any = Responder()
    for contract, error, text in (
        (NoStream, TypeError, r"NoStream.ticks is a stream: it returns Stream or AsyncIterator, not "),
        (NoParameter, TypeError, r"NoParameter.find: no parameter key, which the route names"),
        (Long, ValueError, r"route of 256 bytes, limit 255"),
        (Braces, ValueError, r"route 'find.{key', position 5"),
    ):
        with pytest.raises(error, match=text):
            responder.serve_as(contract, Finds())


def test_a_decorator_of_a_contract_takes_a_function() -> None:
    decorate: Any = request_response
    for wrong in (4, print, staticmethod(print)):
        with pytest.raises(TypeError, match="request_response decorates a method of a contract, not"):
            decorate(wrong)


async def test_a_remote_method_has_the_name_and_the_docstring_of_its_contract() -> None:
    async with connected_pair() as pair:
        orders = pair.client.remote(Orders)
        assert orders.place.__doc__ == "Place an order."
        assert orders.place.__qualname__ == "Orders.place"
        assert type(pair.client.remote(Orders)) is type(orders)
