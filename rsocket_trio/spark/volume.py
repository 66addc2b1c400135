"""Read limits of a query: the rows and bytes of a micro-batch, and the wait until it has enough rows."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from rsocket_trio.spark.options import Options

ROWS_PER_PARTITION = 100_000
"""Rows of a micro-batch by default, for each partition. They bound the first micro-batch after a long pause."""


class Volume:
    """The read limits of one query."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._waiting_since: float | None = None

    def default_limit(self, partitions: int) -> ReadLimit:
        """Return the limit for Spark, which knows one kind at a time; the other limits are applied here as well."""
        options = self._options
        if options.max_rows_per_trigger is None and options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadMaxRows(options.max_rows_per_trigger or ROWS_PER_PARTITION * partitions)

    def max_rows(self, limit: ReadLimit) -> int | None:
        """Return the number of rows that may be read, ``None`` for all there are."""
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows
        return None if isinstance(limit, ReadAllAvailable) else self._options.max_rows_per_trigger

    def max_bytes(self, limit: ReadLimit) -> int | None:
        """Return the number of bytes that may be read, ``None`` for as many as there are."""
        if isinstance(limit, ReadMaxBytes):
            return limit.max_bytes
        return None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes_per_trigger

    def is_worthwhile(self, available: int, limit: ReadLimit) -> bool:
        """Return whether ``available`` rows make a micro-batch: there are enough, or some have waited long enough."""
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
