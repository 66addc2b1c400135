"""The JSON of requests to sources and sinks, checked before anything is done.

All functions raise ``Invalid``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from rsocket_trio.errors import Invalid, readable
from rsocket_trio.replay.named_readers import reader_name
from rsocket_trio.values import value

T = TypeVar("T")

LARGEST: Final = 2**63 - 1
"""The largest position, batch or number of rows."""
LONGEST_SINK: Final = 256
"""Characters of a sink's name, and of a query's id."""
LONGEST_REQUEST = 2**20
"""Bytes of a request at most: that is a commit of some 15,000 attempts."""

Whole = Annotated[int, Meta(ge=0, le=LARGEST)]
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_SINK)]
AttemptName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]
PartitionName = Annotated[str, Meta(pattern=r"^[0-9]{1,19}\Z")]


class RangeRequest(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to", "packs": "pack"}):
    """A reader's request for a range of rows; without ``end`` also those to come.

    ``packs`` are the formats in which the reader takes packs.
    """

    partition: Whole
    start: Whole
    end: Whole | None = None
    packs: tuple[str, ...] = ()


class StageRequest(msgspec.Struct, frozen=True):
    """A writer's request to stage the rows of an attempt for a partition, of a batch that was planned at an epoch."""

    sink: Name
    attempt: AttemptName
    partition: Whole
    batch: Whole | None = None
    epoch: Whole | None = None
    query: Name | None = None


@value
class CommitRequest:
    """The attempts of a batch in order, each with its number of rows; ``once``: the only batch of its sink.

    ``query`` writes it, ``None`` outside of one; with ``take_over`` it gets the sink of another. ``epoch`` is that of
    its planning.
    """

    sink: str
    batch: int
    attempts: Mapping[str, int]
    once: bool = False
    query: str | None = None
    take_over: bool = False
    epoch: int | None = None


class AbortRequest(msgspec.Struct, frozen=True):
    """The attempts of a sink that are to be dropped."""

    sink: Name
    attempts: list[AttemptName]


class Acknowledgement(msgspec.Struct, frozen=True):
    """The positions by partition below which a reader needs nothing, and its name, ``None`` without one."""

    ends: dict[int, int]
    reader: str | None = None


class _Staged(msgspec.Struct, frozen=True):
    attempt: AttemptName
    rows: Whole


class _Commit(msgspec.Struct, frozen=True, rename="camel"):
    sink: Name
    batch: Whole
    attempts: list[_Staged]
    once: bool = False
    query: Name | None = None
    take_over: bool = False
    epoch: Whole | None = None


class _Epoch(msgspec.Struct, frozen=True):
    sink: Name


class _Times(msgspec.Struct, frozen=True):
    timestamp: Whole | None = None
    timestamps: dict[PartitionName, Whole] = {}


class _Pattern(msgspec.Struct, frozen=True):
    pattern: Annotated[str, Meta(max_length=255)] = "*"


class _Forgotten(msgspec.Struct, frozen=True):
    forget: str


def _decoded(data: bytes, kind: type[T]) -> T:
    if len(data) > LONGEST_REQUEST:
        raise Invalid(f"a request of {len(data)} bytes: the limit is {LONGEST_REQUEST}")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the request is not right: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid(f"the request is no JSON: {readable(data[:100])}") from None


def read_range(data: bytes) -> RangeRequest:
    """Return the request of a source's route."""
    wanted = _decoded(data, RangeRequest)
    if wanted.end is not None and wanted.end < wanted.start:
        raise Invalid(f"'to' is {wanted.end}, below 'from' {wanted.start}")
    return wanted


def read_times(data: bytes, partitions: Sequence[int]) -> dict[int, int]:
    """Return the times of a request for bounds, by partition, in microseconds since 1970; none of an empty one."""
    if not data:
        return {}
    wanted = _decoded(data, _Times)
    if wanted.timestamp is not None:
        return dict.fromkeys(partitions, wanted.timestamp)
    return {int(name): time for name, time in wanted.timestamps.items()}


def read_pattern(data: bytes) -> str:
    """Return the pattern of routes in a request for the list of sources; that of all routes for an empty one."""
    return _decoded(data or b"{}", _Pattern).pattern


def read_acknowledgement(data: bytes) -> Acknowledgement:
    """Return the content of an acknowledgement: positions by partition, and the name of the reader among them."""
    said = _decoded(data, dict[str, Whole | str])
    reader = _reader(said.pop("reader")) if "reader" in said else None
    try:
        ends = msgspec.convert(said, dict[PartitionName, Whole])
    except msgspec.ValidationError as error:
        raise Invalid(f"an acknowledgement names partitions by their numbers: {error}") from None
    return Acknowledgement({int(name): end for name, end in ends.items()}, reader)


def read_forgotten(data: bytes) -> str | None:
    """Return the reader that a request for the readers forgets, ``None`` if it only asks."""
    return _reader(_decoded(data, _Forgotten).forget) if data else None


def _reader(name: object) -> str:
    try:
        return reader_name(name)
    except ValueError as error:
        raise Invalid(str(error)) from None


def read_stage(data: bytes) -> StageRequest:
    """Return the request that opens a stage."""
    return _decoded(data, StageRequest)


def read_commit(data: bytes) -> CommitRequest:
    """Return the request that commits a batch."""
    said = _decoded(data, _Commit)
    attempts = {one.attempt: one.rows for one in said.attempts}
    if len(attempts) < len(said.attempts):
        raise Invalid("an attempt is named twice")
    return CommitRequest(said.sink, said.batch, attempts, said.once, said.query, said.take_over, said.epoch)


def read_abort(data: bytes) -> AbortRequest:
    """Return the request that aborts attempts."""
    return _decoded(data, AbortRequest)


def read_epoch(data: bytes) -> str:
    """Return the sink of a request for an epoch."""
    return _decoded(data, _Epoch).sink
