"""The catch-all ``**``: routes that nothing else matches, by interaction and by the longest prefix of an include."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest

from rsocket_trio import Payload, Rejected, Responder
from rsocket_trio.services import Receiving, Service, current_call, request_response
from rsocket_trio.testing import connected_pair
from tests.services.interactions import INTERACTIONS, ask


def named(name: str) -> Callable[[Payload], str]:
    """Return a handler that answers with this name and the route of the call."""

    def answer(request: Payload) -> str:
        return f"{name} {current_call().route}"

    return answer


def catching(name: str = "all") -> Responder:
    """Return a responder with a catch-all of this name."""
    responder = Responder()
    responder.request_response("**")(named(name))
    return responder


async def answers(responder: Responder, *routes: str) -> list[str]:
    """Return what each route answers, or how it is refused."""
    async with connected_pair(responder) as (client, _):
        texts = []
        for route in routes:
            try:
                texts.append((await client.request_response(route=route)).text)
            except Rejected as error:
                texts.append(str(error))
        return texts


async def test_it_takes_what_no_other_route_matches(autojump_clock: object) -> None:
    responder = catching()
    responder.request_response("exact")(lambda request: "exact")
    responder.request_response("of.{name}")(lambda request: "pattern")

    assert await answers(responder, "exact", "of.ada", "of.a.b", "other", "**", "$routes", "x." * 100) == [
        "exact",
        "pattern",
        "all of.a.b",
        "all other",
        "all **",
        "all $routes",
        f"all {'x.' * 100}",
    ]


async def test_a_request_without_a_route_is_for_the_default_handler_alone(autojump_clock: object) -> None:
    async with connected_pair(catching()) as (client, _):
        with pytest.raises(Rejected, match="no default handler for request_response"):
            await client.request_response()


async def generate(request: Payload) -> AsyncIterator[str]:
    yield str(current_call().route)


async def test_every_interaction_has_one(autojump_clock: object) -> None:
    told: list[str | None] = []
    responder = catching()
    responder.request_stream("**")(generate)

    @responder.request_channel("**")
    async def channel(offers: Receiving[str]) -> AsyncIterator[str]:
        yield str(current_call().route)

    @responder.fire_and_forget("**")
    async def note(text: str) -> None:
        told.append(current_call().route)

    async with connected_pair(responder) as (client, _):
        seen = [await ask(client, interaction, route="a.b") for interaction in INTERACTIONS]
        await client.ping()
    assert seen == [["all a.b"], [], ["a.b"], ["a.b"]]
    assert told == ["a.b"]


async def test_included_behind_a_prefix_it_takes_routes_that_begin_with_it(autojump_clock: object) -> None:
    eu, shop, responder = catching("eu"), catching("shop"), catching("outer")
    shop.include(eu, "eu.")
    shop.request_response("eu.now")(lambda request: "now")
    responder.include(shop, "shop.")

    assert await answers(responder, "shop.x", "shop.eu.x", "shop.eu.now", "shop.eu", "shop", "shops.x", "shop.") == [
        "shop shop.x",
        "eu shop.eu.x",
        "now",
        "shop shop.eu",
        "outer shop",
        "outer shops.x",
        "shop shop.",
    ]
    assert [route.route for route in responder.routes] == ["**", "shop.**", "shop.eu.**", "shop.eu.now"]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("shop", "prefix 'shop' has no '.' at its end, and '**' can't follow it"),
        ("a**.", "route 'a**.', position 1: '**' is a route by itself, and no part of a longer one"),
        ("**", "route '**place', position 0: '**' is a route by itself, and no part of a longer one"),
        ("", "there is a handler for '**' already"),
        ("taken.", "there is a handler for 'taken.**' already"),
        ("x" * 254 + ".", "route of 260 bytes, limit 255"),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused_and_nothing_is_included(prefix: str, message: str) -> None:
    part, responder = catching("part"), catching("outer")
    part.request_response("place")(named("place"))
    responder.include(catching("taken"), "taken.")

    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        responder.include(part, prefix)
    assert [route.route for route in responder.routes] == ["**", "taken.**"]


def test_a_second_one_of_an_interaction_and_part_of_a_longer_route_are_refused() -> None:
    responder = catching()
    responder.request_stream("**")(generate)

    with pytest.raises(ValueError, match=re.escape("there is a handler for '**' already")):
        responder.request_response("**")(named("second"))
    for route in "orders.**", "**.place", "a**", "***":
        with pytest.raises(ValueError, match=re.escape("'**' is a route by itself, and no part of a longer one")):
            responder.request_response(route)(named("longer"))


def test_a_contract_has_none() -> None:
    class Anything(Service, Protocol):
        @request_response("**")
        async def call(self, text: str) -> str: ...

    class Implementation:
        async def call(self, text: str) -> str:
            return text

    with pytest.raises(ValueError, match=re.escape("Anything.call: a contract has no route '**'")):
        Responder().serve_as(Anything, Implementation())
