"""The list of a server's sources: their routes, and the bounds of their partitions."""

from __future__ import annotations

import fnmatch
import re
import weakref
from typing import Final

import msgspec
import trio

from rsocket_trio import Payload, Responder
from rsocket_trio.errors import readable
from rsocket_trio.replay.errors import CorruptLog, ReplayError
from rsocket_trio.replay.log import ReplayableLog
from rsocket_trio.replay.route_requests import PatternRequest, Whole, decoded

SOURCES_ROUTE: Final = "rsocket-trio.sources"
"""The route on which a server lists its sources."""


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of a partition, and the position of the time that was asked for."""

    earliest: Whole
    latest: Whole
    at: Whole | None = None

    def __post_init__(self) -> None:
        if self.latest < self.earliest:
            raise ValueError(f"a partition from {self.earliest} to {self.latest}: not possible")


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source of a server: the bounds of its partitions, and its ``route``, which is the key to it in the list.

    ``problem`` says why the log behind it cannot be opened; then there are no ``partitions``.
    """

    partitions: dict[Whole, Bounds] = {}
    problem: str | None = None
    route: str = ""

    def __post_init__(self) -> None:
        if not self.partitions and self.problem is None:
            raise ValueError("a source without partitions")


class SourcesAnswer(msgspec.Struct, frozen=True):
    """The list of sources, by route."""

    sources: dict[str, Source]


_logs: weakref.WeakKeyDictionary[Responder, dict[str, ReplayableLog]] = weakref.WeakKeyDictionary()
"""The logs that each responder serves, by route."""


def list_source(responder: Responder, route: str, log: ReplayableLog) -> None:
    """Add a source to the list of ``responder``, and serve that list from the first one on."""
    if (logs := _logs.get(responder)) is None:
        logs = _logs[responder] = {}

        async def answer(request: Payload) -> bytes:
            pattern = decoded(request.data, PatternRequest).pattern
            sources = {name: await listed(logs[name]) for name in sorted(logs) if is_like(name, pattern)}
            return msgspec.json.encode(SourcesAnswer(sources))

        responder.request_response(SOURCES_ROUTE)(answer)
    logs[route] = log


async def listed(log: ReplayableLog) -> Source:
    """Return the bounds of a log, or why it can't be opened, without the name of a file."""
    try:
        await log.open()
        return Source(bounds_of(log))
    except CorruptLog as error:
        return Source(problem=f"the log is damaged: {error.reason}")
    except (ReplayError, OSError, ValueError, ModuleNotFoundError, trio.ClosedResourceError) as error:
        return Source(problem=f"the log can't be opened: {type(error).__name__}")


def bounds_of(log: ReplayableLog) -> dict[int, Bounds]:
    """Return the bounds of all partitions of a log."""
    return {partition: Bounds(*log.bounds(partition)) for partition in log.partitions()}


def is_like(route: str, pattern: str) -> bool:
    """Return whether a route is like a pattern, where ``*`` stands for any text and ``?`` for one character."""
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), route) is not None


def read_sources(answer: bytes) -> list[Source]:
    """Return the sources that a server listed, by route. Raise ``ValueError`` for a malformed answer."""
    try:
        sources = msgspec.json.decode(answer, type=SourcesAnswer).sources
    except (ValueError, RecursionError):
        raise ValueError(f"not a list of sources: {readable(answer[:200])}") from None
    return [
        Source(dict(sorted(source.partitions.items())), source.problem and readable(source.problem), route)
        for route, source in sorted(sources.items())
    ]
