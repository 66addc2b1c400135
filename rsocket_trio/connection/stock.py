"""Counts the unread bytes of all streams of a connection and withholds credit above a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rsocket_trio.limits import ENTRY_OVERHEAD

if TYPE_CHECKING:
    from rsocket_trio.connection.receiving import Inbox


class Stock:
    """The bytes that all streams of a connection received and their readers have not taken yet.

    Above the limit no new credit is granted; inboxes without credit are kept until readers caught up. In protocols
    without credit each item counts ``overhead`` bytes more, and reading pauses until readers have made room for half
    of the limit, unless messages have a budget each; ``is_blocking`` says that reading pauses. ``readings`` counts the
    reads, ``is_awaited`` says that an inbox or the link waits for a smaller sum.
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
        self.overhead = ENTRY_OVERHEAD if counts_items else 0
        self.readings = 0
        self.size = 0

    def blocks(self, relieve: Callable[[], None]) -> bool:
        """Return whether reading must pause; if so, ``relieve`` is called when it may go on."""
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
        """Withhold the credit of an inbox until there is room."""
        self._starved[inbox] = None
        self.is_awaited = True

    def taken(self, size: int) -> None:
        """Subtract bytes that were read or dropped, and grant withheld credit if there is room again."""
        self.size -= size
        self.readings += 1
        if self.is_awaited:
            self.tell()

    def tell(self) -> None:
        """Resume reading and grant withheld credit, as far as the smaller sum allows."""
        if self._relieve is not None and self.size <= self._limit // 2:
            self._relieve()
        if self._starved and self.size <= self._limit:
            starved, self._starved = self._starved, {}
            for inbox in starved:
                inbox.top_up()
        self.is_awaited = self._relieve is not None or bool(self._starved)

    def clear(self) -> None:
        """Drop all withheld credit, because the connection is over."""
        self._starved.clear()
