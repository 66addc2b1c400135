"""Turns errors of RSocket into those of the source and the sink, which name the option and the server."""

from __future__ import annotations

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
from rsocket_trio.spark.hosting import Explained
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.protocol import GONE

PASSING = (ConnectionLost, ConnectionClosed, Rejected, RejectedSetup, OSError, trio.TooSlowError)
"""Errors that a later try may not meet: the server is away, restarts or is full."""
PASSING_FOR_READS = (*PASSING, Canceled)
"""The same and ``Canceled``, by which a server gives up half-way: reading again does no harm."""


class DataLossError(Explained):
    """Rows are gone that should be there: expired, skipped, or never replayable. See option ``failOnDataLoss``."""


class SourceError(Explained):
    """Rows could not be read. The message names the route, the server and the option that matters."""


class SinkError(Explained):
    """Rows could not be written. The message names the route, the server and the option that matters."""


def is_missing_route(error: Exception) -> bool:
    """Return whether a server of this library says that it has no such route: a retry is useless."""
    return isinstance(error, Rejected) and error.text.startswith("no ") and " handler for " in error.text


def unread(error: Exception, options: Options, route: str | None = None) -> Exception:
    """Return the error of a read for a user of Spark; ``route`` is the one that was asked, by default that of rows."""
    if isinstance(error, ApplicationError) and error.code == GONE:
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
    if isinstance(error, InvalidSetup | UnsupportedSetup):
        return make(
            f"the server at {options.shown_uris} refused the connection: {error}. It may be of a version that is too "
            "old, or of another protocol (see options 'path', 'metadataMimeType' and 'setupData')"
        )
    if isinstance(error, SetupError):
        return make(
            f"the server at {options.shown_uris} refused the connection: {error} "
            "(see options 'auth.type' and 'setupData')"
        )
    if isinstance(error, StreamError):
        return make(f"route {where} refused: {error}")
    if isinstance(error, PASSING):
        return make(f"{doing} route {where} failed (see options 'path' and 'reconnectMaxAttempts'): {error}")
    if isinstance(error, RSocketError):
        return make(f"{doing} route {where} failed: {error}")
    return error
