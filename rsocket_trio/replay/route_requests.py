"""The JSON of requests to sources and sinks, checked before anything is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from rsocket_trio.errors import Invalid, readable
from rsocket_trio.payload import Payload
from rsocket_trio.replay.errors import errors_for_peers

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


class RangeRequest(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to", "packs": "pack"}):
    """A reader's request for a range of rows; without ``end`` also those to come.

    ``packs`` are the formats in which the reader takes packs.
    """

    partition: Whole
    start: Whole
    end: Whole | None = None
    packs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.end is not None and self.end < self.start:
            raise ValueError(f"'to' is {self.end}, below 'from' {self.start}")


class TimesRequest(msgspec.Struct, frozen=True):
    """A request for bounds, and for the positions of a time in microseconds since 1970, or of one by partition."""

    timestamp: Whole | None = None
    timestamps: dict[Whole, Whole] = {}


class PatternRequest(msgspec.Struct, frozen=True):
    """A request for the sources whose routes are like a pattern."""

    pattern: Annotated[str, Meta(max_length=255)] = "*"


class ForgetRequest(msgspec.Struct, frozen=True):
    """A request for the readers of a log, and to forget one before."""

    forget: str | None = None


class StageRequest(msgspec.Struct, frozen=True):
    """A writer's request to stage the rows of an attempt for a partition, of a batch that was planned at an epoch."""

    sink: Name
    attempt: AttemptName
    partition: Whole
    batch: Whole | None = None
    epoch: Whole | None = None
    query: Name | None = None


class StagedRows(msgspec.Struct, frozen=True):
    """An attempt of a batch, and its number of rows."""

    attempt: AttemptName
    rows: Whole


class BatchRequest(msgspec.Struct, Generic[T], frozen=True, rename="camel"):
    """The attempts of a batch in order, each with its number of rows; ``once``: the only batch of its sink.

    ``query`` writes it, ``None`` outside of one; with ``take_over`` it gets the sink of another. ``epoch`` is that of
    its planning.
    """

    sink: Name
    batch: Whole
    attempts: T
    once: bool = False
    query: Name | None = None
    take_over: bool = False
    epoch: Whole | None = None


CommitRequest: TypeAlias = BatchRequest[Mapping[str, int]]
"""The content of a commit of a ledger: the number of rows by attempt."""


class SinkRequest(msgspec.Struct, frozen=True):
    """A request for the next epoch of a sink, or to drop attempts of it."""

    sink: Name
    attempts: list[AttemptName] = []


class WriteEntry(msgspec.Struct, frozen=True):
    """The write that an element belongs to, by its metadata."""

    partition: Whole = 0


def decoded(data: bytes, kind: type[T]) -> T:
    """Return a request from JSON; an empty one has all defaults. Raise ``Invalid``."""
    if len(data) > LONGEST_REQUEST:
        raise Invalid(f"a request of {len(data)} bytes: the limit is {LONGEST_REQUEST}")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the request is not right: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid(f"the request is no JSON: {readable(data[:100])}") from None


class Openable(Protocol):
    """A log or a ledger."""

    async def open(self) -> None:
        """Open it, or do nothing if it is open."""


def command(
    log: Openable, kind: type[T], function: Callable[[T], Awaitable[object]]
) -> Callable[[Payload], Awaitable[bytes]]:
    """Return the handler of a route of ``log`` whose requests are decoded as a ``kind``, and answered with JSON.

    What ``function`` refuses by a ``ValueError`` is sent as Invalid. ``None`` is answered with nothing.
    """

    async def answer(request: Payload) -> bytes:
        with errors_for_peers():
            await log.open()
            try:
                content = await function(decoded(request.data, kind))
            except ValueError as error:
                raise Invalid(str(error)) from error
            return b"" if content is None else msgspec.json.encode(content)

    return answer
