"""The sources of a server: their routes and the bounds of their partitions, and why one of them can't be read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

import trio

from rsocket_trio import Connection, ConnectionClosed, Rejected, RemoteProtocolError
from rsocket_trio.errors import RSocketError, StreamError, readable
from rsocket_trio.replay.elements import SOURCES_ROUTE, Bounds, Source, read_sources
from rsocket_trio.replay.errors import TopicGone
from rsocket_trio.spark.background import background
from rsocket_trio.spark.connections import Pool, request, request_over, target_of
from rsocket_trio.spark.errors import (
    PASSING,
    PASSING_FOR_READS,
    OptionError,
    SourceError,
    in_one_line,
    is_missing_route,
    unread,
)
from rsocket_trio.spark.options import Options, Place, Times, Use, checked, parse_options, place_name
from rsocket_trio.spark.ranges import PositionMap, parse_bounds, times_at

T = TypeVar("T")

OFFSETS_ROUTE: Final = ".offsets"
"""The end of the route on which a server tells the bounds of a source."""
MAX_ROUTES_AT_ONCE = 16
"""Routes whose bounds are asked for at the same time."""
DIAGNOSIS_TIMEOUT = 3.0
"""Seconds that a server has to answer a diagnosis. The user waits for the error in the meantime."""
MAX_SHOWN_SOURCES = 10
"""Names of sources that an error repeats at most."""


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
    """Return the bounds of every partition of every route that the options name.

    ``known`` are the routes that were there before: if data loss is accepted, those may be gone. Without any known one
    a pattern has to match something. Raise the error for the user of Spark, with that of RSocket as its cause.
    """
    if options.route_pattern is not None:
        return await _listed(pool, options, bool(known))
    may_go = frozenset[str]() if options.fail_on_data_loss else frozenset(known)
    return await _bounds_of(pool, options, dict.fromkeys(options.routes or ("",)), may_go)


async def ask_times(
    pool: Pool, options: Options, bounds: Mapping[Place, Bounds], times: Times | None, name: str
) -> PositionMap | None:
    """Return where the first rows at or after the times of an option are; ``None`` for no times.

    Partitions that ``times`` leave out begin at their earliest row, and end at their latest. Raise ``OptionError``
    naming the option ``name`` for a place that the server does not have, and for a server that does not look for times,
    and as ``ask_places``.
    """
    if times is None:
        return None
    by_place = times_at(times, bounds, name)
    by_route: dict[str, dict[int, int]] = {}
    for (route, partition), time in by_place.items():
        by_route.setdefault(route, {})[partition] = time
    answered = await _bounds_of(pool, options, by_route)
    is_start = name == "startingTimestamp"
    positions = {place: edges.earliest if is_start else edges.latest for place, edges in bounds.items()}
    for place in by_place:
        at = answered[place].at if place in answered else None
        if at is None:
            raise OptionError(
                f"option {name!r}: the server at {options.shown_uris} does not look for times in "
                f"{place_name(place)}, its version is too old; use {name.replace('Timestamp', 'Position')}"
            )
        # Rows that came since the bounds were asked for are of a later time.
        positions[place] = min(at, bounds[place].latest)
    return positions


async def _bounds_of(
    pool: Pool, options: Options, times: Mapping[str, Mapping[int, int] | None], may_go: Collection[str] = ()
) -> dict[Place, Bounds]:
    """Return the bounds of routes, with the positions of times by partition. Those in ``may_go`` may be gone."""
    answers: dict[str, dict[int, Bounds]] = {}
    problems: list[tuple[str, Exception]] = []
    limit = trio.CapacityLimiter(MAX_ROUTES_AT_ONCE)

    async def ask_one(route: str) -> None:
        async with limit:
            try:
                answers[route] = await ask_bounds(pool, options.of_route(route), times[route])
            except (RSocketError, *PASSING_FOR_READS, OptionError) as error:
                if route not in may_go or not is_missing_route(error):
                    problems.append((route, error))

    async with trio.open_nursery() as nursery:
        for route in times:
            nursery.start_soon(ask_one, route)
    if problems:
        route, error = problems[0]
        raise await diagnosed(pool, options.of_route(route), error) from error
    return {(route, partition): edges for route in sorted(answers) for partition, edges in answers[route].items()}


async def _listed(pool: Pool, options: Options, may_be_empty: bool) -> dict[Place, Bounds]:
    pattern = options.route_pattern
    assert pattern is not None
    problem: Exception
    try:
        sources = await ask_sources(pool, options, pattern)
        others = {} if sources or may_be_empty else await ask_sources(pool, options, "*")
    except (RSocketError, *PASSING_FOR_READS) as error:
        problem = unread(error, options, SOURCES_ROUTE)
        if is_missing_route(error):
            problem = OptionError(
                f"option 'routePattern': the server at {options.shown_uris} lists no sources: it has none "
                "(add_source), or its version is too old; option 'routes' takes their names"
            )
        raise problem from error
    for route, source in sources.items():
        if source.problem is not None:
            raise SourceError(f"route {route!r} at {options.shown_uris} can't be read: {readable(source.problem)}")
    if not sources and not may_be_empty:
        raise SourceError(
            f"option 'routePattern': no source at {options.shown_uris} is like {pattern!r}, where * is any text "
            f"and ? one character; they are {_names(others)}"
        )
    return {
        (route, number): bounds for route, source in sources.items() for number, bounds in source.partitions.items()
    }


async def ask_sources(pool: Pool, options: Options, pattern: str) -> dict[str, Source]:
    """Return the sources of the server whose routes are like the pattern. Raise as ``ask_bounds`` does."""
    answer = await request(pool, options, SOURCES_ROUTE, json.dumps({"pattern": pattern}).encode(), _may_pass)
    try:
        return read_sources(answer, pattern)
    except ValueError as error:
        raise RemoteProtocolError(f"{SOURCES_ROUTE}: {error}") from None


def _names(sources: Mapping[str, Source]) -> str:
    routes = list(sources)
    more = f" and {len(routes) - MAX_SHOWN_SOURCES} more" if len(routes) > MAX_SHOWN_SOURCES else ""
    return ", ".join(routes[:MAX_SHOWN_SOURCES]) + more


# The reason why a route can't be read


async def explaining(pool: Pool, options: Options, read: Callable[..., Awaitable[T]], *args: object) -> T:
    """Call ``read`` with the arguments and return its result.

    Raise ``SourceError`` or ``OptionError`` for an error of RSocket, in the words of Spark's options.
    """
    try:
        return await read(*args)
    except RSocketError as error:
        diagnosis = await diagnosed(pool, options, error)
    raise diagnosis


async def diagnosed(pool: Pool, options: Options, error: Exception) -> Exception:
    """Return the error of a read for its user. The server is asked for its sources where it refused a request."""
    if not isinstance(error, StreamError) or error.code == TopicGone.default_code:
        return unread(error, options)
    where, by_position = f"route {options.route!r} at {options.shown_uris}", options.positions == "server"
    sources: dict[str, Source] = {}
    try:
        with trio.move_on_after(DIAGNOSIS_TIMEOUT):
            async with pool.connection(target_of(options)) as connection:
                answer = await connection.request_response(b'{"pattern": "*"}', route=SOURCES_ROUTE)
            sources = read_sources(answer.data)
    except (RSocketError, *PASSING, ValueError):
        pass  # a server that lists none, or does not answer: the first error says enough
    if not by_position and options.route in sources:
        return OptionError(
            f"option 'positions' must be set to server: {where} is read by position, and refused a request without one"
        )
    if not is_missing_route(error):
        return unread(error, options)
    hint = f"; its sources are {_names(sources)}" if sources else ""
    if near := difflib.get_close_matches(options.route, sources, n=1, cutoff=0.75):
        hint = f"; did you mean {near[0]!r}?"
    if by_position:
        return SourceError(
            f"option 'route': {where} can't be read by position: {error}. There is no such route, or the server does "
            f"not serve it with add_source (positions=none reads it as it comes){hint}"
        )
    return SourceError(f"option 'route': there is no {where}: {error}{hint}")


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
    texts = {"path": uri, "routePattern": pattern, **(options or {})}
    chosen = checked(parse_options(texts, Use.BATCH_READ), Use.BATCH_READ)
    here = background()
    bounds = here.run(partial(ask_places, here.pool, chosen))
    return [
        ListedSource(route, partition, edges.earliest, edges.latest) for (route, partition), edges in bounds.items()
    ]
