"""Codecs of requests and answers: the connection's MIME type, entries of a request, and what no codec covers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import cbor2
import msgspec
import pytest
import trio.testing

from rsocket_trio import Connection, ConnectionLost, Invalid, Payload, Responder, open_connection_over
from rsocket_trio.codecs import DEFAULT_CODECS
from rsocket_trio.metadata import Entry, encode_composite
from rsocket_trio.metadata.mime import ACCEPT_MIME_TYPES, MIME_TYPE, ROUTING, encode_accepted_mimes, encode_data_mime
from rsocket_trio.services import CBOR, JSON, MESSAGEPACK, Call, Codec, Receiving
from rsocket_trio.services.codec_choice import MAX_CHOICES
from tests.connection.pairs import connected_pair
from tests.connection.streamux_pairs import streamux_pair

OCTETS = "application/octet-stream"
HERE = ", ".join(codec.mime for codec in DEFAULT_CODECS)
DIALECTS = ("reactivesocket/0.0", "reactivesocket/0.1", "reactivesocket/0.2", "rsocket/1.0", "rsocket/2.0-draft")
ENCODERS: dict[str, Callable[[object], bytes]] = {
    "application/json": msgspec.json.encode,
    "application/msgpack": msgspec.msgpack.encode,
    "application/cbor": cbor2.dumps,
}


@attrs.frozen
class Order:
    symbol: str
    amount: int


ORDER = Order("ACME", 3)
PLAIN = {"symbol": "ACME", "amount": 3}


def responder_of_orders(**options: Any) -> Responder:
    """Answers each order with one of twice the amount."""
    responder = Responder(**options)

    @responder.request_response
    async def double(order: Order) -> Order:
        return Order(order.symbol, 2 * order.amount)

    @responder.request_response("double")
    def double_by_route(order: Order) -> Order:
        return Order(order.symbol, 2 * order.amount)

    @responder.request_stream
    async def count(order: Order) -> AsyncIterator[Order]:
        for amount in range(order.amount):
            yield Order(order.symbol, amount)

    @responder.request_channel
    async def each(orders: Receiving[Order]) -> AsyncIterator[int]:
        async for order in orders:
            yield order.amount

    @responder.fire_and_forget
    async def note(order: Order) -> None:
        responder_notes.append(order)

    @responder.request_response("size")
    async def size(data: bytes) -> bytes:
        return b"%d" % len(data)

    @responder.request_response("measure")
    async def measure(data: bytes) -> Order:
        return Order("bytes", len(data))

    return responder


responder_notes: list[Order] = []


def entries(data: str | int | None = None, *accepted: str) -> bytes:
    """Return composite metadata that names the MIME type of the data, and those of answers."""
    found = [] if data is None else [Entry(MIME_TYPE, encode_data_mime(data))]
    if accepted:
        found.append(Entry(ACCEPT_MIME_TYPES, encode_accepted_mimes(accepted)))
    return encode_composite(found)


# The connection's MIME type


@pytest.mark.parametrize("mime", ENCODERS)
async def test_the_mime_type_of_the_connection_decides(mime: str) -> None:
    async with connected_pair(responder_of_orders(), data_mime=mime) as pair:
        data = ENCODERS[mime](PLAIN)
        answer = await pair.client.request_response(data)

        assert CODEC[mime].decode(answer.data, dict) == {"symbol": "ACME", "amount": 6}
        assert await pair.client.request_response(ORDER, reply=Order) == Order("ACME", 6)
        assert all(frame.body.count(b"mime-type") == 0 for frame in pair.client_said[1:])


CODEC: dict[str, Codec] = {codec.mime: codec for codec in DEFAULT_CODECS}


async def test_on_a_connection_of_octets_a_request_names_the_first_codec() -> None:
    async with connected_pair(responder_of_orders(), data_mime=OCTETS) as pair:
        assert await pair.client.request_response(ORDER, reply=Order) == Order("ACME", 6)
        request = pair.client_said[-1].body

        assert b'{"amount":3,"symbol":"ACME"}' in request
        assert encode_composite([Entry(MIME_TYPE, encode_data_mime("application/json"))]) in request


async def test_a_client_may_prefer_another_codec_there_and_is_answered_in_it() -> None:
    async with connected_pair(responder_of_orders(), data_mime=OCTETS, codecs=[CBOR, JSON]) as pair:
        assert await pair.client.request_response(ORDER, reply=Order) == Order("ACME", 6)

        assert pair.client_said[-1].body.endswith(CBOR.encode(ORDER))
        assert pair.server_said[-1].body.endswith(CBOR.encode(Order("ACME", 6)))


async def test_a_channel_that_opens_without_data_names_the_codec_of_its_items() -> None:
    async with (
        connected_pair(responder_of_orders(), codecs=[MESSAGEPACK, JSON]) as pair,
        pair.client.request_channel(items=int) as channel,
    ):
        await channel.send(ORDER)
        await channel.send_eof()
        assert [amount async for amount in channel] == [ORDER.amount]


async def test_a_request_without_an_entry_is_read_there_by_the_first_codec_of_the_responder() -> None:
    async with connected_pair(responder_of_orders(codecs=[MESSAGEPACK, JSON]), data_mime=OCTETS) as pair:
        answer = await pair.client.request_response(msgspec.msgpack.encode(PLAIN))

        assert msgspec.msgpack.decode(answer.data) == {"symbol": "ACME", "amount": 6}


# Entries of a request


@pytest.mark.parametrize("connection", [OCTETS, "application/json", "application/x"])
@pytest.mark.parametrize("mime", ENCODERS)
async def test_an_entry_of_the_request_wins(mime: str, connection: str) -> None:
    async with connected_pair(responder_of_orders(), data_mime=connection) as pair:
        request = Payload(ENCODERS[mime](PLAIN), entries(mime))
        answer = await pair.client.request_response(request)
        assert CODEC[mime].decode(answer.data, Order) == Order("ACME", 6)

        answer = await pair.client.request_response(request, route="double")
        assert CODEC[mime].decode(answer.data, Order) == Order("ACME", 6)


@pytest.mark.parametrize(
    ("accepted", "mime"),
    [
        (["application/cbor"], "application/cbor"),
        (["application/x", "application/msgpack", "application/json"], "application/msgpack"),
        (["*/*"], "application/json"),
        ([OCTETS], "application/json"),
        ([OCTETS, "application/cbor"], "application/cbor"),
        (["application/x", OCTETS], "application/json"),
    ],
)
async def test_the_answer_is_of_the_first_type_accepted_that_is_here(accepted: list[str], mime: str) -> None:
    async with connected_pair(responder_of_orders(), data_mime="application/json") as pair:
        answer = await pair.client.request_response(Payload(JSON.encode(ORDER), entries(None, *accepted)))
        async with pair.client.request_stream(Payload(JSON.encode(ORDER), entries(None, *accepted))) as stream:
            items = [CODEC[mime].decode(item.data, Order) async for item in stream]

        assert CODEC[mime].decode(answer.data, Order) == Order("ACME", 6)
        assert items == [Order("ACME", amount) for amount in range(3)]


async def test_bytes_with_a_typed_reply_name_what_they_accept() -> None:
    async with connected_pair(responder_of_orders(codecs=[MESSAGEPACK, JSON]), data_mime=OCTETS) as pair:
        reply = await pair.client.request_response(msgspec.msgpack.encode(PLAIN), reply=Order)

        assert reply == Order("ACME", 6)
        assert b'{"amount":6,"symbol":"ACME"}' in pair.server_said[-1].body


async def test_what_is_taken_as_it_is_may_be_of_any_type() -> None:
    async with connected_pair(responder_of_orders(), data_mime="image/png") as pair:
        picture = Payload(b"\x89PNG", entries("image/png", "image/png"))

        assert (await pair.client.request_response(picture, route="size")).data == b"4"
    async with connected_pair(responder_of_orders(), data_mime="application/cbor") as pair:
        answer = await pair.client.request_response(Payload(b"\x89PNG", entries("image/png")), route="measure")

        assert CBOR.decode(answer.data, Order) == Order("bytes", 4)


# What no codec covers


@pytest.mark.parametrize("name", ["application/x", "video/H264"])
async def test_an_entry_of_an_unknown_type_is_invalid_and_names_those_that_are_here(name: str) -> None:
    async with connected_pair(responder_of_orders(), data_mime="application/json") as pair:
        with pytest.raises(Invalid) as caught:
            await pair.client.request_response(Payload(b"{}", entries(name)))
        assert str(caught.value) == f"no codec for {name}, here: {HERE}"

        with pytest.raises(Invalid, match=r"^no codec for application/x, here: application/json, "):
            await pair.client.request_response(Payload(JSON.encode(ORDER), entries(None, "application/x")))
        with pytest.raises(Invalid, match=r"^no codec for "):
            async with pair.client.request_stream(Payload(b"{}", entries(name))) as stream:
                await anext(aiter(stream))
        await pair.client.fire_and_forget(Payload(b"{}", entries(name)))
        await pair.client.ping()
        assert pair.server.faults.dropped == 1


@pytest.mark.parametrize(
    ("mime", "content"), [(MIME_TYPE, b""), (MIME_TYPE, b"\x05ab"), (ACCEPT_MIME_TYPES, b"\x05ab")]
)
async def test_a_malformed_entry_is_invalid(mime: str, content: bytes) -> None:
    async with connected_pair(responder_of_orders(), data_mime="application/json") as pair:
        with pytest.raises(Invalid):
            await pair.client.request_response(Payload(JSON.encode(ORDER), encode_composite([Entry(mime, content)])))


async def test_a_connection_of_an_unknown_type_is_refused_on_either_side() -> None:
    async with connected_pair(responder_of_orders(), data_mime="application/x") as pair:
        with pytest.raises(Invalid, match=f"^no codec for application/x, here: {HERE}$"):
            await pair.client.request_response(b"{}")
        with pytest.raises(ValueError, match=f"^no codec for application/x, here: {HERE}$"):
            await pair.client.request_response(ORDER)
        with pytest.raises(ValueError, match=r"^no codec for application/x"):
            pair.client.request_stream(b"", items=Order)


# Where no entry can be


@pytest.mark.parametrize("mime", ["application/cbor", OCTETS, "application/x"])
async def test_without_composite_metadata_the_connection_decides_or_else_the_first_codec(mime: str) -> None:
    options: Any = {"data_mime": mime, "metadata_mime": ROUTING, "codecs": [JSON, CBOR]}
    async with connected_pair(responder_of_orders(codecs=[JSON, CBOR]), **options) as pair:
        expected: Codec = CBOR if mime == CBOR.mime else JSON
        answer = await pair.client.request_response(expected.encode(ORDER))

        assert expected.decode(answer.data, Order) == Order("ACME", 6)
        await exercise(pair.client)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_carries_objects_with_its_own_defaults(dialect: str) -> None:
    async with connected_pair(responder_of_orders(), dialect=dialect) as pair:
        await exercise(pair.client, channels=dialect != "reactivesocket/0.0")


async def test_streamux_carries_objects_to_its_default_handler() -> None:
    async with streamux_pair(responder_of_orders()) as pair:
        assert await pair.client.request_response(ORDER, reply=Order) == Order("ACME", 6)
        with pytest.raises(ConnectionLost):  # Streamux has no errors of single requests
            await pair.client.request_response({"symbol": "ACME", "amount": "3"})


async def exercise(client: Connection, *, channels: bool = True) -> None:
    """Make every kind of request that has objects."""
    assert await client.request_response(ORDER, reply=Order) == Order("ACME", 6)
    async with client.request_stream(ORDER, items=Order) as stream:
        assert [item.amount async for item in stream] == [0, 1, 2]
    if channels:
        async with client.request_channel(ORDER, items=int) as channel:
            await channel.send(Order("ACME", 5))
            await channel.send_eof()
            assert [item async for item in channel] == [3, 5]
    responder_notes.clear()
    await client.fire_and_forget(ORDER)
    await client.request_response(ORDER)
    assert responder_notes == [ORDER]


@pytest.mark.parametrize("mime", ENCODERS)
async def test_the_drafts_own_type_of_a_payload_wins(mime: str) -> None:
    async with connected_pair(responder_of_orders(), dialect="rsocket/2.0-draft", data_mime="text/plain") as pair:
        answer = await pair.client.request_response(Payload(ENCODERS[mime](PLAIN), data_mime=mime))
        assert CODEC[mime].decode(answer.data, Order) == Order("ACME", 6)

        with pytest.raises(Invalid, match=r"^no codec for application/x"):
            await pair.client.request_response(Payload(b"{}", data_mime="application/x"))


# An application's own codecs


class Backwards:
    """A codec of three members: ``repr`` from right to left."""

    mime = "application/x-backwards"

    def encode(self, value: object) -> bytes:
        if isinstance(value, Unloved):
            raise TypeError("unloved")
        return repr(value).encode()[::-1]

    def decode(self, data: bytes, kind: Any) -> Any:
        text = data[::-1].decode()
        if not text.isdigit():
            raise ValueError("no digits")
        return kind(text)


class Unloved:
    pass


class Wrapped:
    """A class that no built-in codec knows."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def backwards_responder() -> Responder:
    responder = Responder(codecs=[Backwards()])

    @responder.request_response
    async def ten_times(wrapped: Wrapped) -> Wrapped:
        return Wrapped(wrapped.text + "0")

    @responder.request_stream
    async def unloved(wrapped: Wrapped) -> AsyncIterator[object]:
        try:
            yield Unloved()
        except TypeError as error:
            yield Wrapped(str(len(str(error)) > 0 and "1"))

    return responder


@pytest.mark.parametrize("mime", ["application/x-backwards", OCTETS])
async def test_a_codec_of_three_members_serves_types_of_its_own(mime: str) -> None:
    async with connected_pair(backwards_responder(), data_mime=mime, codecs=[Backwards()]) as pair:
        assert (await pair.client.request_response(Wrapped("12"), reply=Wrapped)).text == "120"
        async with pair.client.request_stream(Wrapped("1"), items=int) as stream:
            assert [item async for item in stream] == [1]


async def test_what_an_own_codec_refuses_is_invalid_there_and_a_value_error_here() -> None:
    async with connected_pair(backwards_responder(), data_mime=OCTETS, codecs=[Backwards()]) as pair:
        with pytest.raises(Invalid, match=r"^\$: no digits$"):
            await pair.client.request_response(Wrapped("x"))
        with pytest.raises(TypeError, match="Unloved can't be encoded as application/x-backwards: unloved"):
            await pair.client.request_response(Unloved())
        assert pair.server.faults.handler_errors == 0


@pytest.mark.parametrize(
    ("codecs", "error", "text"),
    [
        ([], ValueError, "codecs: at least one is needed"),
        ([JSON, object()], TypeError, "a codec has mime, encode and decode, and object has not"),
        (JSON, TypeError, "codecs takes codecs in a list, not ObjectCodec alone"),
    ],
)
async def test_what_is_no_codec_is_refused_at_once(codecs: Iterable[Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Responder(codecs=codecs)
    stream, _ = trio.testing.memory_stream_pair()
    with pytest.raises(error, match=text):
        async with open_connection_over(stream, codecs=codecs):
            pass


# Both directions


@asynccontextmanager
async def nothing_more(call: Call) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("mime", [OCTETS, "application/json"])
@pytest.mark.parametrize(
    ("payload", "reply", "route"),
    [
        (ORDER, Order, "double"),
        (ORDER, None, "double"),
        (b"12", bytes, "size"),
        ("12", Order, "measure"),
        (Payload(b"12"), Order, "measure"),
    ],
    ids=repr,
)
async def test_a_request_is_the_same_with_interceptors_and_without(
    payload: object, reply: Any, route: str | None, mime: str
) -> None:
    said = []
    for around in ((), (nothing_more,)):
        async with connected_pair(responder_of_orders(), data_mime=mime, around=around) as pair:
            try:
                answer = await pair.client.request_response(payload, route=route, reply=reply)
            except Exception as error:
                said.append((type(error), str(error), pair.client_said[1:]))
            else:
                said.append((type(answer), answer, pair.client_said[1:]))

    assert said[0] == said[1]


async def test_the_ways_to_name_a_codec_that_a_responder_keeps_are_few() -> None:
    responder = responder_of_orders()
    async with connected_pair(responder) as pair:
        for number in range(3 * MAX_CHOICES):
            mime = f"application/json; v={number}"
            metadata = encode_composite([Entry(MIME_TYPE, encode_data_mime(mime))])
            answer = await pair.client.request_response(Payload(msgspec.json.encode(ORDER), metadata))

            assert msgspec.json.decode(answer.data) == {"symbol": "ACME", "amount": 6}

    choices = responder._choices
    assert len(choices._kept) <= MAX_CHOICES


async def test_a_long_list_of_accepted_types_is_not_kept() -> None:
    responder = responder_of_orders()
    async with connected_pair(responder) as pair:
        accepted = entries(None, *[f"application/x-{number}" for number in range(500)], "application/cbor")
        answer = await pair.client.request_response(Payload(JSON.encode(ORDER), accepted))

        assert CBOR.decode(answer.data, Order) == Order("ACME", 6)

    choices = responder._choices
    assert choices._kept == {}
