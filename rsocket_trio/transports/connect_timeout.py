"""The time in which a connection must be open, and the steps of connecting that it bounds."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from rsocket_trio.errors import ConnectionLost

CONNECT_TIMEOUT = 10.0
"""Seconds that connecting may take by default."""


class ConnectTimeout:
    """The ``seconds`` that connecting to ``target`` may take, counted from now on; ``math.inf`` for no limit.

    Each step of connecting runs in a scope of its own, so that an open connection keeps none.
    Raise ``ValueError`` unless ``seconds`` is above 0, and ``TypeError`` for a value that is no number.
    """

    __slots__ = ("_deadline", "_seconds", "_target")

    def __init__(self, seconds: float, target: str = "") -> None:
        self._seconds = checked_connect_timeout(seconds)
        self._target = target
        self._deadline = math.inf if math.isinf(seconds) else trio.current_time() + seconds

    @contextmanager
    def step(self, missing: str) -> Iterator[None]:
        """Bound one step. Raise ``ConnectionLost`` once the time is over; ``missing`` says what did not come.

        Scopes and nurseries that are entered in a step end in it.
        """
        with trio.CancelScope(deadline=self._deadline) as scope:
            yield
        if scope.cancelled_caught:
            raise self.expired(missing)

    def scope(self) -> trio.CancelScope:
        """Return a scope with this deadline, for a step that opens what outlives it: remove the deadline then."""
        return trio.CancelScope(deadline=self._deadline)

    def expired(self, missing: str) -> ConnectionLost:
        """Return the error for a step that took too long."""
        where = f"{self._target}: " if self._target else ""
        return ConnectionLost(f"{where}{missing} within {self._seconds:g} s")


def checked_connect_timeout(seconds: object) -> float:
    """Return the seconds. Raise ``ValueError`` unless they are above 0, ``TypeError`` for a value that is no number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"connect_timeout is a number of seconds, not {type(seconds).__name__}")
    if not seconds > 0 or sys.float_info.max < seconds < math.inf:
        raise ValueError(f"connect_timeout of {seconds!s:.20}: must be above 0, below 1e308; math.inf is no limit")
    return seconds


UNLIMITED: Final = ConnectTimeout(math.inf)
"""No limit: the caller bounds the time."""
