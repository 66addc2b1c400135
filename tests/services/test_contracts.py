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
    Connection,
    Invalid,
    Payload,
    ReconnectingClient,
    Rejected,
    Responder,
    connect_forever,
    current_connection,
    open_connection,
    serve,
)
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.services import (
    Bearer,
    DecodeError,
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

URI = "memory://contracts"


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
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, orders_responder(), URI)
        async with connect_forever(URI, dialect=dialect) as client:
            await use(client)
            assert repr(client.remote(Orders)).startswith("<remote Orders of <")
        nursery.cancel_scope.cancel()


async def test_the_server_calls_the_contract_of_its_client() -> None:
    async with connected_pair(Responder(), orders_responder()) as pair:
        await use(pair.server)


async def test_a_handler_calls_the_contract_of_its_caller() -> None:
    responder = Responder()

    @responder.request_response("back")
    async def back(times: int) -> list[Order]:
        orders = current_connection().remote(Orders)
        return [await orders.place(Order("ACME", amount)) for amount in range(times)]

    async with connected_pair(responder, orders_responder()) as pair:
        reply = await pair.client.request_response(2, route="back", reply=list[Order])
        assert reply == [Order("ACME", 1), Order("ACME", 2)]


async def test_two_contracts_share_one_responder_and_one_implementation_may_serve_both() -> None:
    class Names(Service, Protocol):
        @request_response
        async def greeting(self, name: str) -> str: ...

    book = Book()
    responder = Responder()
    responder.serve_as(Orders, book)
    responder.serve_as(Names, book)

    async with connected_pair(responder) as pair:
        assert await pair.client.remote(Names).greeting("you") == "hello you"
        assert (await pair.client.request_response("me", route="greeting", reply=str)) == "hello me"
        assert (await pair.client.request_response("me", route="orders.greeting", reply=str)) == "hello me"


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


def test_what_is_the_classs_own_and_implementations_need_no_decorator() -> None:
    class Plain(Service, Protocol):
        limit: int = 3

        @request_response
        async def double(self, number: int) -> int: ...

        def _helper(self) -> int:
            return 1

        @property
        def size(self) -> int:
            return 2

        @staticmethod
        def static() -> int:
            return 3

        @classmethod
        def of_class(cls) -> int:
            return 4

    class Doubles(Plain):
        async def double(self, number: int) -> int:
            return 2 * number

        def reset(self) -> None:
            return

    ours = Doubles()
    Responder().serve_as(Plain, ours)
    assert (ours._helper(), ours.size, ours.static(), ours.of_class()) == (1, 2, 3, 4)


def local_contract() -> tuple[Any, Any, Any]:
    """Return a contract, its implementation and a value of a type that is known here alone."""

    @attrs.frozen
    class Local:
        number: int

    class Locals(Service, Protocol, route="locals"):
        @request_response
        async def double(self, local: Local) -> Local: ...
        @request_channel
        def sums(self) -> TypedChannel[Local, Local]: ...

    class Doubles:
        async def double(self, local: Local) -> Local:
            return Local(2 * local.number)

        async def sums(self, locals: Receiving[Local]) -> AsyncIterator[Local]:
            async for local in locals:
                yield Local(local.number + 1)

    return Locals, Doubles(), Local(4)


class Nested(Service, Protocol, route="nested"):
    @attrs.frozen
    class Item:
        number: int

    @request_response
    async def next(self, item: Item) -> Item: ...


class Counts(Nested):
    async def next(self, item: Nested.Item) -> Nested.Item:
        return Nested.Item(item.number + 1)


async def test_types_may_stand_inside_of_the_contract() -> None:
    responder = Responder()
    responder.serve_as(Nested, Counts())

    async with connected_pair(responder) as pair:
        assert await pair.client.remote(Nested).next(Nested.Item(1)) == Nested.Item(2)


async def test_a_result_of_an_unknown_type_is_refused_by_name() -> None:
    class Lost(Service, Protocol, route="lost"):
        @request_response
        async def find(self, key: int) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    class Finds:
        async def find(self, key: int) -> Any:
            return key

    text = r"Lost.find: the annotation of the result, 'Missing', can't be read: name 'Missing' is not defined"
    responder: Any = Responder()
    with pytest.raises(TypeError, match=text):
        responder.serve_as(Lost, Finds())
    async with connected_pair() as pair:
        with pytest.raises(TypeError, match=text):
            pair.client.remote(Lost)


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


async def test_an_argument_of_the_wrong_type_is_invalid_at_the_server() -> None:
    async with connected_pair(orders_responder()) as pair:
        orders: Any = pair.client.remote(Orders)
        with pytest.raises(Invalid, match=r"^\$\.one: expected int, got str$"):
            await orders.add("1")
        with pytest.raises(Invalid, match=r"^\$: expected object, got int$"):
            await orders.place(4)
        with pytest.raises(TypeError, match="Connection can't be encoded as application/json"):
            await orders.place(pair.client)


class Other(Service, Protocol, route="other"):
    @request_response
    async def place(self, order: Order) -> Order: ...


async def test_errors_of_the_implementation_reach_the_caller() -> None:
    async with connected_pair(orders_responder()) as pair:
        with pytest.raises(ApplicationError, match=r"^negative$"):
            await pair.client.remote(Orders).place(Order("ACME", -1))
        with pytest.raises(Rejected, match=r"^no request_response handler for route 'other.place'$"):
            await pair.client.remote(Other).place(ORDER)


async def test_requires_of_a_contract_is_asked_for_every_method() -> None:
    asked = []

    def may(user: object, call: Any) -> bool:
        assert user == "ada"
        asked.append(call.route)
        return bool(call.route != "orders.place")

    responder = orders_responder(requires=may)

    @responder.authenticate
    async def who(credentials: object, where: object) -> str:
        return "ada"

    async with connected_pair(responder, auth=Bearer("token")) as pair:
        orders = pair.client.remote(Orders)
        with pytest.raises(Rejected, match=r"^not allowed$"):
            await orders.place(ORDER)
        assert await orders.find("ACME") == Order("ACME", 1)
        async with orders.ticks("ACME") as ticks:
            assert [tick.amount async for tick in ticks] == [0, 1]
    assert asked == ["orders.place", "orders.of.ACME", "orders.ticks.ACME"]


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


async def test_an_implementation_takes_its_one_object_by_name_where_its_own_order_differs() -> None:
    class Named(Service, Protocol, route="named"):
        @request_response
        async def only(self, order: Order) -> str: ...
        @request_response
        async def second(self, order: Order) -> str: ...

    class Otherwise:
        async def only(self, *, order: Order) -> str:
            return order.symbol

        async def second(self, note: str = "no note", order: Order | None = None) -> str:
            return f"{note} {order and order.symbol}"

    responder, implementation = Responder(), cast("Any", Otherwise())
    responder.serve_as(Named, implementation)

    async with connected_pair(responder) as pair:
        named = pair.client.remote(Named)
        assert await named.only(Order("ACME", 3)) == "ACME"
        assert await named.only(order=Order("ACME", 3)) == "ACME"
        assert await named.second(Order("ACME", 3)) == "no note ACME"


async def test_an_untyped_parameter_alone_is_the_payload_and_beside_others_a_member() -> None:
    class Loose(Service, Protocol, route="loose"):
        @request_response
        async def alone(self, anything: Any) -> str: ...
        @request_response
        async def beside(self, anything: Any, number: int) -> str: ...

    class Answers:
        async def alone(self, anything: Any) -> str:
            return f"{type(anything).__name__} {anything.data!r}"

        async def beside(self, anything: Any, number: int) -> str:
            return f"{anything} {number}"

    responder = Responder()
    responder.serve_as(Loose, Answers())

    async with connected_pair(responder) as pair:
        loose = pair.client.remote(Loose)
        assert await loose.alone(b"\xff") == r"Payload b'\xff'"
        assert await loose.alone([1]) == "Payload b'[1]'"
        assert await loose.beside([1], 2) == "[1] 2"


# Streams


async def test_leaving_a_stream_early_cancels_it() -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_stream("numbers")
    async def numbers(first: int) -> AsyncIterator[int]:
        try:
            while True:
                yield first
                first += 1
        finally:
            ended.append("numbers")

    async with connected_pair(responder) as pair:
        async with pair.client.request_stream(5, route="numbers", items=int) as stream:
            assert await anext(aiter(stream)) == 5
        await settle()
        assert ended == ["numbers"]
        assert pair.client_said.names[-1] == "CANCEL"


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


async def test_an_item_that_does_not_fit_is_raised_while_reading_and_the_next_one_can_be_read() -> None:
    responder = Responder()

    @responder.request_stream("mixed")
    async def mixed(count: int) -> AsyncIterator[object]:
        for item in (0, 1, "two", 3):
            yield {"n": item} if count else item

    async with connected_pair(responder) as pair:
        async with pair.client.request_stream(1, route="mixed", items=dict[str, int]) as stream:
            await settle()
            assert await stream.receive_batch() == [{"n": 0}, {"n": 1}]
            with pytest.raises(DecodeError, match=r"\$\[\.\.\.\]: expected int, got str"):
                await stream.receive_batch()
            assert await anext(aiter(stream)) == {"n": 3}
        assert pair.server.faults.handler_errors == 0


async def test_an_error_of_the_responder_comes_after_its_items() -> None:
    responder = Responder()

    @responder.request_stream("fails")
    async def fails(count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number
        raise ApplicationError("enough")

    async with connected_pair(responder) as pair, pair.client.request_stream(2, route="fails", items=int) as stream:
        await settle()
        assert await stream.receive_batch() == [0, 1]
        with pytest.raises(ApplicationError, match=r"^enough$"):
            await stream.receive_batch()


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


def test_missing_methods_are_named() -> None:
    class Half:
        async def place(self, order: Order) -> Order:
            return order

    implementation: Any = Half()
    with pytest.raises(TypeError, match=r"Half lacks add, find, greeting, .*, ticks, totals of Orders$"):
        Responder().serve_as(Orders, implementation)


def test_methods_that_are_inherited_from_the_contract_are_missing() -> None:
    class Inherits(Orders):
        async def place(self, order: Order) -> Order:
            return order

    implementation: Any = Inherits
    with pytest.raises(TypeError, match=r"lacks add, .* of Orders$"):
        Responder().serve_as(Orders, implementation())


def test_a_class_in_the_place_of_its_object_is_named() -> None:
    class Whole:
        async def place(self, order: Order) -> Order:
            return order

    implementation: Any = Whole
    with pytest.raises(TypeError, match=r"Whole\.place does not fit One: missing a required argument: 'self'$"):
        Responder().serve_as(One, implementation)


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

    class Many(Service, Protocol):
        @request_response
        async def find(self, *symbols: str) -> Order: ...

    class Whole(Service, Protocol):
        @request_response
        async def find(self, request: Payload, symbol: str) -> Order: ...

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
        (Many, TypeError, r"Many.find: \*symbols has no type to decode"),
        (Whole, TypeError, r"Whole.find: parameter request takes the whole payload, and there are others"),
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
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, orders_responder(), URI)
        async with open_connection(URI) as connection:
            orders = connection.remote(Orders)
            assert orders.place.__doc__ == "Place an order."
            assert orders.place.__qualname__ == "Orders.place"
            assert type(connection.remote(Orders)) is type(orders)
        nursery.cancel_scope.cancel()
