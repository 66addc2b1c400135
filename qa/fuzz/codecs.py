"""Targets for the data of payloads, small and large: each codec, read as a type with members of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import msgspec

from qa.fuzz.targets import Target
from qa.hostile_payloads import FORMATS, SIZE, Format, Model, Order, Portfolio, members, twins
from rsocket_trio.codecs import CBOR, JSON, MESSAGEPACK, Codec, DecodeError


class Kind(Enum):
    SMALL = "small"
    LARGE = "large"


class Whole(msgspec.Struct, tag="whole"):
    count: int


class Part(msgspec.Struct, tag="part"):
    names: list[str]


class Sample(msgspec.Struct):
    """An object of which each member may be missing, so that many mutated bytes are still one."""

    name: str | None = None
    count: int = 0
    sure: bool = False
    at: datetime | None = None
    id: UUID | None = None
    price: Decimal | None = None
    data: bytes = b""
    kind: Kind = Kind.SMALL
    either: Whole | Part | None = None
    pair: tuple[int, str] = (0, "")
    names: dict[str, int] = {}
    more: list[Sample] = []


SAMPLES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"name": 'Ë:"{', "count": -1, "sure": True, "extra": {"a": [1, 2.5, None], "b": {"a": "c"}}},
    {"at": "2020-01-01T12:30:00Z", "id": "12345678-1234-5678-1234-567812345678", "price": "273.15"},
    {"data": "AP8=", "kind": "large", "either": {"type": "whole", "count": 2**40}, "pair": [1, "two"]},
    {"names": {"a": 1, "": 2**63, ":": 3}, "either": {"type": "part", "names": ["x", "\\"]}},
    {"name": "long " * 40, "note": "longer " * 40},
    {"more": [{"more": [{"name": "inner"}, {"count": 1}]}, {"name": None}]},
)
BINARY: Final[tuple[dict[str, Any], ...]] = ({"data": b"\x00\xff", "name": "binary"},)


def target(name: str, codec: Codec, samples: tuple[dict[str, Any], ...], *other: bytes) -> Target:
    """Objects of every kind in the format of ``codec``, and other bytes that mean one."""

    def read(data: bytes) -> Any:
        codec_reads_anything(codec, data)
        return codec.decode(data, Sample)

    return Target(name, (*map(codec.encode, samples), *other), read, codec.encode, (DecodeError,))


def codec_reads_anything(codec: Codec, data: bytes) -> None:
    """Data without a type is read or refused as well."""
    try:
        codec.decode(data, Any)
    except DecodeError:
        pass


CODECS: Final = {
    one.name: one
    for one in (
        target("json", JSON, SAMPLES, b'\r\n { "name" : "\\u00cb\\ud834\\udd1e" , "count" : 12 } '),
        target("messagepack", MESSAGEPACK, SAMPLES + BINARY, b"\x81\xa2at\xd7\xff\x77\x35\x94\x00\x5e\x0b\xe1\x00"),
        target(
            *("cbor", CBOR, SAMPLES + BINARY),
            b"\xd9\xd9\xf7\xa3\x62at\xc1\x1a\x5e\x0b\xe1\x00\x65price\xc4\x82\x21\x19\x6a\xb3\x62id\xd8\x25\x50"
            + bytes(16),
            b"\xbf\x64name\x7f\x61a\x61b\xff\x65names\xbf\x61a\x01\xff\x64data\x5f\x41\x00\x41\xff\xff\xff",
        ),
    )
}


class Numbers(msgspec.Struct):
    """An object of sets and keys, of which each member may be missing."""

    ids: set[int] = set()
    counts: dict[int, int] = {}


class LargeSeeds(Sequence[bytes]):
    """Objects of 256 KB with a member that costs much, and with its honest twin: made with the first use."""

    def __init__(self, form: Format) -> None:
        self._form = form

    @cached_property
    def _made(self) -> list[bytes]:
        return [
            members(self._form, {member: part})
            for pair in twins(self._form)
            for member, part in (("x", pair.hostile), ("counts" if "map" in pair.name else "ids", pair.honest))
        ]

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, place: Any) -> Any:
        return self._made[place]


def large_target(name: str, form: Format) -> Target:
    """Objects of 256 KB in a format."""
    codec = form.codec

    def read(data: bytes) -> Any:
        for kind in (Any, Order, Portfolio, Model, dict[str, set[int]]):
            try:
                codec.decode(data, kind)
            except DecodeError:
                pass
        return codec.decode(data, Numbers)

    return Target(
        *(name, LargeSeeds(form), read, codec.encode, (DecodeError,)), largest=SIZE + 100, slow=1.0, one_run_in=1000
    )


LARGE_CODECS: Final = {f"{name}_large": large_target(f"{name}_large", form) for name, form in FORMATS.items()}
