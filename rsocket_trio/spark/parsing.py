"""Parses the text of options: numbers, sizes, times, bytes and positions, with errors that name the fault.

Spark passes every option as text, whatever type the user wrote.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from rsocket_trio.metadata.routing import LONGEST_TAG
from rsocket_trio.transports.schemes import parse_uri

Parser: TypeAlias = Callable[[str], Any]
"""From an option's text to its value; ``ValueError`` says what is wrong with it, without the option's name."""

MAX_POSITION = 2**63 - 1
NO_PASSWORDS = "user names and passwords do not belong into a URI (see option 'auth.type')"
EARLIEST = "earliest"
LATEST = "latest"

Positions: TypeAlias = str | tuple[tuple[int, int], ...]
"""``"earliest"``, ``"latest"``, or pairs of a partition and a position, in the order of their partitions."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?b)?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def text(written: str) -> str:
    """Parse any text."""
    return written


def words(written: str) -> str:
    """Parse any text that is not empty."""
    if not written.strip():
        raise ValueError("is empty")
    return written


def route_name(written: str) -> str:
    """Parse a route: text that is not empty and fits into its metadata entry."""
    length = len(words(written).encode())
    if length > LONGEST_TAG:
        raise ValueError(f"has {length} bytes, the limit is {LONGEST_TAG}")
    return written


def short(longest: int) -> Parser:
    """Return a few words."""

    def parse(written: str) -> str:
        if len(words(written)) > longest:
            raise ValueError(f"has {len(written)} characters, the limit is {longest}")
        return written

    return parse


def encoded(written: str) -> bytes:
    """Text, as its UTF-8 bytes."""
    return written.encode()


def base64_bytes(written: str) -> bytes:
    """Return bytes as base64."""
    try:
        return base64.b64decode(written, validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not base64: {error}") from None


def flag(written: str) -> bool:
    """``true`` or ``false``."""
    if (word := written.strip().lower()) not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return word == "true"


def choice(*allowed: str) -> Parser:
    """Return one of some words, whatever their case."""
    by_lower = {word.lower(): word for word in allowed}

    def parse(written: str) -> str:
        try:
            return by_lower[written.strip().lower()]
        except KeyError:
            raise ValueError(f"is none of {', '.join(allowed)}") from None

    return parse


def number(low: int, high: int = MAX_POSITION) -> Parser:
    """Return a whole number."""

    def parse(written: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,20}", written.strip()):
            raise ValueError("is not a whole number")
        return between(int(written), low, high)

    return parse


def size(high: int = MAX_POSITION) -> Parser:
    """Bytes: ``1048576``, ``64k``, ``4 MiB``. All units are powers of 1024."""

    def parse(written: str) -> int:
        found = _SIZE.fullmatch(written.strip())
        if found is None:
            raise ValueError("is not a size such as 1048576, 64k or 4 MiB")
        return between(int(Decimal(found[1]) * _SIZES[found[2].lower()]), 1, high)

    return parse


def seconds(written: str) -> float:
    """Return a time: ``500ms``, ``20s``, ``15m``, ``1h``; a bare number is seconds."""
    found = _TIME.fullmatch(written.strip())
    if found is None:
        raise ValueError("is not a time such as 500ms, 20s or 15m")
    value = float(found[1]) * _TIMES[(found[2] or "s").lower()]
    if not 0.001 <= value <= 2_147_483 or math.isnan(value):
        raise ValueError("must be between 1ms and 24d")
    return value


def milliseconds(written: str) -> float:
    """Return a whole number of milliseconds, as seconds."""
    return float(number(1, 2**31 - 1)(written)) / 1000


def uris(written: str) -> tuple[str, ...]:
    """Return one URI, or several with commas between them."""
    found = tuple(one.strip() for one in written.split(",") if one.strip())
    if not found:
        raise ValueError("is empty")
    # Other names of tls://.
    found = tuple(re.sub(r"^tcps://", "tls://", one) for one in found)
    for one in found:
        try:
            parse_uri(one)
        except ValueError as error:
            # Of a text with an @ nothing is quoted: a password may be anywhere in it, with commas and slashes as well.
            said = NO_PASSWORDS if "@" in written else str(error).replace(one, shown_uri(one))
            raise ValueError(f"is wrong: {said}") from None
    return found


def read_positions(written: str) -> Positions:
    """``earliest``, ``latest``, or JSON such as ``{"0": 1234}``."""
    word = written.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    try:
        found = json.loads(written)
    except ValueError:
        raise ValueError('is neither earliest, latest nor JSON such as {"0": 1234}') from None
    return tuple(sorted(position_map(found).items()))


def position_map(found: object) -> dict[int, int]:
    """Return positions by partition from JSON. Raise ``ValueError`` naming the invalid part."""
    result: dict[int, int] = {}
    for text, partition in partitions_of(found).items():
        position = found[text]  # type: ignore[index]  # it was found to be a mapping
        if type(position) is not int or not 0 <= position <= MAX_POSITION:
            raise ValueError(f"has a position {position!r} of partition {partition} that is not a whole number")
        result[partition] = position
    return result


def partitions_of(found: object) -> dict[Any, int]:
    """Return the partitions that the keys of a JSON object name, by key. Raise ``ValueError``."""
    if not isinstance(found, Mapping) or not found:
        raise ValueError('must be an object such as {"0": 1234}')
    for key in found:
        # One way to write each, so that none is named twice.
        if not re.fullmatch(r"0|[1-9]\d{0,8}", str(key), re.ASCII):
            raise ValueError(f"has a partition {key!r} that is not a whole number")
    return {key: int(key) for key in found}


def between(value: int, low: int, high: int) -> int:
    """Return the number. Raise ``ValueError`` unless it lies within its bounds."""
    if value < low and high == MAX_POSITION:
        raise ValueError(f"must be at least {low}")
    if not low <= value <= high:
        raise ValueError(f"must be between {low} and {high}")
    return value


def shown_uri(uri: str) -> str:
    """Return a URI without its query, which may be secret; of one with an ``@`` only the scheme."""
    if "@" in uri:
        scheme = re.match(r"[\w+]+://", uri)
        return f"{scheme[0]}..." if scheme else "..."
    head, mark, _ = uri.partition("?")
    return f"{head}?..." if mark else head
