"""Refuses numbers that were chosen so that each, as a key or a member of a set, collides with many others.

A number goes to the place of its hash in Python's table; where that is taken it tries others, which its hash says as
well. A peer that knows this can send 20,000 numbers of which each tries thousands of places, and no two have one hash.
So the numbers of large maps and sets are put into a table a few at a time before those are made (`Tables`). Where that
takes long the places that they try are counted, and too many are refused.

Arrays and maps that are keys are counted on the way: any number of those may have one hash.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from time import thread_time
from typing import Any

from rsocket_trio.hashed_integers import MAX_BITS

CHOSEN = "numbers as keys or in a set that were chosen to collide"
MAX_KEYS_WITH_PARTS = 100
"""Arrays and maps that are keys of data without a type."""
LARGE_TABLE = 512
"""Numbers that may all collide, as long as there are no more in one table."""
AT_ONCE = 128
SLOW = 0.008
SLOW_EACH = 1.5e-7
"""Seconds of CPU that all numbers of a payload, and each of them, may take before places are counted."""
LONGEST_TEXT = 1000
"""Characters of a text that may stand for a number; of longer ones there are too few."""
FIRST_OF_NUMBERS = frozenset("0123456789+-. \t\n\r")
NUMBER = re.compile(r"\s*[+-]?(?:[0-9]++(?:_[0-9]++)*+(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+\s*")
NOT_WHOLE = re.compile(r"[.eE]")
CONTAINERS = {list, tuple, dict}
ATOMS = {int, float, str, bytes, bool}


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
        self._left = SLOW

    def check(self, value: Any) -> None:
        """Raise ``ValueError`` for what is decoded without a type, and has tables that cost much.

        Large maps are `MARK` and their keys and values, if other keys than text are possible.
        """
        waiting = [value] if type(value) in CONTAINERS else []
        while waiting:
            part = waiting.pop()
            if type(part) is dict:
                if self._texts:
                    self._add(part, in_set=False)
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
            others = [key for key in keys if type(key) not in ATOMS]
            self._with_parts += sum(isinstance(key, list | tuple | Mapping) for key in others)
            if self._with_parts > MAX_KEYS_WITH_PARTS:
                raise ValueError(f"more than {MAX_KEYS_WITH_PARTS} arrays and maps as keys")
        self._add(keys, in_set=False)

    def _add(self, values: Collection[Any], *, in_set: bool) -> None:
        if len(values) <= LARGE_TABLE:
            return
        numbers = [number for number in values if type(number) in (int, float)]
        if self._texts:
            numbers += _numbers_of_texts(values)
        # Longer ones are refused where they are hashed.
        numbers = [number for number in numbers if type(number) is float or number.bit_length() <= MAX_BITS]
        self._fill(numbers, in_set)
        if any(type(number) is int and number.bit_length() > 53 for number in numbers):
            self._fill([float(number) for number in numbers], in_set)  # which have hashes of their own

    def _fill(self, numbers: Sequence[Any], in_set: bool) -> None:
        """Put numbers into a table. The time is only a reason to look: nothing is refused for it."""
        if len(numbers) <= LARGE_TABLE:
            return
        members: set[Any] = set()
        keys: dict[Any, None] = {}
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            began = thread_time()
            if in_set:
                members.update(some)
            else:
                keys.update(zip(some, repeat(None), strict=False))
            self._left -= thread_time() - began - len(some) * SLOW_EACH
            if self._left < 0:
                if collide(numbers[: start + AT_ONCE], in_set=in_set):
                    raise ValueError(CHOSEN)
                self._left = SLOW


def _numbers_of_texts(texts: Iterable[Any]) -> Iterator[int | float]:
    for text in texts:
        if type(text) is str and text[:1] in FIRST_OF_NUMBERS and len(text) <= LONGEST_TEXT and NUMBER.fullmatch(text):
            yield float(text) if NOT_WHOLE.search(text) else int(text)


# What a table does

LEAST_TABLE = 8
LINEAR = 9
"""Places behind each that a set tries next; a dictionary tries none."""
MOST_STEPS = 100_000
STEPS_EACH = 16
FREE_STEPS = 10_000
"""Steps from a taken place to the next that a table may take, once tables have taken long: so many for each number and
beyond those, and no more than the most."""
HASH_MASK = 2**64 - 1

Entry = tuple[Any, int]
"""A number and its hash."""


def collide(numbers: Sequence[Any], *, in_set: bool) -> bool:
    """Return whether numbers take many steps in the table of a set or a dictionary, which grows as Python's do.

    A dictionary's numbers keep their order when it grows, so the last size of its table tells enough.
    """
    entries: list[Entry] = [(number, hash(number) & HASH_MASK) for number in numbers]
    left = min(MOST_STEPS, FREE_STEPS + STEPS_EACH * len(entries))
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
                place, steps = _search(table, entry, LINEAR if in_set else 0, left)
                left -= steps
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
    """Return the free place for a number, or ``None`` if the table has it, and the steps, at most about ``most``."""
    number, number_hash = entry
    mask, rest = len(table) - 1, number_hash
    at = number_hash & mask
    for steps in range(most):
        for place in range(at, at + linear + 1) if linear and at + linear <= mask else (at,):
            other = table[place]
            if other is None:
                return place, steps
            if other[1] == number_hash and other[0] == number:
                return None, steps
        rest >>= 5
        at = (5 * at + rest + 1) & mask
    return None, most
