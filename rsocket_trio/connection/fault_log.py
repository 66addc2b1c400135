"""Counts the faults of a connection, logs few of them, and reports failures of handlers to the application."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import attrs
import trio

from rsocket_trio.connection.deadlines import Deadlines
from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RSocketError, StreamError, readable
from rsocket_trio.forms import Handler, Kind, function_name
from rsocket_trio.tools.exception_groups import only_leaf

logger = logging.getLogger("rsocket_trio")


DIFFERENT = 256
"""Failures that are told apart, and logged with their tracebacks; further new ones are counted together."""
MINUTE = 60.0
"""Seconds between two lines about repeats."""
NAMED = 8
"""Failures that one line about repeats names, those that came most often first."""
LEAVES = 64
"""Exceptions of a group that are looked at."""
TYPES = 4
"""Types of exceptions in a group that tell one group from another."""
MAX_REPORTS = 16
"""Async functions of one connection that may be at work at once: each keeps its exception."""
REPORT_TIMEOUT = 1.0
"""Seconds that these get to finish once the connection is over."""
PACKAGE = Path(__file__).parent.parent
OURS = tuple(str(PACKAGE / place) for place in ("connection", "services/calls", "forms.py"))
"""Files whose frames stand between the receive task and a handler."""


@attrs.define(eq=False)
class Repeated:
    """A failure that was logged at ``since``, and how often it was repeated since the last line about it."""

    name: str
    since: float
    count: int = 0


class FailureLog:
    """The failures that were logged: of all connections of a server, or of one that a client opened.

    A failure is told from others by the handler, the type of the exception, and where it was raised: that line, and the
    one in the handler that led there. Only texts and numbers are kept of it, no exception and no frame, and of at most
    256. Repeats are told once a minute, by ``expire``, and at the end by ``log_repeats``. Time is an argument.
    """

    __slots__ = ("_deadlines", "_known", "_next", "_others", "_told", "due")

    def __init__(self) -> None:
        self.due = math.inf
        self._known: dict[Hashable, Repeated] = {}
        self._others: Repeated | None = None
        self._told = -math.inf
        self._next = math.inf
        self._deadlines: Deadlines | None = None

    def note(
        self,
        handler: Hashable,
        name: str,
        error: BaseException,
        where: object,
        now: float,
        deadlines: Deadlines | None,
        *,
        is_secret: bool = False,
    ) -> None:
        """Log a handler's failure, or count it. ``handler`` is its identity, ``name`` its text, ``where`` a connection.

        ``deadlines`` are to ring when repeats can be told. Of an error that ``is_secret`` only type and line are told.
        """
        kind, line, place = kind_of(error)
        key = (handler, kind, line, place)
        known = self._known.get(key)
        if known is None and len(self._known) < DIFFERENT:
            self._known[key] = Repeated(f"{name}, {kind} at {place}", now)
            # The connection's name as text: a record that is kept must not keep the connection.
            if is_secret:
                text = "%s: %s raised %s at %s: the credentials are refused; repeats are counted"
                logger.warning(text, repr(where), name, kind, place)
            else:
                logger.error("%s: %s failed; repeats are counted", repr(where), name, exc_info=error)
            return
        if known is None and self._others is None:
            self._others = Repeated("others", now)
            logger.error(
                "%s: %s failed, %s at %s; handlers failed in %d ways before: further new ones are only counted",
                repr(where),
                name,
                kind,
                place,
                DIFFERENT,
            )
            return
        repeated = known or self._others
        assert repeated is not None
        repeated.count += 1
        self._next = min(self._next, max(self._told, repeated.since) + MINUTE)
        if now >= self._next:
            self.log_repeats(now)
        elif deadlines is not None:
            self._wait(deadlines)

    def expire(self, now: float) -> None:
        """Log the repeats if it is time for them; else wait on."""
        if now >= self._next:
            self.log_repeats(now)
        elif self._deadlines is not None and self._next < math.inf:
            self._wait(self._deadlines)

    def log_repeats(self, now: float) -> None:
        """Log what came again since the last line, if anything did."""
        self._next = math.inf
        if self._deadlines is not None:
            self._deadlines.clear(self)
        repeated = sorted(self._repeated(), key=lambda one: -one.count)
        if not repeated:
            return
        self._told = now
        told = [f"{_times(one.count)} {one.name}" for one in repeated[:NAMED]]
        if len(repeated) > NAMED:
            told.append(f"{_times(sum(one.count for one in repeated[NAMED:]))} {len(repeated) - NAMED} more")
        total = sum(one.count for one in repeated)
        for one in repeated:
            one.count = 0
        logger.error("handlers failed again, %s: %s", _times(total), "; ".join(told))

    def _repeated(self) -> Iterator[Repeated]:
        for one in self._known.values():
            if one.count:
                yield one
        if self._others is not None and self._others.count:
            yield self._others

    def _wait(self, deadlines: Deadlines) -> None:
        """Have these deadlines ring in time; others may be gone, with the connection that had them."""
        if deadlines is not self._deadlines:
            if self._deadlines is not None:
                self._deadlines.clear(self)
            self._deadlines = deadlines
        if self._next < self.due:
            deadlines.set(self, self._next)


def _times(count: int) -> str:
    return f"{count} time" if count == 1 else f"{count} times"


@contextmanager
def failures_told_to(hear: Callable[[Exception], object]) -> Iterator[None]:
    """Call a function with the exception that the block raises, and go on. ``Cancelled`` leaves the block, alone."""
    try:
        yield
    except Exception as error:
        hear(error)
    except BaseExceptionGroup as group:
        failures, others = group.split(Exception)
        if failures is not None:
            hear(failures)
        if others is not None:
            raise others from None


def kind_of(error: BaseException) -> tuple[str, str, str]:
    """Return the type of an exception, the line in the handler that led to it, and the line that raised it.

    Groups are told apart by the types of their leaves, and by the lines of the leaf that is first in order of these.
    """
    if not isinstance(error, BaseExceptionGroup):
        return _name(type(error)), *lines_of(error)
    leaves = sorted((_name(type(leaf)), *lines_of(leaf)) for leaf in islice(_leaves(error), LEAVES))
    kinds = list(dict.fromkeys(kind for kind, _, _ in leaves))[:TYPES]
    return f"{_name(type(error))} of {', '.join(kinds)}", *leaves[0][1:]


def lines_of(error: BaseException) -> tuple[str, str]:
    """Return the line in the handler that led to an exception, and the line that raised it; each may be nowhere."""
    outermost = innermost = None
    traceback = error.__traceback__
    while traceback is not None:
        innermost = traceback
        if outermost is None and not traceback.tb_frame.f_code.co_filename.startswith(OURS):
            outermost = traceback
        traceback = traceback.tb_next
    return _line(outermost), _line(innermost)


def _line(traceback: TracebackType | None) -> str:
    return "" if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_failure(error: BaseException, ended: RSocketError | None) -> bool:
    """Return whether an exception is a fault of its handler: not meant for the peer, nor the end of the connection.

    ``ended`` says why the connection is over, if it is.
    """
    return error.is_fault if isinstance(error, StreamError) else not is_the_end(error, ended)


def is_the_end(error: BaseException, ended: RSocketError | None) -> bool:
    """Return whether an exception says only that the connection is over; ``ended`` says why it is, if it is."""
    return ended is not None and isinstance(only_leaf(error), ConnectionLost | ConnectionClosed)


class FaultPort(Protocol):
    """The side of a connection that its log of faults sees."""

    ended: RSocketError | None
    """The error that ended the connection, or ``None``."""

    @property
    def error_handlers(self) -> tuple[Handler, ...]:
        """The functions of ``on_error``."""
        ...

    @property
    def connection(self) -> object:
        """The connection as its users see it."""
        ...

    @property
    def deadlines(self) -> Deadlines | None:
        """The deadlines that repeats of failures are logged at; ``None`` before the connection runs."""
        ...

    def failed_call(self, interaction: str, route: str | None, pattern: str | None) -> object:
        """Return the argument of ``on_error`` functions for a handler's call."""
        ...

    def run_in_context(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function of the application in a fresh copy of the connection's context."""
        ...

    def start_task(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of the connection's, in a fresh copy of its context."""
        ...


@attrs.define(eq=False)
class FaultLog:
    """Counts faults and dropped requests, and reports them to the log and to the application's ``on_error``.

    The log gets a peer's first fault, and failures of handlers through a ``FailureLog``. The connections of a server
    share one ``FailureLog``; a connection that a client opened has its ``own``, once a handler failed.
    """

    _port: FaultPort
    _shared: FailureLog | None = None
    own: FailureLog | None = None
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
    _reports: dict[trio.CancelScope, None] | None = None  # an empty dictionary costs 64 bytes

    def peer_fault(self, text: str) -> None:
        """Count a protocol fault of the peer, and log the first one of a connection."""
        self.peer_faults += 1
        if self.peer_faults == 1:
            # The name as text: a log record that is kept must not keep the connection.
            logger.warning("%s: %s; further faults are counted", repr(self._port.connection), readable(text))

    def ignored_frame(self, text: str) -> None:
        """Count a frame that was ignored, and log the first one of a connection, apart from other faults."""
        self.peer_faults += 1
        self.ignored += 1
        if self.ignored == 1:
            logger.warning("%s: %s; further ones are counted", repr(self._port.connection), readable(text))

    def count_dropped(self) -> None:
        """Count a request or pushed metadata that no handler took."""
        self.dropped += 1

    def handler_failed(self, handler: Handler, error: BaseException) -> None:
        """Report the failure of a handler to the log and to the application."""
        self.handler_errors += 1
        # The id stays unique: a registered function lives as long as the log.
        self._note(id(handler.registered), described(handler), error)
        self._report(handler.interaction, handler.route, error, handler.call, handler.pattern_text)

    def credentials_refused(self, handler: Handler, error: Exception) -> None:
        """Report to the log that the function that authenticates refused credentials by ``error``, without its text:
        that may hold them.
        """
        self._note(id(handler.registered), described(handler), error, is_secret=True)

    def state_function_failed(self, function: Callable[[str], object], error: BaseException) -> None:
        """Report the failure of an ``on_state`` function of this connection."""
        self.handler_errors += 1
        name = function_name(function)
        # By its name: every connection may have a function of its own, made in the same place.
        self._note((getattr(function, "__module__", ""), name), f"handler {name} of on_state", error)
        self._report("on_state", None, error)

    def error_function_failed(self, handler: Handler, error: BaseException) -> None:
        """Report the failure of an ``on_error`` function, which serves no request of the peer, to the log only."""
        self._note(id(handler.registered), described(handler), error)

    def fatal(self, error: BaseException) -> None:
        """Report that the connection ends because this side cannot encode the error of one stream.

        The cause, if there is one, is the exception of the application's ``encode_error`` of Streamux.
        """
        logger.warning("%s: %s", repr(self._port.connection), str(error))
        if error.__cause__ is not None:
            self.handler_errors += 1
            self._note("encode_error", "encode_error", error.__cause__)
            self._report("encode_error", None, error.__cause__)

    def lost(self, error: BaseException) -> None:
        """Log the end or the loss of a connection, at level INFO."""
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s: %s", repr(self._port.connection), str(error))

    def limit_reports(self) -> None:
        """Give the functions of ``on_error`` that are running a last deadline, because the connection is over."""
        last = trio.current_time() + REPORT_TIMEOUT
        for scope in self._reports or ():
            scope.deadline = min(scope.deadline, last)

    def log_repeats(self) -> None:
        """Log the failures that were only counted so far, if this connection has a log of its own."""
        if self.own is not None:
            self.own.log_repeats(trio.current_time())

    def release(self) -> None:
        """Forget the connection, which is over: the counts remain, and nothing is reported any more."""
        del self._port

    def _note(self, identity: Hashable, name: str, error: BaseException, *, is_secret: bool = False) -> None:
        port, log = self._port, self._shared or self.own
        if log is None:
            log = self.own = FailureLog()
        now = trio.current_time()
        log.note(identity, name, error, port.connection, now, port.deadlines, is_secret=is_secret)

    def _report(
        self,
        interaction: str,
        route: str | None,
        error: BaseException,
        served: object | None = None,
        pattern: str | None = None,
    ) -> None:
        """Call every function of ``on_error``: a plain one here, an async one in a task."""
        handlers = self._port.error_handlers
        if not handlers:
            return
        call = self._port.failed_call(interaction, route, pattern) if served is None else served
        for handler in handlers:
            if handler.kind is Kind.ASYNC and not self._has_room_for_report:
                self.unreported += 1
                continue
            waiting: Any = None
            with failures_told_to(partial(self.error_function_failed, handler)):
                waiting = self._port.run_in_context(handler.function, error, call)
            if inspect.isawaitable(waiting):
                self._start_report(handler, waiting)

    def _start_report(self, handler: Handler, waiting: Awaitable[object]) -> None:
        """Await what a function returned in a task, which the end of the connection gives some time."""
        if not self._has_room_for_report:
            self.unreported += 1
            if inspect.iscoroutine(waiting):
                waiting.close()
            return
        scope = trio.CancelScope(shield=True)
        if self._reports is None:
            self._reports = {}
        self._reports[scope] = None
        if self._port.ended is not None:
            scope.deadline = trio.current_time() + REPORT_TIMEOUT
        self._port.start_task(self._finish_report, handler, waiting, scope)

    async def _finish_report(self, handler: Handler, waiting: Awaitable[object], scope: trio.CancelScope) -> None:
        try:
            with scope, failures_told_to(partial(self.error_function_failed, handler)):
                await waiting
        finally:
            assert self._reports is not None
            del self._reports[scope]

    @property
    def _has_room_for_report(self) -> bool:
        """Return whether one more async function may be at work."""
        return len(self._reports or ()) < MAX_REPORTS


def described(handler: Handler) -> str:
    """Return the name of a handler for people: its function, interaction and route."""
    name = f"handler {function_name(handler.registered)}"
    if not handler.interaction:
        return name
    served = f"{name} of {handler.interaction}"
    return served if handler.route is None else f"{served} '{readable(handler.route)}'"
