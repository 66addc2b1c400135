"""The log of handlers' failures: a traceback for each new one, and one line a minute with the number of repeats."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType

import attrs

from rsocket_trio.connection.timers import Timers

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
OURS = str(Path(__file__).parent), str(Path(__file__).parent.parent / "forms.py")
"""Files whose frames stand between the receive task and a handler."""


@attrs.define(eq=False)
class Repeated:
    """A failure that was logged at ``since``, and how often it came again since somebody was told."""

    name: str
    since: float
    count: int = 0


class FaultLog:
    """What the log heard of failures: those of all connections of a server, or of one that a client opened.

    A failure is told from others by the handler, the type of the exception, and where it was raised: that line, and the
    one in the handler that led there. Only texts and numbers are kept of it, no exception and no frame, and of at most
    256. Repeats are told once a minute, by ``ring``, and at the end by ``tell_rest``. Time is an argument.
    """

    __slots__ = ("_known", "_next", "_others", "_timers", "_told", "due")

    def __init__(self) -> None:
        self.due = math.inf
        self._known: dict[Hashable, Repeated] = {}
        self._others: Repeated | None = None
        self._told = -math.inf
        self._next = math.inf
        self._timers: Timers | None = None

    def note(
        self, handler: Hashable, name: str, error: BaseException, where: object, now: float, timers: Timers | None
    ) -> None:
        """A handler failed. ``handler`` tells it from others, ``name`` is what people call it, ``where`` a connection.

        ``timers`` are to ring when repeats can be told.
        """
        kind, line, place = kind_of(error)
        key = (handler, kind, line, place)
        known = self._known.get(key)
        if known is None and len(self._known) < DIFFERENT:
            self._known[key] = Repeated(f"{name}, {kind} at {place}", now)
            # The connection's name as text: whoever keeps the record must not keep the connection.
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
            self.tell_rest(now)
        elif timers is not None:
            self._wait(timers)

    def ring(self, now: float) -> None:
        """A minute is over."""
        if now >= self._next:
            self.tell_rest(now)
        elif self._timers is not None and self._next < math.inf:
            self._wait(self._timers)

    def tell_rest(self, now: float) -> None:
        """Log what came again since the last line, if anything did."""
        self._next = math.inf
        if self._timers is not None:
            self._timers.clear(self)
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

    def _wait(self, timers: Timers) -> None:
        """Have these timers ring in time; others may be gone, with the connection that had them."""
        if timers is not self._timers:
            if self._timers is not None:
                self._timers.clear(self)
            self._timers = timers
        if self._next < self.due:
            timers.set(self, self._next)


def _times(count: int) -> str:
    return f"{count} time" if count == 1 else f"{count} times"


@contextmanager
def failures_told_to(hear: Callable[[Exception], object]) -> Iterator[None]:
    """Have a function told of what the block raises, and go on. Being cancelled leaves the block, alone."""
    try:
        yield
    except Exception as error:
        hear(error)
    except BaseExceptionGroup as group:
        failures, rest = group.split(Exception)
        if failures is not None:
            hear(failures)
        if rest is not None:
            raise rest from None


def kind_of(error: BaseException) -> tuple[str, str, str]:
    """The type of an exception, the line in the handler that led to it, and the line that raised it.

    Groups are told apart by the types of their leaves, and by the lines of the leaf that is first in order of these.
    """
    if not isinstance(error, BaseExceptionGroup):
        return _name(type(error)), *lines_of(error)
    leaves = sorted((_name(type(leaf)), *lines_of(leaf)) for leaf in islice(_leaves(error), LEAVES))
    kinds = list(dict.fromkeys(kind for kind, _, _ in leaves))[:TYPES]
    return f"{_name(type(error))} of {', '.join(kinds)}", *leaves[0][1:]


def lines_of(error: BaseException) -> tuple[str, str]:
    """The line in the handler that led to an exception, and the line that raised it; each may be nowhere."""
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
