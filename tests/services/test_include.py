"""Responders within responders: prefixed routes, whose interceptors apply, and what can't be included."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import attrs
import pytest

from rsocket_trio import Channel, Payload, Rejected, Responder
from rsocket_trio.services import JSON, MESSAGEPACK, Call
from rsocket_trio.testing import connected_pair


@attrs.frozen
class Order:
    symbol: str
    amount: int


def named(name: str) -> Callable[[Payload], str]:
    def answer(request: Payload) -> str:
        return f"{name}: {request.text}"

    return answer


async def answers(responder: Responder, *routes: str) -> list[str]:
    """Return the answer of each route, or the text of its error."""
    said = []
    async with connected_pair(responder) as (client, _):
        for route in routes:
            try:
                said.append((await client.request_response(b"x", route=route)).text)
            except Rejected as error:
                said.append(error.text)
    return said


async def test_handlers_are_served_under_the_prefix_and_nowhere_else(autojump_clock: object) -> None:
    orders, responder = Responder(), Responder()
    orders.request_response("place")(named("place"))
    responder.request_response("place")(named("own"))

    responder.include(orders, prefix="shop.orders.")

    assert await answers(responder, "shop.orders.place", "place", "orders.place") == [
        "place: x",
        "own: x",
        "no request_response handler for route 'orders.place'",
    ]
    assert await answers(orders, "place", "shop.orders.place") == [
        "place: x",
        "no request_response handler for route 'shop.orders.place'",
    ]


async def test_every_interaction_is_included_with_its_terms(autojump_clock: object) -> None:
    inner, responder = Responder(), Responder()
    told: list[str] = []

    @inner.request_stream("ticks.{symbol}")
    async def ticks(symbol: str, since: float = 0.0) -> AsyncIterator[Order]:
        yield Order(symbol, int(since))

    @inner.request_channel("echo", initial_request_n=2, refill=False)
    async def echo(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    @inner.fire_and_forget("tell")
    def tell(request: Payload) -> None:
        told.append(request.text)

    responder.include(inner, prefix="{{v1}}.")

    async with connected_pair(responder) as (client, _):
        async with client.request_stream(b"3.5", route="{v1}.ticks.ACME") as stream:
            assert [json.loads(item.data) async for item in stream] == [{"symbol": "ACME", "amount": 3}]
        async with client.request_channel(route="{v1}.echo") as channel:
            await channel.send_many([b"1", b"2"])
            assert [(await anext(channel)).text for _ in range(2)] == ["1", "2"]
            assert channel.room == 0
        await client.fire_and_forget(b"news", route="{v1}.tell")
        await client.ping()
    assert told == ["news"]
    assert [(each.route, each.interaction) for each in responder.routes] == [
        ("{{v1}}.echo", "request_channel"),
        ("{{v1}}.tell", "fire_and_forget"),
        ("{{v1}}.ticks.{symbol}", "request_stream"),
    ]


async def test_one_responder_may_be_included_twice_and_in_turn(autojump_clock: object) -> None:
    inner, middle, outer = Responder(), Responder(), Responder()
    inner.request_response("{name}")(named("inner"))
    middle.include(inner, prefix="a.")
    middle.include(inner, prefix="b.")
    outer.include(middle, prefix="x.")
    outer.include(inner)

    assert await answers(outer, "x.a.1", "x.b.1", "1", "a.1") == [
        *["inner: x"] * 3,
        "no request_response handler for route 'a.1'",
    ]


async def test_without_a_prefix_the_default_handlers_are_included(autojump_clock: object) -> None:
    inner, responder = Responder(), Responder()
    inner.request_response(named("default"))
    responder.include(inner)

    async with connected_pair(responder) as (client, _):
        assert (await client.request_response(b"x")).text == "default: x"


async def test_interceptors_of_the_included_lie_inside_of_the_outer_ones(autojump_clock: object) -> None:
    inner, middle, outer = Responder(), Responder(), Responder()
    entered: list[str] = []

    def note(responder: Responder, name: str) -> None:
        @responder.around
        async def noting(call: Call) -> AsyncIterator[None]:
            entered.append(f"{name} {call.route}")
            yield

    inner.request_response("deep")(named("deep"))
    note(inner, "inner")
    note(middle, "middle 1")
    note(middle, "middle 2")
    middle.include(inner, prefix="m.")
    note(outer, "outer")
    outer.include(middle, prefix="o.")
    outer.request_response("own")(named("own"))
    note(inner, "too late")

    await answers(outer, "o.m.deep", "own")

    route = "o.m.deep"
    assert entered == [f"outer {route}", f"middle 1 {route}", f"middle 2 {route}", f"inner {route}", "outer own"]


async def test_handlers_keep_the_codecs_of_their_own_responder(autojump_clock: object) -> None:
    inner, responder = Responder(codecs=[JSON]), Responder(codecs=[MESSAGEPACK])

    @inner.request_response("count")
    async def count(order: Order) -> int:
        return order.amount

    responder.include(inner)

    async with connected_pair(responder, data_mime="application/json") as (client, _):
        assert (await client.request_response(b'{"symbol":"ACME","amount":3}', route="count")).data == b"3"


# What is refused


def test_a_route_that_is_taken_is_refused_and_nothing_is_included() -> None:
    inner, responder = Responder(), Responder()
    for route in ("a", "b", "c.{x}"):
        inner.request_response(route)(named(route))
    responder.request_response("shop.b")(named("b"))

    with pytest.raises(ValueError, match=r"request_response has a handler for route 'shop\.b' already"):
        responder.include(inner, prefix="shop.")

    assert [each.route for each in responder.routes] == ["shop.b"]


def test_a_responder_includes_another_responder() -> None:
    responder, other = Responder(), cast("Any", "shop")

    with pytest.raises(ValueError, match="a responder can't include itself"):
        responder.include(responder, prefix="a.")
    with pytest.raises(TypeError, match="include takes a Responder, not str"):
        responder.include(other)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("{shop}.", "prefix '{shop}.' has a parameter, 'shop': a literal brace is '{{'"),
        ("{shop.", "route '{shop.', position 0: '{' has no partner"),
        ("x" * 250, "route of 256 bytes, limit 255"),
    ],
    ids=["parameter", "brace", "long"],
)
def test_a_prefix_that_makes_no_routes_is_refused(prefix: str, message: str) -> None:
    inner, responder = Responder(), Responder()
    inner.request_response("orders")(named("orders"))

    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        responder.include(inner, prefix=prefix)


def test_a_default_handler_takes_no_prefix() -> None:
    inner, responder = Responder(), Responder()
    inner.request_response("orders")(named("orders"))
    inner.fire_and_forget(named("default"))

    with pytest.raises(ValueError, match=r"fire_and_forget has a handler without a route, .*: it takes no prefix"):
        responder.include(inner, prefix="shop.")

    assert responder.routes == ()


@pytest.mark.parametrize(
    ("register", "name"),
    [
        (lambda responder: responder.setup(lambda setup, connection: None), "setup"),
        (lambda responder: responder.metadata_push(lambda metadata: None), "metadata_push"),
        (lambda responder: responder.lease_at_rate(1, 1), "lease"),
        (lambda responder: responder.on_error(lambda error, call: None), "on_error"),
        (lambda responder: responder.extension(5)(lambda stream_id, body: None), "extension"),
        (lambda responder: responder.authenticate(lambda credentials, call: credentials), "authenticate"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_handlers_of_connections_are_not_included_in_silence(register: Callable[[Responder], None], name: str) -> None:
    inner, responder = Responder(), Responder()
    register(inner)

    with pytest.raises(ValueError, match=f"the included responder has a handler of connections, {name}: register it"):
        responder.include(inner, prefix="shop.")
