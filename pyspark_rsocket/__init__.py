"""Lets Spark find the data source by itself: it searches top-level modules whose names begin with ``pyspark_``."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rsocket_trio.spark.source import RSocketDataSource as DefaultSource
else:
    try:
        from rsocket_trio.spark.source import RSocketDataSource as DefaultSource
    except ImportError as error:
        # Spark would say that there is no such source, and log the reason at best: so there is one that says it.
        from pyspark.sql.datasource import DataSource

        PROBLEM = str(error)

        class DefaultSource(DataSource):
            """The data source ``rsocket`` where packages are missing or too old: every use of it says which."""

            def __init__(self, options: MutableMapping[str, str]) -> None:
                raise ImportError(PROBLEM)

            @classmethod
            def name(cls) -> str:
                """Return the name for ``format``."""
                return "rsocket"


__all__ = ["DefaultSource"]
