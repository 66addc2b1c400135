"""The errors of the source and the sink: a user of Spark gets each as one line that names the option and the server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    ConnectionClosed,
    ConnectionLost,
    InvalidSetup,
    Rejected,
    RejectedSetup,
    UnsupportedSetup,
)
from rsocket_trio.errors import RSocketError, SetupError, StreamError
from rsocket_trio.replay.errors import TopicGone
from rsocket_trio.spark.installation import hide_traceback

if TYPE_CHECKING:
    from rsocket_trio.spark.options import Options

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PASSING = (ConnectionLost, ConnectionClosed, Rejected, RejectedSetup, OSError, trio.TooSlowError)
"""Errors that a later try may not meet: the server is away, restarts or is full."""
PASSING_FOR_READS = (*PASSING, Canceled)
"""The same and ``Canceled``, by which a server gives up half-way: reading again does no harm."""


class Explained(Exception):
    """The base of errors whose message says everything: a user of Spark gets it as one line, without a traceback."""

    def __init_subclass__(cls) -> None:
        cls.__module__ = "rsocket_trio.spark"  # the name that the user can import


class OptionError(Explained, ValueError):
    """An option is unknown, missing, or has an invalid value; the message names it."""


class SchemaMismatchError(Explained, ValueError):
    """Rows do not have the columns that the query declares; the message names each difference."""


class RowError(Explained, ValueError):
    """A row can't be sent as it is; the message names the column."""


class CheckpointError(Explained, ValueError):
    """A checkpoint does not belong to these options."""


class DataLossError(Explained):
    """Rows are gone that should be there: expired, skipped, or never replayable. See option ``failOnDataLoss``."""


class SourceError(Explained):
    """Rows could not be read. The message names the route, the server and the option that matters."""


class SinkError(Explained):
    """Rows could not be written. The message names the route, the server and the option that matters."""


# The one line


def in_one_line(method: Callable[P, R]) -> Callable[P, R]:
    """Have the explained errors of a method that Spark calls reach the user as one line."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except Explained as error:
            raise _bare(error) from None

    return call


def rows_in_one_line(rows: Iterator[T]) -> Iterator[T]:
    """Yield the rows; have their explained errors reach the user as one line. Closing this closes ``rows``."""
    try:
        yield from rows
    except Explained as error:
        raise _bare(error) from None


def _bare(error: Explained) -> Explained:
    hide_traceback()
    return error.with_traceback(None)


# Errors of RSocket


def is_missing_route(error: Exception) -> bool:
    """Return whether a server of this library says that it has no such route: a retry is useless."""
    return isinstance(error, Rejected) and error.text.startswith("no ") and " handler for " in error.text


def unread(error: Exception, options: Options, route: str | None = None) -> Exception:
    """Return the error of a read for a user of Spark; ``route`` is the one that was asked, by default that of rows."""
    if isinstance(error, ApplicationError) and error.code == TopicGone.default_code:
        return DataLossError(f"{route or options.route!r} at {options.shown_uris}: {error.text}")
    return _explained(SourceError, "reading", error, options, route or options.route)


def unwritten(error: Exception, options: Options, route: str) -> Exception:
    """Return the error of a write to a route for a user of Spark."""
    if is_missing_route(error) and options.delivery == "exactlyOnce":
        return SinkError(
            f"option 'route': there is no route {route!r} at {options.shown_uris}: {error}. Is {options.route!r} "
            "the right route? delivery=exactlyOnce needs one that the server serves with add_sink"
        )
    return _explained(SinkError, "writing to", error, options, route)


def _explained(make: type[Exception], doing: str, error: Exception, options: Options, route: str) -> Exception:
    where = f"{route!r} at {options.shown_uris}"
    if is_missing_route(error):
        return make(f"option 'route': there is no route {where}: {error}")
    if isinstance(error, SetupError):
        advice = "(see options 'auth.type' and 'setupData')"
        if isinstance(error, InvalidSetup | UnsupportedSetup):
            advice = (
                "It may be of a version that is too old, or of another protocol (see options 'path', "
                "'metadataMimeType' and 'setupData')"
            )
        return make(f"the server at {options.shown_uris} refused the connection: {error}. {advice}")
    if isinstance(error, StreamError):
        return make(f"route {where} refused: {error}")
    if isinstance(error, PASSING):
        return make(f"{doing} route {where} failed (see options 'path' and 'reconnectMaxAttempts'): {error}")
    if isinstance(error, RSocketError):
        return make(f"{doing} route {where} failed: {error}")
    return error
