"""Checks the deliveries of a run: items lost, duplicated or reordered, handlers run twice, calls that never ended."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Literal, TypeAlias

import attrs

Direction: TypeAlias = Literal["up", "down"]
"""``up`` is from the requester to the responder."""
Mark: TypeAlias = tuple[int, int]
"""Size and checksum: what tells one item from another."""


@attrs.frozen(kw_only=True)
class Verdict:
    """The faults that a ``DeliveryChecker`` found, a line of text each; all empty if there are none."""

    lost: tuple[str, ...] = ()
    """Items that never came: something behind them did, or the end of their stream."""
    duplicated: tuple[str, ...] = ()
    """Items that came again."""
    unexpected: tuple[str, ...] = ()
    """Items that were never offered on that stream, or whose ``send`` failed."""
    reordered: tuple[str, ...] = ()
    """Items that came behind one that was sent later."""
    restarted: tuple[str, ...] = ()
    """Handlers that ran more than once for one request."""
    unfinished: tuple[str, ...] = ()
    """Calls and handlers that never ended."""

    @property
    def is_clean(self) -> bool:
        """Return whether there is no fault."""
        return not any(attrs.astuple(self))

    def __str__(self) -> str:
        faults = attrs.asdict(self)
        return "\n".join(f"{what}: {line}" for what, lines in faults.items() for line in lines) or "clean"


@attrs.define
class _Flow:
    """One direction of one stream. ``late`` are items that something overtook."""

    name: str
    items: list[Mark] = attrs.field(factory=list)
    failed: set[int] = attrs.field(factory=set)
    arrived: int = 0
    late: set[int] = attrs.field(factory=set)
    is_complete: bool = False

    def next_number(self) -> int:
        number = self.arrived
        while number in self.failed:
            number += 1
        return number

    def describe(self, number: int) -> str:
        return f"{self.name} item {number} of {self.items[number][0]} bytes"

    def lost(self) -> Iterator[str]:
        numbers = set(self.late)
        if self.is_complete:
            numbers.update(range(self.arrived, len(self.items)))
        for number in sorted(numbers - self.failed):
            yield self.describe(number)


class DeliveryChecker:
    """Makes items, is told of their fate, and reports what was lost, repeated or out of order.

    An item holds its stream, direction, number and a checksum as far as its size allows: a small item holds a part, and
    an empty one is known by its place only.
    """

    def __init__(self) -> None:
        self._flows: dict[tuple[str, Direction], _Flow] = {}
        self._starts: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._wrong: dict[str, list[str]] = {"duplicated": [], "unexpected": [], "reordered": []}

    # Items

    def offer(self, stream: str, direction: Direction, size: int) -> bytes:
        """Return the next item of a stream, ``size`` bytes, to be sent now.

        ``stream`` is any name; ``direction`` is ``"up"``, from the requester to the responder, or ``"down"``.
        """
        flow = self._flow(stream, direction)
        number = len(flow.items)
        item = made(stream, direction, number, size)
        flow.items.append((size, zlib.crc32(item)))
        return item

    def refused(self, stream: str, direction: Direction) -> None:
        """Note that the last item of ``stream`` in this ``direction`` was not sent: it must not arrive."""
        flow = self._flow(stream, direction)
        number = len(flow.items) - 1
        flow.failed.add(number)
        if number < flow.arrived and number not in flow.late:
            self._wrong["unexpected"].append(f"{flow.describe(number)}, whose send failed")

    def received(self, stream: str, direction: Direction, item: bytes) -> None:
        """Note that ``item`` arrived on ``stream`` in this ``direction``."""
        flow = self._flow(stream, direction)
        mark = len(item), zlib.crc32(item)
        due = flow.next_number()
        if due < len(flow.items) and flow.items[due] == mark:
            flow.arrived = due + 1
            return
        numbers = [number for number, offered in enumerate(flow.items) if offered == mark]
        ahead = [number for number in numbers if number > due and number not in flow.failed]
        late = [number for number in numbers if number in flow.late]
        if late:
            flow.late.discard(late[0])
            self._wrong["reordered"].append(flow.describe(late[0]))
        elif ahead:
            flow.late.update(number for number in range(due, ahead[0]) if number not in flow.failed)
            flow.arrived = ahead[0] + 1
        elif numbers and min(numbers) < due and min(numbers) not in flow.failed:
            self._wrong["duplicated"].append(flow.describe(numbers[0]))
        else:
            self._wrong["unexpected"].append(f"{flow.name}: {len(item)} bytes, {item[:16].hex()}")

    def completed(self, stream: str, direction: Direction) -> None:
        """Note that the reader of ``stream`` in this ``direction`` saw its completion: everything must have arrived."""
        self._flow(stream, direction).is_complete = True

    # Handlers and calls

    @contextmanager
    def handler(self, stream: str) -> Iterator[None]:
        """Wrap the body of the handler of ``stream``, from its first step to its last."""
        self._starts[stream] += 1
        with self._at_work(f"handler of {stream}"):
            yield

    @contextmanager
    def call(self, stream: str) -> Iterator[None]:
        """Wrap the call that requests ``stream``."""
        with self._at_work(f"call of {stream}"):
            yield

    def verdict(self) -> Verdict:
        """Return the faults that were found so far."""
        return Verdict(
            lost=tuple(line for flow in self._flows.values() for line in flow.lost()),
            restarted=tuple(f"handler of {name}, {count} times" for name, count in self._starts.items() if count > 1),
            unfinished=tuple(name for name, count in self._open.items() if count),
            **{what: tuple(lines) for what, lines in self._wrong.items()},
        )

    @contextmanager
    def _at_work(self, name: str) -> Iterator[None]:
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1

    def _flow(self, stream: str, direction: Direction) -> _Flow:
        return self._flows.setdefault((stream, direction), _Flow(f"{stream} {direction}"))


def made(stream: str, direction: Direction, number: int, size: int) -> bytes:
    """Return an item: a checksum of the rest, its number, its stream and direction, its size, and filling."""
    label = f"{stream} {direction} {size} ".encode()
    rest = number.to_bytes(4, "big") + label
    missing = size - 4 - len(rest)
    if missing > 0:
        rest += Random(zlib.crc32(rest)).randbytes(min(missing, 64)) * (missing // 64 + 1)
        rest = rest[: size - 4]
    return (zlib.crc32(rest).to_bytes(4, "big") + rest)[:size]
