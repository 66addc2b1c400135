"""Bad input of a peer: each is a clear error of bounded length, and a stream beside it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pydantic
import pytest

from rsocket_trio import Connection, Invalid, Payload, Rejected, Responder, RSocketError
from rsocket_trio.codecs import DEFAULT_CODECS
from rsocket_trio.metadata import Entry, encode_composite
from rsocket_trio.metadata.mime import AUTHENTICATION, ROUTING
from rsocket_trio.services import Bearer, Codec, DecodeError, Receiving
from tests.connection.pairs import Pair, connected_pair
from tests.each_row import some
from tests.memory import traced

JSON, CBOR, MESSAGEPACK = "application/json", "application/cbor", "application/msgpack"
DEPTH = 100_000
MIB = 1024 * 1024
MAX_TEXT_BYTES = 1024 + 64
"""Characters of an error: what a codec says, and what stands before it."""


@attrs.frozen
class Order:
    symbol: str
    amount: int
    price: float = 0.0


@attrs.frozen
class Tree:
    name: str
    children: list[Tree]


class Model(pydantic.BaseModel):
    symbol: str
    children: list[Model] = []


def responder_of_all() -> Responder:
    responder = Responder()

    @responder.request_response("order")
    async def order(order: Order) -> str:
        return order.symbol

    @responder.request_response("members")
    async def members(order: Order, times: int = 1) -> int:
        return times

    @responder.request_response("tree")
    async def tree(tree: Tree) -> str:
        return tree.name

    @responder.request_response("model")
    async def model(model: Model) -> str:
        return model.symbol

    @responder.request_response("object")
    async def anything(content: dict[str, Any]) -> int:
        return len(content)

    @responder.request_response("list")
    async def items(content: list[Any]) -> int:
        return len(content)

    @responder.request_response("union")
    async def union(content: list[Order] | str | int | None) -> str:
        return type(content).__name__

    @responder.request_stream("ticks")
    async def ticks(first: int) -> AsyncIterator[int]:
        while True:
            yield first
            first += 1

    @responder.request_channel("orders")
    async def orders(orders: Receiving[Order]) -> AsyncIterator[str]:
        async for one in orders:
            yield one.symbol

    return responder


@asynccontextmanager
async def beside_a_stream(mime: str, **options: Any) -> AsyncIterator[Pair]:
    """Open a connection of a MIME type, on which a stream goes on while the block runs, and afterwards."""
    async with (
        connected_pair(responder_of_all(), data_mime=mime, **options) as pair,
        pair.client.request_stream(0, route="ticks", items=int, initial_request_n=4) as ticks,
    ):
        seen = [await anext(aiter(ticks)) for _ in range(10)]
        yield pair
        seen += [await anext(aiter(ticks)) for _ in range(1000)]
        assert seen == list(range(1010))
        assert pair.server.faults.handler_errors == 0
        assert pair.client.faults.peer_faults == pair.server.faults.peer_faults == 0


async def refusal(client: Connection, data: bytes, route: str) -> str:
    """Return the text of the INVALID that a request is answered with; a channel and a contract say the same."""
    with pytest.raises(Invalid) as caught:
        await client.request_response(data, route=route)
    text = str(caught.value)
    assert len(text) <= MAX_TEXT_BYTES
    assert text.isprintable()
    return text


def nested(mime: str) -> bytes:
    """Return lists in each other."""
    begin, end = {JSON: (b"[", b"]"), CBOR: (b"\x81", b"\x80"), MESSAGEPACK: (b"\x91", b"\x90")}[mime]
    return begin * DEPTH + (end * DEPTH if mime == JSON else end)


@pytest.mark.parametrize("mime", [JSON, CBOR, MESSAGEPACK])
async def test_data_nested_a_hundred_thousand_times_is_invalid_for_every_type(mime: str) -> None:
    async with beside_a_stream(mime) as pair:
        for route in ("list", "object", "order", "members", "tree", "model", "union"):
            assert (await refusal(pair.client, nested(mime), route)).startswith("$")
        words = "nesting depth" if mime == CBOR else "nested too deeply"
        assert words in await refusal(pair.client, nested(mime), "list")


JSON_ROWS = [
    ("order", b'{"symbol":"a","amount":"1"}', "$.amount: expected int, got str"),
    ("order", b'{"symbol":"a"}', "$: missing required field `amount`"),
    ("order", b'{"symbol":"a","amount":1,"price":NaN}', "$: JSON is malformed: invalid character (byte 33)"),
    ("order", b'{"symbol":"a","amount":1,"price":1e400}', "$.price: number out of range"),
    ("order", b'{"symbol":"a","amount":1,"amount":"2"}', "$.amount: expected int, got str"),
    ("order", b'{"symbol":"\xff","amount":1}', "$: invalid UTF-8"),
    ("order", b'{"symbol":"\\ud800","amount":1}', "$"),
    ("order", b'{"symbol":"a","amount":%b}' % (b"9" * 10_000), "$"),
    ("order", b"\xef\xbb\xbf{}", "$: JSON is malformed"),
    ("union", b'{"%b":1}' % (b"k" * 100_000), "$: expected "),
    ("tree", b'{"name":"a","children":[{"name":"b","children":[{"name":1}]}]}', "$.children[0].children[0].name: "),
    ("model", b'{"symbol":"a","children":[{"symbol":1}]}', "$.children[0].symbol: input should be a valid string"),
]


async def test_every_fault_of_json_is_said_with_its_place() -> None:
    async with beside_a_stream(JSON) as pair:
        for route, data, expected in JSON_ROWS:
            text = await refusal(pair.client, data, route)
            assert text.startswith(expected), (data[:80], text)


async def test_an_item_of_a_channel_that_does_not_fit_ends_that_channel_alone() -> None:
    async with beside_a_stream(JSON) as pair:
        for _, data, _ in JSON_ROWS[:12]:
            async with pair.client.request_channel(Order("first", 1), route="orders", items=str) as channel:
                await channel.send(Payload(data))
                assert await anext(aiter(channel)) == "first"
                with pytest.raises(Invalid, match=r"^\$"):
                    await anext(aiter(channel))


async def test_what_a_server_answers_wrongly_is_an_error_of_that_call_alone() -> None:
    responder = Responder()

    @responder.request_response("answer")
    async def answer(request: Payload) -> bytes:
        return request.data

    @responder.request_stream("items")
    async def items(request: Payload) -> AsyncIterator[bytes]:
        yield request.data
        yield JSON_GOOD

    async with connected_pair(responder, data_mime=JSON) as pair:
        for route, data, expected in JSON_ROWS:
            if route == "order":
                with pytest.raises(DecodeError) as caught:
                    await pair.client.request_response(data, route="answer", reply=Order)
                assert str(caught.value).startswith(expected)
                async with pair.client.request_stream(data, route="items", items=Order) as stream:
                    with pytest.raises(DecodeError, match=r"^\$"):
                        await anext(aiter(stream))
                    assert await anext(aiter(stream)) == Order("a", 1)
        with pytest.raises(DecodeError, match="nested too deeply"):
            await pair.client.request_response(nested(JSON), route="answer", reply=object)
        assert await pair.client.request_response(JSON_GOOD, route="answer", reply=Order) == Order("a", 1)


JSON_GOOD = b'{"symbol":"a","amount":1}'


# Sizes


def bomb(mime: str, unit: bytes, size: int = 2 * MIB) -> bytes:
    """Return an order with a field that its type does not know: a list of many containers."""
    codec: Codec = next(codec for codec in DEFAULT_CODECS if codec.mime == mime)
    order = codec.encode({"symbol": "a", "amount": 1, "more": []})
    count = size // len(unit)
    if mime == JSON:
        return order[:-2] + unit * count + b"0]}"
    if mime == CBOR:
        return order[:-1] + b"\x9f" + unit * count + b"\xff"
    return order[:-1] + b"\xdd" + count.to_bytes(4, "big") + unit * count


@pytest.mark.parametrize(
    ("mime", "unit"),
    [
        (JSON, b"[],"),
        (JSON, b'{"a":1,"a":1},'),
        (MESSAGEPACK, b"\x90"),
        (MESSAGEPACK, b"\x81\x00\x00"),
        (CBOR, b"\x80"),
        (CBOR, b"\xa1\x00\x00"),
    ],
)
def test_no_objects_are_made_of_millions_of_containers_that_a_type_does_not_know(mime: str, unit: bytes) -> None:
    codec: Codec = next(codec for codec in DEFAULT_CODECS if codec.mime == mime)
    codec.decode(codec.encode({"symbol": "a", "amount": 1}), Order)
    data = bomb(mime, unit)
    with traced() as memory:
        if mime == CBOR:
            with pytest.raises(DecodeError, match=r"^\$: more than 250000 arrays and objects$"):
                codec.decode(data, Order)
        else:
            assert codec.decode(data, Order) == Order("a", 1)
        grown = memory.peak()

    assert grown < len(data) + MIB


@pytest.mark.parametrize("codec", some(DEFAULT_CODECS[:3], 1), ids=lambda codec: codec.mime)
def test_many_containers_are_no_more_than_there_are(codec: Codec) -> None:
    contents: tuple[Any, ...] = (
        [[]] * 249_998,
        [{"a" * 30: []}] * 20_000,
        "\u0080" * 250_001,
        "[{" * 300_000,
        '"[\\' * 300_000,
        ["\u0090" * size for size in range(1200)],
        [-0x8080, 0x80808080, 1e300, 2**63, None] * 10_000,
    )
    for content in contents:
        assert codec.decode(codec.encode({"symbol": "a", "more": content}), Model) == Model(symbol="a")
    with pytest.raises(DecodeError, match=r"^\$: more than 250000 arrays and objects$"):
        codec.decode(codec.encode({"symbol": "a", "more": [contents[2:], [[]] * 250_000]}), Model)


async def test_a_token_of_a_mebibyte_is_refused_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    responder = responder_of_all()
    sizes = []

    @responder.authenticate
    async def who(credentials: Bearer, where: object) -> str:
        sizes.append(len(credentials.token))
        raise LookupError(credentials.token)

    token = "t0k3n" * (MIB // 5)
    async with connected_pair(responder, data_mime=JSON) as pair:
        with pytest.raises(Rejected) as caught:
            await pair.client.request_response(Order("a", 1), route="order", auth=Bearer(token))
        assert str(caught.value) == "not allowed"
        assert sizes == [len(token)]
        for content in (b"\x81" + token.encode(), b"\xff" * MIB, b"\x80\xff\xff" + token.encode()):
            metadata = encode_composite([Entry(AUTHENTICATION, content)])
            with pytest.raises(RSocketError) as refused:
                await pair.client.request_response(Payload(JSON_GOOD, metadata), route="order")
            assert len(str(refused.value)) <= MAX_TEXT_BYTES
            assert "t0k3n" not in str(refused.value)
        assert await pair.client.request_response(Order("a", 1), route="order", reply=str) == "a"
    assert "t0k3n" not in caplog.text


# Routes


@pytest.mark.parametrize(
    "route", ["{" * 65536, "{a}." * 16384, "{{" * 32768, "." * 65536], ids=["{", "{a}.", "{{", "."]
)
async def test_a_route_of_64_kib_is_refused_by_its_size_wherever_it_is_said(route: str) -> None:
    responder = responder_of_all()
    with pytest.raises(ValueError, match=r"route of 6553[56] bytes, limit 255"):
        responder.request_response(route)
    async with connected_pair(responder, data_mime=JSON) as pair:
        with pytest.raises(ValueError, match="255"):
            await pair.client.request_response(JSON_GOOD, route=route)
        content = b"".join(bytes([255]) + route[start : start + 255].encode() for start in range(0, 65280, 255))
        with pytest.raises(Rejected) as caught:
            await pair.client.request_response(Payload(JSON_GOOD, encode_composite([Entry(ROUTING, content)])))
        assert len(str(caught.value)) <= MAX_TEXT_BYTES
        assert await pair.client.request_response(Order("a", 1), route="order", reply=str) == "a"
