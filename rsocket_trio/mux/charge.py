"""The charge of entries towards a limit in bytes: their own bytes and a fixed overhead for each."""

from __future__ import annotations

from typing import Final

ENTRY: Final = 256
"""Bytes that each entry counts beside its own. A frame of a few bytes takes some 60 beside them, an item 110, an item
with metadata 150, an element at a sink up to 210; an empty one is not free."""


def charged(size: int, entries: int = 1) -> int:
    """Return the charge of ``size`` bytes in ``entries`` entries."""
    return size + entries * ENTRY
