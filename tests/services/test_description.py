"""The records of a responder's routes, and their description on the reserved route."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NotRequired

import attrs
import pytest

from rsocket_trio import Channel, Outgoing, Payload, Rejected, Responder
from rsocket_trio.services import Receiving, TypedChannel
from rsocket_trio.services.description import DESCRIPTION_ROUTE, Route
from rsocket_trio.testing import connected_pair


@attrs.frozen
class Order:
    symbol: str
    amount: int = 1


@attrs.frozen
class Receipt:
    order: Order
    number: int


def stocked(**options: Any) -> Responder:
    """Return a responder with a route of each kind."""
    responder = Responder(**options)

    @responder.request_response("orders.place")
    async def place(order: Order) -> Receipt:
        return Receipt(order, 1)

    @responder.request_stream("ticks.{symbol}")
    async def ticks(symbol: str, since: float = 0.0) -> AsyncIterator[int]:
        yield 1

    @responder.request_stream("range.{first}")
    async def numbers(first: int, last: int, step: int = 1) -> AsyncIterator[int]:
        yield 1

    @responder.request_channel("negotiate")
    async def negotiate(offers: Receiving[Order]) -> AsyncIterator[Receipt]:
        yield Receipt(Order("A"), 1)

    @responder.request_channel("talk")
    async def talk(channel: TypedChannel[str, int]) -> None:
        await channel.send(1)

    @responder.fire_and_forget("note")
    async def note(text: str) -> None:
        return

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    @responder.request_stream("raw.{{x}}.{y}")
    async def raw(request: Payload, out: Outgoing) -> None:
        return

    @responder.request_channel("bytes")
    async def relay(channel: Channel) -> None:
        return

    @responder.request_response("now")
    def now() -> int:
        return 1

    return responder


EXPECTED = [
    Route(None, "request_response", {}, Payload, None, Payload),
    Route("bytes", "request_channel", {}, Payload, Payload, Payload),
    Route("negotiate", "request_channel", {}, None, Order, Receipt),
    Route("note", "fire_and_forget", {}, str, None, None),
    Route("now", "request_response", {}, None, None, int),
    Route("orders.place", "request_response", {}, Order, None, Receipt),
    Route("range.{first}", "request_stream", {"first": int}, {"last": int, "step": NotRequired[int]}, None, int),
    Route("raw.{{x}}.{y}", "request_stream", {"y": str}, Payload, None, Payload),
    Route("talk", "request_channel", {}, None, str, int),
    Route("ticks.{symbol}", "request_stream", {"symbol": str}, float, None, int),
]


def test_routes_are_listed_with_their_types_in_order() -> None:
    assert list(stocked().routes) == EXPECTED


async def test_a_responder_describes_its_routes_if_it_is_asked_to(autojump_clock: object) -> None:
    async with connected_pair(stocked(describe=True)) as (client, _):
        described = json.loads((await client.request_response(route=DESCRIPTION_ROUTE)).data)
    routes = {each["route"]: each for each in described["routes"]}

    assert described["codecs"] == [codec.mime for codec in Responder().codecs]
    assert len(routes) == len(EXPECTED)
    place = routes["orders.place"]
    assert (place["interaction"], place["parameters"], place["items"]) == ("request_response", {}, None)
    assert place["body"]["$ref"] == "#/$defs/Order"
    assert routes["ticks.{symbol}"]["parameters"] == {"symbol": {"type": "string"}}
    assert routes["ticks.{symbol}"]["body"] == {"type": "number"}
    assert routes["negotiate"]["items"] == place["body"]
    assert routes["bytes"]["items"] == {"contentMediaType": "application/octet-stream"}
    assert routes["range.{first}"]["body"]["properties"] == {"last": {"type": "integer"}, "step": {"type": "integer"}}
    assert routes["range.{first}"]["body"]["required"] == ["last"]
    assert set(place["reply"]["$defs"]) == {"Order", "Receipt"}
    assert place["reply"]["$defs"]["Receipt"]["properties"]["order"] == {"$ref": "#/$defs/Order"}


async def test_without_being_asked_it_describes_nothing(autojump_clock: object) -> None:
    async with connected_pair(stocked()) as (client, _):
        with pytest.raises(Rejected, match="no request_response handler for route '\\$routes'"):
            await client.request_response(route=DESCRIPTION_ROUTE)


def test_the_reserved_route_is_taken_where_it_is_served() -> None:
    with pytest.raises(ValueError, match="request_response has a handler for route '\\$routes' already"):
        Responder(describe=True).request_response(DESCRIPTION_ROUTE)(lambda request: b"")

    Responder().request_response(DESCRIPTION_ROUTE)(lambda request: b"")
