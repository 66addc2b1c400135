"""Allocates the ids of new streams, from this side's range and never one that is in use."""

from __future__ import annotations

from collections.abc import Container

from rsocket_trio.errors import LocalProtocolError


class StreamIds:
    """Ids from ``first`` by ``step`` up to ``last``; then again from the start, if the dialect allows re-use.

    A dialect without re-use refuses new streams once the range is used up (RS02-SID-05); one with re-use wraps and
    skips ids still in use (RS10-SID-07).
    """

    __slots__ = ("_first", "_last", "_next", "_reuse", "_size", "_step")

    def __init__(self, first: int, last: int, *, reuse: bool, step: int = 2) -> None:
        self._last = last
        self._reuse = reuse
        self._step = step
        self._first = self._next = first
        self._size = (last - first) // step + 1

    def start_at(self, stream_id: int) -> None:
        """Continue from this id, which must be in this side's range."""
        if (stream_id - self._first) % self._step or not self._first <= stream_id <= self._last:
            second = self._first + self._step
            raise ValueError(f"stream id {stream_id} is not one of {self._first}, {second} ... {self._last}")
        self._next = stream_id

    def begin_at(self, first: int) -> None:
        """Use the range from this id on. No id may have been taken before."""
        self._first = self._next = first
        self._size = (self._last - first) // self._step + 1

    def take(self, in_use: Container[int]) -> int:
        """Return the next free id. Raise ``LocalProtocolError`` if there is none: a new connection is needed."""
        stream_id = self._next
        if stream_id <= self._last and stream_id not in in_use:
            self._next = stream_id + self._step
            return stream_id
        return self._search(in_use)

    def _search(self, in_use: Container[int]) -> int:
        for _ in range(self._size):
            if self._next > self._last:
                if not self._reuse:
                    break
                self._next = self._first
            stream_id = self._next
            self._next += self._step
            if stream_id not in in_use:
                return stream_id
        raise LocalProtocolError(f"no stream id up to {self._last} is left on this connection")
