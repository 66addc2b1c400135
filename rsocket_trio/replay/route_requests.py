"""Parses the JSON of requests to sources and sinks, and checks it before anything is done.

All functions raise ``Invalid``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rsocket_trio.errors import Invalid, readable
from rsocket_trio.replay.named_readers import reader_name
from rsocket_trio.values import value

LARGEST = 2**63 - 1
"""The largest position, batch or number of rows."""
LONGEST_SINK = 256
"""Characters of a sink's name."""
LONGEST_PATTERN = 255
"""Characters of a pattern of routes."""
LONGEST_REQUEST = 2**20
"""Bytes of a request at most: that is a commit of some 15,000 attempts."""
_ATTEMPT = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)


@value
class RangeRequest:
    """A reader's request for a range of rows; without ``end`` also those to come.

    ``packs`` are the formats in which the reader takes packs, those that it likes best first.
    """

    partition: int
    start: int
    end: int | None
    packs: tuple[str, ...] = ()


@value
class StageRequest:
    """A writer's request to stage the rows of an attempt for a partition."""

    sink: str
    attempt: str
    partition: int


@value
class CommitRequest:
    """The attempts of a batch in order, each with its number of rows; ``once``: the only batch of its sink."""

    sink: str
    batch: int
    attempts: dict[str, int]
    once: bool


@value
class AbortRequest:
    """The attempts of a sink that are to be dropped."""

    sink: str
    attempts: list[str]


def read_range(data: bytes) -> RangeRequest:
    """Return the request of a source's route."""
    said = _object(data)
    start, end = _whole(said, "from"), said.get("to")
    if end is not None:
        end = _whole(said, "to")
        if end < start:
            raise Invalid(f"'to' is {end}, below 'from' {start}")
    packs = said.get("pack", [])
    if not isinstance(packs, list) or not all(isinstance(name, str) for name in packs):
        raise Invalid("'pack' is a list of names")
    return RangeRequest(_whole(said, "partition"), start, end, tuple(packs))


def read_times(data: bytes, partitions: Sequence[int]) -> dict[int, int]:
    """Return the times of a request for bounds, by partition, in microseconds since 1970; none of an empty one."""
    if not data:
        return {}
    said = _object(data)
    if "timestamp" in said:
        return dict.fromkeys(partitions, _whole(said, "timestamp"))
    times = said.get("timestamps", {})
    if not isinstance(times, dict) or not all(_is_partition(name) for name in times):
        raise Invalid("'timestamps' is an object of partitions by their numbers")
    return {int(name): _whole(times, name) for name in times}


def read_pattern(data: bytes) -> str:
    """Return the pattern of routes in a request for the list of sources; that of all routes for an empty one."""
    pattern = _object(data).get("pattern", "*") if data else "*"
    if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
        raise Invalid(f"'pattern' is a text of up to {LONGEST_PATTERN} characters")
    return pattern


@value
class Acknowledgement:
    """The positions by partition below which a reader needs nothing, and its name, ``None`` without one."""

    ends: dict[int, int]
    reader: str | None = None


def read_acknowledgement(data: bytes) -> Acknowledgement:
    """Return the content of an acknowledgement."""
    said = _object(data)
    reader = _reader(said, "reader") if "reader" in said else None
    ends = {name: end for name, end in said.items() if name != "reader"}
    if not all(map(_is_partition, ends)):
        raise Invalid("an acknowledgement names partitions by their numbers")
    return Acknowledgement({int(name): _whole(ends, name) for name in ends}, reader)


def read_forgotten(data: bytes) -> str | None:
    """Return the reader that a request for the readers forgets, ``None`` if it only asks."""
    return _reader(_object(data), "forget") if data else None


def _reader(said: Mapping[str, Any], field: str) -> str:
    try:
        return reader_name(said.get(field))
    except ValueError as error:
        raise Invalid(f"'{field}': {error}") from None


def _is_partition(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 20


def read_stage(data: bytes) -> StageRequest:
    """Return the request that opens a stage."""
    said = _object(data)
    return StageRequest(_sink(said), _attempt(said.get("attempt")), _whole(said, "partition"))


def read_commit(data: bytes) -> CommitRequest:
    """Return the request that commits a batch."""
    said = _object(data)
    attempts: dict[str, int] = {}
    for one in _list(said, "attempts"):
        if not isinstance(one, dict):
            raise Invalid("each of 'attempts' is an object of 'attempt' and 'rows'")
        name = _attempt(one.get("attempt"))
        if name in attempts:
            raise Invalid(f"attempt {name} is named twice")
        attempts[name] = _whole(one, "rows")
    once = said.get("once", False)
    if not isinstance(once, bool):
        raise Invalid("'once' is true or false")
    return CommitRequest(_sink(said), _whole(said, "batch"), attempts, once)


def read_abort(data: bytes) -> AbortRequest:
    """Return the request that aborts attempts."""
    said = _object(data)
    return AbortRequest(_sink(said), [_attempt(one) for one in _list(said, "attempts")])


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > LONGEST_REQUEST:
        raise Invalid(f"a request of {len(data)} bytes: the limit is {LONGEST_REQUEST}")
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise Invalid(f"the request is no JSON: {readable(data[:100])}") from None
    if not isinstance(said, dict):
        raise Invalid("the request is no JSON object")
    return said


def _whole(said: Mapping[str, Any], name: str) -> int:
    number = said.get(name)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST:
        raise Invalid(f"'{readable(name)}' is a whole number from 0 to 2^63 - 1")
    return number


def _list(said: Mapping[str, Any], name: str) -> list[Any]:
    found = said.get(name)
    if not isinstance(found, list):
        raise Invalid(f"'{name}' is a list")
    return found


def _sink(said: Mapping[str, Any]) -> str:
    sink = said.get("sink")
    if not isinstance(sink, str) or not 1 <= len(sink) <= LONGEST_SINK:
        raise Invalid(f"'sink' is a text of 1 to {LONGEST_SINK} characters")
    return sink


def _attempt(name: object) -> str:
    # The name becomes a file name, so no other characters may pass.
    if not isinstance(name, str) or not _ATTEMPT.fullmatch(name):
        raise Invalid("an attempt is a UUID, or another text of 1 to 64 letters, digits, '-' and '_'")
    return name
