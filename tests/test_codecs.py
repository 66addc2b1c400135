"""Codecs write what the formats say, read what fits a type, and refuse everything else with its place."""

from __future__ import annotations

import enum
import json
import pickle
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from ipaddress import IPv4Address
from math import isfinite
from random import Random
from typing import Annotated, Any, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import attrs
import cbor2
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as some

from qa.hostile_payloads import colliding
from rsocket_trio.codecs import (
    BYTES,
    CBOR,
    CBOR_FORM,
    JSON,
    MARK_TAG,
    MESSAGEPACK,
    MESSAGEPACK_FORM,
    TEXT,
    Codec,
    DecodeError,
    check_type,
    find_codec,
    json_schema,
    mark_large_maps,
    type_name,
)
from rsocket_trio.colliding_keys import CHOSEN, MARK, collide
from tests.each_row import ALL_CASES

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
BYTES_OF_AN_ORDER = {
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


ORDERS = some.builds(Order, symbol=some.text(), amount=some.integers(-(2**63), 2**64 - 1))
NOTES = some.builds(Note, text=some.text(), at=some.none() | some.text(), tags=some.lists(some.text()))


@given(value=some.builds(Structure, order=ORDERS, notes=some.dictionaries(some.text(), NOTES)))
def test_any_structure_survives(value: Structure) -> None:
    for codec in OBJECTS:
        assert codec.decode(codec.encode(value), Structure) == value


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


@pytest.mark.parametrize("kind", [Any, object, str | None, Annotated[str, "a name"], NewType("Name", str)])
def test_text_is_read_where_an_annotation_takes_it(kind: Any) -> None:
    assert TEXT.decode(b"text", kind) == "text"


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
        ({"amount": "x"}, Item, "$.amount: expected int, got str"),
        ({"amount": [1]}, Item, "$.amount: expected int, got array"),
        ({"amount": 1.5}, Item, "$.amount: expected int, got float"),
        ({"amount": 1, "price": "dear"}, Item, "$.price: expected float, got str"),
        ({"amount": 1, "inner": {}}, Item, "$.inner: missing required field `amount`"),
        ({"amount": 1, "inner": 5}, Item, "$.inner: expected object, got int"),
        ([{"amount": 1}, {"amount": None}], list[Item], "$[1].amount: expected int, got null"),
        ({"items": [{"amount": 1}, {"amount": "x"}]}, Box, "$.items[1].amount: expected int, got str"),
        ({"parcelNumber": 1, "colour": 2}, Parcel, "$: unknown field `colour`"),
        ({"parcelNumber": -1}, Parcel, "$.parcelNumber: negative numbers are reserved"),
        ({"amount": 1, "at": "today"}, Item, "$.at: expected datetime, got str"),
    ],
)
def test_what_no_model_takes_is_refused_with_its_place(codec: Codec, value: object, kind: Any, said: str) -> None:
    assert refusal(codec, codec.encode(value), kind) == said


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


class WithLists(msgspec.Struct):
    inner: Lists


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_all_faults_of_a_model_are_in_the_error(codec: Codec) -> None:
    customer = {"age": "old", "address": {"city": 7}}
    faults = "missing required field `name`; $%.age: expected int, got str; "
    faults += "$%.address.city: expected str, got int; $%.address: missing required field `street`"
    assert refusal(codec, codec.encode(customer), Customer) == "$: " + faults.replace("%", "")
    visit = codec.encode({"customers": [customer]})
    assert refusal(codec, visit, Visit) == "$.customers[0]: " + faults.replace("%", ".customers[0]")


def test_more_faults_of_a_model_than_an_error_may_hold_are_counted() -> None:
    text = refusal(JSON, b"[" + b",".join([b"{}"] * 30) + b"]", list[Address])
    *faults, rest = text.split("; ")
    assert faults[:2] == ["$[0]: missing required field `city`", "$[0]: missing required field `street`"]
    assert rest == f"and {60 - len(faults)} more"
    assert 900 < len(text) <= 1024
    # With one fault less nothing is left to count.
    whole = refusal(JSON, b"[" + b",".join([b"{}"] * (len(faults) // 2)) + b"]", list[Address])
    assert whole.split("; ") == faults[: len(faults) // 2 * 2]


def test_a_fault_as_long_as_an_error_is_cut_and_the_others_are_counted() -> None:
    def refuse(value: str) -> str:
        raise ValueError("x" * 5000)

    long = Annotated[str, pydantic.AfterValidator(refuse)]
    text = refusal(JSON, b'["a","b","c"]', list[long])
    assert text.startswith("$[0]: xxx")
    assert text.endswith("x...; and 2 more")
    assert len(text) <= 1024


def test_a_thousand_faults_of_a_model_are_counted() -> None:
    assert refusal(JSON, b"[" + b",".join([b"0"] * 2000) + b"]", list[Item]) == "$: 2000 faults"


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_arrays_and_objects_of_larger_data_end_at_their_first_fault(codec: Codec) -> None:
    # Each fault has a copy of the key.
    key = "k" * 200
    data = codec.encode({"lists": {key: ["x"] * 3000, "more": ["x"]}, "tuples": ["x", "x"], "numbers": ["x", "x"]})
    places = (f".lists.{key}[0]", ".tuples[0]", ".numbers[0]")
    faults = "; ".join(f"${place}: expected int, got str" for place in places)
    assert refusal(codec, data, Lists) == faults
    assert refusal(codec, codec.encode([{"lists": {key: ["x", "x"]}}]), list[Lists]).count("expected int") == 2
    assert refusal(codec, codec.encode({"inner": {"lists": {key: ["x", "x"]}}}), WithLists).count("expected") == 1


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_much_data_of_a_model_is_left_at_its_first_fault(codec: Codec) -> None:
    faults: tuple[dict[str, Any], ...] = (
        {"ids": [1] * 40_000 + [[]] * 40_000},
        {"counts": {str(number): "" for number in range(20_000)}},
    )
    for wrong in faults:
        assert refusal(codec, codec.encode(wrong), Shelf).startswith(("$.ids[40000]: ", "$.counts.0: "))
    assert codec.decode(codec.encode({"ids": [1] * 70_000}), Shelf) == Shelf(ids={1})


def test_models_take_no_more_json_than_other_types() -> None:
    assert refusal(JSON, b'{"amount":1,"price":NaN}', Item) == "$: JSON is malformed: invalid character (byte 20)"
    assert refusal(JSON, b'{"amount":1,"price":Infinity}', Item) == "$: JSON is malformed: invalid character (byte 20)"
    assert refusal(JSON, b'{"amount":1,"x":"1e400","price":1e400}', Item) == "$: number out of range"
    assert refusal(JSON, b'{"amount":1,"price":%b.5e50}' % (b"9" * 300), Item) == "$: number out of range"
    assert refusal(JSON, b'{"amount":%b}' % (b"9" * 4301), Item) == "$: integer value out of range"
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
        ([{"symbol": "ACME"}], list[Order], "$[0]: missing required field `amount`"),
        ({"order": {"symbol": 1, "amount": 3}}, Structure, "$.order.symbol: expected str, got int"),
        ({"a": 1}, dict[int, int], "$: key: expected int, got str"),
        ({"a": {"text": "b", "tags": [1]}}, dict[str, Note], "$[...].tags[0]: expected str, got int"),
        ([1], Order, "$: expected object, got array"),
        (None, Order, "$: expected object, got null"),
        ("blue", Colour, "$: invalid enum value 'blue'"),
        (["x", 2], Point, "$[0]: expected int, got str"),
        ({"type": "none"}, Whole | Part, "$.type: invalid value 'none'"),
        ("x", UUID, "$: invalid UUID"),
        ("x", Decimal, "$: invalid decimal string"),
        ({"amount": -1}, Careful, "$: Amounts are positive"),
        (5, int | str | None, None),
        ([], int | str | None, "$: expected int | str | null, got array"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(codec: Codec, value: object, kind: Any, said: str | None) -> None:
    if said is None:
        assert codec.decode(codec.encode(value), kind) == value
    else:
        assert refusal(codec, codec.encode(value), kind) == said


@pytest.mark.parametrize(
    ("codec", "data", "said"),
    [
        (JSON, b"", "$: input data was truncated"),
        (JSON, b'{"symbol":"AC', "$: input data was truncated"),
        (JSON, b'{"symbol" "ACME"}', "$: JSON is malformed: expected ':' (byte 10)"),
        (JSON, b"\xef\xbb\xbf{}", "$: JSON is malformed: invalid character (byte 0)"),
        (JSON, b'{"symbol":"ACME","amount":3} 4', "$: JSON is malformed: trailing characters (byte 30)"),
        (JSON, b'{"symbol":"\xff","amount":3}', "$: invalid UTF-8"),
        (JSON, b'{"symbol":"\xed\xa0\x80","amount":3}', "$: invalid UTF-8"),
        (
            JSON,
            b'{"symbol":"\\ud800 and on","amount":3}',
            "$: JSON is malformed: unexpected end of escaped utf-16 surrogate pair (byte 17)",
        ),
        (JSON, b'{"symbol":"ACME","amount":NaN}', "$: JSON is malformed: invalid character (byte 26)"),
        (JSON, b'{"symbol":"ACME","amount":Infinity}', "$: JSON is malformed: invalid character (byte 26)"),
        (JSON, b'{"symbol":"ACME","amount":-Infinity}', "$: JSON is malformed: invalid character (byte 27)"),
        (JSON, b'{"symbol":"ACME","amount":1e999}', "$.amount: number out of range"),
        (JSON, b'{"symbol":"ACME","amount":' + b"9" * 10_000_000 + b"}", "$.amount: integer value out of range"),
        (MESSAGEPACK, b"", "$: input data was truncated"),
        (MESSAGEPACK, b"\x82\xa6symbol\xa4AC", "$: input data was truncated"),
        (MESSAGEPACK, b"\xc1", "$: MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)"),
        (MESSAGEPACK, BYTES_OF_AN_ORDER[MESSAGEPACK] + b"\x01", None),
        (MESSAGEPACK, b"\x82\xa6symbol\xa1\xff\xa6amount\x03", "$: invalid UTF-8"),
        (MESSAGEPACK, b"\xc7\x01\x07x", "$: expected object, got ext"),
        (MESSAGEPACK, b"\x81\x80\x00", "$: key: expected str, got object"),
        (CBOR, b"", "$: input data was truncated"),
        (CBOR, b"\xa2\x66symbol\x64AC", "$: input data was truncated"),
        (CBOR, b"\xff", "$: CBOR is malformed: break code encountered where a data item was expected"),
        (CBOR, BYTES_OF_AN_ORDER[CBOR] + b"\x01", "$: CBOR is malformed: trailing bytes"),
        (CBOR, b"\xa2\x66symbol\x61\xff\x66amount\x03", "$: invalid UTF-8"),
        (CBOR, b"\xa2\x66symbol\x61a\x66symbol\x61b", "$: key 'symbol' occurs twice"),
        (CBOR, b"\xd8\x1c\x81\xd8\x1d\x00", "$: CBOR tag 29"),
        (CBOR, b"\xd8\x23\x64(a+)", "$: CBOR tag 35"),
        (CBOR, b"\xd9\x27\x10\x01", "$: CBOR tag 10000"),
        (CBOR, b"\xf7", "$: CBOR has a simple value without a meaning"),
        (CBOR, b"\xe0", "$: CBOR has a simple value without a meaning"),
        (CBOR, b"\xc1\x1b\x7f" + b"\xff" * 7, "$: CBOR is malformed: error decoding epoch-form datetime"),
    ],
)
def test_data_that_is_not_of_the_format_is_refused(codec: Codec, data: bytes, said: str | None) -> None:
    assert refusal(codec, data, Order) == (said or "$: MessagePack data is malformed: trailing characters (byte 21)")


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
    assert refusal(codec, data * 100_000, Any) == "$: nested too deeply"


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
    tracemalloc.start()
    try:
        assert refusal(codec, data, kind).startswith("$")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", OBJECTS if ALL_CASES else OBJECTS[:1], ids=repr)
def test_a_hundred_megabytes_of_text_make_a_short_message(codec: Codec) -> None:
    data = codec.encode("x" * 100_000_000)

    assert refusal(codec, data, Order) == "$: expected object, got str"
    assert len(refusal(codec, codec.encode("x" * 1_000_000), Colour)) <= 1024
    assert len(refusal(codec, codec.encode({"x" * 1_000_000: "y"}), dict[str, Item])) <= 1024


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


def test_of_a_key_that_occurs_twice_in_messagepack_the_last_holds() -> None:
    assert MESSAGEPACK.decode(b"\x82\xa1a\x01\xa1a\x02", Any) == {"a": 2}


# Numbers whose hashes a peer can make alike

BIG = 2**64
"""The smallest integer that is too large for a key or a member of a set."""
TOO_LARGE = "integer of more than 64 bits in a set or as a key"


class Holdings(msgspec.Struct):
    ids: frozenset[int] | None = None
    counts: dict[int, int] = {}
    named: dict[str, set[int]] = {}
    pairs: set[tuple[int, str]] = set()
    mixed: set[int | str] = set()
    anything: set[Any] = set()
    amounts: list[int] = []
    either: Whole | Tagged | str | None = None
    inner: Holdings | None = None
    floats: set[float] = set()
    rows: Rows | None = None


class Tagged(msgspec.Struct, tag="tagged"):
    count: set[int] = set()


class Rows(NamedTuple):
    number: int
    ids: frozenset[int] = frozenset()
    inner: tuple[int, frozenset[int]] | None = None


class Free(pydantic.RootModel[Any]):
    """A model of anything."""


class Shelf(pydantic.BaseModel):
    ids: set[int] | None = None
    counts: dict[int, int] = {}
    pairs: set[tuple[int, str]] = set()
    anything: set[Any] = set()
    amounts: list[int] = []
    inner: Shelf | None = None


TOO_LARGE_AT: list[tuple[dict[str, Any], str]] = [
    ({"ids": [1, BIG]}, "$.ids[1]"),
    ({"ids": [-2 * BIG]}, "$.ids[0]"),
    ({"named": {"a": [BIG]}}, "$.named[...][0]"),
    ({"pairs": [[1, "a"], [BIG, "b"]]}, "$.pairs[1]"),
    ({"mixed": ["a", BIG]}, "$.mixed[1]"),
    ({"anything": [BIG]}, "$.anything[0]"),
    ({"either": {"type": "tagged", "count": [BIG]}}, "$.either.count[0]"),
    ({"inner": {"inner": {"ids": [BIG]}}}, "$.inner.inner.ids[0]"),
    ({"rows": [BIG, [BIG]]}, "$.rows[1][0]"),
    ({"rows": [1, [], [BIG, [BIG]]]}, "$.rows[2][1][0]"),
]


@pytest.mark.parametrize("codec", [JSON, CBOR], ids=repr)
@pytest.mark.parametrize(("value", "path"), TOO_LARGE_AT)
def test_an_integer_beyond_64_bits_is_no_member_of_a_set(codec: Codec, value: dict[str, Any], path: str) -> None:
    assert refusal(codec, codec.encode(value), Holdings) == f"{path}: {TOO_LARGE}"


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        (b'{"18446744073709551616":1}', dict[int, int], "$"),
        (b'{"-18446744073709551616":1}', dict[int, int], "$"),
        (b'{"1":{"2":{"18446744073709551616":[]}}}', dict[int, dict[str, dict[int, list[int]]]], "$[...][...]"),
        (b'{"1844674407\\u0033709551616":1}', dict[int, str], "$"),
        (b'{"counts":{"1":2,"18446744073709551616":1}}', Holdings, "$.counts"),
        (b'{"ids":[18446744073709551616],"ids":[]}', Holdings, "$.ids[0]"),
        (b"[[18446744073709551616]]", list[set[int] | str | None], "$[0][0]"),
        (b"[18446744073709551616]", set, "$[0]"),
        (b"[18446744073709551616]", frozenset[object], "$[0]"),
    ],
)
def test_an_integer_beyond_64_bits_is_no_key_of_json(text: bytes, kind: Any, path: str) -> None:
    assert refusal(JSON, text, kind) == f"{path}: {TOO_LARGE}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"[18446744073709551615,-18446744073709551615]", set[int]),
        (b'{"18446744073709551615":18446744073709551616}', dict[int, int]),
        (b'{"18446744073709551616":1}', dict[str, int]),
        (b'{"18446744073709551616":1}', dict[float, int]),
        (b'["18446744073709551616"]', set[str]),
        (b'["18446744073709551616",1]', set[int | str]),
        (b"[18446744073709551616,1e300]", set[float]),
        (b"[18446744073709551616]", list[int]),
        (b"[18446744073709551616.5]", set[int | float]),
        (b'{"ids":["18446744073709551616"]}', dict[str, list[str]]),
    ],
)
def test_other_integers_and_texts_of_digits_are_read(text: bytes, kind: Any) -> None:
    assert JSON.decode(text, kind) == msgspec.json.decode(text, type=kind)


def test_a_long_integer_elsewhere_leaves_sets_and_keys_as_they_are() -> None:
    value = {
        "ids": [1, 2**64 - 1],
        "counts": {"5": 2**70},
        "named": {"1" * 30: [5]},
        "mixed": ["1" * 30, 1],
        "amounts": [2**70, -(2**70)],
        "either": {"type": "whole", "count": 2**70},
        "inner": {"ids": None, "either": "1" * 30},
        "floats": [2**70],
        "rows": [2**70, [1]],
        "unknown": [2**70, {"ids": [2**70]}],
    }

    held = JSON.decode(json.dumps(value).encode(), Holdings)

    assert held.amounts == [2**70, -(2**70)]
    assert held == msgspec.convert(value, Holdings, str_keys=True)
    del value["counts"]
    assert CBOR.decode(CBOR.encode(value), Holdings) == msgspec.convert(value, Holdings)


def test_an_integer_beyond_64_bits_is_no_key_of_cbor_in_any_place() -> None:
    for key in (BIG, -BIG - 1, (1, BIG), ((1, (BIG,)),), 2**70_000):
        data = cbor2.dumps({"symbol": "a", "amount": 1, "x": [{key: 1}]})
        for kind in (Order, Any, dict[str, Any], Item):
            assert refusal(CBOR, data, kind) == f"$: {TOO_LARGE}"
    for key in (BIG - 1, -BIG, (1, BIG - 1)):
        assert CBOR.decode(cbor2.dumps({key: BIG}), Any) == {key: BIG}
        assert CBOR.decode(cbor2.dumps({"symbol": "a", "amount": 1, "x": {key: 1}}), Order) == Order("a", 1)
    assert refusal(CBOR, cbor2.dumps({BIG: 1}), dict[int, int]) == f"$: {TOO_LARGE}"


def test_integers_and_decimals_of_cbor_have_as_many_digits_as_those_of_json() -> None:
    largest = 10**4300 - 1
    for value in (largest, -largest, Decimal(largest), Decimal(f"-{largest}E-4300"), Decimal("1E+128")):
        assert CBOR.decode(cbor2.dumps([value]), Any) == [value]
    for value in (largest + 1, -largest - 1, 2**70_000):
        assert refusal(CBOR, cbor2.dumps([value]), Any) == "$: integer of more than 4300 digits"
    assert refusal(CBOR, b"\xc4\x82\x01\xc2\x5a\x00\x04\x00\x00" + b"\xff" * 2**18, Any).startswith(
        "$: integer of more"
    )
    assert refusal(CBOR, cbor2.dumps(Decimal("1E+129")), Any) == "$: decimal with an exponent beyond -4300 to 128"
    for data in (
        b"\xc4\x82\xf4\x01",
        b"\xc4\x83\x01\x01\x01",
        b"\xc4\x01",
        b"\xc4\x82\x01\xc2\x61a",
        b"\xd8\x25\x41a",
        b"\xc3\x01",
    ):
        assert refusal(CBOR, data, Any).startswith("$: CBOR is malformed: a ")


def test_decimals_and_uuids_are_keys_of_cbor_where_a_type_says_so() -> None:
    for key, kind, tag in ((Decimal("1.5"), Decimal, 4), (UUID(int=5), UUID, 37)):
        data = cbor2.dumps({key: 1})
        assert CBOR.decode(data, dict[kind, int]) == {key: 1}  # type: ignore[valid-type]
        assert CBOR.decode(CBOR.encode({key: 1}), dict[kind, int]) == {key: 1}  # type: ignore[valid-type]
        assert CBOR.decode(cbor2.dumps([key]), set[kind]) == {key}  # type: ignore[valid-type]
        for other in (Any, dict[str, int], Item):
            assert refusal(CBOR, data, other) == f"$: CBOR tag {tag} in a key"
        assert refusal(CBOR, cbor2.dumps([key]), set[Any]) == f"$[0]: {kind.__name__} in a set of anything"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"ids": [BIG]}, "$.ids[0]: input should be less than or equal to 18446744073709551615"),
        ({"ids": [-BIG]}, "$.ids[0]: input should be greater than or equal to -18446744073709551615"),
        ({"pairs": [[BIG, "a"]]}, "$.pairs[0][0]: input should be less than or equal to 18446744073709551615"),
        ({"inner": {"ids": [BIG]}}, "$.inner.ids[0]: input should be less than or equal to 18446744073709551615"),
        ({"anything": [BIG]}, f"$.anything[0]: {TOO_LARGE}"),
        ({"ids": [BIG - 1], "counts": {"5": BIG}, "amounts": [BIG], "pairs": [[5, str(BIG)]]}, None),
    ],
)
@pytest.mark.parametrize("codec", [JSON, CBOR], ids=repr)
@pytest.mark.parametrize("kind", [Shelf, list[Shelf]], ids=type_name)
def test_models_of_pydantic_hash_no_longer_integers(codec: Codec, kind: Any, value: Any, said: str | None) -> None:
    data = codec.encode(value if kind is Shelf else [value])
    if said is None:
        assert codec.decode(data, kind) == (Shelf(**value) if kind is Shelf else [Shelf(**value)])
    else:
        assert refusal(codec, data, kind) == (said if kind is Shelf else said.replace("$", "$[0]"))


class Stamp(pydantic.BaseModel, frozen=True):
    number: int


@attrs.frozen
class Album:
    stamps: set[Stamp]
    numbers: set[int] = attrs.field(factory=set)


def test_a_set_of_models_is_read_beside_a_long_integer() -> None:
    data = JSON.encode({"stamps": [{"number": BIG}], "numbers": [1], "x": BIG})

    assert JSON.decode(data, Album) == Album({Stamp(number=BIG)}, {1})
    assert refusal(JSON, b'{"stamps":[],"numbers":[18446744073709551616]}', Album) == f"$.numbers[0]: {TOO_LARGE}"


def test_a_key_of_a_model_has_64_bits() -> None:
    assert refusal(JSON, b'{"counts":{"18446744073709551616":1}}', Shelf).startswith("$.counts.18446744073709551616")
    assert refusal(MESSAGEPACK, MESSAGEPACK.encode({"ids": [str(BIG)]}), Shelf).startswith(
        "$.ids[0]: input should be less"
    )


@pytest.mark.parametrize("codec", [MESSAGEPACK, CBOR], ids=repr)
def test_arrays_and_maps_are_a_hundred_keys_of_long_data_without_a_type(codec: Codec) -> None:
    def written(keys: int, text: str = "x" * 20_000) -> bytes:
        head = codec.encode([text, {"a": [[1]]}, None])[:-1]
        if codec is MESSAGEPACK:
            return (
                head
                + b"\xde"
                + keys.to_bytes(2, "big")
                + b"".join(b"\x92\xff\xcd%b\x91\x00" % i.to_bytes(2, "big") for i in range(keys))
            )
        return (
            head
            + b"\xb9"
            + keys.to_bytes(2, "big")
            + b"".join(b"\x82\x20\x19%b\x81\x00" % i.to_bytes(2, "big") for i in range(keys))
        )

    for kind in (Any, list[object], list[str | dict[Any, Any] | None], Free):
        assert codec.decode(written(100), kind)
        assert refusal(codec, written(101), kind) == "$: more than 100 arrays and maps as keys"
    assert len(codec.decode(written(101, ""), Any)[2]) == 101
    by_pairs = tuple[str, dict[str, list[list[int]]], dict[tuple[int, int], list[int]]]
    assert len(codec.decode(written(101), by_pairs)[2]) == 101


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_numbers_that_were_chosen_to_collide_are_no_keys(codec: Codec) -> None:
    keys = dict.fromkeys(colliding(2**14), 0)
    data, of_text = codec.encode({"counts": keys}), codec.encode({"counts": {str(key): 0 for key in keys}})

    for kind in (dict[str, dict[int, int]], dict[str, dict[float, int]], Shelf):
        assert refusal(codec, data, kind) == f"$: {CHOSEN}"
    assert refusal(codec, of_text, Shelf) == f"$: {CHOSEN}"
    assert codec.decode(of_text, dict[str, dict[str, int]])


KEYS = some.integers(-(2**63), 2**64 - 1) | some.text(max_size=40)
LARGE: dict[Any, Any] = {number * 7: None for number in range(64)}
"""A map of as many keys as are marked."""


def of_marked_cbor(marked: bytes) -> Any:
    def as_map(items: Any, _immutable: bool) -> Any:
        assert items[0] is None
        return dict(zip(items[1::2], items[2::2], strict=True))

    return cbor2.loads(marked, semantic_decoders={MARK_TAG: as_map})


def of_marked_messagepack(marked: bytes) -> Any:
    def without_marks(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_marks(part) for key, part in value.items()}
        if not isinstance(value, list):
            return value
        parts = list(map(without_marks, value))
        return dict(zip(parts[1::2], parts[2::2], strict=True)) if parts[:1] == [MARK] else parts

    return without_marks(msgspec.msgpack.decode(marked, ext_hook=lambda code, data: MARK))


def has_large_map(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) >= len(LARGE) or any(map(has_large_map, value.values()))
    return isinstance(value, list) and any(map(has_large_map, value))


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
def test_large_maps_are_marked_wherever_they_are(value: Any) -> None:
    for codec, form, of_marked in (
        (CBOR, CBOR_FORM, of_marked_cbor),
        (MESSAGEPACK, MESSAGEPACK_FORM, of_marked_messagepack),
    ):
        data = codec.encode(value)
        marked = mark_large_maps(data, form)

        assert (marked is not None) == has_large_map(value)
        assert of_marked(marked or data) == value


def test_maps_of_cbor_without_a_length_are_marked() -> None:
    pairs = b"".join(cbor2.dumps(number) + b"\xf6" for number in LARGE)
    data = b"\x83\x5f\x42\xbf\xff\xff\xbf%b\x61a\xbf\x01\x9f\xff\xff\xff\xd9\xd9\xf7\xbf\xff" % pairs

    marked = mark_large_maps(data, CBOR_FORM)

    assert marked is not None
    assert of_marked_cbor(marked) == [b"\xbf\xff", LARGE | {"a": {1: []}}, {}]


def test_steps_are_counted_in_dictionaries_and_sets() -> None:
    assert collide(colliding(2**14), in_set=False)
    for in_set in (False, True):
        assert collide([Decimal(2**61 - 1).scaleb(number) for number in range(2000)], in_set=in_set)


@pytest.mark.parametrize("count", [1000, *([9000, 100_000] if ALL_CASES else [])])
def test_few_steps_are_taken_by_honest_values(count: int) -> None:
    random = Random(1)
    numbers = range(count)
    honest: Any
    for honest in (
        list(numbers),
        [random.getrandbits(63) for _ in numbers],
        [random.random() for _ in numbers],
        [round(random.random() * 10_000, 2) for _ in numbers],
        [struct.unpack("f", struct.pack("f", random.random()))[0] for _ in numbers],
        [1.7e9 + number / 4 for number in numbers],
        [1_700_000_000_000_000 + number * 1000 for number in numbers],
        [number << 22 for number in numbers],
        [datetime.fromtimestamp(1_700_000_000 + number, UTC) for number in numbers],
        *([number / 2**bits for number in numbers] for bits in (7, 10, 15)),
        [1, 1.0, True] * count,
    ):
        for in_set in (False, True):
            assert not collide(honest, in_set=in_set)


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


def test_long_cbor_has_keys_of_text_where_its_type_has_no_others() -> None:
    value = {"symbol": "a", "amount": 1, "x": {5: 1}, "y": "z" * 20_000}

    assert refusal(CBOR, cbor2.dumps(value), Order) == "$: key of type int, where keys are text or bytes"
    assert CBOR.decode(cbor2.dumps(value), Any) == value
    assert CBOR.decode(cbor2.dumps({5: "z" * 20_000}), dict[int, str]) == {5: "z" * 20_000}
    assert CBOR.decode(cbor2.dumps({**value, "y": ""}), Order) == Order("a", 1)


@pytest.mark.parametrize("codec", OBJECTS, ids=repr)
def test_what_can_not_be_hashed_is_no_member_of_a_set(codec: Codec) -> None:
    values: tuple[list[Any], ...] = ([[1]], [{}])
    for value in values:
        assert refusal(codec, codec.encode(value), set[Any]).endswith(": array or object in a set or as a key")


# What can't be written


class Reading(pydantic.BaseModel):
    value: Any
    unit: str | None = None


class Gauge(Reading):
    @pydantic.field_serializer("value", when_used="json")
    def _number_or_null(self, value: float) -> float | None:
        return value if isfinite(value) else None


class Opaque:
    """A type that only a serializer for JSON knows."""


class Holder(pydantic.BaseModel, arbitrary_types_allowed=True):
    opaque: Opaque
    none: None = None

    @pydantic.field_serializer("opaque", when_used="json")
    def _text(self, opaque: Opaque) -> str:
        return "opaque"


def test_nan_in_a_part_of_a_model_without_a_type_has_no_json() -> None:
    with pytest.raises(ValueError, match=r"^\$\[0\]\.value\.a\[1\]: nan has no JSON$"):
        JSON.encode([Reading(value={"a": [0.5, float("nan")]})])
    assert JSON.encode(Reading(value=None)) == b'{"value":null,"unit":null}'


def test_a_model_may_write_null_by_a_serializer_for_json() -> None:
    assert JSON.encode(Gauge(value=float("nan"))) == b'{"value":null,"unit":null}'
    assert JSON.encode(Holder(opaque=Opaque())) == b'{"opaque":"opaque","none":null}'


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["$", "$.rates[1]", "$.big"])
def test_json_refuses_numbers_that_it_does_not_have(number: float, place: str) -> None:
    values = {"$": number, "$.rates[1]": {"rates": [None, number]}, "$.big": {"big": number, "more": 2**70}}

    with pytest.raises(ValueError, match="has no JSON") as caught:
        JSON.encode(values[place])

    assert str(caught.value) == f"{place}: {number} has no JSON"


def test_json_refuses_a_model_with_such_a_number() -> None:
    with pytest.raises(ValueError, match=r"^\$\.price: nan has no JSON$"):
        JSON.encode(Item(amount=1, price=float("nan")))


def test_a_number_that_json_lacks_is_found_behind_others() -> None:
    value: dict[str, Any] = {"none": None, "a": [{"b": (1, {"c": []})}, {}], "d": {"e": [[], 0.5, {"f": float("nan")}]}}

    with pytest.raises(ValueError, match=r"^\$\.d\.e\[2\]\.f: nan has no JSON$"):
        JSON.encode(value)


def test_null_and_text_that_looks_like_a_number_are_no_such_numbers() -> None:
    assert JSON.encode([None, "null", 2**70]) == b'[null,"null",1180591620717411303424]'
    assert JSON.encode([None, "Ë\x7f\xf8"]) == '[null,"Ë\x7fø"]'.encode()
    assert JSON.encode([None, b"\xcb\x7f\xf8"]) == b'[null,"y3/4"]'


@pytest.mark.parametrize("codec", [MESSAGEPACK, CBOR], ids=repr)
def test_binary_formats_have_all_numbers(codec: Codec) -> None:
    assert codec.decode(codec.encode(float("inf")), float) == float("inf")


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


def test_messagepack_refuses_integers_that_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        MESSAGEPACK.encode(2**64)


@pytest.mark.parametrize("codec", [*OBJECTS, TEXT], ids=repr)
def test_half_a_surrogate_pair_is_refused(codec: Codec) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        codec.encode("\ud800")


# Types


@pytest.mark.parametrize(
    "kind",
    [
        *(Order, Note, Structure, Tick, Point, Everything, Colour, Tree, Whole | Part, Item, Box, list[Item]),
        *(str, int, float, bytes, dict, list, Any, object, None, datetime, UUID, Decimal, Sequence[Order]),
        *(Order | None, dict[str, Item | None], Annotated[int, msgspec.Meta(gt=3)], Annotated[list[Item], "some"]),
    ],
    ids=type_name,
)
def test_types_that_codecs_take_pass(kind: Any) -> None:
    check_type(kind)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Plain, "Plain can't be encoded or decoded"),
        (list[Plain], "Plain can't be encoded or decoded, in list[tests.test_codecs.Plain]"),
        (Callable[[int], int], "Callable can't be encoded or decoded, in collections.abc.Callable[[int], int]"),
        (complex, "complex can't be encoded or decoded"),
        (str | bytes, "str | bytes can't be encoded or decoded: Type unions may not contain more than one str-like"),
        (Order | Note, "can't be encoded or decoded: "),
        (list[Item | Plain], "can't be encoded or decoded: Unable to generate pydantic-core schema"),
        (Annotated[int, {}], "can't be encoded or decoded: unhashable type"),
        ("Order", "'Order' can't be encoded or decoded"),
    ],
)
def test_types_that_no_codec_takes_are_named(kind: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        check_type(kind)

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


class Secretive(pydantic.BaseModel):
    made: Annotated[int, pydantic.PlainValidator(lambda value: value)]
    by: Callable[[int], int] | None = None


def test_no_schema_without_a_type() -> None:
    with pytest.raises(TypeError, match="Secretive has no JSON Schema: Cannot generate"):
        json_schema(Secretive)
    with pytest.raises(TypeError, match="Plain can't be encoded or decoded"):
        json_schema(list[Plain])


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Order, "Order"), (int | None, "int | None"), (list[int], "list[int]"), (Any, "Any"), (None, "None")],
)
def test_types_are_named_as_they_are_written(kind: Any, name: str) -> None:
    assert type_name(kind) == name


# MIME types


@pytest.mark.parametrize(
    ("mime", "codec"),
    [
        ("application/json", JSON),
        ("Application/JSON; charset=utf-8", JSON),
        ("application/x-msgpack", MESSAGEPACK),
        ("application/msgpack;v=5", MESSAGEPACK),
        ("application/cbor ", CBOR),
        ("text/plain;charset=UTF-8", TEXT),
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


def test_a_codec_is_anything_with_a_mime_type_and_two_functions() -> None:
    class Reversed:
        mime = "text/x-reversed"

        def encode(self, value: object) -> bytes:
            return str(value)[::-1].encode()

        def decode(self, data: bytes, kind: Any) -> Any:
            return kind(data.decode()[::-1])

    mine: Codec = Reversed()

    assert find_codec([JSON, mine], "Text/X-Reversed; v=1") is mine
    assert find_codec([JSON, mine], "text/x-reversed").decode(b"21", int) == 12


# The extra


def test_the_libraries_are_loaded_with_the_first_value_and_a_missing_one_is_named() -> None:
    program = """
import sys
from rsocket_trio import codecs
libraries = ["msgspec", "cbor2", "pydantic"]
print(*[name for name in libraries if name in sys.modules])
codecs.TEXT.encode("text")
codecs.BYTES.decode(b"data", bytes)
print(*[name for name in libraries if name in sys.modules])
sys.modules["cbor2"] = None
try:
    codecs.CBOR.encode(1)
except ImportError as error:
    print(error)
print(*[name for name in libraries if sys.modules.get(name)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines() == [
        "",
        "",
        "CBOR needs cbor2: pip install '.[services]' in a checkout of rsocket_trio",
        "msgspec",
    ]


@pytest.mark.parametrize("codec", [JSON, MESSAGEPACK, CBOR])
@pytest.mark.parametrize("kind", [threading.Event, list[threading.Event]])
def test_data_is_not_read_as_a_type_that_no_codec_knows(codec: Codec, kind: Any) -> None:
    with pytest.raises(TypeError, match=r"Event can't be encoded or decoded"):
        codec.decode(b"[]", kind)
