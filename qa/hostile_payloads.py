"""Payloads of 256 KB that are made to cost a codec much, each with an honest twin of its size and shape."""

from __future__ import annotations

import gc
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from itertools import chain, count, cycle
from random import Random
from typing import Any, Final, NamedTuple

import cbor2
import msgspec
import pydantic

from rsocket_trio.codecs import CBOR, JSON, MESSAGEPACK, Codec, DecodeError

SIZE: Final = 256 * 1024
PRIME: Final = 2**61 - 1
"""The modulus of the hashes of Python's integers."""


@dataclass
class Order:
    symbol: str
    amount: int
    tags: list[str] = field(default_factory=list)


@dataclass
class Portfolio:
    ids: set[int] | None = None
    counts: dict[int, int] = field(default_factory=dict)
    prices: set[float | str] = field(default_factory=set)
    anything: Any = None


class Model(pydantic.BaseModel):
    ids: set[int] | None = None
    counts: dict[int, int] = {}
    ordered: OrderedDict[int, int] = OrderedDict()
    amounts: list[int] = []
    anything: Any = None
    lists: dict[str, list[int]] = {}


class Twins(NamedTuple):
    """A hostile payload, and an honest one."""

    name: str
    hostile: bytes
    honest: bytes


class Format(NamedTuple):
    """The parts of a payload in the bytes of one codec."""

    codec: Codec
    array: Callable[[list[bytes]], bytes]
    map: Callable[[list[bytes]], bytes]
    """Of keys, each with the value 0."""
    key: Callable[[Any], bytes]
    around: int
    """Bytes between two items."""


def _text_key(value: Any) -> bytes:
    return b'"%b"' % JSON.encode(value).strip(b'"')


JSON_FORMAT: Final = Format(
    JSON,
    lambda items: b"[%b]" % b",".join(items),
    lambda keys: b"{%b}" % b",".join(key + b":0" for key in keys),
    _text_key,
    1,
)
CBOR_FORMAT: Final = Format(
    CBOR,
    lambda items: b"\x9a" + len(items).to_bytes(4, "big") + b"".join(items),
    lambda keys: b"\xba" + len(keys).to_bytes(4, "big") + b"".join(key + b"\x00" for key in keys),
    cbor2.dumps,
    0,
)
MESSAGEPACK_FORMAT: Final = Format(
    MESSAGEPACK,
    lambda items: b"\xdd" + len(items).to_bytes(4, "big") + b"".join(items),
    lambda keys: b"\xdf" + len(keys).to_bytes(4, "big") + b"".join(key + b"\x00" for key in keys),
    msgspec.msgpack.encode,
    0,
)


class Place(NamedTuple):
    """The place of a payload's costly part, and the types of handlers that read such payloads.

    None is keyed by what is outside of the promise: decimals, UUIDs, tuples, classes of an application.
    """

    wrap: Callable[[Format, bytes], bytes]
    kinds: tuple[Any, ...]


def _order(form: Format, part: bytes) -> bytes:
    return members(form, {"symbol": form.codec.encode("s"), "amount": form.codec.encode(1), "x": part})


def _member(name: str) -> Callable[[Format, bytes], bytes]:
    return lambda form, part: members(form, {name: part})


PLACES: Final = (
    Place(
        lambda form, part: part,
        (
            *(Any, list[object], set[int], frozenset[int | str], set[Any], set[float], dict[int, int]),
            *(dict[float, int], dict[int, Any]),
        ),
    ),
    Place(lambda form, part: form.array([part]), (list[object], list[set[int]])),
    Place(_order, (Order, Any, dict[str, Any])),
    Place(_member("a"), (dict[str, set[int]],)),
    Place(_member("lists"), (Model,)),
    *(
        Place(_member(name), (Portfolio, Model))
        for name in ("ids", "amounts", "counts", "ordered", "prices", "anything")
    ),
)


def members(form: Format, parts: dict[str, bytes]) -> bytes:
    """Return an object whose members are written already."""
    pairs = [(form.codec.encode(name), part) for name, part in parts.items()]
    if form.codec is JSON:
        return b"{%b}" % b",".join(b"%b:%b" % pair for pair in pairs)
    return bytes([(0xA0 if form.codec is CBOR else 0x80) + len(pairs)]) + b"".join(name + part for name, part in pairs)


MOST: Final = 0.05
"""Seconds of CPU that a payload may cost more than its twin."""


def excess(form: Format, pair: Twins) -> float:
    """Return the seconds of CPU that a payload costs more than its twin, in the place and for the type with most."""
    most = 0.0
    for place in PLACES:
        hostile, honest = place.wrap(form, pair.hostile), place.wrap(form, pair.honest)
        for kind in place.kinds:
            more = cost = seconds(form.codec, hostile, kind)
            if cost > MOST / 2:
                more = cost - seconds(form.codec, honest, kind)
            if more > MOST / 2:  # perhaps the machine was busy
                gc.collect()
                runs = [[seconds(form.codec, data, kind) for data in (hostile, honest)] for _ in range(5)]
                more = min(run[0] for run in runs) - min(run[1] for run in runs)
            most = max(most, more)
    return most


def seconds(codec: Codec, data: bytes, kind: Any) -> float:
    """Return the seconds of CPU that it takes to read a payload, or to refuse it."""
    began = time.thread_time()
    with suppress(DecodeError):
        codec.decode(data, kind)
    return time.thread_time() - began


def filled(make: Callable[[list[bytes]], bytes], parts: Iterable[bytes], around: int) -> bytes:
    """Return an array or a map of as many parts as 256 KB hold."""
    chosen, size = [], 64
    for part in parts:
        size += len(part) + around
        if size > SIZE:
            break
        chosen.append(part)
    return make(chosen)


def twins(form: Format) -> Iterator[Twins]:
    """Yield what is known to cost much in a format, as keys, as members, or as one long value."""
    for name, bad, good in _values(form.codec):
        yield Twins(
            f"array of {name}",
            filled(form.array, map(form.codec.encode, bad), form.around),
            filled(form.array, map(form.codec.encode, good), form.around),
        )
    for name, bad, good in _keys(form.codec):
        yield Twins(
            f"map of {name}",
            filled(form.map, map(form.key, bad), form.around + 2),
            filled(form.map, map(form.key, good), form.around + 2),
        )
    more: dict[Codec, Callable[[], Iterator[Twins]]] = {JSON: _json, CBOR: _cbor, MESSAGEPACK: _messagepack}
    yield from more[form.codec]()


def _random(bits: int) -> Iterator[int]:
    random = Random(bits)
    return (random.getrandbits(bits) | 1 << bits - 1 for _ in count())


def _alike(start: int = 32) -> Iterator[int]:
    """Yield integers of one hash."""
    return (number * PRIME for number in count(start))


@cache
def colliding(table: int = 2**15) -> tuple[int, ...]:
    """Return integers of different hashes each of which collides with thousands of others in a dictionary's ``table``.

    The first half are the places that follow one another where a hash has no more bits. Each of the others finds
    those taken that its bits lead to, and then is somewhere among the first.
    """
    random, mask = Random(5), table - 1
    most = table * 16 // 25  # a dictionary grows at two thirds
    half = most // 2
    order = [7]
    while len(order) < half:
        order.append((5 * order[-1] + 1) & mask)
    taken, keys, end = set(order), dict.fromkeys(order), order[-1]
    while len(keys) < most:
        key = order[random.randrange(half)]
        for digit in range(1, 5):  # each five bits more decide on one step
            options = (key | more << (10 + 5 * digit) for more in random.sample(range(32), 12))
            key = next((option for option in options if _place(option, digit) & mask in taken), -1)
            if key < 0:
                break
        if key < 0 or key in keys or not all(_place(key, step) & mask in taken for step in range(5, 8)):
            continue
        keys[key] = None
        end = (5 * end + 1) & mask
        taken.add(end)
    return tuple(keys)


def _twins_of_colliding() -> Iterator[int]:
    random = Random(6)
    return (random.getrandbits(key.bit_length()) for key in colliding())


def _written(number: int) -> bytes:
    return b"\t%d" % number


def _place(key: int, steps: int) -> int:
    """Return where a key is after so many steps."""
    at = key
    for _ in range(steps):
        key >>= 5
        at = 5 * at + key + 1
    return at


def _floats() -> Iterator[float]:
    """Yield floats in groups of one hash, as large as there are."""
    return (mantissa * 2.0**exponent for mantissa in count(1, 2) for exponent in range(-1000, 900, 61))


def _values(codec: Codec) -> Iterator[tuple[str, Iterator[Any], Iterator[Any]]]:
    random = Random(1)
    yield "integers below 64 bits", (number * PRIME % 2**64 for number in count()), _random(63)
    yield "integers with the same low bits", (number << 40 for number in range(2**20)), _random(60)
    yield "integers that collide", iter(colliding()), _twins_of_colliding()
    yield "texts in the place of numbers", cycle([""]), cycle([0])
    yield "floats", _floats(), (random.random() * 1e300 for _ in count())
    yield "texts that begin as numbers", cycle(["0x", "1_", "+"]), cycle(["xx", "__", "x"])
    if codec is not JSON:  # what looks like the head of a large map, and a key that is no text
        yield "empty arrays", chain([b"\xbf\xdf", {5: 0}], cycle([[]])), chain([b"\x00\x00", {"5": 0}], cycle([[]]))
        yield "arrays of one", chain([b"\xbf\xdf", {5: 0}], cycle([[0]])), chain([b"\x00\x00", {"5": 0}], cycle([[0]]))
        yield "maps of one", chain([b"\xbf\xdf"], cycle([{5: 0}])), chain([b"\x00\x00"], cycle([{5: 0}]))
    if codec is MESSAGEPACK:
        return
    yield "integers of one hash", _alike(), _random(63)
    yield "negative integers of one hash", (-number for number in _alike()), _random(63)
    yield (
        "integers of 4,300 digits",
        (10**4299 + number for number in count()),
        (10**4299 + number for number in count()),
    )
    yield "pairs of such integers", ([number, 1] for number in _alike()), ([number, 1] for number in _random(63))
    yield "lists of such integers", ([[number]] for number in _alike()), ([[number]] for number in _random(63))


def _keys(codec: Codec) -> Iterator[tuple[str, Iterator[Any], Iterator[Any]]]:
    yield "integers with the same low bits", (number << 40 for number in range(2**20)), _random(60)
    yield "floats", _floats(), (number / 3 for number in _random(60))
    yield "integers that collide", iter(colliding()), _twins_of_colliding()
    if codec is not JSON:  # where they are texts anyway
        yield "texts of integers that collide", map(str, colliding()), map(str, _twins_of_colliding())
        yield "bytes of integers that collide", map(_written, colliding()), map(_written, _twins_of_colliding())
    if codec is not MESSAGEPACK:
        yield "integers of one hash", _alike(), _random(63)
        yield "negative integers of one hash", (-number for number in _alike()), _random(63)
        yield "longer integers of one hash", (PRIME * (10**200 + number) for number in count()), _random(63)


def _json() -> Iterator[Twins]:
    half = SIZE // 4
    key, zeros = b"K" * half, b",".join([b"0"] * half)
    yield Twins(
        "a long key in front of many items, beside a key that occurs twice",
        b'[{"a":1,"a":2},{"%b":[%b]}]' % (key, zeros),
        b'[{"a":1,"b":2},{"%b":[%b]}]' % (key, zeros),
    )
    yield Twins(
        "faults below a long key",
        b'{"%b":[%b]}' % (key, b",".join([b'"x"'] * (half // 2))),
        b'{"%b":[%b]}' % (key, b",".join([b"100"] * (half // 2))),
    )
    runs = SIZE // 200 - 1
    yield Twins("digits in many runs", b'"%b"' % ((b"9" * 199 + b"x") * runs), b'"%b"' % (b"x" * 200 * runs))
    yield Twins("a long integer among zeros", b"[%b,18446744073709551615]" % zeros, b"[%b,1]" % zeros)
    yield Twins(
        "keys in escapes",
        filled(JSON_FORMAT.map, (b'"\\u003%d%d"' % (int(str(n)[0]), int(str(n)[1:])) for n in _alike()), 3),
        filled(JSON_FORMAT.map, (b'"\\u003%d%d"' % (int(str(n)[0]), int(str(n)[1:])) for n in _random(60)), 3),
    )
    digits = b"9" * (SIZE - 100)
    for name, number in (
        ("integer", digits),
        ("fraction", b"0." + digits),
        ("exponent", b"1e" + digits),
        ("negative", b"-" + digits),
    ):
        yield Twins(f"one long number: {name}", number, b'"%b"' % digits)
    yield Twins(
        "many nulls", b"[%b]" % b",".join([b"null"] * (SIZE // 5)), b"[%b]" % b",".join([b"true"] * (SIZE // 5))
    )
    yield Twins("escapes", b'"%b"' % (b"\\u0030" * (SIZE // 6)), b'"%b"' % (b"\\u0041" * (SIZE // 6)))
    rows = b",".join([b"[]"] * (SIZE // 3 - 30))
    yield Twins("containers beside a long integer", b"[%b,18446744073709551616]" % rows, b"[%b,1]" % rows)


def _cbor() -> Iterator[Twins]:
    small = (cbor2.dumps(number) for number in range(2**20))
    arrays = (bytes([0x8F]) + _minus(number, 0x20, 0x21) for number in count())
    tags = {
        "arrays of -1 and -2": arrays,
        "maps": (b"\xa1\x00\x8f" + _minus(number, 0x20, 0x21) for number in count()),
        "nested arrays": (b"\x81\x8f" + _minus(number, 0x20, 0x21) for number in count()),
        "decimals of one hash": (cbor2.dumps(Decimal(PRIME).scaleb(number)) for number in count()),
        "UUIDs of one hash": (b"\xd8\x25\x50" + (number * PRIME).to_bytes(16, "big") for number in count()),
        "integers in more bytes than they need": (
            b"\xc2\x4a" + (number * PRIME).to_bytes(10, "big") for number in count(1)
        ),
        "tags in more bytes than they need": (
            b"\xda\x00\x00\x00\x02\x4a" + (number * PRIME).to_bytes(10, "big") for number in count(1)
        ),
        "floats of 16 bits": (b"\xf9" + number.to_bytes(2, "big") for number in range(2**15)),
    }
    honest = filled(CBOR_FORMAT.map, small, 1)
    for name, keys in tags.items():
        yield Twins(f"map of {name}", filled(CBOR_FORMAT.map, keys, 1), honest)
    blob = b"\x5a\x00\x03\xff\x00" + b"\xff" * 0x3FF00
    yield Twins("a decimal of 256 KB", b"\xc4\x82\x01\xc2" + blob, blob)
    yield Twins("an integer of 256 KB", b"\xc2" + blob, blob)
    yield Twins("a negative integer of 256 KB", b"\xc3" + blob, blob)
    decimals = filled(CBOR_FORMAT.array, cycle([b"\xc4\x82\x18\x80\x01"]), 0)
    yield Twins("decimals of large exponents", decimals, filled(CBOR_FORMAT.array, cycle([b"\xc4\x82\x18\x01\x01"]), 0))
    uuids = (b"\xd8\x25\x50" + (number * PRIME).to_bytes(16, "big") for number in count())
    random = Random(3)
    others = (b"\xd8\x25\x50" + random.randbytes(16) for _ in count())
    yield Twins("array of UUIDs of one hash", filled(CBOR_FORMAT.array, uuids, 0), filled(CBOR_FORMAT.array, others, 0))
    yield Twins("an array that is said to be longer", b"\x9b" + b"\x7f" * 8, b"\x80")


def _messagepack() -> Iterator[Twins]:
    small = (msgspec.msgpack.encode(number) for number in range(2**20))
    honest = filled(MESSAGEPACK_FORMAT.map, small, 1)
    for name, keys in {
        "arrays of -1 and -2": (b"\x9f" + _minus(number, 0xFF, 0xFE) for number in count()),
        "nested arrays": (b"\x91\x9f" + _minus(number, 0xFF, 0xFE) for number in count()),
        "NaN": (b"\xcb\x7f\xf8" + number.to_bytes(6, "big") for number in count()),
        "floats of 32 bits": (b"\xca" + struct.pack(">f", number) for number in range(2**20)),
    }.items():
        yield Twins(f"map of {name}", filled(MESSAGEPACK_FORMAT.map, keys, 1), honest)
    arrays = (b"\x9f" + _minus(number, 0xFF, 0xFE) for number in count())
    others = (b"\x9f" + _minus(number, 0x01, 0x02) for number in count())
    yield Twins(
        "array of arrays of -1 and -2",
        filled(MESSAGEPACK_FORMAT.array, arrays, 0),
        filled(MESSAGEPACK_FORMAT.array, others, 0),
    )


def _minus(number: int, zero: int, one: int) -> bytes:
    """Return 15 integers of a byte each, which stand for the bits of ``number``: -1 and -2 have one hash."""
    return bytes(one if number >> place & 1 else zero for place in range(15))


FORMATS: Final = {"json": JSON_FORMAT, "cbor": CBOR_FORMAT, "messagepack": MESSAGEPACK_FORMAT}
