"""An object is an answer: a handler of bytes may give one without an annotation, and a codec of the call encodes it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

import attrs
import pydantic
import pytest

from rsocket_trio import ApplicationError, Call, Channel, Invalid, Outgoing, Payload, Responder
from rsocket_trio.metadata import Entry, encode_composite
from rsocket_trio.metadata.mime import ACCEPT_MIME_TYPES, MIME_TYPE, encode_accepted_mimes, encode_data_mime
from rsocket_trio.services import CBOR, JSON, MESSAGEPACK
from tests.connection.pairs import connected_pair
from tests.rows import Rows


@attrs.frozen
class Order:
    symbol: str


@dataclass
class Data:
    symbol: str


class Model(pydantic.BaseModel):
    symbol: str


class Opaque:
    """A class that no codec knows."""


ANSWERS: tuple[tuple[object, bytes], ...] = (
    ({"a": 1}, b'{"a":1}'),
    ([1, "a"], b'[1,"a"]'),
    (("a", None), b'["a",null]'),
    (7, b"7"),
    (1.5, b"1.5"),
    (True, b"true"),
    (Order("A"), b'{"symbol":"A"}'),
    (Data("A"), b'{"symbol":"A"}'),
    (Model(symbol="A"), b'{"symbol":"A"}'),
    (None, b""),
    ("text", b"text"),
    (b"bytes", b"bytes"),
)


async def watch(call: Call) -> AsyncIterator[None]:
    yield


def responder_of(value: object) -> Responder:
    """Return a responder whose handlers give ``value`` in every way."""
    responder = Responder()

    async def later() -> object:
        return value

    @responder.request_response("async")
    async def answer(request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return value

    @responder.request_response("plain")
    def answer_at_once(request: Payload) -> Any:
        return value

    @responder.request_response("awaitable")
    def answer_later(request: Payload) -> Awaitable[object]:
        return later()

    @responder.request_stream("generator")
    async def items(request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        yield value
        yield value

    @responder.request_stream("push")
    async def push(request: Payload, out: Outgoing) -> None:
        await out.send(value)  # type: ignore[arg-type]
        await out.send_many([value])  # type: ignore[list-item]

    @responder.request_channel("channel")
    async def converse(channel: Channel) -> None:
        await channel.send(value)  # type: ignore[arg-type]
        await channel.send_many([value])  # type: ignore[list-item]

    return responder


@pytest.mark.parametrize("intercepted", [False, True])
async def test_every_kind_of_handler_answers_with_objects(intercepted: bool) -> None:
    with Rows() as row:
        for value, data in ANSWERS:
            responder = responder_of(value)
            if intercepted:
                responder.around(watch)
            with row(repr(value)):
                async with connected_pair(responder) as pair:
                    for route in ("async", "plain", "awaitable"):
                        assert (await pair.client.request_response(route=route)).data == data
                    for route in ("generator", "push"):
                        async with pair.client.request_stream(route=route) as stream:
                            assert [item.data async for item in stream] == [data, data]
                    async with pair.client.request_channel(route="channel") as channel:
                        await channel.send_eof()
                        assert [item.data async for item in channel] == [data, data]


async def test_the_codec_is_that_of_the_connection_or_of_the_request_or_of_what_it_accepts() -> None:
    def of(mime: str, accepted: str | None = None) -> Payload:
        accepts = [] if accepted is None else [Entry(ACCEPT_MIME_TYPES, encode_accepted_mimes([accepted]))]
        return Payload(b"", encode_composite([Entry(MIME_TYPE, encode_data_mime(mime)), *accepts]))

    value = {"a": [1, 2]}
    async with connected_pair(responder_of(value), data_mime="application/cbor") as pair:
        ask = pair.client.request_response
        assert (await ask(route="async")).data == CBOR.encode(value)
        assert (await ask(of("application/msgpack"), route="async")).data == MESSAGEPACK.encode(value)
        assert (await ask(of("application/msgpack", "application/json"), route="plain")).data == JSON.encode(value)
        assert (await ask(of("image/png"), route="async")).data == CBOR.encode(value)
        with pytest.raises(Invalid, match=r"^no codec for image/png, here: application/json, "):
            await ask(of("image/png", "image/png"), route="async")
        async with pair.client.request_stream(of("application/json"), route="generator") as stream:
            assert [item.data async for item in stream] == [JSON.encode(value)] * 2


@pytest.mark.parametrize(("route", "name"), [("async", "answer"), ("generator", "items"), ("channel", "converse")])
async def test_what_no_codec_takes_is_a_type_error_with_the_handler_the_type_and_what_to_do(
    route: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    responder = responder_of(Opaque())
    reported: list[Exception] = []
    responder.on_error(lambda error, call: reported.append(error))
    async with connected_pair(responder) as pair:
        opened: dict[str, Any] = {"generator": pair.client.request_stream, "channel": pair.client.request_channel}
        with caplog.at_level(logging.ERROR), pytest.raises(ApplicationError, match=r"^internal error$"):  # noqa: PT012
            if route in opened:
                async with opened[route](route=route) as stream:
                    await anext(stream)
            await pair.client.request_response(route=route)
    [error] = reported
    assert type(error) is TypeError
    assert f"<locals>.{name}: Opaque can't be encoded" in str(error)
    assert str(error).endswith(
        "; an answer is bytes, text, a Payload, or an object: a dataclass, an attrs class, a model, a dict, a list"
    )
    reported.clear()
