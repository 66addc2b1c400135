"""How much goes into a micro-batch? The limits of a stream, and how long to wait for a volume worth the while."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from rsocket_trio.spark.options import Options

ROWS_PER_PARTITION = 100_000
"""Rows of a micro-batch by default, for each partition: the first one after a long pause has an end."""


class Volume:
    """The read limits of one query."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._waiting_since: float | None = None

    def default_limit(self, partitions: int) -> ReadLimit:
        """What Spark is told; it knows one kind at a time, and we obey all that are given."""
        options = self._options
        if options.max_rows_per_trigger is None and options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadMaxRows(options.max_rows_per_trigger or ROWS_PER_PARTITION * partitions)

    def max_rows(self, limit: ReadLimit) -> int | None:
        """Rows that may be read, ``None`` for all there are."""
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows
        return None if isinstance(limit, ReadAllAvailable) else self._options.max_rows_per_trigger

    def max_bytes(self, limit: ReadLimit) -> int | None:
        """Bytes that may be read, ``None`` for as many as there are."""
        if isinstance(limit, ReadMaxBytes):
            return limit.max_bytes
        return None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes_per_trigger

    def is_worthwhile(self, available: int, limit: ReadLimit) -> bool:
        """Whether so many rows make a micro-batch: enough of them, or some that have waited for long enough."""
        wanted = self._options.min_rows_per_trigger
        if not available:
            self._waiting_since = None
            return False
        if wanted is None or available >= wanted or isinstance(limit, ReadAllAvailable):
            self._waiting_since = None
            return True
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._options.max_trigger_delay:
            return False
        self._waiting_since = None
        return True
