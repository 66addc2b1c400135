"""Counts the rows and bytes of a live stream."""

from __future__ import annotations

from typing import Any, Protocol

import attrs


@attrs.define
class Tally:
    """The number of rows and bytes that came, and of connections that were lost, or could not be made."""

    rows: int = 0
    bytes: int = 0
    reconnects: int = 0

    def add(self, rows: int, size: int, reconnects: int = 0) -> None:
        """Add to each number; ``size`` is in bytes."""
        self.rows += rows
        self.bytes += size
        self.reconnects += reconnects


class Counted(Protocol):
    """Rows that came together."""

    @property
    def rows(self) -> int:
        """Return their number."""
        ...

    @property
    def size(self) -> int:
        """Return their bytes."""
        ...


class CountingTaker:
    """Hands rows on to ``conveyor``, and counts them in ``tally``."""

    def __init__(self, conveyor: Any) -> None:
        self._conveyor = conveyor
        self.tally = Tally()

    async def put(self, item: Counted, weight: int) -> None:
        """Count and hand on."""
        self.tally.add(item.rows, item.size)
        await self._conveyor.put(item, weight)
