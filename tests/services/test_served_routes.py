"""Routes with parameters, served by every interaction, with and without types, whatever a peer sends as a route."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rsocket_trio import Channel, Outgoing, Payload, Rejected, Responder
from rsocket_trio.services import current_call
from rsocket_trio.testing import connected_pair


def parameters(request: Payload) -> str:
    """Answer with the parameters of the route, as text."""
    return str(current_call().parameters)


async def test_handlers_of_payloads_find_the_parameters_in_their_call(autojump_clock: object) -> None:
    responder = Responder()
    told: list[str] = []
    responder.request_response("inline.{a}")(parameters)

    @responder.request_response("async.{a}.{b}")
    async def answer(request: Payload) -> str:
        return parameters(request)

    @responder.request_stream("generated.{a}")
    async def generated(request: Payload) -> AsyncIterator[str]:
        yield parameters(request)

    @responder.request_stream("pushed.{a}")
    async def pushed(request: Payload, out: Outgoing) -> None:
        await out.send(parameters(request))

    @responder.request_channel("channel.{a}")
    async def channel(channel: Channel) -> None:
        await channel.send(parameters(channel.request))

    @responder.fire_and_forget("told.{a}")
    def tell(request: Payload) -> None:
        told.append(parameters(request))

    async with connected_pair(responder) as (client, _):
        assert (await client.request_response(route="inline.1")).text == "{'a': '1'}"
        assert (await client.request_response(route="async.1.2")).text == "{'a': '1', 'b': '2'}"
        for route in ("generated.1", "pushed.1"):
            async with client.request_stream(route=route) as stream:
                assert [item.text async for item in stream] == ["{'a': '1'}"]
        async with client.request_channel(route="channel.1") as both:
            assert [item.text async for item in both] == ["{'a': '1'}"]
        await client.fire_and_forget(route="told.1")
        await client.ping()
    assert told == ["{'a': '1'}"]


async def test_the_braces_of_a_caller_are_text(autojump_clock: object) -> None:
    responder = Responder()
    responder.request_response("orders.{number}")(parameters)
    responder.request_response("braces.{{x}}")(lambda request: b"literal")

    async with connected_pair(responder) as (client, _):
        assert (await client.request_response(route="orders.{number}")).text == "{'number': '{number}'}"
        assert (await client.request_response(route="orders.{{")).text == "{'number': '{{'}"
        assert (await client.request_response(route="braces.{x}")).data == b"literal"
        with pytest.raises(Rejected, match=re.escape("handler for route 'braces.{{x}}'")):
            await client.request_response(route="braces.{{x}}")


@pytest.mark.parametrize("decorator", ["request_response", "request_stream", "request_channel", "fire_and_forget"])
@pytest.mark.parametrize(
    ("route", "message"),
    [
        ("orders.{id", "route 'orders.{id', position 7: '{' has no partner; '{{' is a literal one"),
        ("{a}{b}", "route '{a}{b}', position 0: '{a}' is a parameter beside text, not a whole segment"),
        ("orders.{id}.{id}", "route 'orders.{id}.{id}', position 12: there are two parameters 'id'"),
        ("shop.{x}.b", "routes 'shop.{x}.b' and 'shop.a.{y}' both match 'shop.a.b', and neither is more specific"),
        ("shop.a.{z}", "route 'shop.a.{z}' matches the same as 'shop.a.{y}'"),
    ],
)
def test_wrong_and_ambiguous_routes_are_refused_at_registration(decorator: str, route: str, message: str) -> None:
    responder = Responder()
    handler: Any = items if decorator == "request_stream" else answers
    getattr(responder, decorator)("shop.a.{y}")(handler)

    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(responder, decorator)(route)(handler)

    assert [each.route for each in responder.routes] == ["shop.a.{y}"]


async def items(request: Any) -> AsyncIterator[bytes]:
    yield b""


async def answers(request: Any) -> None:
    return


async def unsaid(who):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return who


async def unsaid_request(request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return request


def with_default(request: Payload, nmae: str = "") -> bytes:
    return request.data


def kept(request: Payload, name=1) -> bytes:  # type: ignore[no-untyped-def]  # noqa: ANN001
    return request.data


def test_a_parameter_of_another_name_than_that_of_the_route_is_refused() -> None:
    for wrong, name in ((unsaid, "who"), (with_default, "nmae"), (lambda who: who, "who")):
        with pytest.raises(TypeError, match=rf"no parameter number, which the route names, but {name}: rename it, or"):
            Responder().request_response("orders.{number}")(wrong)
        Responder().request_response("orders")(wrong)
    told: list[object] = []
    rights: tuple[Any, ...] = (unsaid_request, kept, parameters, told.append, lambda request: request)
    for right in rights:
        Responder().request_response("orders.{number}")(right)
