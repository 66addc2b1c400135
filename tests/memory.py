"""The bytes that a block allocates, as Python counts them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


class Traced:
    """The bytes that are allocated beyond those of the block's beginning."""

    def __init__(self) -> None:
        self._before = tracemalloc.get_traced_memory()[0]

    def now(self) -> int:
        """Return those that are in use."""
        return tracemalloc.get_traced_memory()[0] - self._before

    def kept(self) -> int:
        """Return those in use without garbage."""
        gc.collect()
        return self.now()

    def peak(self) -> int:
        """Return the most that were in use at once."""
        return tracemalloc.get_traced_memory()[1] - self._before


@contextmanager
def traced() -> Iterator[Traced]:
    """Count what the block allocates."""
    gc.collect()
    tracemalloc.start()
    try:
        yield Traced()
    finally:
        tracemalloc.stop()
