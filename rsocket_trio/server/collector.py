"""The settings of Python's collector for a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

DEFAULT_THRESHOLDS: Final = frozenset({(700, 10, 10), (2000, 10, 10), (2000, 10, 0)})
"""Those of CPython, by version."""
THRESHOLDS: Final = (10_000, 10, 10)
"""New objects before a collection, and how many of those before one of older ones: see ``gc.set_threshold``."""


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Have the collector look for cycles less often for the block, unless the application has set its thresholds.

    Requests in flight outlive several collections and are then freed without the collector: with 64,000 requests at
    once the default spends half of the time looking at them.
    """
    before = gc.get_threshold()
    if before not in DEFAULT_THRESHOLDS:
        yield
        return
    had_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not had_frozen:
            gc.unfreeze()
