"""How much of what came has nobody read yet? One sum for all streams of a connection, and who waits for less."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rsocket_trio.mux.charge import ENTRY

if TYPE_CHECKING:
    from rsocket_trio.connection.receiving import Inbox


class Stock:
    """What all streams of a connection received and nobody has read yet, in bytes.

    Above the limit no new credit is granted; those who go without are remembered until readers caught up. Where there
    is no credit each item counts ``overhead`` bytes more, and reading pauses until readers have made room for half of
    the limit, unless messages have a budget each; ``is_blocking`` says that it does. ``readings`` counts how often
    something was taken, ``is_awaited`` says that somebody waits for there to be less.
    """

    __slots__ = (
        "_limit",
        "_pauses",
        "_relieve",
        "_starved",
        "is_awaited",
        "is_blocking",
        "overhead",
        "readings",
        "size",
    )

    def __init__(self, limit: int, *, counts_items: bool = False, pauses: bool = False) -> None:
        self._limit = limit
        self._pauses = pauses
        self.is_awaited = False
        self.is_blocking = False
        self._starved: dict[Inbox, None] = {}
        self._relieve: Callable[[], None] | None = None
        self.overhead = ENTRY if counts_items else 0
        self.readings = 0
        self.size = 0

    def blocks(self, relieve: Callable[[], None]) -> bool:
        """Whether reading must pause; ``relieve`` is then called when it need not any more."""
        if not self._pauses or self.size <= (self._limit // 2 if self._relieve else self._limit):
            self._relieve = None
            self.is_blocking = False
            return False
        self._relieve = relieve
        self.is_awaited = self.is_blocking = True
        return True

    @property
    def is_full(self) -> bool:
        """Whether no new credit is granted."""
        return self.size > self._limit

    def starve(self, inbox: Inbox) -> None:
        """An inbox has to wait for its credit."""
        self._starved[inbox] = None
        self.is_awaited = True

    def taken(self, size: int) -> None:
        """Bytes were read, or dropped: grant what was withheld, if there is room again."""
        self.size -= size
        self.readings += 1
        if self.is_awaited:
            self.tell()

    def tell(self) -> None:
        """There is less now: those who wait for that may be right."""
        if self._relieve is not None and self.size <= self._limit // 2:
            self._relieve()
        if self._starved and self.size <= self._limit:
            starved, self._starved = self._starved, {}
            for inbox in starved:
                inbox.top_up()
        self.is_awaited = self._relieve is not None or bool(self._starved)

    def clear(self) -> None:
        """The connection is over: nobody gets credit."""
        self._starved.clear()
