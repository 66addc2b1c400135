"""Arithmetic of positions: limits, splits, and the offsets that Spark keeps.

Every function depends on its arguments only: the same offsets and options plan the same ranges, on every machine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs
import msgspec
from pyspark.sql.datasource import InputPartition

from rsocket_trio.replay.elements import Bounds, Whole
from rsocket_trio.spark.errors import CheckpointError, OptionError
from rsocket_trio.spark.options import EARLIEST, Place, Positions, Times, place_name, position_map

MAX_TASK_ROWS = 1000
"""Rows of several small ranges that one task reads: starting another takes longer than reading them."""
VERSION = 1
"""The version of the format of offsets of one route, which name partitions only."""
ROUTES_VERSION = 2
"""The version of the format of offsets that name routes."""

PositionMap: TypeAlias = dict[Place, int]
"""By route and partition: the next position to read."""


@attrs.frozen
class Range:
    """Positions of one partition, from ``start`` up to, and without, ``end``.

    ``route`` is empty in a query of one route: that of the options.
    """

    partition: int
    start: int
    end: int
    route: str = ""

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.route}{', ' if self.route else ''}{self.partition}: {self.start} to {self.end}"


class RangePartition(InputPartition):
    """The ranges that one task reads, each of one of the server's partitions."""

    def __init__(self, *ranges: Range) -> None:
        super().__init__(ranges)
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"RangePartition({', '.join(map(str, self.ranges))})"


def parse_bounds(answer: bytes) -> dict[int, Bounds]:
    """Parse a server's answer about its partitions. Raise ``ValueError`` if it is malformed."""
    try:
        bounds = msgspec.json.decode(answer, type=dict[Whole, Bounds])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not an answer about partitions: {answer[:200]!r}: {error}") from None
    if not bounds:
        raise ValueError("the server has no partitions")
    return dict(sorted(bounds.items()))


# Offsets


def to_offset(
    fingerprint: str, positions: Mapping[Place, int], first: Mapping[Place, int] | None = None
) -> dict[str, object]:
    """Return the offset that Spark keeps for positions: a JSON object with its keys in order.

    The end of a query's first batch also holds its beginning, ``first``, and so does that of a batch with new routes.
    """
    version = ROUTES_VERSION if any(route for route, _ in positions) else VERSION
    offset = {"v": version, "f": fingerprint, "p": _by_text(positions)}
    return offset if first is None else offset | {"i": _by_text(first)}


def _by_text(positions: Mapping[Place, int]) -> Mapping[str, object]:
    texts: dict[str, dict[str, int]] = {}
    for route, partition in sorted(positions):
        texts.setdefault(route, {})[str(partition)] = positions[route, partition]
    return texts.get("") or texts


def from_offset(offset: Mapping[str, object], fingerprint: str) -> PositionMap:
    """Return the positions of an offset. Raise ``CheckpointError`` for one of another version or other options."""
    return _positions(offset, fingerprint, "p")


def first_of(offset: Mapping[str, object], fingerprint: str) -> PositionMap | None:
    """Return the beginning of a query's first batch from its end, else ``None``. Raise as ``from_offset`` does."""
    return _positions(offset, fingerprint, "i") if "i" in offset else None


def _positions(offset: Mapping[str, object], fingerprint: str, key: str) -> PositionMap:
    check_offset(offset, fingerprint)
    try:
        positions = position_map(offset[key])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's offset {json.dumps(offset)} can't be read: {error}") from None
    if any(bool(route) is not (offset["v"] == ROUTES_VERSION) for route, _ in positions):
        raise CheckpointError(f"the checkpoint's offset {json.dumps(offset)} can't be read: not as in its version")
    return positions


def check_offset(offset: Mapping[str, object], fingerprint: str) -> None:
    """Raise ``CheckpointError`` unless an offset was made by these options and by this version of the format."""
    if offset.get("v") not in (VERSION, ROUTES_VERSION):
        raise CheckpointError(
            f"the checkpoint's offset is of version {offset.get('v')!r}, known are {VERSION} and {ROUTES_VERSION}"
        )
    if offset.get("f") != fingerprint:
        raise CheckpointError(
            "the checkpoint was made with other options: route, positions, payload, interaction and requestData must "
            "stay the same; choose another checkpointLocation to begin anew"
        )


# Planning


def resolve(option: Positions, bounds: Mapping[Place, Bounds], name: str) -> PositionMap:
    """Return an option's position in each partition; partitions that JSON leaves out begin at their earliest.

    Raise ``OptionError`` for a route or a partition that the server does not have.
    """
    named = {} if isinstance(option, str) else dict(option)
    check_places(named, bounds, name)
    is_start = option == EARLIEST if isinstance(option, str) else name == "startingPosition"
    return {place: edges.earliest if is_start else edges.latest for place, edges in bounds.items()} | named


def times_at(option: Times, bounds: Mapping[Place, Bounds], name: str) -> dict[Place, int]:
    """Return the time of each partition that the option ``name`` has times for. Raise ``OptionError``."""
    times: dict[Place, int] = {}
    # One time for all comes first, and a partition of its own last: the narrower one holds.
    for (route, partition), time in sorted(option, key=lambda pair: (bool(pair[0][0]), pair[0][1] is not None)):
        if partition is not None:
            check_places([(route, partition)], bounds, name)
            times[route, partition] = time
            continue
        places = [place for place in bounds if not route or place[0] == route]
        if not places:
            raise OptionError(f"option {name!r} names route {route!r}, those that are read are {routes_at(bounds)}")
        times |= dict.fromkeys(places, time)
    return times


def check_places(places: Collection[Place], bounds: Mapping[Place, Bounds], name: str) -> None:
    """Raise ``OptionError`` if an option names a route or a partition that the server does not have."""
    unknown = sorted(set(places) - bounds.keys())
    if unknown:
        route = unknown[0][0]
        there = partitions_at(bounds, route)
        if there:
            raise OptionError(f"option {name!r} names {place_name(unknown[0])}, the server has {there}")
        raise OptionError(f"option {name!r} names route {route!r}, those that are read are {routes_at(bounds)}")


def partitions_at(places: Iterable[Place], route: str) -> list[int]:
    return [partition for name, partition in places if name == route]


def routes_at(places: Iterable[Place]) -> str:
    """Return the names of the routes, for a message."""
    return ", ".join(dict.fromkeys(route for route, _ in places)) or "none"


def advance(start: Mapping[Place, int], latest: Mapping[Place, int], limit: int | None) -> PositionMap:
    """Return the end of a read of up to ``limit`` rows: each partition gets its share of the available rows.

    Partitions that ``start`` does not know are those of ``latest`` at 0. Never goes back.
    """
    begin = {place: start.get(place, 0) for place in {**start, **latest}}
    available = {place: max(latest.get(place, 0) - begin[place], 0) for place in begin}
    total = sum(available.values())
    if limit is None or total <= limit:
        return {place: begin[place] + available[place] for place in sorted(begin)}
    shares = {place: available[place] * limit // total for place in begin}
    # The remainder of rounding down goes to the partitions with most to read.
    left = limit - sum(shares.values())
    for place in sorted(begin, key=lambda key: (-available[key], key)):
        more = min(left, available[place] - shares[place])
        shares[place] += more
        left -= more
    return {place: begin[place] + shares[place] for place in sorted(begin)}


def ranges_between(start: Mapping[Place, int], end: Mapping[Place, int]) -> list[Range]:
    """Return the ranges between two offsets, by route and partition; empty ones are left out."""
    return [
        Range(place[1], start.get(place, 0), end[place], place[0])
        for place in sorted(end)
        if end[place] > start.get(place, 0)
    ]


def split(ranges: Sequence[Range], pieces: int | None) -> list[Range]:
    """Cut the ranges into at least ``pieces``, if there are rows for so many; the largest are cut most."""
    total = sum(whole.size for whole in ranges)
    if not pieces or len(ranges) >= pieces or not total:
        return list(ranges)
    counts = [min(max(1, whole.size * pieces // total), whole.size) for whole in ranges]
    while sum(counts) < min(pieces, total):
        # The one whose pieces are largest gets one more.
        index = max(range(len(ranges)), key=lambda i: (ranges[i].size / counts[i], -i))
        counts[index] += 1
    return [piece for whole, count in zip(ranges, counts, strict=True) for piece in _cut(whole, count)]


def gathered(ranges: Iterable[Range]) -> list[list[Range]]:
    """Return the ranges of each task: small ones are read together."""
    tasks: list[list[Range]] = []
    rows = 0
    for small in ranges:
        if not tasks or rows + small.size > MAX_TASK_ROWS:
            tasks.append([])
            rows = 0
        tasks[-1].append(small)
        rows += small.size
    return tasks


def _cut(whole: Range, count: int) -> list[Range]:
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [Range(whole.partition, low, high, whole.route) for low, high in itertools.pairwise(edges)]
