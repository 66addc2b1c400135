"""Load on a server from many tasks at the same time: open-loop arrivals, honest latencies, counts that merge.

``run`` makes it with Spark; ``Histogram`` is good for other numbers, too. Needs the extra ``spark``.
"""

from __future__ import annotations

from rsocket_trio.loadgen.histogram import Histogram
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.run_load import LoadError, Result, SlotsError, run
from rsocket_trio.loadgen.summary import Counts, Summary

__all__ = ["Counts", "Histogram", "LoadError", "Plan", "Result", "SlotsError", "Summary", "run"]
