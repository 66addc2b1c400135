"""Counts the faults of a connection, logs few of them, and reports failures of handlers to the application."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from rsocket_trio.errors import readable
from rsocket_trio.forms import Handler, function_name, unfit
from rsocket_trio.tools.exception_groups import failures_told_to, only_leaf

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine

logger = logging.getLogger("rsocket_trio")

MAX_KINDS = 256
"""Kinds of failures that are told apart, and logged with their tracebacks; all others are one kind."""
REPEATS_INTERVAL = 60.0
"""Seconds between two lines about repeats of one kind."""


@attrs.define(eq=False)
class FailureLog:
    """The failures that were logged: of all connections of a server, or of one that a client opened.

    A kind of failure is the handler, the type of the exception and the line that raised it. Its first one is logged
    with the traceback; repeats are counted, and their number is logged with one of them, at most once a minute, and at
    the end. No exception and no frame is kept.
    """

    _repeats: dict[str, tuple[float, int]] = attrs.field(factory=dict, init=False)
    """By kind: the time of the last line, and repeats since then."""

    def note(
        self,
        name: str,
        error: BaseException,
        where: str,
        *,
        is_secret: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log or count the failure of the handler of this ``name``, on the connection ``where``.

        The text and the traceback of an error that ``is_secret`` are not logged. ``extra`` are fields of the record.
        """
        kind, place = kind_of(error)
        key = f"{name}, {kind} at {place}"
        if key not in self._repeats and len(self._repeats) >= MAX_KINDS:
            key = name = f"handlers that failed in more than {MAX_KINDS} ways"
        now = trio.current_time()
        since, count = self._repeats.get(key, (now, -1))
        if count < 0 and is_secret:
            text = "%s: %s raised %s at %s: the credentials are refused; repeats are counted"
            logger.warning(text, where, name, kind, place, extra=extra)
        elif count < 0:
            logger.error("%s: %s failed; repeats are counted", where, name, exc_info=error, extra=extra)
        elif now - since >= REPEATS_INTERVAL:
            _log_repeats(key, count + 1)
            since, count = now, -1
        self._repeats[key] = since, count + 1

    def log_repeats(self) -> None:
        """Log how often each failure came again since the last line about it."""
        for key, (since, count) in self._repeats.items():
            if count:
                _log_repeats(key, count)
                self._repeats[key] = since, 0


def _log_repeats(key: str, count: int) -> None:
    logger.error("failed again, %d time%s: %s", count, "" if count == 1 else "s", key)


def kind_of(error: BaseException) -> tuple[str, str]:
    """Return the type of an exception, or of the only one in a group, and the line that raised it."""
    leaf = only_leaf(error)
    place, traceback = "", leaf.__traceback__
    while traceback is not None:
        place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins."), place


@attrs.define(eq=False)
class FaultLog:
    """Counts faults and dropped requests, and reports them to the log and to the application's ``on_error``.

    The log gets a peer's first fault, and failures of handlers through ``failure_log``, which all connections of a
    server share.
    """

    _engine: Engine
    failure_log: FailureLog
    peer_faults: int = 0
    """Times that the peer broke the rules."""
    handler_errors: int = 0
    """Handlers that failed with an exception of their own."""
    dropped: int = 0
    """Fire-and-forget requests and pushed metadata that no handler took."""

    @property
    def _where(self) -> str:
        """The connection as text: a log record that is kept must not keep the connection."""
        return repr(self._engine.connection)

    def peer_fault(self, text: str) -> None:
        """Count a protocol fault of the peer, and log the first one of a connection."""
        self.peer_faults += 1
        self._engine.tell("fault", "peer")
        if self.peer_faults == 1:
            text = readable(text)
            logger.warning("%s: %s; further faults are counted", self._where, text, extra=self._extra())

    def count_dropped(self) -> None:
        """Count a fire-and-forget request, or pushed metadata, that no handler takes."""
        self.dropped += 1
        self._engine.tell("fault", "dropped")

    def handler_failed(self, handler: Handler, error: BaseException, stream_id: int | None = None) -> None:
        """Report the failure of a handler, or of a function of ``on_state``, to the log and to the application."""
        self.handler_errors += 1
        self._engine.tell("fault", "handler")
        self.log_failure(handler, error, stream_id)
        self._report(error, handler.interaction, handler.route, handler.pattern_text, handler.call)

    def log_failure(
        self, handler: Handler, error: BaseException, stream_id: int | None = None, *, is_secret: bool = False
    ) -> None:
        """Report the failure of a handler to the log only; without its text and traceback if it ``is_secret``."""
        where, extra = "a connection that is over", None
        if hasattr(self, "_engine"):
            where, extra = self._where, self._extra(handler.route, stream_id)
        self.failure_log.note(described(handler), error, where, is_secret=is_secret, extra=extra)

    def _extra(self, route: str | None = None, stream_id: int | None = None) -> dict[str, object]:
        connection = self._engine.connection
        return {
            "connection": self._where,
            "peer": str(connection.handshake.peer_address),
            "dialect": connection.dialect,
            "route": route,
            "stream_id": stream_id,
        }

    def fatal(self, error: BaseException) -> None:
        """Report that the connection ends because this side cannot encode the error of one stream.

        The cause, if there is one, is the exception of the application's ``encode_error`` of Streamux.
        """
        logger.warning("%s: %s", self._where, str(error), extra=self._extra())
        if error.__cause__ is not None:
            self.handler_errors += 1
            self.failure_log.note("encode_error", error.__cause__, self._where)
            self._report(error.__cause__, "encode_error")

    def lost(self, error: BaseException) -> None:
        """Log the end or the loss of a connection, at level INFO."""
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s: %s", self._where, str(error), extra=self._extra())

    def release(self) -> None:
        """Forget the connection, which is over: the counts remain, and nothing is reported but how a call ended."""
        del self._engine

    def _report(
        self,
        error: BaseException,
        interaction: str,
        route: str | None = None,
        pattern: str | None = None,
        call: object | None = None,
    ) -> None:
        engine = self._engine
        for handler in engine.responder._error_handlers:
            if call is None:
                calls = engine.responder._attach_served_calls()
                call = calls.failed_call(engine.connection, interaction, route, pattern)
            with failures_told_to(partial(self.log_failure, handler)):
                result = engine.run_in_context(handler.function, error, call)
                if inspect.isawaitable(result):
                    raise unfit(handler.interaction, handler.registered, result, "nothing: it is a plain function")


def described(handler: Handler) -> str:
    """Return the name of a handler for people: its function, interaction and route."""
    name = f"handler {function_name(handler.registered)}"
    if not handler.interaction:
        return name
    served = f"{name} of {handler.interaction}"
    return served if handler.route is None else f"{served} '{readable(handler.route)}'"
