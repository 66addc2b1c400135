"""Handlers are registered by decorators in every form, chosen by route, and wrong ones are refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rsocket_trio import Rejected, Responder
from rsocket_trio.mux.stream_state import Interaction


async def asynchronous(request: Any) -> Any:
    return request


def plain(request: Any) -> Any:
    return request


async def items(request: Any) -> AsyncIterator[Any]:
    yield request


async def push(request: Any, out: Any) -> None:
    return


def generator(request: Any) -> Iterator[Any]:
    yield request


async def no_arguments() -> None:
    return


async def gate(setup: Any, connection: Any) -> None:
    return


ROUTED = ["request_response", "fire_and_forget", "request_stream", "request_channel", "request_subscription"]
FITTING: dict[str, Callable[..., Any]] = {
    "request_response": asynchronous,
    "fire_and_forget": asynchronous,
    "request_stream": items,
    "request_channel": asynchronous,
    "request_subscription": items,
}
INTERACTIONS = {
    "request_response": Interaction.REQUEST_RESPONSE,
    "fire_and_forget": Interaction.FIRE_AND_FORGET,
    "request_stream": Interaction.REQUEST_STREAM,
    "request_channel": Interaction.REQUEST_CHANNEL,
    "request_subscription": Interaction.REQUEST_SUBSCRIPTION,
}


@pytest.mark.parametrize("name", ROUTED)
def test_decorators_work_bare_called_and_with_a_route(name: str) -> None:
    function = FITTING[name]
    forms: list[tuple[Callable[[Any], object], str | None]] = [
        (lambda responder: getattr(responder, name)(function), None),
        (lambda responder: getattr(responder, name)()(function), None),
        (lambda responder: getattr(responder, name)("a.route")(function), "a.route"),
        (lambda responder: getattr(responder, name)(route="a.route")(function), "a.route"),
    ]
    for decorate, route in forms:
        responder = Responder()

        assert decorate(responder) is function
        assert responder._find(INTERACTIONS[name], route).function is function


WRONG = [
    ("request_response", items, "async generator"),
    ("request_response", generator, "generator"),
    ("request_response", push, "async function"),
    ("request_response", no_arguments, "async function"),
    ("request_stream", asynchronous, "async function"),
    ("request_stream", plain, "plain function"),
    ("request_channel", items, "async generator"),
    ("request_channel", plain, "plain function"),
    ("setup", asynchronous, "async function"),
    ("lease", asynchronous, "async function"),
]


@pytest.mark.parametrize(("name", "function", "shape"), WRONG)
def test_a_wrong_kind_of_function_is_refused_when_it_is_decorated_and_both_are_named(
    name: str, function: Callable[..., Any], shape: str
) -> None:
    responder = Responder()

    with pytest.raises(TypeError) as caught:
        getattr(responder, name)(function)

    assert str(caught.value).startswith(f"{name} takes ")
    assert function.__name__ in str(caught.value)
    article = "an" if shape[0] in "aeiou" else "a"
    assert str(caught.value).endswith(f" is {article} {shape}")


@pytest.mark.parametrize("thing", [7, b"route"])
def test_what_is_no_function_and_no_route_is_refused(thing: object) -> None:
    with pytest.raises(TypeError):
        Responder().request_response(thing)(asynchronous)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not int"):
        Responder().request_response("route")(7)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("route", [None, "a.route"])
def test_a_second_handler_for_a_route_is_refused_and_the_first_is_named(name: str, route: str | None) -> None:
    responder = Responder()
    getattr(responder, name)(route)(FITTING[name])

    with pytest.raises(ValueError, match=FITTING[name].__name__) as caught:
        getattr(responder, name)(route)(FITTING[name])

    assert name in str(caught.value)
    assert (route or "default") in str(caught.value)


@pytest.mark.parametrize(("name", "function"), [("metadata_push", plain), ("setup", gate), ("lease", items)])
def test_a_second_handler_of_a_kind_that_has_no_routes_is_refused(name: str, function: Callable[..., Any]) -> None:
    responder = Responder()
    getattr(responder, name)(function)

    with pytest.raises(ValueError, match=f"{name} has a handler already: {function.__name__}"):
        getattr(responder, name)(function)


def test_a_route_is_at_most_255_bytes() -> None:
    Responder().request_response("ü" * 127)(asynchronous)
    with pytest.raises(ValueError, match="route of 256 bytes, limit 255"):
        Responder().request_response("ü" * 128)


@pytest.mark.parametrize("request_n", [0, -1, 2**31])
def test_a_channels_credit_is_bounded(request_n: int) -> None:
    with pytest.raises(ValueError, match=str(request_n)):
        Responder().request_channel("x", initial_request_n=request_n)


def test_an_unknown_route_is_rejected_by_name_although_there_is_a_default() -> None:
    responder = Responder()
    responder.request_response(asynchronous)

    with pytest.raises(Rejected, match="'nowhere'"):
        responder._find(Interaction.REQUEST_RESPONSE, "nowhere")
    with pytest.raises(Rejected, match="no default handler for request_stream"):
        responder._find(Interaction.REQUEST_STREAM, None)
