"""Asks a server for its sources: the routes that a query reads, and the bounds of their partitions."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

import trio

from rsocket_trio import Connection, ConnectionClosed, Rejected, RemoteProtocolError
from rsocket_trio.errors import RSocketError
from rsocket_trio.replay.source_routes import SOURCES_ROUTE, Source, is_like, read_sources
from rsocket_trio.spark.background import background
from rsocket_trio.spark.checks import checked
from rsocket_trio.spark.connections import Pool, request, request_over
from rsocket_trio.spark.diagnosis import diagnosed
from rsocket_trio.spark.hosting import in_one_line
from rsocket_trio.spark.mistakes import PASSING_FOR_READS, SourceError, is_missing_route, unread
from rsocket_trio.spark.options import OptionError, Options, Place, Times, Use, parse_options, place_name
from rsocket_trio.spark.protocol import OFFSETS_ROUTE
from rsocket_trio.spark.ranges import Bounds, PositionMap, parse_bounds, times_at

logger = logging.getLogger("rsocket_trio.spark")

ROUTES_AT_ONCE = 16
"""Routes whose bounds are asked for at the same time."""


class Unanswered(Exception):
    """The server did not say what it has: the ``error``, and the ``route`` that was read, empty for that of the query;
    ``SOURCES_ROUTE`` if it was the list of sources.
    """

    def __init__(self, route: str, error: Exception) -> None:
        super().__init__(route, error)
        self.route = route
        self.error = error


# One route


async def ask_bounds(pool: Pool, options: Options, times: Mapping[int, int] | None = None) -> dict[int, Bounds]:
    """Ask the server for the current bounds of its partitions, and by partition for the positions of ``times``.

    Raise ``ConnectionLost`` once ``reconnectMaxAttempts`` tries failed, a ``StreamError`` if the server refuses, and
    ``RemoteProtocolError`` for a malformed answer.
    """
    data = b"" if times is None else json.dumps({"timestamps": times}).encode()
    answer = await request(pool, options, options.route + OFFSETS_ROUTE, data, _may_pass)
    return _read_bounds(options, answer)


async def bounds_at(pool: Pool, connection: Connection, options: Options) -> dict[int, Bounds]:
    """Ask on this connection for the current bounds of the partitions. Raise ``ConnectionLost`` where it is silent."""
    return _read_bounds(options, await request_over(pool, connection, options, options.route + OFFSETS_ROUTE))


def _read_bounds(options: Options, answer: bytes) -> dict[int, Bounds]:
    try:
        return parse_bounds(answer)
    except ValueError as error:
        raise RemoteProtocolError(f"{options.route}{OFFSETS_ROUTE}: {error}") from None


def _may_pass(error: Exception) -> bool:
    """Return whether a read that is tried again may not meet the error: a route that is missing stays so."""
    is_refusal = isinstance(error, Rejected) and not isinstance(error, ConnectionClosed)
    return isinstance(error, PASSING_FOR_READS) and not is_refusal


# All routes of a query


async def ask_places(pool: Pool, options: Options, known: Collection[str] = ()) -> dict[Place, Bounds]:
    """Return the bounds of every partition of every route that the options name. Raise ``Unanswered``.

    ``known`` are the routes that were there before: if data loss is accepted, those may be gone. Without any known one
    a pattern has to match something.
    """
    if options.route_pattern is not None:
        return await _listed(pool, options, bool(known))
    if options.routes is None:
        return await _bounds_of(pool, options, "")
    may_go = frozenset[str]() if options.fail_on_data_loss else frozenset(known)
    return await _bounds_of_all(pool, options, dict.fromkeys(options.routes), may_go)


async def ask_starts(pool: Pool, options: Options, bounds: Mapping[Place, Bounds]) -> PositionMap:
    """Return where the times of ``startingTimestamp`` are; partitions that it leaves out begin at their earliest.

    Raise ``OptionError`` for a route or a partition that the server does not have, and for a server that does not
    look for times.
    """
    starts = {place: one.earliest for place, one in bounds.items()}
    return starts | await _positions_of(pool, options, bounds, options.starting_timestamp or (), "startingTimestamp")


async def ask_ends(pool: Pool, options: Options, bounds: Mapping[Place, Bounds]) -> PositionMap:
    """Return where the times of ``endingTimestamp`` are; partitions that it leaves out end at their latest. Raise as
    ``ask_starts`` does.
    """
    ends = {place: one.latest for place, one in bounds.items()}
    return ends | await _positions_of(pool, options, bounds, options.ending_timestamp or (), "endingTimestamp")


async def _positions_of(
    pool: Pool, options: Options, bounds: Mapping[Place, Bounds], wanted: Times, name: str
) -> PositionMap:
    """Return the positions of times, by the partitions that the option ``name`` has times for."""
    times = times_at(wanted, bounds, name)
    by_route: dict[str, dict[int, int]] = {}
    for (route, partition), time in times.items():
        by_route.setdefault(route, {})[partition] = time
    try:
        found = await _bounds_of_all(pool, options, by_route, frozenset())
    except Unanswered as problem:
        error = await explained(pool, options, problem)
    else:
        positions: PositionMap = {}
        for place in times:
            at = found[place].at if place in found else None
            if at is None:
                raise OptionError(
                    f"option {name!r}: the server at {options.shown_uris} does not look for times in "
                    f"{place_name(place)}, its version is too old; use {name.replace('Timestamp', 'Position')}"
                )
            # Rows that came since the bounds were asked for are of a later time.
            positions[place] = min(at, bounds[place].latest)
        return positions
    raise error


async def _bounds_of_all(
    pool: Pool, options: Options, times: Mapping[str, Mapping[int, int] | None], may_go: Collection[str]
) -> dict[Place, Bounds]:
    """Return the bounds of routes, with the positions of times by partition. Those in ``may_go`` may be gone."""
    found: dict[str, dict[Place, Bounds]] = {}
    problems: list[Unanswered] = []
    limit = trio.CapacityLimiter(ROUTES_AT_ONCE)

    async def ask_one(route: str) -> None:
        async with limit:
            try:
                found[route] = await _bounds_of(pool, options, route, times[route])
            except Unanswered as problem:
                if route not in may_go or not is_missing_route(problem.error):
                    problems.append(problem)

    async with trio.open_nursery() as nursery:
        for route in times:
            nursery.start_soon(ask_one, route)
    if problems:
        raise problems[0]
    return {place: one for route in sorted(found) for place, one in found[route].items()}


async def _bounds_of(
    pool: Pool, options: Options, route: str, times: Mapping[int, int] | None = None
) -> dict[Place, Bounds]:
    try:
        found = await ask_bounds(pool, options.of_route(route), times)
    except (RSocketError, *PASSING_FOR_READS, OptionError) as error:
        raise Unanswered(route, error) from error
    return {(route, partition): one for partition, one in found.items()}


async def _listed(pool: Pool, options: Options, may_be_empty: bool) -> dict[Place, Bounds]:
    pattern = options.route_pattern
    assert pattern is not None
    try:
        found = await ask_sources(pool, options, pattern)
        for source in found:
            if source.problem is not None:
                raise SourceError(f"route {source.route!r} at {options.shown_uris} can't be read: {source.problem}")
        if not found and not may_be_empty:
            there = [source.route for source in await ask_sources(pool, options, "*")]
            shown = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
            raise SourceError(
                f"option 'routePattern': no source at {options.shown_uris} is like {pattern!r}, where * is any text "
                f"and ? one character; they are {shown}"
            )
    except (RSocketError, *PASSING_FOR_READS, OptionError, SourceError) as error:
        raise Unanswered(SOURCES_ROUTE, error) from error
    return {
        (source.route, partition): Bounds(bounds.earliest, bounds.latest)
        for source in found
        for partition, bounds in source.partitions.items()
    }


async def ask_sources(pool: Pool, options: Options, pattern: str) -> list[Source]:
    """Return the sources of the server whose routes are like the pattern. Raise as ``ask_bounds`` does."""
    answer = await request(pool, options, SOURCES_ROUTE, json.dumps({"pattern": pattern}).encode(), _may_pass)
    try:
        return [source for source in read_sources(answer) if is_like(source.route, pattern)]
    except ValueError as error:
        raise RemoteProtocolError(f"{SOURCES_ROUTE}: {error}") from None


async def explained(pool: Pool, options: Options, problem: Unanswered) -> Exception:
    """Return the error for the user of Spark, in the words of the options."""
    error = problem.error
    if problem.route != SOURCES_ROUTE:
        found = await diagnosed(pool, options.of_route(problem.route), error)
        if problem.route and isinstance(found, SourceError):
            return SourceError(str(found).replace("option 'route':", "option 'routes':", 1))
        return found
    if is_missing_route(error):
        return OptionError(
            f"option 'routePattern': the server at {options.shown_uris} lists no sources: it has none (add_source), or "
            "its version is too old; option 'routes' takes their names"
        )
    return unread(error, options, SOURCES_ROUTE)


async def ask_places_explained(pool: Pool, options: Options) -> dict[Place, Bounds]:
    """Return the bounds as ``ask_places`` does. Raise its error in the words of the options."""
    try:
        return await ask_places(pool, options)
    except Unanswered as problem:
        found = await explained(pool, options, problem)
    raise found


# The list for users


class ListedSource(NamedTuple):
    """A partition of a source: its ``route`` and number ``partition``, the position ``earliest`` that can be read, and
    ``latest``, the next one to be written.
    """

    route: str
    partition: int
    earliest: int
    latest: int


@in_one_line
def list_sources(uri: str, pattern: str = "*", options: Mapping[str, str] | None = None) -> list[ListedSource]:
    """Return the partitions of the sources that the server at ``uri`` has, by route.

    ``pattern`` names some of the routes: ``*`` stands for any text and ``?`` for one character. ``options`` are those
    of the connection, such as ``auth.type``. ``spark.createDataFrame`` takes the result. Raise ``SourceError`` and
    ``OptionError``, also for a server that lists no sources or has none like the pattern.
    """
    given = {"path": uri, "routePattern": pattern, **(options or {})}
    chosen = checked(parse_options(given, Use.BATCH_READ), Use.BATCH_READ)
    here = background()
    found = here.run(partial(ask_places_explained, here.pool, chosen))
    return [ListedSource(route, partition, one.earliest, one.latest) for (route, partition), one in found.items()]
