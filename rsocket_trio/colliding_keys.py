"""Refuses values that were chosen so that each, as a key or a member of a set, collides with many others.

A value goes to the place of its hash in Python's table; where that is taken it tries others, which its hash says as
well. A peer that foresees the hashes, as those of numbers and times, can send 20,000 values of which each tries
thousands of places, and no two have one hash. So the values of large maps and sets are put into a table a few at a time
before those are made (`Tables`). Where that takes long the places that they try are counted, and too many are refused.

Arrays and maps that are keys are counted on the way: any number of those may have one hash.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, repeat
from time import thread_time
from typing import Any
from uuid import UUID

from rsocket_trio.hashed_integers import MAX_BITS

CHOSEN = "keys or members of a set that were chosen to collide"
MAX_KEYS_WITH_PARTS = 100
"""Arrays and maps that are keys of data without a type."""
LARGE_TABLE = 512
"""Values that may all collide, as long as there are no more in one table."""
AT_ONCE = 128
SLOW = 0.006
SLOW_EACH = 1.5e-7
SLOW_EACH_OF_MANY = 1e-6
"""Seconds of CPU that all values of a payload, and each of them, may take before places are counted; beyond ``MANY``
values a table outgrows the caches of a processor."""
MANY = 50_000
LONGEST_TEXT = 1000
"""Characters of a text that may stand for a number; of longer ones there are too few."""
WHOLE = rb"[0-9]++(?:_[0-9]++)*+"
NUMBER = re.compile(rb"[+-]?(?:%b(?:\.(?:%b)?+)?+|\.%b)(?:[eE][+-]?%b)?+" % (WHOLE, WHOLE, WHOLE, WHOLE))
NOT_WHOLE = re.compile(rb"[.eE]")
CONTAINERS = {list, tuple, dict}
FLOAT_BITS = 53
LARGEST_FLOAT_BITS = 1023
NOT_LOOKED_AT = {str, bytes, bool, type(None), Decimal, UUID}
"""Types whose hashes a peer can't foresee, of which there are but two values, or of which any number has one hash."""


class Mark:
    """Stands as the first item of an array that was a map in the data; its keys and values follow in turns."""


MARK = Mark()


class Tables:
    """The tables that will be made of a payload.

    ``limit_parts`` says that few arrays and maps may be keys, ``sets`` that arrays may become sets, and ``texts`` that
    a text may be converted to the number that it stands for.
    """

    def __init__(self, *, limit_parts: bool, sets: bool, texts: bool) -> None:
        self._limit_parts = limit_parts
        self._sets = sets
        self._texts = texts
        self._with_parts = 0
        self._count = 0
        self._left = SLOW

    def check(self, value: Any) -> None:
        """Raise ``ValueError`` for what is decoded without a type, and has tables that cost much.

        Large maps are `MARK` and their keys and values, if other keys than text are possible.
        """
        waiting = [value] if type(value) in CONTAINERS else []
        while waiting:
            part = waiting.pop()
            if type(part) is dict:
                if self._texts and len(part) > LARGE_TABLE and next(_numbers_of_texts(part), None) is not None:
                    self._add(part, in_set=False)  # its other keys were looked at as those of a marked map
                parts: Iterable[Any] = chain(part, part.values())
            else:
                parts = part
                if part and part[0] is MARK:
                    self.check_keys(part[1::2])
                elif self._sets:
                    self._add(part, in_set=True)
            waiting += [one for one in parts if type(one) in CONTAINERS]

    def check_keys(self, keys: Sequence[Any]) -> None:
        """Raise ``ValueError`` for keys of one map that cost much."""
        if self._limit_parts:
            self._with_parts += sum(isinstance(key, list | tuple | Mapping | Mark) for key in _foreseen(keys))
            if self._with_parts > MAX_KEYS_WITH_PARTS:
                raise ValueError(f"more than {MAX_KEYS_WITH_PARTS} arrays and maps as keys")
        self._add(keys, in_set=False)

    def _add(self, values: Collection[Any], *, in_set: bool) -> None:
        if len(values) <= LARGE_TABLE:
            return
        found = [value for value in _foreseen(values) if not isinstance(value, list | tuple | Mapping | Mark)]
        if self._texts:
            found += _numbers_of_texts(values)
        long = [value for value in found if type(value) is int and value.bit_length() > FLOAT_BITS]
        # An integer beyond 64 bits is refused where it is hashed, unless it becomes a float.
        self._fill([value for value in found if type(value) is not int or value.bit_length() <= MAX_BITS], in_set)
        if long:
            floats = [float(value) for value in long if value.bit_length() <= LARGEST_FLOAT_BITS]
            self._fill(floats + [value for value in found if type(value) is float], in_set)

    def _fill(self, values: Sequence[Any], in_set: bool) -> None:
        """Put values into a table. If that takes long, they are looked at closely."""
        if len(values) <= LARGE_TABLE:
            return
        members: set[Any] = set()
        keys: dict[Any, None] = {}
        for start in range(0, len(values), AT_ONCE):
            some = values[start : start + AT_ONCE]
            began = thread_time()
            if in_set:
                members.update(some)
            else:
                keys.update(zip(some, repeat(None), strict=False))
            self._left -= thread_time() - began
            self._left += len(some) * (SLOW_EACH if self._count < MANY else SLOW_EACH_OF_MANY)
            self._count += len(some)
            if self._left < 0:
                if collide(values[: start + AT_ONCE], in_set=in_set):
                    raise ValueError(CHOSEN)
                self._left = SLOW


def _foreseen(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) not in NOT_LOOKED_AT]


def _numbers_of_texts(values: Iterable[Any]) -> Iterator[int | float]:
    """Yield the numbers that texts or bytes stand for, as pydantic reads them."""
    for value in values:
        if type(value) is str:
            text = value.strip().encode("ascii", "replace") if len(value) <= LONGEST_TEXT else b""
        elif type(value) is bytes:
            text = value.strip() if len(value) <= LONGEST_TEXT else b""
        else:
            continue
        if NUMBER.fullmatch(text):
            yield float(text) if NOT_WHOLE.search(text) else int(text)


# What a table does

LEAST_TABLE = 8
LINEAR = 9
"""Places behind each that a set tries next; a dictionary tries none."""
FREE_STEPS = 64
MOST_STEPS = 10_000
STEPS_EACH = 4
"""Steps from a taken place to the next: those of each value that don't count, and how many more a table may take, and
for each of its values. Honest ones whose low bits are alike take 20 on average, and some 500; chosen ones thousands."""
HASH_MASK = 2**64 - 1

Entry = tuple[Any, int]
"""A value and its hash."""


def collide(values: Sequence[Any], *, in_set: bool) -> bool:
    """Return whether values take many steps in the table of a set or a dictionary, which grows as Python's do.

    A dictionary's values keep their order when it grows, so the last size of its table tells enough.
    """
    entries: list[Entry] = [(value, hash(value) & HASH_MASK) for value in values]
    left = MOST_STEPS + STEPS_EACH * len(entries)
    size = LEAST_TABLE
    while not in_set and len(entries) > 2 * size // 3 * 2:
        size *= 2
    while True:
        table: list[Entry | None] = [None] * size
        mask, done, used = size - 1, 0, 0
        most = (3 * mask + 4) // 5 if in_set else 2 * size // 3
        for done, entry in enumerate(entries, 1):  # noqa: B007 - used below
            place: int | None = entry[1] & mask
            if table[entry[1] & mask] is not None:
                place, steps = _search(table, entry, LINEAR if in_set else 0, FREE_STEPS + left)
                left -= max(0, steps - FREE_STEPS)
                if left <= 0:
                    return True
            if place is not None:
                table[place] = entry
                used += 1
                if used >= most:
                    break
        else:
            return False
        if done == len(entries):
            return False
        if in_set:  # what it has goes over by its places
            entries = [one for one in table if one is not None] + entries[done:]
        least = used * (2 if used > 50_000 else 4) + 1 if in_set else 2 * size
        while size < least:
            size *= 2


def _search(table: list[Entry | None], entry: Entry, linear: int, most: int) -> tuple[int | None, int]:
    """Return the free place for a value, or ``None`` if the table has it, and the steps, at most about ``most``."""
    value, value_hash = entry
    mask, rest = len(table) - 1, value_hash
    at = value_hash & mask
    steps = 0
    while steps < most:
        for place in range(at, at + linear + 1) if linear and at + linear <= mask else (at,):
            other = table[place]
            if other is None:
                return place, steps
            if other[1] == value_hash:
                if other[0] == value:
                    return None, steps
                steps += FREE_STEPS  # hardly ever honest, and slow to compare
        steps += 1
        rest >>= 5
        at = (5 * at + rest + 1) & mask
    return None, most
