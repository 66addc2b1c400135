"""Attacks on typed handlers: data that is deep, wrong, large, or made of millions of parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qa.attacks.harness import Scene, Size, attack, expect
from qa.attacks.line import Line, joined
from qa.attacks.payloads import ROUTING, alive, errors
from qa.processes import MIB
from rsocket_trio import Responder
from tests.conformance import raw
from tests.conformance.raw import F, M, N

JSON, CBOR, MESSAGEPACK = b"application/json", b"application/cbor", b"application/msgpack"
DEPTH = 100_000
LONGEST = 1100
"""Bytes of an answer."""


@dataclass
class Order:
    symbol: str
    amount: int


def serve_typed(responder: Responder) -> None:
    """Serve orders, and texts of any length."""

    @responder.request_response("typed.order")
    async def order(order: Order) -> str:
        return order.symbol

    @responder.request_response("typed.length")
    async def length(text: str) -> int:
        return len(text)

    @responder.request_response("typed.list")
    async def count(items: list[object]) -> int:
        return len(items)


def routed(route: bytes) -> bytes:
    """Return the metadata of a request to a route."""
    return raw.sized(bytes([len(route)]) + route)


def typed_line(scene: Scene, mime: bytes) -> Line:
    """Return a connection of data of this type."""
    return scene.line(raw.prefixed(raw.setup(metadata_mime=ROUTING, data_mime=mime)))


def asked(route: bytes, data: Iterable[bytes], first: int = 1) -> Iterator[bytes]:
    """Return a request to a route for each of ``data``."""
    for number, content in enumerate(data):
        yield raw.prefixed(raw.frame(raw.REQUEST_RESPONSE, M, first + 2 * number, routed(route) + content))


def expect_invalid(scene: Scene, line: Line, count: int) -> int:
    """Each request is INVALID, in a short line. Return the length of the longest."""
    line.read(scene.patience(10), lambda: len(errors(line)) == count)
    found = errors(line)
    expect(set(found.values()) == {raw.INVALID}, f"answered {set(found.values())}")
    expect(len(found) == count, f"{len(found)} of {count} were refused")
    longest = max(len(frame.body) for frame in line.frames)
    expect(longest <= LONGEST, f"an answer of {longest} bytes")
    return longest


@attack("A12", Size(4, growth=12, seconds=10), Size(50, growth=16, seconds=20))
def deep_data(scene: Scene) -> str:
    """Lists in each other, a hundred thousand deep, in each codec, to handlers of objects and of lists."""
    refused = 0
    for mime, data in (
        (JSON, b"[" * DEPTH + b"]" * DEPTH),
        (CBOR, b"\x81" * DEPTH + b"\x80"),
        (MESSAGEPACK, b"\x91" * DEPTH + b"\x90"),
    ):
        line = typed_line(scene, mime)
        for route in (b"typed.order", b"typed.list"):
            first = 1 if route == b"typed.order" else 2 * scene.count + 1
            line.pour(asked(route, (data for _ in range(scene.count)), first))
        alive(line)
        expect_invalid(scene, line, 2 * scene.count)
        refused += 2 * scene.count
    return f"{refused} INVALID"


WRONG = (
    b'{"symbol":"a","amount":"1"}',
    b'{"symbol":"a"}',
    b'{"symbol":"a","amount":NaN}',
    b'{"symbol":"a","amount":1,"amount":"2"}',
    b'{"symbol":"\xff","amount":1}',
    b'{"symbol":"a","amount":1',
    b'{"%b":1,"%b":1}' % (b"k" * 4096, b"k" * 4096),
    b'{"symbol":"a","amount":%b}' % (b"9" * 5000),
)


@attack("A12", Size(2_000, growth=12, seconds=10), Size(20_000, growth=20, seconds=30))
def wrong_data(scene: Scene) -> str:
    """Requests with wrong, missing, repeated and broken fields, one behind the other."""
    line = typed_line(scene, JSON)
    line.pour(joined(asked(b"typed.order", (WRONG[number % len(WRONG)] for number in range(scene.count)))))
    alive(line)
    return f"{scene.count} INVALID, the longest of {expect_invalid(scene, line, scene.count)} bytes"


@attack("A12", Size(4, growth=24, seconds=10), Size(8, growth=64, seconds=20))
def container_bomb(scene: Scene) -> str:
    """Millions of containers in a field that the type does not know, which are a byte or three each."""
    size = scene.count * MIB
    order = b"\xa3\x66symbol\x61a\x66amount\x01\x61x"
    for mime, data in (
        (CBOR, order + b"\x9f" + b"\x80" * size + b"\xff"),
        (CBOR, order + b"\x9f" + b"\xa1\x00\x00" * (size // 3) + b"\xff"),
        (JSON, b'{"symbol":"a","amount":1,"amount":"x","x":[' + b"[]," * (size // 3) + b"0]}"),
    ):
        line = typed_line(scene, mime)
        line.pour(asked(b"typed.order", [data]))
        alive(line)
        expect_invalid(scene, line, 1)
    return "INVALID, and no objects made"


@attack("A12", Size(20, growth=12, seconds=10), Size(200, growth=12, seconds=20))
def repeated_key(scene: Scene) -> str:
    """Orders with a key that occurs twice, beside a long key in front of many items, all in 125 KB."""
    line = typed_line(scene, JSON)
    data = b'{"symbol":"a","amount":1,"x":[{"a":1,"a":2},{"%b":[%b]}]}' % (b"K" * 62_000, b",".join([b"0"] * 31_000))
    line.pour(asked(b"typed.order", [data] * scene.count))
    alive(line)
    answered = lambda: sum(frame.type == raw.PAYLOAD for frame in line.frames) == scene.count  # noqa: E731
    expect(line.read(scene.patience(10), answered), f"answered {errors(line)}")
    return f"{scene.count} answered"


@attack("A12", Size(10, growth=12, seconds=10), Size(100, growth=16, seconds=20))
def integers_of_one_hash(scene: Scene) -> str:
    """Maps of CBOR with 250 KB of keys that Python hashes alike."""
    keys = b"".join(b"\xc2\x4a" + (number * (2**61 - 1)).to_bytes(10, "big") + b"\x00" for number in range(32, 20_032))
    line = typed_line(scene, CBOR)
    line.pour(asked(b"typed.order", [b"\xa3\x66symbol\x61a\x66amount\x01\x61x\xb9\x4e\x20" + keys] * scene.count))
    alive(line)
    expect_invalid(scene, line, scene.count)
    return f"{scene.count} INVALID"


@attack("A12", Size(96, growth=320, seconds=20, limits={"payload_size": 128 * MIB, "reassembly_size": 256 * MIB}))
def long_text(scene: Scene) -> str:
    """A text of a hundred megabytes, where the limits allow it: for an order, and for a handler of texts."""
    line = typed_line(scene, JSON)
    size = scene.count * MIB
    for number, (route, begin, end) in enumerate(
        (
            (b"typed.order", b'"', b'"'),
            (b"typed.order", b'{"symbol":"a","amount":"', b'"}'),
            (b"typed.length", b"", b""),
        )
    ):
        stream_id = 2 * number + 1
        first = raw.frame(raw.REQUEST_RESPONSE, M | F, stream_id, routed(route) + begin)
        middle = raw.prefixed(raw.payload(stream_id, b"x" * MIB, N | F))
        line.pour([raw.prefixed(first), *[middle] * scene.count, raw.prefixed(raw.payload(stream_id, end, N))])
        alive(line)
    expect(errors(line) == {1: raw.INVALID, 3: raw.INVALID}, f"answered {errors(line)}")
    expect(line.read(scene.patience(10), lambda: any(frame.type == raw.PAYLOAD for frame in line.frames)), "no answer")
    (answer,) = (frame for frame in line.frames if frame.type == raw.PAYLOAD)
    expect(answer.body.endswith(b"%d" % size), f"answered {answer.body[:80]!r}")
    return f"{scene.count} MiB: twice INVALID, once its length"
