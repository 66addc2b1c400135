"""The list of a server's sources: their routes, and the bounds of their partitions."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Final

import msgspec
import trio

from rsocket_trio import Payload, Responder
from rsocket_trio.errors import readable
from rsocket_trio.replay.errors import CorruptLog, ReplayError
from rsocket_trio.replay.log import ReplayableLog
from rsocket_trio.replay.route_requests import PartitionName, Whole, read_pattern
from rsocket_trio.values import value

SOURCES_ROUTE: Final = "rsocket-trio.sources"
"""The route on which a server lists its sources."""


@value
class Source:
    """A source of a server: its ``route``, and by partition the earliest and the latest position.

    ``problem`` says why the log behind it cannot be opened; then there are no ``partitions``.
    """

    route: str
    partitions: Mapping[int, tuple[int, int]]
    problem: str | None = None


class _Bounds(msgspec.Struct, frozen=True):
    earliest: Whole
    latest: Whole


class _Listed(msgspec.Struct, frozen=True):
    partitions: dict[PartitionName, _Bounds] = {}
    problem: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    sources: dict[str, _Listed]


class SourceList:
    """The sources that a responder serves, by route."""

    def __init__(self) -> None:
        self.logs: dict[str, ReplayableLog] = {}

    async def answer(self, request: Payload) -> bytes:
        """Answer a request for the list, which may name a pattern of routes."""
        pattern = read_pattern(request.data)
        told: dict[str, object] = {}
        for route, log in sorted(self.logs.items()):
            if not is_like(route, pattern):
                continue
            try:
                await log.open()
                told[route] = {"partitions": bounds_of(log)}
            except CorruptLog as error:
                # The name of the file stays here.
                told[route] = {"problem": f"the log is damaged: {error.reason}"}
            except (ReplayError, OSError, ValueError, ModuleNotFoundError, trio.ClosedResourceError) as error:
                told[route] = {"problem": f"the log can't be opened: {type(error).__name__}"}
        return json.dumps({"sources": told}, separators=(",", ":")).encode()


_lists: weakref.WeakKeyDictionary[Responder, SourceList] = weakref.WeakKeyDictionary()


def list_source(responder: Responder, route: str, log: ReplayableLog) -> None:
    """Add a source to the list of ``responder``, and serve that list from the first one on."""
    found = _lists.get(responder)
    if found is None:
        found = SourceList()
        responder.request_response(SOURCES_ROUTE)(found.answer)
        _lists[responder] = found
    found.logs[route] = log


def bounds_of(log: ReplayableLog) -> dict[str, dict[str, int]]:
    """Return the bounds of all partitions of a log, for JSON."""
    told = {}
    for partition in log.partitions():
        earliest, latest = log.bounds(partition)
        told[str(partition)] = {"earliest": earliest, "latest": latest}
    return told


def is_like(route: str, pattern: str) -> bool:
    """Return whether a route is like a pattern, where ``*`` stands for any text and ``?`` for one character."""
    # At a difference only the last star takes more, so the time is bounded by the product of the lengths.
    at = place = taken = 0
    star = -1
    while at < len(route):
        if place < len(pattern) and pattern[place] == "*":
            star, taken = place, at
            place += 1
        elif place < len(pattern) and pattern[place] in ("?", route[at]):
            at += 1
            place += 1
        elif star >= 0:
            taken += 1
            at, place = taken, star + 1
        else:
            return False
    return pattern[place:].strip("*") == ""


def read_sources(answer: bytes) -> list[Source]:
    """Return the sources that a server listed, by route. Raise ``ValueError`` for a malformed answer."""
    try:
        listed = msgspec.json.decode(answer, type=_Answer).sources
    except (ValueError, RecursionError):
        raise ValueError(f"not a list of sources: {readable(answer[:200])}") from None
    return [_source(route, listed[route]) for route in sorted(listed)]


def _source(route: str, said: _Listed) -> Source:
    if not said.partitions and said.problem is None:
        raise ValueError(f"source {readable(route)!r} has no partitions")
    found = {}
    for name, bounds in said.partitions.items():
        if bounds.latest < bounds.earliest:
            raise ValueError(
                f"partition {readable(name)} of source {readable(route)!r} from {bounds.earliest} to {bounds.latest}: "
                "not possible"
            )
        found[int(name)] = bounds.earliest, bounds.latest
    return Source(route, dict(sorted(found.items())), None if said.problem is None else readable(said.problem))
