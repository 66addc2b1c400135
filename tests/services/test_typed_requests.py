"""Typed requests: what is sent and read as an object, what is not, and what runs without the extra."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import Any, NamedTuple

import attrs
import pytest

from rsocket_trio import Payload, Responder
from rsocket_trio.services import DecodeError
from tests.connection.pairs import connected_pair


@attrs.frozen
class Order:
    symbol: str
    amount: int


class Point(NamedTuple):
    x: int
    y: int


ORDER = Order("ACME", 3)


def typed_responder() -> Responder:
    responder = Responder()

    @responder.request_response("echo")
    async def echo(request: Payload) -> Payload:
        return Payload(request.data)

    @responder.request_response("double")
    async def double(order: Order) -> Order:
        return Order(order.symbol, 2 * order.amount)

    return responder


@pytest.mark.parametrize(
    ("payload", "data"),
    [
        (None, b""),
        (7, b"7"),
        (True, b"true"),
        ([1, "a"], b'[1,"a"]'),
        (("a", 1), b'["a",1]'),
        (Point(1, 2), b"[1,2]"),
        ({"a": Order("b", 1)}, b'{"a":{"amount":1,"symbol":"b"}}'),
        ("text as it is", b"text as it is"),
        (b"bytes", b"bytes"),
        (bytearray(b"bytes"), b"bytes"),
        (memoryview(b"bytes"), b"bytes"),
        (Payload(b"payload", b""), b"payload"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_is_no_payload_is_encoded_and_what_is_one_is_sent_as_it_is(payload: object, data: bytes) -> None:
    async with connected_pair(typed_responder(), data_mime="application/json") as pair:
        assert await pair.client.request_response(payload, route="echo", reply=bytes) == data
        assert (await pair.client.request_response(payload, route="echo", reply=Payload)).data == data
        assert (await pair.client.request_response(payload, route="echo")).data == data


async def test_what_cannot_be_encoded_is_a_type_error_by_name_and_nothing_is_sent() -> None:
    async with connected_pair(typed_responder()) as pair:
        said = len(pair.client_said)
        for wrong, text in (
            (object(), "object can't be encoded as application/json"),
            ([pair.client], "list can't be encoded as application/json: Connection can't be encoded"),
            (float("nan"), "float can't be encoded as application/json: NaN and the infinities have no JSON"),
        ):
            with pytest.raises(TypeError, match=text):
                await pair.client.request_response(wrong, route="double")
            with pytest.raises(TypeError, match=text):
                await pair.client.fire_and_forget(wrong, route="note")
            with pytest.raises(TypeError, match=text):
                pair.client.request_stream(wrong, route="count", items=Order)
        assert len(pair.client_said) == said


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ({"symbol": "a"}, Order, "$: missing required field `amount`"),
        ({"symbol": "a", "amount": "1"}, Order, "$.amount: expected int, got str"),
        ([{"symbol": "a", "amount": None}], list[Order], "$[0].amount: expected int, got null"),
        (b"{", Order, "$: input data was truncated"),
        (b"", Order, "$: no data, expected Order"),
        (b"text\xff", str, "$: not UTF-8 at byte 4"),
    ],
)
async def test_an_answer_that_does_not_fit_is_a_value_error_with_the_path(answer: object, kind: Any, text: str) -> None:
    async with connected_pair(typed_responder()) as pair:
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # its text is compared below
            await pair.client.request_response(answer, route="echo", reply=kind)
    assert type(caught.value) is DecodeError
    assert str(caught.value) == text


# Without the extra


def run(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_contract_of_bytes_needs_no_codec_on_either_end() -> None:
    program = """
    import sys
    sys.modules["cbor2"] = sys.modules["pydantic"] = None
    import trio
    from rsocket_trio import Responder, open_connection, serve
    from rsocket_trio.services import Receiving, Service, Stream, TypedChannel, request_channel, request_stream

    class Pipes(Service, route="pipes"):
        @request_stream("read.{name}")
        def read(self, name: str) -> Stream[bytes]: ...
        @request_channel
        def double(self) -> TypedChannel[bytes, bytes]: ...

    class Both:
        async def read(self, name: str):
            yield name.encode()
        async def double(self, items: Receiving[bytes]):
            async for item in items:
                yield 2 * item

    responder = Responder()
    responder.serve_as(Pipes, Both())

    async def main():
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, responder, "memory://bytes")
            async with open_connection("memory://bytes") as connection:
                pipes = connection.remote(Pipes)
                async with pipes.read("a") as items:
                    print([item async for item in items])
                async with pipes.double() as channel:
                    await channel.send(b"b")
                    await channel.send_eof()
                    print([item async for item in channel])
            nursery.cancel_scope.cancel()

    trio.run(main)
    """

    assert run(program) == ["[b'a']", "[b'bb']"]
