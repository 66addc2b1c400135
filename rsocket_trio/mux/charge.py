"""What an entry counts where a bound counts bytes: its own, and what it costs to hold it at all."""

from __future__ import annotations

from typing import Final

ENTRY: Final = 256
"""Bytes that anything held counts beside its own. A frame of a few bytes takes some 60 beside them, an item 110, an
item with metadata 150, an element at a sink up to 210; an empty one is not free."""


def charged(size: int, entries: int = 1) -> int:
    """What so many bytes in so many entries count."""
    return size + entries * ENTRY
