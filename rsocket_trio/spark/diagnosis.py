"""Finds out why a route can't be read, by asking its server, and says which option to change."""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import trio

from rsocket_trio import Connection, Payload
from rsocket_trio.errors import RSocketError, StreamError
from rsocket_trio.replay.source_routes import SOURCES_ROUTE, read_sources
from rsocket_trio.spark.connections import Pool, target_of
from rsocket_trio.spark.mistakes import PASSING, SourceError, is_missing_route, unread
from rsocket_trio.spark.options import OptionError, Options
from rsocket_trio.spark.protocol import GONE, OFFSETS_ROUTE
from rsocket_trio.spark.ranges import parse_bounds

T = TypeVar("T")

DIAGNOSIS_TIMEOUT = 3.0
"""Seconds that a server has to answer a diagnosis. The user waits for the error in the meantime."""
SHOWN_SOURCES = 10
"""Names of sources that an error repeats at most."""


async def explaining(pool: Pool, options: Options, read: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call ``read`` with the arguments and return its result.

    Raise ``SourceError`` or ``OptionError`` for an error of RSocket, in the words of Spark's options.
    """
    try:
        return await read(*args)
    except RSocketError as error:
        found = await diagnosed(pool, options, error)
    raise found


async def diagnosed(pool: Pool, options: Options, error: Exception) -> Exception:
    """Return the error of a read for its user. Ask the server what the route is, where it refused a request."""
    by_position = options.positions == "server"
    if not isinstance(error, StreamError) or error.code == GONE:
        return unread(error, options)
    is_missing = is_missing_route(error)
    where = f"route {options.route!r} at {options.shown_uris}"

    async def look(connection: Connection) -> Exception | None:
        if await _is_replayable(connection, options):
            if by_position:
                return None
            return OptionError(
                f"option 'positions' must be set to server: {where} is read by position, and refused a request "
                "without one"
            )
        if not is_missing:
            return None
        if by_position and await _is_there(connection, options):
            return OptionError(
                f"option 'positions' of server: {where} can't be read by position, the server does not serve it with "
                f"add_source ({error}); set positions=none to read it as it comes"
            )
        others = await _other_sources(connection, options.route)
        return SourceError(f"option 'route': there is no {where}: {error}{others}")

    suffix = OFFSETS_ROUTE if by_position and is_missing else ""
    return await _asked(pool, options, look) or unread(error, options, options.route + suffix)


async def positions_missing(pool: Pool, options: Options) -> OptionError:
    """Return the error for a stream without the option ``positions``, with the value that fits the route."""
    where = f"route {options.route!r} at {options.shown_uris}"
    live = "none to accept that rows are lost with a failure (rsocket-trio record keeps them)"
    advice = {
        True: f"server, because {where} can be read by position",
        False: f"{where} can't be read by position, so {live}",
        None: f"server if {where} can be read by position, {live}",
    }
    is_replayable = await _asked(pool, options, partial(_is_replayable, options=options))
    return OptionError(f"option 'positions' must be set for readStream: {advice[is_replayable]}")


async def _asked(pool: Pool, options: Options, look: Callable[[Connection], Awaitable[T]]) -> T | None:
    """Return the result of a look at the server, ``None`` if it does not answer in time."""
    try:
        with trio.move_on_after(DIAGNOSIS_TIMEOUT):
            async with pool.connection(target_of(options)) as connection:
                return await look(connection)
    except (RSocketError, *PASSING):
        pass  # the first error says enough
    return None


async def _is_replayable(connection: Connection, options: Options) -> bool:
    try:
        answer = await connection.request_response(route=options.route + OFFSETS_ROUTE)
        parse_bounds(answer.data)
    except (StreamError, ValueError):
        return False
    return True


async def _other_sources(connection: Connection, route: str) -> str:
    """Return what to say of the sources that the server has: the one with a similar name, or their names."""
    try:
        answer = await connection.request_response(json.dumps({"pattern": "*"}).encode(), route=SOURCES_ROUTE)
        found = [source.route for source in read_sources(answer.data)]
    except (StreamError, ValueError):
        return ""  # a server that does not list them
    if near := difflib.get_close_matches(route, found, n=1, cutoff=0.75):
        return f"; did you mean {near[0]!r}?"
    more = f" and {len(found) - SHOWN_SOURCES} more" if len(found) > SHOWN_SOURCES else ""
    return f"; its sources are {', '.join(found[:SHOWN_SOURCES])}{more}" if found else ""


async def _is_there(connection: Connection, options: Options) -> bool:
    """Return whether the route is one of streams: true as well if a stream sends nothing for a while."""
    try:
        with trio.move_on_after(DIAGNOSIS_TIMEOUT / 3):
            async with connection.request_stream(Payload(b""), route=options.route, initial_request_n=1) as items:
                await items.receive_batch()
    except StreamError as error:
        return not is_missing_route(error)
    return True
