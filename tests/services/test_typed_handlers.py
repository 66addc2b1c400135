"""Typed handlers: the argument of each kind of parameter, results on the wire, and what is refused at once."""

from __future__ import annotations

import enum
import functools
import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from rsocket_trio import ApplicationError, Invalid, Outgoing, Payload, Responder
from rsocket_trio.services import Receiving, TypedChannel
from tests.connection.pairs import connected_pair, settle

JSON = "application/json"
ORDER = b'{"symbol":"ACME","amount":3}'


@attrs.frozen
class Order:
    symbol: str
    amount: int


@dataclass
class Data:
    symbol: str
    amount: int


class Struct(msgspec.Struct):
    symbol: str
    amount: int


class Model(pydantic.BaseModel):
    symbol: str
    amount: int


class Typed(TypedDict):
    symbol: str
    amount: int
    note: NotRequired[str]


class Color(enum.Enum):
    RED = "red"


class Opaque:
    """A class that no codec knows."""


async def answer(responder: Responder, data: bytes = b"", route: str | None = None) -> bytes:
    """Return the data of the answer to one request, on a connection of JSON."""
    async with connected_pair(responder, data_mime=JSON) as pair:
        return (await pair.client.request_response(data, route=route)).data


def serving(function: Any, route: str | None = None) -> Responder:
    responder = Responder()
    responder.request_response(route)(function)
    return responder


# Parameters


@pytest.mark.parametrize("kind", [Order, Data, Struct, Model, Typed], ids=lambda kind: kind.__name__)
async def test_a_parameter_of_any_class_of_fields_is_the_body(kind: Any) -> None:
    seen = []

    async def place(order: Any) -> Any:
        seen.append(order)
        return order

    place.__annotations__ = {"order": kind, "return": kind}

    assert json.loads(await answer(serving(place), ORDER)) == json.loads(ORDER)
    assert seen == [kind(symbol="ACME", amount=3)]
    assert type(seen[0]) is (dict if kind is Typed else kind)


async def test_several_parameters_are_the_members_of_an_object() -> None:
    async def place(order: Order, models: list[Model], color: Color = Color.RED, *, note: str = "none") -> str:
        return f"{order.amount} {models[0].amount} {color.name} {note}"

    responder = serving(place)
    both = b'"order":%b,"models":[%b]' % (ORDER, ORDER)

    assert await answer(responder, b"{%b}" % both) == b"3 3 RED none"
    assert await answer(responder, b'{%b,"note":"some"}' % both) == b"3 3 RED some"
    assert await answer(responder, b'{%b,"unknown":1}' % both) == b"3 3 RED none"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "$: missing required field `order`"),
        (b"{}", "$: missing required field `order`"),
        (b"[]", "$: expected object, got array"),
        (b'{"order":{"symbol":"ACME","amount":"3"},"amount":1}', "$.order.amount: expected int, got str"),
        (b'{"order":%b,"amount":null}' % ORDER, "$.amount: expected int, got null"),
    ],
)
async def test_a_member_that_does_not_fit_is_invalid_with_its_path_and_nothing_runs(data: bytes, text: str) -> None:
    ran = []

    async def place(order: Order, amount: int) -> None:
        ran.append(order)

    with pytest.raises(Invalid) as caught:
        await answer(serving(place), data)

    assert str(caught.value) == text
    assert ran == []


async def test_constraints_of_pydantic_hold_alone_as_members_and_in_the_route() -> None:
    async def place(amount: Annotated[int, pydantic.Field(gt=3)]) -> int:
        return amount

    async def members(amount: Annotated[int, pydantic.Field(gt=3)], model: Model, note: str = "") -> int:
        return amount + model.amount

    async def find(key: Annotated[int, pydantic.Field(gt=3)]) -> int:
        return key

    assert await answer(serving(place), b"4") == b"4"
    assert await answer(serving(members), b'{"amount":4,"model":%b}' % ORDER) == b"7"
    assert await answer(serving(find, "find.{key}"), b"", "find.4") == b"4"
    with pytest.raises(Invalid, match=r"^\$: input should be greater than 3$"):
        await answer(serving(place), b"3")
    with pytest.raises(Invalid, match=r"^\$\.amount: input should be greater than 3$"):
        await answer(serving(members), b'{"amount":3,"model":%b}' % ORDER)
    with pytest.raises(Invalid, match=r"^route parameter key: input should be greater than 3$"):
        await answer(serving(find, "find.{key}"), b"", "find.3")


async def test_any_is_a_member_beside_others_and_alone_the_payload() -> None:
    async def note(text: str, anything: Any) -> str:
        return f"{text} {anything}"

    async def kind(anything: Any) -> dict[str, str]:
        return {"is": type(anything).__name__}

    assert await answer(serving(note), b'{"text":"a","anything":[1,{}]}') == b"a [1, {}]"
    assert await answer(serving(kind), b"{") == b'{"is":"Payload"}'


async def test_a_payload_beside_a_typed_parameter_is_the_whole_request() -> None:
    async def place(order: Order, request: Payload) -> list[Any]:
        return [order.amount, len(request.data), request.metadata is not None]

    assert await answer(serving(place, "place"), ORDER, "place") == b"[3,28,true]"


async def test_without_data_a_body_takes_its_default_and_one_without_is_invalid() -> None:
    async def place(order: Order = Order("NONE", 0)) -> int:
        return order.amount

    async def strict(order: Order) -> int:
        return order.amount

    async def content(data: bytes = b"none") -> str:
        return data.decode()

    async def maybe(data: bytes | None) -> bool:
        return data is None

    assert await answer(serving(place), b"") == b"0"
    assert await answer(serving(place), ORDER) == b"3"
    assert await answer(serving(content), b"") == b"none"
    assert await answer(serving(content), b"some") == b"some"
    assert await answer(serving(maybe), b"") == b"true"
    assert await answer(serving(maybe), b"some") == b"false"
    with pytest.raises(Invalid, match=r"^\$: no data, expected Order$"):
        await answer(serving(strict), b"")


# Functions of every kind


def handing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    return wrapper


class Shop:
    def __init__(self) -> None:
        self.factor = 2

    async def place(self, order: Order) -> int:
        return order.amount * self.factor

    async def __call__(self, order: Order) -> int:
        return order.amount * self.factor

    @classmethod
    async def of_class(cls, order: Order) -> int:
        return order.amount * 2

    @staticmethod
    async def static(order: Order) -> int:
        return order.amount * 2

    @handing_on
    async def wrapped(self, order: Order) -> int:
        return order.amount * self.factor


async def doubled(shop: Shop, order: Order, factor: int) -> int:
    return order.amount * factor


SHOP = Shop()


@pytest.mark.parametrize(
    "function",
    [
        SHOP,
        SHOP.place,
        Shop.of_class,
        Shop.static,
        SHOP.wrapped,
        functools.partial(doubled, SHOP, factor=2),
        functools.partial(functools.partial(doubled, factor=2), SHOP),
        handing_on(functools.partial(doubled, SHOP, factor=2)),
    ],
    ids=[
        "object",
        "method",
        "class method",
        "static method",
        "wrapped",
        "partial",
        "partial of one",
        "wrapped partial",
    ],
)
async def test_methods_callable_objects_wrappers_and_partials_are_typed_as_what_they_hold(function: Any) -> None:
    assert await answer(serving(function), ORDER) == b"6"


async def test_what_a_partial_has_given_is_not_for_the_requester_to_say() -> None:
    async def place(order: Order, shop: Opaque, limit: int) -> int:
        return limit

    responder = serving(functools.partial(place, shop=Opaque(), limit=7))

    assert await answer(responder, ORDER) == b"7"
    assert await answer(responder, b'{"symbol":"A","amount":1,"limit":9}') == b"7"


async def test_a_typed_stream_may_send_its_bytes_by_an_outgoing() -> None:
    responder = Responder()

    @responder.request_stream("{word}")
    async def push(word: str, times: int, out: Outgoing) -> None:
        for _ in range(times):
            await out.send(word)

    async with (
        connected_pair(responder, data_mime=JSON) as pair,
        pair.client.request_stream(2, route="again") as stream,
    ):
        assert [item.text async for item in stream] == ["again", "again"]


async def test_a_typed_fire_and_forget_takes_objects_and_sends_nothing_whatever_it_returns() -> None:
    responder = Responder()
    seen: list[object] = []

    @responder.fire_and_forget("async")
    async def note(order: Order) -> Opaque:
        seen.append(order)
        return Opaque()

    @responder.fire_and_forget("plain.{times}")
    def plain(times: int, order: Order) -> object:
        seen.extend([order] * times)
        return Opaque()

    async with connected_pair(responder, data_mime=JSON) as pair:
        await pair.client.fire_and_forget(Order("ACME", 3), route="async")
        await pair.client.fire_and_forget(Order("ACME", 3), route="plain.2")
        await pair.client.fire_and_forget(b"{", route="async")
        await pair.client.fire_and_forget(ORDER, route="plain.two")
        await settle()

        assert seen == [Order("ACME", 3)] * 3
        assert (pair.server.faults.handler_errors, pair.server.faults.dropped) == (0, 2)


# Parameters of the route


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, "a", "a"),
        (int, "-7", -7),
        (bool, "true", True),
        (uuid.UUID, "00000000-0000-0000-0000-000000000007", uuid.UUID(int=7)),
        (Color, "red", Color.RED),
        (Annotated[int, msgspec.Meta(ge=1)], "1", 1),
        (int | None, "1", 1),
    ],
    ids=str,
)
async def test_a_parameter_of_the_route_is_converted_by_its_annotation(kind: Any, text: str, value: object) -> None:
    seen = []

    async def find(what: Any) -> None:
        seen.append(what)

    find.__annotations__["what"] = kind

    assert await answer(serving(find, "find.{what}"), b"ignored", f"find.{text}") == b""
    assert seen == [value]
    assert type(seen[0]) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (int, "seven", "expected int, got str"),
        (uuid.UUID, "7", "invalid UUID"),
        (Color, "blue", "invalid enum value 'blue'"),
        (Annotated[int, msgspec.Meta(ge=1)], "0", "expected int >= 1"),
    ],
    ids=str,
)
async def test_one_that_does_not_fit_is_invalid_by_its_name(kind: Any, text: str, reason: str) -> None:
    async def find(what: Any) -> None:
        raise AssertionError("nothing runs")

    find.__annotations__["what"] = kind

    with pytest.raises(Invalid) as caught:
        await answer(serving(find, "find.{what}"), b"", f"find.{text}")

    assert str(caught.value) == f"route parameter what: {reason}"


@pytest.mark.parametrize("kind", [Order, list[int], Opaque, dict[str, str]], ids=str)
def test_a_type_that_no_text_can_be_is_refused_as_a_parameter_of_the_route(kind: Any) -> None:
    async def find(what: Any) -> None:
        return

    find.__annotations__["what"] = kind

    with pytest.raises(TypeError, match=r"request_response handler .*find: parameter what of the route: .* can't be"):
        serving(find, "find.{what}")


# Results


@pytest.mark.parametrize(
    ("kind", "result", "data"),
    [
        (int | None, None, b""),
        (int | str, "text", b'"text"'),
        (bytes, b"bytes", b"bytes"),
        (bytes | None, None, b""),
        (None, None, b""),
        (Any, {"a": 1}, b'{"a":1}'),
        (Any, "text", b"text"),
        (Payload, Payload(b"payload", b"metadata"), b"payload"),
        (list[Model], [Model(symbol="A", amount=1)], b'[{"symbol":"A","amount":1}]'),
    ],
    ids=repr,
)
async def test_a_result_travels_as_its_annotation_says(kind: Any, result: object, data: bytes) -> None:
    async def find(key: int) -> Any:
        return result

    find.__annotations__["return"] = kind

    assert await answer(serving(find, "find.{key}"), b"", "find.1") == data


@pytest.mark.parametrize("kind", [Opaque, list[Opaque], dict[str, Opaque | int], Callable[[], int], type], ids=str)
@pytest.mark.parametrize("where", ["order", "return"])
def test_a_type_that_no_codec_knows_is_refused_by_name_when_it_is_decorated(kind: Any, where: str) -> None:
    async def place(order: Order) -> Order:
        return order

    place.__annotations__ = {"order": Order, "return": Order, where: kind}

    with pytest.raises(TypeError, match=r"request_response handler .*place: .* can't be encoded or decoded"):
        serving(place)


def test_an_unknown_name_in_an_annotation_is_refused_by_name() -> None:
    async def place(order: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        return

    with pytest.raises(TypeError, match=r"place: the annotation of parameter order, 'Missing', can't be read"):
        serving(place)


def plain_generator(order: Order) -> Iterator[Order]:
    yield order


async def yields(order: Order) -> AsyncIterator[Order]:
    yield order


async def returns(order: Order) -> Order:
    return order


async def takes_a_channel(offers: Receiving[Order]) -> None:
    return


async def takes_many(*orders: Order) -> None:
    return


async def takes_any(order: Order, **others: Order) -> None:
    return


async def takes_an_outgoing(order: Order, out: Outgoing) -> None:
    return


@pytest.mark.parametrize(
    ("interaction", "function", "text"),
    [
        ("request_response", yields, "request_response takes one answer; yields yields items: that is request_stream"),
        ("fire_and_forget", yields, "fire_and_forget takes one answer; yields yields items"),
        ("request_response", takes_a_channel, "handler takes_a_channel: parameter offers takes a channel"),
        ("request_stream", takes_a_channel, "handler takes_a_channel: parameter offers takes a channel"),
        ("request_response", takes_an_outgoing, "parameter out takes the items of a stream"),
        ("request_response", takes_many, r"handler takes_many: \*orders has no type to decode"),
        ("request_response", takes_any, r"handler takes_any: \*others has no type to decode"),
        ("request_stream", returns, "request_stream takes an async generator, .*; returns is an async function"),
        ("request_channel", returns, "request_channel takes a parameter of Receiving, .*; returns has none"),
        ("request_stream", plain_generator, "plain_generator.* is a generator"),
    ],
)
def test_a_misfit_is_refused_by_name_when_it_is_decorated(interaction: str, function: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        getattr(Responder(), interaction)(function)


def test_a_method_of_a_class_without_its_object_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Shop.place is a method of a class: register that of an object"):
        serving(Shop.place)


async def test_a_result_that_cannot_be_encoded_is_an_internal_error_whose_log_names_its_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def place(order: Order) -> Any:
        return Opaque()

    with caplog.at_level(logging.ERROR), pytest.raises(ApplicationError, match=r"^internal error$"):
        await answer(serving(place), ORDER)

    assert "handler " in caplog.text
    assert "Opaque can't be encoded as application/json" in caplog.text


async def test_an_item_that_cannot_be_encoded_is_raised_at_its_yield(caplog: pytest.LogCaptureFixture) -> None:
    responder = Responder()
    caught: list[str] = []

    @responder.request_stream
    async def items(times: int) -> AsyncIterator[Any]:
        try:
            yield Opaque()
        except TypeError as error:
            caught.append(str(error))
            yield {"times": times}
        yield 2
        yield Opaque()

    async with connected_pair(responder, data_mime=JSON) as pair, pair.client.request_stream(1, items=object) as stream:
        assert await anext(aiter(stream)) == {"times": 1}
        assert await anext(aiter(stream)) == 2
        with caplog.at_level(logging.ERROR), pytest.raises(ApplicationError, match=r"^internal error$"):
            await anext(aiter(stream))
    assert "Opaque can't be encoded as application/json" in caught[0]
    assert "Opaque can't be encoded as application/json" in caplog.text


# Channels


async def test_a_channel_may_be_served_beside_parameters_of_its_route_and_body() -> None:
    responder = Responder()

    @responder.request_channel("scaled.{unit}")
    async def scaled(unit: str, factor: int, numbers: TypedChannel[int, str]) -> None:
        async for number in numbers:
            await numbers.send(f"{number * factor} {unit}")

    async with (
        connected_pair(responder, data_mime=JSON) as pair,
        pair.client.request_channel(3, route="scaled.km", items=str) as channel,
    ):
        await channel.send(2)
        assert await anext(aiter(channel)) == "6 km"


async def test_items_before_one_that_does_not_fit_come_first_and_those_behind_it_are_not_lost() -> None:
    responder = Responder()
    seen: list[object] = []

    @responder.request_channel
    async def read(numbers: TypedChannel[int, int]) -> None:
        await settle()
        batch: list[int] | None = None
        while batch != []:
            try:
                batch = await numbers.receive_batch()
            except Invalid as error:
                seen.append(str(error))
            else:
                seen.append(batch)

    async with connected_pair(responder, data_mime=JSON) as pair, pair.client.request_channel(0, items=int) as channel:
        await channel.send_many([1, 2, b'"three"', 4])
        await channel.send_eof()
        assert [item async for item in channel] == []

    assert seen == [[0], [1, 2], "$: expected int, got str", [4], []]
