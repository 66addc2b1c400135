"""Annotations that show at a glance that a handler takes bytes agree with the long look at them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from rsocket_trio import Channel, Outgoing, Payload, PayloadLike, Responder
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.responder import takes_bytes
from rsocket_trio.services.typed_handlers import read


async def unannotated(request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - that is the point
    return request


async def payload(request: Payload) -> Payload:
    return request


async def text(request: Payload) -> str:
    return request.text


async def nothing(request: Any) -> None: ...


def promised(request: Payload) -> Awaitable[bytes]:
    return payload(request)  # type: ignore[return-value]


async def items(request: object) -> AsyncIterator[bytes]:
    yield b""


async def pushed(request: Payload, out: Outgoing) -> None: ...


async def channel(both: Channel) -> None: ...


async def number(request: int) -> int:
    return request


async def numbered(request: Payload) -> int:
    return 1


async def data(request: bytes) -> bytes:
    return request


async def alike(request: PayloadLike) -> PayloadLike:
    return request


async def with_default(request: Payload, level: int = 1) -> Payload:
    return request


AT_A_GLANCE: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("request_response", unannotated),
    ("request_response", payload),
    ("request_response", text),
    ("fire_and_forget", nothing),
    ("request_response", promised),
    ("request_stream", items),
    ("request_stream", pushed),
    ("request_channel", channel),
)
LOOKED_AT: tuple[tuple[Callable[..., Any], bool], ...] = (
    (number, True),
    (numbered, True),
    (data, True),
    (alike, False),
    (with_default, False),
)
"""Functions that are looked at more closely, and whether they are typed handlers."""


@pytest.mark.parametrize(("decorator", "function"), AT_A_GLANCE, ids=lambda one: getattr(one, "__name__", one))
def test_a_handler_of_bytes_is_known_at_a_glance_and_is_none_of_types(
    decorator: str, function: Callable[..., Any]
) -> None:
    responder = Responder()
    getattr(responder, decorator)(function)

    handler = responder._find(Interaction(decorator), None)
    assert takes_bytes(function)
    assert handler.plain
    assert read(decorator, function, (), responder._choices()) is None


@pytest.mark.parametrize(("function", "is_typed"), LOOKED_AT, ids=lambda one: getattr(one, "__name__", ""))
def test_other_handlers_are_looked_at_more_closely(function: Callable[..., Any], is_typed: bool) -> None:
    responder = Responder()
    responder.request_response(function)

    assert not takes_bytes(function)
    assert (responder._find(Interaction.REQUEST_RESPONSE, None).typed is not None) is is_typed
