"""Codecs write what the formats say, read what fits a type, and refuse everything else with its place."""

from __future__ import annotations

import enum
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from ipaddress import IPv4Address
from random import Random
from typing import Any, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import attrs
import cbor2
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as some

from qa.hostile_payloads import colliding
from rsocket_trio.codecs import BYTES, CBOR, JSON, MESSAGEPACK, TEXT, Codec, DecodeError, find_codec
from rsocket_trio.formats import hashed_by_type, type_name
from rsocket_trio.hostile_data import CBOR_FORM, CHOSEN, LARGE_TABLE, MESSAGEPACK_FORM, keys_of_maps
from rsocket_trio.services.description import json_schema
from tests.memory import traced

OBJECTS: list[Codec] = [JSON, MESSAGEPACK, CBOR]
"""The codecs that take objects."""


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    symbol: str
    amount: int


@attrs.frozen
class Offer:
    symbol: str
    price: float


@dataclass
class Note:
    text: str
    at: str | None = None
    tags: list[str] = field(default_factory=list)


class Structure(msgspec.Struct):
    order: Order
    notes: dict[str, Note] = {}


class Tick(TypedDict):
    price: float
    volume: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int


class Whole(msgspec.Struct, tag="whole"):
    count: int


class Part(msgspec.Struct, tag="part"):
    share: float


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


class Careful(msgspec.Struct):
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("Amounts are positive")


class Item(pydantic.BaseModel):
    amount: int
    price: float = 1.0
    at: datetime | None = None
    inner: Item | None = None


class Parcel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    number: int = pydantic.Field(alias="parcelNumber")
    seal: bytes = b""
    sender: IPv4Address | None = None

    @pydantic.field_validator("number")
    @classmethod
    def is_positive(cls, number: int) -> int:
        if number < 0:
            raise ValueError("negative numbers are reserved")
        return number


@dataclass
class Box:
    items: list[Item]


class Plain:
    """A class that says nothing of its fields."""


@dataclass
class Everything:
    order: Order
    offer: Offer
    note: Note
    tick: Tick
    point: Point
    colour: Colour
    at: datetime
    id: UUID
    price: Decimal
    data: bytes
    either: Whole | Part
    maybe: int | None
    anything: Any


EVERYTHING = Everything(
    order=Order("ACME", 3),
    offer=Offer("ACME", 0.5),
    note=Note("12:30"),
    tick={"price": 1.5},
    point=Point(1, 2),
    colour=Colour.RED,
    at=datetime(2020, 1, 1, tzinfo=UTC),
    id=UUID(int=1),
    price=Decimal("1.50"),
    data=b"\x00\xff",
    either=Part(0.5),
    maybe=None,
    anything=[{"a": 1}, "b"],
)
ID = "00000000-0000-0000-0000-000000000001"
BYTES_OF_AN_ORDER: dict[Codec, bytes] = {
    JSON: b'{"symbol":"ACME","amount":3}',
    MESSAGEPACK: b"\x82\xa6symbol\xa4ACME\xa6amount\x03",
    CBOR: b"\xa2\x66symbol\x64ACME\x66amount\x03",
}


def refusal(codec: Codec, data: bytes, kind: Any) -> str:
    with pytest.raises(DecodeError) as caught:
        codec.decode(data, kind)
    return str(caught.value)


# What they write and read


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_an_object_is_written_as_its_format_says(codec: Codec) -> None:
    assert codec.encode(Order("ACME", 3)) == BYTES_OF_AN_ORDER[codec]
    assert codec.decode(BYTES_OF_AN_ORDER[codec], Order) == Order("ACME", 3)
    assert codec.decode(BYTES_OF_AN_ORDER[codec], dict[str, Any]) == {"symbol": "ACME", "amount": 3}
    assert codec.decode(BYTES_OF_AN_ORDER[codec], Any) == {"symbol": "ACME", "amount": 3}


def test_json_has_text_for_what_it_lacks() -> None:
    assert json.loads(JSON.encode(EVERYTHING)) == {
        "order": {"symbol": "ACME", "amount": 3},
        "offer": {"symbol": "ACME", "price": 0.5},
        "note": {"text": "12:30", "at": None, "tags": []},
        "tick": {"price": 1.5},
        "point": [1, 2],
        "colour": "red",
        "at": "2020-01-01T00:00:00Z",
        "id": ID,
        "price": "1.50",
        "data": "AP8=",
        "either": {"type": "part", "share": 0.5},
        "maybe": None,
        "anything": [{"a": 1}, "b"],
    }


@pytest.mark.parametrize(
    ("codec", "value", "data"),
    [
        (MESSAGEPACK, datetime(2020, 1, 1, tzinfo=UTC), b"\xd6\xff\x5e\x0b\xe1\x00"),
        (MESSAGEPACK, UUID(int=1), b"\xd9\x24" + ID.encode()),
        (MESSAGEPACK, Decimal("1.50"), b"\xa41.50"),
        (MESSAGEPACK, b"\x00\xff", b"\xc4\x02\x00\xff"),
        (CBOR, datetime(2020, 1, 1, tzinfo=UTC), b"\x742020-01-01T00:00:00Z"),
        (CBOR, UUID(int=1), b"\x78\x24" + ID.encode()),
        (CBOR, Decimal("1.50"), b"\x641.50"),
        (CBOR, b"\x00\xff", b"\x42\x00\xff"),
        (CBOR, Point(1, 2), b"\x82\x01\x02"),
        (CBOR, Colour.RED, b"\x63red"),
        (CBOR, 2**64, b"\xc2\x49\x01" + bytes(8)),
    ],
)
def test_other_types_are_written_as_the_docstrings_say(codec: Codec, value: object, data: bytes) -> None:
    assert codec.encode(value) == data
    assert codec.decode(data, type(value)) == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xc0\x742020-01-01T00:00:00Z", datetime(2020, 1, 1, tzinfo=UTC)),
        (b"\xc1\x1a\x5e\x0b\xe1\x00", datetime(2020, 1, 1, tzinfo=UTC)),
        (b"\xd8\x25\x50" + bytes(15) + b"\x01", UUID(int=1)),
        (b"\xc4\x82\x21\x19\x6a\xb3", Decimal("273.15")),
        (b"\xd9\xd9\xf7\x9f\x01\xff", [1]),
    ],
    ids=["date as text", "date as number", "UUID", "decimal", "self-described, without a length"],
)
def test_what_other_peers_write_in_cbor_is_read(data: bytes, value: object) -> None:
    assert CBOR.decode(data, type(value)) == value
    assert CBOR.decode(data, Any) == value


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_all_kinds_of_types_survive(codec: Codec) -> None:
    assert codec.decode(codec.encode(EVERYTHING), Everything) == EVERYTHING
    assert codec.decode(codec.encode([EVERYTHING] * 3), list[Everything]) == [EVERYTHING] * 3


@given(
    value=some.recursive(
        some.none()
        | some.booleans()
        | some.integers(-(2**63), 2**64 - 1)
        | some.text()
        | some.floats(allow_nan=False, allow_infinity=False),
        lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    )
)
def test_any_value_without_a_type_survives(value: object) -> None:
    for codec in OBJECTS:
        assert codec.decode(codec.encode(value), Any) == value


@given(data=some.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for codec in (*OBJECTS, TEXT):
        for kind in (Any, str, Everything, list[Item], dict[str, Structure]):
            with suppress(DecodeError):
                codec.decode(data, kind)


def test_text_and_bytes_carry_only_what_they_are() -> None:
    assert TEXT.encode("ë") == b"\xc3\xab"
    assert TEXT.decode(b"\xc3\xab", str) == "ë"
    assert BYTES.encode(bytearray(b"\xff")) == b"\xff"
    assert BYTES.decode(b"\xff", bytes) == b"\xff"
    with pytest.raises(TypeError, match="text/plain carries str, not Order"):
        TEXT.encode(Order("ACME", 3))
    with pytest.raises(TypeError, match="application/octet-stream carries bytes, not str"):
        BYTES.encode("text")
    assert refusal(TEXT, b"3", int) == "$: expected int, got text/plain, which carries str"
    assert refusal(BYTES, b"3", str | int) == "$: expected str | int, got application/octet-stream, which carries bytes"
    assert refusal(TEXT, b"a\xff", str) == "$: not UTF-8 at byte 1"


# Models of pydantic


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Item(amount=3, at=datetime(2020, 1, 1, tzinfo=UTC), inner=Item(amount=4)), Item),
        ([Item(amount=3)], list[Item]),
        ({"a": Item(amount=3)}, dict[str, Item]),
        (None, Item | None),
        (Box([Item(amount=3)]), Box),
        (Parcel(parcelNumber=3, sender=IPv4Address("127.0.0.1")), Parcel),
    ],
    ids=["alone", "in a list", "in a dictionary", "or nothing", "in a dataclass", "with an alias"],
)
def test_models_survive(codec: Codec, value: object, kind: Any) -> None:
    assert codec.decode(codec.encode(value), kind) == value


def test_models_are_written_by_their_aliases_and_bytes_stay_bytes_in_binary_formats() -> None:
    parcel = Parcel(parcelNumber=3, seal=b"\xff")

    assert MESSAGEPACK.encode(parcel) == b"\x83\xacparcelNumber\x03\xa4seal\xc4\x01\xff\xa6sender\xc0"
    assert CBOR.encode(parcel) == b"\xa3\x6cparcelNumber\x03\x64seal\x41\xff\x66sender\xf6"
    assert JSON.encode(Parcel(parcelNumber=3)) == b'{"parcelNumber":3,"seal":"","sender":null}'


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ({"amount": "x"}, Item, "$.amount: input should be a valid integer"),
        ({"amount": 1, "inner": {}}, Item, "$.inner.amount: field required"),
        ([{"amount": 1}, {"amount": None}], list[Item], "$[1].amount: input should be a valid integer"),
        ({"items": [{"amount": 1}, {"amount": "x"}]}, Box, "$.items[1].amount: input should be a valid integer"),
        ({"parcelNumber": 1, "colour": 2}, Parcel, "$.colour: extra inputs are not permitted"),
        ({"parcelNumber": -1}, Parcel, "$.parcelNumber: value error, negative numbers are reserved"),
    ],
)
def test_what_no_model_takes_is_refused_with_its_place(codec: Codec, value: object, kind: Any, said: str) -> None:
    assert refusal(codec, codec.encode(value), kind).startswith(said)


class Address(pydantic.BaseModel):
    city: str
    street: str


class Customer(pydantic.BaseModel):
    name: str
    age: int
    address: Address


class Visit(msgspec.Struct):
    customers: list[Customer]


class Lists(pydantic.BaseModel):
    lists: dict[str, list[int]]
    tuples: tuple[int, ...] = ()
    numbers: set[int] = set()


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_all_faults_of_a_model_are_in_the_error(codec: Codec) -> None:
    customer = {"age": 1.5, "address": {"city": 7}}
    faults = "$%.name: field required; $%.age: input should be a valid integer, got a number with a fractional part; "
    faults += "$%.address.city: input should be a valid string; $%.address.street: field required"
    assert refusal(codec, codec.encode(customer), Customer) == faults.replace("%", "")
    visit = codec.encode({"customers": [customer]})
    assert refusal(codec, visit, Visit) == faults.replace("%", ".customers[0]")


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_an_array_or_dictionary_is_left_at_its_first_fault(codec: Codec) -> None:
    # Each fault has a copy of the key.
    key = "k" * 200
    data = codec.encode({"lists": {key: ["x"] * 3000, "more": ["x"]}, "tuples": ["x", "x"], "numbers": ["x", "x"]})
    faults = refusal(codec, data, Lists).split("; ")
    assert [fault.partition(": ")[0] for fault in faults] == [f"$.lists.{key}[0]", "$.tuples[0]", "$.numbers[0]"]
    assert refusal(codec, codec.encode([{"lists": {key: ["x", "x"]}}] * 2), list[Lists]).count("$") == 1


def test_models_take_no_more_json_than_other_types() -> None:
    assert refusal(JSON, b'{"amount":1,"price":NaN}', Item) == "$: JSON is malformed: invalid character (byte 20)"
    assert refusal(JSON, b'{"amount":1,"price":Infinity}', Item) == "$: JSON is malformed: invalid character (byte 20)"
    assert refusal(JSON, b'{"amount":1,"x":"1e400","price":1e400}', Item) == "$[...]: number out of range"
    assert refusal(JSON, b'{"amount":1,"price":%b.5e50}' % (b"9" * 300), Item) == "$[...]: number out of range"
    assert refusal(JSON, b'{"amount":%b}' % (b"9" * 4301), Item) == "$[...]: integer value out of range"
    assert refusal(JSON, b'{"inner":' * 100_000, Item) == "$: nested too deeply"
    texts = b'{"amount":1,"x":"\\"1e400","price":1e4,"y":[2.5,-1E-400,"%b"]}' % (b"9" * 5000)
    assert JSON.decode(texts, Item) == Item(amount=1, price=10_000)


# What does not fit


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ({"symbol": "ACME", "amount": "3"}, Order, "$.amount: expected int, got str"),
        ({"symbol": "ACME"}, Order, "$: missing required field `amount`"),
        ({"order": {"symbol": 1, "amount": 3}}, Structure, "$.order.symbol: expected str, got int"),
        ({"a": {"text": "b", "tags": [1]}}, dict[str, Note], "$[...].tags[0]: expected str, got int"),
        ([1], Order, "$: expected object, got array"),
        ("blue", Colour, "$: invalid enum value 'blue'"),
        ({"type": "none"}, Whole | Part, "$.type: invalid value 'none'"),
        ({"amount": -1}, Careful, "$: Amounts are positive"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(codec: Codec, value: object, kind: Any, said: str) -> None:
    assert refusal(codec, codec.encode(value), kind) == said


@pytest.mark.parametrize(
    ("codec", "data", "said"),
    [
        (JSON, b"", "$: input data was truncated"),
        (JSON, b'{"symbol":"AC', "$: input data was truncated"),
        (JSON, b'{"symbol" "ACME"}', "$: JSON is malformed: expected ':' (byte 10)"),
        (JSON, b'{"symbol":"ACME","amount":3} 4', "$: JSON is malformed: trailing characters (byte 30)"),
        (JSON, b'{"symbol":"\xff","amount":3}', "$: invalid UTF-8"),
        (JSON, b'{"symbol":"ACME","amount":NaN}', "$: JSON is malformed: invalid character (byte 26)"),
        (JSON, b'{"symbol":"ACME","amount":1e999}', "$.amount: number out of range"),
        (JSON, b'{"symbol":"ACME","amount":' + b"9" * 10_000_000 + b"}", "$.amount: integer value out of range"),
        (MESSAGEPACK, b"\x82\xa6symbol\xa4AC", "$: input data was truncated"),
        (MESSAGEPACK, b"\xc1", "$: MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)"),
        (MESSAGEPACK, BYTES_OF_AN_ORDER[MESSAGEPACK] + b"\x01", None),
        (MESSAGEPACK, b"\x82\xa6symbol\xa1\xff\xa6amount\x03", "$: invalid UTF-8"),
        (
            CBOR,
            b"\xa2\x66symbol\x64AC",
            "$: CBOR is malformed: premature end of stream (expected to read at least 2 bytes, got 0 instead)",
        ),
        (CBOR, BYTES_OF_AN_ORDER[CBOR] + b"\x01", "$: CBOR is malformed: trailing bytes"),
        (CBOR, b"\xa2\x66symbol\x61\xff\x66amount\x03", "$: invalid UTF-8"),
        (
            CBOR,
            b"\xa2\x66symbol\x61a\x66symbol\x61b",
            "$: CBOR is malformed: error decoding map: Duplicate map key: 'symbol'",
        ),
        (CBOR, b"\xd8\x1c\x81\xd8\x1d\x00", "$: CBOR tag 29"),
        (CBOR, b"\xc1\x1b\x7f" + b"\xff" * 7, "$: CBOR is malformed: error decoding epoch-form datetime"),
    ],
)
def test_data_that_is_not_of_the_format_is_refused(codec: Codec, data: bytes, said: str | None) -> None:
    assert refusal(codec, data, Order) == (said or "$: MessagePack data is malformed: trailing characters (byte 21)")
    assert refusal(MESSAGEPACK, b"\x91\xc7\x03\x05abc", Any) == "$: MessagePack extension 5"


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        *((JSON, data) for data in (b"[", b'{"name":"a","children":[', b'{"a":', b'[{"a":')),
        *((MESSAGEPACK, data) for data in (b"\x91", b"\x82\xa4name\xa1a\xa8children\x91", b"\x81\xa1a")),
        *((CBOR, data) for data in (b"\x81", b"\xa2\x64name\x61a\x68children\x81", b"\x9f", b"\xc1", b"\xa1")),
    ],
)
@pytest.mark.parametrize("kind", [Any, Tree, Item, list[Any]], ids=type_name)
def test_a_hundred_thousand_levels_are_refused(codec: Codec, data: bytes, kind: Any) -> None:
    assert refusal(codec, data * 100_000, kind).startswith("$")
    assert re.search("nest(ed|ing)", refusal(codec, data * 100_000, Any))


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (MESSAGEPACK, b"\xdd\xff\xff\xff\xff"),
        (MESSAGEPACK, b"\xdd\xff\xff\xff\xff" * 500),
        (MESSAGEPACK, b"\xdf\xff\xff\xff\xff"),
        (MESSAGEPACK, b"\xdb\xff\xff\xff\xff"),
        (MESSAGEPACK, b"\xc6\xff\xff\xff\xff"),
        (CBOR, b"\x9b" + b"\x7f" * 8),
        (CBOR, b"\x9a\xff\xff\xff\xff" * 300),
        (CBOR, b"\xbb" + b"\x7f" * 8),
        (CBOR, b"\x7b" + b"\x7f" * 8),
        (CBOR, b"\x5b" + b"\x7f" * 8),
    ],
)
@pytest.mark.parametrize("kind", [Any, list[int], tuple[int, ...]], ids=type_name)
def test_a_length_that_is_not_there_takes_no_memory(codec: Codec, data: bytes, kind: Any) -> None:
    with traced() as memory:
        assert refusal(codec, data, kind).startswith("$")
        assert memory.peak() < 2**20


def test_what_a_peer_sent_is_escaped_in_messages() -> None:
    assert refusal(JSON, b'"\\u202e\\u001b[2J"', Colour) == "$: invalid enum value '\\u202e\\x1b[2J'"
    assert refusal(JSON, b'"a - at `$.b`"', Colour) == "$: invalid enum value 'a - at `$.b`'"


def test_an_error_of_a_codec_has_path_and_reason() -> None:
    with pytest.raises(ValueError, match=r"^\$\[0\]\.amount: expected int, got str$") as caught:
        JSON.decode(b'[{"symbol":"ACME","amount":"3"}]', list[Order])
    error = caught.value
    assert isinstance(error, DecodeError)
    assert (error.path, error.reason) == ("$[0].amount", "expected int, got str")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# Keys that occur twice


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (b'{"symbol":"a","amount":1,"amount":2}', Order, Order("a", 2)),
        (b'{"symbol":"a","amount":1,"amo\\u0075nt":2,"more":{"a":1,"a":2}}', Order, Order("a", 2)),
        (b'{"a":1,"b":2,"a":3}', dict[str, int], {"a": 3, "b": 2}),
        (b'[{"a":[{"b":1}],"a":[]}]', Any, [{"a": []}]),
        (b'{"amount":1,"amount":2}', Item, Item(amount=2)),
    ],
)
def test_of_a_key_that_occurs_twice_in_json_the_last_holds(text: bytes, kind: Any, value: object) -> None:
    assert JSON.decode(text, kind) == value


# Numbers whose hashes a peer can make alike


class Free(pydantic.RootModel[Any]):
    """A model of anything."""


class Shelf(pydantic.BaseModel):
    ids: set[int] | None = None
    counts: dict[int, int] = {}
    anything: set[Any] = set()


PRIME = 2**61 - 1
"""The modulus of the hashes of Python's integers."""


@pytest.mark.parametrize("codec", [JSON, CBOR], ids=repr)
def test_many_integers_of_one_hash_are_no_keys_and_no_members(codec: Codec) -> None:
    alike = [number * PRIME for number in range(1, 4000)]

    for name, kinds in (("ids", (set[int], frozenset[Any])), ("counts", (dict[int, int], dict[float, int]))):
        value: Any = alike if name == "ids" else dict.fromkeys(alike, 0)
        for kind in kinds:
            assert refusal(codec, codec.encode(value), kind) == f"$: {CHOSEN}"
            assert codec.decode(codec.encode(value[:2] if name == "ids" else {PRIME: 0}), kind)
        assert refusal(codec, codec.encode({name: value}), Shelf) == f"$: {CHOSEN}"
    assert codec.decode(codec.encode(alike), list[int]) == alike


def test_many_arrays_of_one_hash_are_no_keys_and_no_members() -> None:
    def alike(number: int) -> tuple[int, ...]:
        return tuple(-1 - (number >> place & 1) for place in range(15))

    arrays = list(map(alike, range(4000)))
    for codec in (MESSAGEPACK, CBOR):
        data = codec.encode({1: dict.fromkeys(arrays, 0)})
        for kind in (Any, dict[int, dict[Any, int]], Free):
            assert refusal(codec, data, kind) == f"$: {CHOSEN}"
    assert refusal(MESSAGEPACK, MESSAGEPACK.encode(arrays), set[Any]) == f"$: {CHOSEN}"
    honest = [(number, 1) for number in range(4000)]
    assert MESSAGEPACK.decode(MESSAGEPACK.encode(dict.fromkeys(honest, 0)), Any) == dict.fromkeys(honest, 0)
    assert MESSAGEPACK.decode(MESSAGEPACK.encode(honest), set[Any]) == set(honest)


def test_many_maps_are_no_keys_of_cbor() -> None:
    data = b"\xb9\x10\x00" + b"".join(b"\xa1\x19%b\x00\x00" % number.to_bytes(2, "big") for number in range(4096))

    assert refusal(CBOR, data, Any) == "$: array or object in a set or as a key"


def test_integers_and_decimals_of_cbor_have_few_digits() -> None:
    largest = 256**1785 - 1
    for value in (largest, -largest, Decimal("1E-4300"), Decimal("1E+128"), 2**64):
        assert CBOR.decode(cbor2.dumps([value]), Any) == [value]
    for value in (256**1785, -(256**1785) - 1, 2**70_000, Decimal(256**1785)):
        assert refusal(CBOR, cbor2.dumps([value]), Any) == "$: integer of more than 1785 bytes"
    assert refusal(CBOR, cbor2.dumps(Decimal("1E+129")), Any) == "$: decimal with an exponent beyond -4300 to 128"
    for data in (b"\xc4\x82\xf5\x61a", b"\xc4\x83\x01\x01\x01", b"\xc4\x01", b"\xc4\x82\x01\xc2\x61a", b"\xc3\x01"):
        assert refusal(CBOR, data, Any).startswith("$: CBOR is malformed: a ")


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_numbers_that_were_chosen_to_collide_are_no_keys(codec: Codec) -> None:
    keys = dict.fromkeys(colliding(2**14), 0)
    data, of_text = codec.encode({"counts": keys}), codec.encode({"counts": {str(key): 0 for key in keys}})

    for kind in (dict[str, dict[int, int]], dict[str, dict[float, int]], Shelf):
        assert refusal(codec, data, kind) == f"$: {CHOSEN}"
    assert refusal(codec, of_text, Shelf) == f"$: {CHOSEN}"
    assert codec.decode(of_text, dict[str, dict[str, int]])


KEYS = some.integers(-(2**63), 2**64 - 1) | some.text(max_size=40)
LARGE: dict[Any, Any] = {number * 7: None for number in range(LARGE_TABLE + 1)}


def large_maps(value: Any) -> list[list[Any]]:
    """Return the keys of each large map in a value."""
    if isinstance(value, dict):
        own = [list(value)] if len(value) > LARGE_TABLE else []
        return [*own, *(keys for part in value.values() for keys in large_maps(part))]
    return [keys for part in value for keys in large_maps(part)] if isinstance(value, list) else []


@given(
    some.recursive(
        some.none() | some.booleans() | some.floats(allow_nan=False) | some.binary(max_size=70) | KEYS,
        lambda part: (
            some.lists(part, max_size=30)
            | some.dictionaries(KEYS, part, max_size=4)
            | some.dictionaries(KEYS, part, max_size=4).map(lambda value: {**LARGE, **value})
        ),
    )
)
def test_the_keys_of_large_maps_are_found_wherever_they_are(value: Any) -> None:
    for codec, form in ((CBOR, CBOR_FORM), (MESSAGEPACK, MESSAGEPACK_FORM)):
        maps = [[codec.decode(key, Any) for key in keys] for keys in keys_of_maps(codec.encode(value), form)]

        assert sorted(maps, key=repr) == sorted(large_maps(value), key=repr)


def test_the_keys_of_maps_of_cbor_without_a_length_are_found() -> None:
    pairs = b"".join(cbor2.dumps(number) + b"\xf6" for number in LARGE)
    data = b"\x83\x5f\x42\xbf\xff\xff\xbf%b\x61a\xbf\x01\x9f\xff\xff\xff\xd9\xd9\xf7\xbf\xff" % pairs

    maps = [list(map(cbor2.loads, keys)) for keys in keys_of_maps(data, CBOR_FORM)]

    assert maps == [[1], [*LARGE, "a"], []]
    assert [len(keys) for keys in keys_of_maps(data[:-30], CBOR_FORM) if keys][-1] > LARGE_TABLE - 10


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_honest_numbers_are_keys_and_members(codec: Codec) -> None:
    random = Random(1)
    for keys in (
        range(9000),
        [-number for number in range(9000)],
        [random.getrandbits(63) for _ in range(9000)],
        *([number << bits for number in range(9000)] for bits in (8, 12, 22, 32, 44)),
        [1_700_000_000_000_000_000 + number * 10**9 for number in range(9000)],
    ):
        assert codec.decode(codec.encode(dict.fromkeys(keys, 0)), dict[int, int]) == dict.fromkeys(keys, 0)
        assert codec.decode(codec.encode(list(keys)), set[int]) == set(keys)


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_an_object_is_no_member_of_a_set(codec: Codec) -> None:
    assert refusal(codec, codec.encode([{}]), set[Any]) == "$: array or object in a set or as a key"


# What can't be written


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_refuses_numbers_that_it_does_not_have(number: float) -> None:
    values: tuple[object, ...] = (
        number,
        {"rates": [None, number]},
        {"big": [number], "more": 2**70},
        Item(amount=1, price=number),
        {5: number},
    )
    for value in values:
        with pytest.raises(ValueError, match=r"^NaN and the infinities have no JSON$"):
            JSON.encode(value)


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_an_object_of_an_unknown_type_is_named(codec: Codec) -> None:
    with pytest.raises(TypeError, match=r"^Plain can't be encoded$"):
        codec.encode({"a": [Plain()]})


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_a_list_that_contains_itself_is_refused(codec: Codec) -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(ValueError, match=r"^nested too deeply$"):
        codec.encode(endless)


@pytest.mark.parametrize("codec", [*OBJECTS, TEXT], ids=repr)
def test_half_a_surrogate_pair_is_refused(codec: Codec) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        codec.encode("\ud800")


# Types


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Plain, "Plain can't be encoded or decoded"),
        (list[Plain], "Plain can't be encoded or decoded, in list[tests.test_codecs.Plain]"),
        (Callable[[int], int], "Callable can't be encoded or decoded, in collections.abc.Callable[[int], int]"),
        (str | bytes, "str | bytes can't be encoded or decoded: Type unions may not contain more than one str-like"),
        (Order | Note, "can't be encoded or decoded: "),
        ("Order", "'Order' can't be encoded or decoded"),
    ],
)
def test_types_that_no_codec_takes_are_named(kind: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        hashed_by_type(kind)

    assert said in str(caught.value)


def test_a_schema_says_what_json_looks_like() -> None:
    order = {
        "title": "Order",
        "type": "object",
        "properties": {"symbol": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["symbol", "amount"],
    }

    assert json_schema(str) == {"type": "string"}
    assert json_schema(Any) == {}
    assert json_schema(object) == {"description": "anything"}
    assert json_schema(list[Order]) == {
        "type": "array",
        "items": {"$ref": "#/$defs/Order"},
        "$defs": {"Order": order},
    }


def test_schemas_of_models_keep_their_definitions_at_the_top() -> None:
    schema = json_schema(Box)

    assert schema["$ref"] == "#/$defs/Box"
    assert schema["$defs"]["Box"]["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert schema["$defs"]["Item"]["properties"]["amount"] == {"title": "Amount", "type": "integer"}
    assert all("$defs" not in definition for definition in schema["$defs"].values())
    assert json_schema(list[Item])["items"] == {"$ref": "#/$defs/Item"}


# MIME types


@pytest.mark.parametrize(
    ("mime", "codec"),
    [
        ("application/json", JSON),
        ("application/msgpack;v=5", MESSAGEPACK),
        ("text/plain;charset=UTF-8", TEXT),
        ("APPLICATION/JSON; charset=utf-8", JSON),
        ("text/json", JSON),
        ("application/octet-stream", BYTES),
    ],
)
def test_a_mime_type_finds_its_codec(mime: str, codec: Codec) -> None:
    assert find_codec((JSON, MESSAGEPACK, CBOR, TEXT, BYTES), mime) is codec


def test_a_mime_type_without_a_codec_is_refused_with_those_that_are_here() -> None:
    with pytest.raises(ValueError, match=r"^no codec for application/x, here: application/json, text/plain$"):
        find_codec([JSON, TEXT], "application/x")
    with pytest.raises(ValueError, match=r"^no codec for text/plain, here: none$"):
        find_codec([], "text/plain")
    with pytest.raises(ValueError, match=r"^no codec for \\x1b\[2Jx+, here: none$") as caught:
        find_codec([], "\x1b[2J" + "x" * 100_000)
    assert len(str(caught.value)) < 400


# The extra


def test_cbor2_is_loaded_with_the_first_value_and_named_if_it_is_missing() -> None:
    program = """
import sys
from rsocket_trio import codecs
codecs.JSON.encode(1)
print(*[name for name in ["cbor2", "pydantic"] if name in sys.modules])
sys.modules["cbor2"] = None
try:
    codecs.CBOR.encode(1)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines() == [
        "",
        "CBOR needs cbor2: pip install '.[services]' in a checkout of rsocket_trio",
    ]
