"""Bounds what a peer's data costs beyond its size: too many objects, and values that were chosen to collide.

A value goes to the place of its hash in Python's table; where that is taken it tries others, which its hash says as
well. A peer that foresees the hashes, as those of numbers and times, can send 20,000 values of which each tries
thousands of places. So before large maps and sets are made of data, their values are put into a table a few at a time
(`Tables`). Where that takes long the places that they try are counted, and too many are refused.

JSON has texts as keys, whose hashes nobody foresees. In MessagePack and CBOR the keys of large maps are looked at
before a library makes a dictionary of them (`Tables.check_heads`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from time import thread_time
from typing import NamedTuple, TypeAlias

import attrs

CHECKED_SIZE = 4 * 1024
"""Bytes of data up to which nothing is checked: n squared is little there."""
MAX_CONTAINERS = 250_000
"""Arrays and objects that are made without a type: one of a byte or three each, take up to 230 bytes of memory."""
TOO_MANY = f"more than {MAX_CONTAINERS} arrays and objects"
LARGE_TABLE = 32
"""Values that may all collide, as long as there are no more in one table."""
CHOSEN = "keys or members of a set that were chosen to collide"
UNHASHABLE = "array or object in a set or as a key"
MAX_LEVELS = 8
"""Levels of arrays in an array that may become the key of a table."""

BLOCK = 128
FAST = 0.006
FAST_VALUE = 3e-7
COUNTED_VALUE = 2e-6
"""Seconds of CPU: what all values of a payload may take, more for each of them, and more for each that was counted."""
MAX_TEXT = 1000
"""Characters of a text that may stand for a number; of longer ones there are too few."""
WHOLE = r"[0-9]++(?:_[0-9]++)*+"
NUMBER = re.compile(rf"[+-]?(?:{WHOLE}(?:\.(?:{WHOLE})?+)?+|\.{WHOLE})(?:[eE][+-]?{WHOLE})?+")
NOT_WHOLE = re.compile(r"[.eE]")
FLOAT_BITS = 53
MAX_FLOAT_BITS = 1023


def limit_json_containers(data: bytes) -> None:
    """Raise ``ValueError`` for JSON of too many arrays and objects, before they are made."""
    if data.count(b"[") + data.count(b"{") <= MAX_CONTAINERS:
        return
    text = data.replace(rb"\\", b"").replace(rb"\"", b"")
    containers = in_string = 0
    for start in range(0, len(text), 65_536):
        parts = text[start : start + 65_536].split(b'"')
        containers += sum(part.count(b"[") + part.count(b"{") for part in parts[in_string::2])
        in_string = (in_string + len(parts) - 1) % 2
    if containers > MAX_CONTAINERS:
        raise ValueError(TOO_MANY)


# The heads of values in MessagePack and CBOR

CONTAINER, PLAIN, STRING, EXTENSION, ARRAY, MAP, ENDLESS, ENDLESS_MAP, BREAK = range(-1, 8)
"""The values that a first byte may begin: a container or a value of known size, one whose length
follows, and in CBOR one that ends with a break."""
Head: TypeAlias = tuple[int, int, int]
"""By the first byte of a value: its bytes, up to its items or with its length; the values that follow, less one; and
what it begins."""
UNTIL_BREAK = 1 << 70
"""Values that wait where their number is not known: even, and more than any length."""


class Form(NamedTuple):
    """A binary format: the head for each first byte, the bytes that open containers, and large maps; those of texts."""

    heads: Mapping[int, Head]
    containers: bytes
    large_maps: bytes
    texts: bytes


def _cbor_form() -> Form:
    heads: dict[int, Head] = dict.fromkeys(range(256), (1, -1, PLAIN))
    for first in range(256):
        major, size = first >> 5, first & 31
        width = 1 << size - 24 if 24 <= size < 28 else 0
        if major in (2, 3):
            heads[first] = (1 + width, -1, STRING) if width else (1 + size, -1, PLAIN)
        elif major in (4, 5):
            heads[first] = (1 + width, -1, major - 4 + ARRAY) if width else (1, size * (major - 3) - 1, CONTAINER)
        else:
            heads[first] = (1 + width, 0 if major == 6 else -1, PLAIN)
    heads |= {0x5F: (1, -1, ENDLESS), 0x7F: (1, -1, ENDLESS), 0x9F: (1, -1, ENDLESS)}
    heads |= {0xBF: (1, -1, ENDLESS_MAP), 0xFF: (1, 0, BREAK)}
    return Form(heads, bytes(range(0x80, 0xC0)), b"\xb8\xb9\xba\xbb\xbf", bytes(range(0x40, 0x80)))


def _messagepack_form() -> Form:
    heads: dict[int, Head] = dict.fromkeys(range(256), (1, -1, PLAIN))
    for size in range(16):
        heads |= {0x80 + size: (1, 2 * size - 1, CONTAINER), 0x90 + size: (1, size - 1, CONTAINER)}
    heads |= {0xA0 + size: (1 + size, -1, PLAIN) for size in range(32)}
    for power in range(4):
        heads |= {first + power: (1 + (1 << power), -1, PLAIN) for first in (0xCC, 0xD0)}
        heads[0xD4 + power] = (2 + (1 << power), -1, PLAIN)
    heads |= {0xCA: (5, -1, PLAIN), 0xCB: (9, -1, PLAIN), 0xD8: (18, -1, PLAIN)}
    for power in range(3):
        heads |= {first + power: (1 + (1 << power), -1, STRING) for first in (0xC4, 0xD9)}
        heads[0xC7 + power] = (1 + (1 << power), -1, EXTENSION)
    for power in (1, 2):
        heads |= {0xDB + power: (1 + (1 << power), -1, ARRAY), 0xDD + power: (1 + (1 << power), -1, MAP)}
    texts = bytes((*range(0xA0, 0xC0), *range(0xC4, 0xC7), *range(0xD9, 0xDC)))
    return Form(heads, bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0))), b"\xde\xdf", texts)


CBOR_FORM = _cbor_form()
MESSAGEPACK_FORM = _messagepack_form()
Read: TypeAlias = Callable[[int, bytes], Sequence[object]]
"""Returns so many values that stand behind each other in a format."""


def keys_of_maps(data: bytes, form: Form) -> Iterator[list[bytes]]:
    """Yield the keys of each large map, an inner map's before an outer one's, those of incomplete maps too.

    Malformed data is looked at up to its fault, which its decoder finds as well. Raise ``ValueError`` for too many
    arrays and maps.
    """
    heads = form.heads
    at, room = 0, MAX_CONTAINERS
    # The values that wait in the innermost large map or container without a length; those in its own containers come
    # first. When only ``left`` wait, the next one is its own: in a map a key and a value in turns, at these places.
    waiting, left = 1, 0
    starts: list[int] | None = None
    outer: list[tuple[int, int, list[int] | None]] = []
    with suppress(IndexError):  # at the end of data that is incomplete
        while True:
            while waiting > left:
                length_at = at + 1
                step, more, begins = heads[data[at]]
                at += step
                waiting += more
                if not begins:
                    continue
                if begins < 0 or begins >= ARRAY:
                    room -= 1
                    if room < 0:
                        raise ValueError(TOO_MANY)
                    if begins < 0:
                        continue
                count = int.from_bytes(data[length_at:at]) if step > 1 else 0
                if begins in (STRING, EXTENSION):
                    at += count + begins - STRING
                elif begins == ARRAY or (begins == MAP and count <= LARGE_TABLE):
                    waiting += count * (begins - ARRAY + 1)
                elif begins == BREAK:
                    waiting = left = 0
                    del (starts or [])[-1:]  # it is no key
                elif begins >= MAP:
                    outer.append((waiting, left, starts))
                    waiting = left = 2 * count if begins == MAP else UNTIL_BREAK
                    starts = []
                    if begins == ENDLESS:
                        left, starts = 0, None
            if waiting and starts is not None:
                starts.append(at)
                left -= 1
                continue
            if starts is not None:
                yield _keys(data, [*starts, at])
            if not outer:
                return
            waiting, left, starts = outer.pop()
    for places in (starts, *(places for _, _, places in reversed(outer))):
        if places is not None:
            yield _keys(data, [*places, len(data)])


def _keys(data: bytes, starts: Sequence[int]) -> list[bytes]:
    """Return the keys of a map whose keys and values start at these places, in turns."""
    return [data[start:end] for start, end in zip(starts[::2], starts[1::2], strict=False)]


@attrs.define(kw_only=True)
class Tables:
    """The dictionaries and sets that will be made of a payload. ``map_keys`` says whether keys may be maps."""

    _map_keys: bool = False
    _left: float = FAST

    def check_heads(self, data: bytes, form: Form, read: Read | None) -> None:
        """Raise ``ValueError`` for data of too many containers, or with a map whose keys cost much.

        ``read`` returns values of the format; without it all keys are text.
        """
        looks_at_keys = read is not None and any(byte in data for byte in form.large_maps)
        if not looks_at_keys and len(data) - len(data.translate(None, form.containers)) <= MAX_CONTAINERS:
            return
        for keys in keys_of_maps(data, form):
            foreseen = [key for key in keys if key[0] not in form.texts] if len(keys) > LARGE_TABLE else []
            if read is not None and len(foreseen) > LARGE_TABLE:
                self._add(read(len(foreseen), b"".join(foreseen)), in_set=False, with_maps=self._map_keys)

    def check_objects(self, value: object) -> None:
        """Raise ``ValueError`` for what is decoded without a type, and has arrays or objects that cost much as sets or
        as dictionaries of numbers."""
        waiting = [value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if len(part) > LARGE_TABLE and any(True for _ in _numbers_of_texts(part)):
                    self._add(part, in_set=False, with_maps=True)  # its other keys were looked at before
                waiting += [inner for inner in part.values() if type(inner) in (list, dict)]
            elif isinstance(part, list):
                self._add(part, in_set=True, with_maps=True)
                waiting += [inner for inner in part if type(inner) in (list, dict)]

    def _add(self, values: Collection[object], *, in_set: bool, with_maps: bool) -> None:
        if len(values) <= LARGE_TABLE:
            return
        keys = [value for value in values if type(value) not in NOT_LOOKED_AT]
        parts = [value for value in values if isinstance(value, list | tuple | dict)]
        if len(parts) > LARGE_TABLE:
            keys += [_hashable(part, MAX_LEVELS, with_maps) for part in parts]
        keys += _numbers_of_texts(values)
        self._fill(keys, in_set)
        long = [value for value in keys if type(value) is int and value.bit_length() > FLOAT_BITS]
        if long:  # where the type has floats other ones collide
            floats = [float(value) for value in long if value.bit_length() <= MAX_FLOAT_BITS]
            self._fill([*floats, *(value for value in keys if type(value) is float)], in_set)

    def _fill(self, values: Sequence[object], in_set: bool) -> None:
        """Put values into a table. If that takes long, the places that they try are counted."""
        if len(values) <= LARGE_TABLE:
            return
        members: set[object] = set()
        keys: dict[object, None] = {}
        for start in range(0, len(values), BLOCK):
            block = values[start : start + BLOCK]
            began = thread_time()
            if in_set:
                members.update(block)
            else:
                keys.update(zip(block, repeat(None), strict=False))
            self._left += len(block) * FAST_VALUE - (thread_time() - began)
            if self._left < 0:
                if collide(values[: start + BLOCK], in_set=in_set):
                    raise ValueError(CHOSEN)
                self._left = FAST + start * COUNTED_VALUE  # so that all countings take no more than a few


NOT_LOOKED_AT = {str, bytes, bool, type(None), list, tuple, dict}
"""Types whose hashes a peer can't foresee, of which there are but two values, or that are looked at otherwise."""


LEAVES = {int, float, str, bytes, bool, type(None)}


def _hashable(value: object, levels: int, with_maps: bool) -> object:
    """Return a value with tuples for lists, as it is hashed. Raise ``ValueError`` for too many levels of those.

    Maps are left out if it may be ``with_maps``; else they are refused, as any number of them may have one hash.
    """
    if isinstance(value, list | tuple):
        if levels == 0:
            raise ValueError("nested too deeply")
        return tuple([part if type(part) in LEAVES else _hashable(part, levels - 1, with_maps) for part in value])
    if not isinstance(value, dict):
        return value
    if not with_maps:
        raise ValueError(UNHASHABLE)
    return None


def _numbers_of_texts(values: Iterable[object]) -> Iterator[int | float]:
    """Yield the numbers that texts or bytes stand for, as pydantic reads them."""
    for value in values:
        if isinstance(value, str | bytes) and len(value) <= MAX_TEXT:
            text = (value if isinstance(value, str) else value.decode("latin-1")).strip()
            if NUMBER.fullmatch(text):
                yield float(text) if NOT_WHOLE.search(text) else int(text)


# What a table does

LINEAR = 9
"""Places behind each that a set tries next; a dictionary tries none."""
FREE_STEPS = 64
MAX_STEPS = 10_000
STEPS_EACH = 2
"""Steps from a taken place to the next: those of each value that don't count, and how many more all tables may take,
and for each value. Honest ones whose low bits are alike take 20 on average, and some 500; chosen ones thousands."""
HASH_MASK = 2**64 - 1

Entry: TypeAlias = tuple[object, int]
"""A value and its hash."""


def collide(values: Sequence[object], *, in_set: bool) -> bool:
    """Return whether values take many steps in the table that a set or a dictionary has for so many.

    A dictionary's values keep their order when it grows. Those of a set don't, which changes little.
    """
    left = MAX_STEPS + STEPS_EACH * len(values)
    size = 2 * LARGE_TABLE
    while len(values) > (3 * size // 5 if in_set else 2 * size // 3):
        size *= 2
    table: list[Entry | None] = [None] * size
    for value in values:
        left -= max(0, _put(table, value, LINEAR if in_set else 0, FREE_STEPS + left) - FREE_STEPS)
        if left <= 0:
            return True
    return False


def _put(table: list[Entry | None], value: object, linear: int, limit: int) -> int:
    """Put a value into its place of a table, unless it has it already. Return the steps to it, about ``limit`` at most.

    ``linear`` are the places behind each that are tried next.
    """
    entry = value, hash(value) & HASH_MASK
    rest, mask, steps = entry[1], len(table) - 1, 0
    at = rest & mask
    while steps < limit:
        for place in range(at, at + linear + 1) if at + linear <= mask else (at,):
            other = table[place]
            if other is None:
                table[place] = entry
                return steps
            if other[1] == entry[1]:
                if other[0] == value:
                    return steps
                steps += FREE_STEPS  # hardly ever honest, and slow to compare
        steps += 1
        rest >>= 5
        at = (5 * at + rest + 1) & mask
    return limit
