"""Counts the faults of a connection and logs few of them, so that a peer cannot fill a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import attrs
import trio

from rsocket_trio.connection.fault_log import FaultLog
from rsocket_trio.connection.reporting import report
from rsocket_trio.errors import readable
from rsocket_trio.forms import Handler, function_name

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine

logger = logging.getLogger("rsocket_trio")


@attrs.define(eq=False)
class Faults:
    """Counts faults and dropped requests, and reports them to the log and to the application's ``on_error``.

    The log gets a peer's first fault, and failures of handlers through a ``FaultLog``. The connections of a server
    share one ``FaultLog``; a connection that a client opened has its ``own``, once a handler failed.
    """

    _engine: Engine
    _shared: FaultLog | None = None
    own: FaultLog | None = None
    peer_faults: int = 0
    """Times that the peer broke the rules."""
    ignored: int = 0
    """Requests and pushed metadata that were ignored for their stream ids; they count as peer faults as well."""
    handler_errors: int = 0
    """Handlers that failed with an exception of their own."""
    dropped: int = 0
    """Fire-and-forget requests and pushed metadata that no handler took."""
    unreported: int = 0
    """Times that an async function of ``on_error`` was not called, because too many were running."""
    reports: dict[trio.CancelScope, None] | None = None  # an empty dictionary costs 64 bytes
    """The async functions of ``on_error`` that are running."""

    def of_peer(self, text: str) -> None:
        """Count a protocol fault of the peer, and log the first one of a connection."""
        self.peer_faults += 1
        if self.peer_faults == 1:
            # The name as text: a log record that is kept must not keep the connection.
            logger.warning("%s: %s; further faults are counted", repr(self._engine.connection), readable(text))

    def of_ignored(self, text: str) -> None:
        """Count a frame that was ignored, and log the first one of a connection, apart from other faults."""
        self.peer_faults += 1
        self.ignored += 1
        if self.ignored == 1:
            logger.warning("%s: %s; further ones are counted", repr(self._engine.connection), readable(text))

    def of_handler(self, handler: Handler, error: BaseException) -> None:
        """Report the failure of a handler to the log and to the application."""
        self.handler_errors += 1
        # The id stays unique: a registered function lives as long as the log.
        self._note(id(handler.registered), described(handler), error)
        if self._engine.responder.error_handlers:
            report(self._engine, handler.interaction, handler.route, error)

    def of_state(self, function: Callable[[str], object], error: BaseException) -> None:
        """Report the failure of an ``on_state`` function of this connection."""
        self.handler_errors += 1
        name = function_name(function)
        # By its name: every connection may have a function of its own, made in the same place.
        self._note((getattr(function, "__module__", ""), name), f"handler {name} of on_state", error)
        if self._engine.responder.error_handlers:
            report(self._engine, "on_state", None, error)

    def of_function(self, handler: Handler, error: BaseException) -> None:
        """Report the failure of an ``on_error`` function, which serves no request of the peer, to the log only."""
        self._note(id(handler.registered), described(handler), error)

    def _note(self, identity: Hashable, name: str, error: BaseException) -> None:
        engine = self._engine
        log = self._shared or self.own
        if log is None:
            log = self.own = FaultLog()
        log.note(identity, name, error, engine.connection, trio.current_time(), engine.clock.timers)

    def fatal(self, error: BaseException) -> None:
        """Report that the connection ends because this side cannot encode the error of one stream.

        The cause, if there is one, is the exception of the application's ``encode_error`` of Streamux.
        """
        logger.warning("%s: %s", repr(self._engine.connection), str(error))
        if error.__cause__ is not None:
            self.handler_errors += 1
            self._note("encode_error", "encode_error", error.__cause__)
            if self._engine.responder.error_handlers:
                report(self._engine, "encode_error", None, error.__cause__)

    def lost(self, error: BaseException) -> None:
        """Log the end or the loss of a connection, at level INFO."""
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s: %s", repr(self._engine.connection), str(error))


def described(handler: Handler) -> str:
    """Return the name of a handler for people: its function, interaction and route."""
    name = f"handler {function_name(handler.registered)}"
    if not handler.interaction:
        return name
    served = f"{name} of {handler.interaction}"
    return served if handler.route is None else f"{served} '{readable(handler.route)}'"
