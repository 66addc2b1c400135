"""Load on a server from many tasks at the same time: open-loop arrivals, honest latencies, counts that merge.

``run_workers`` makes it with processes of this machine, ``run`` with Spark, which needs the extra ``spark``.
``Histogram`` is good for other numbers, too.
"""

from __future__ import annotations

from rsocket_trio.loadgen.histogram import Histogram
from rsocket_trio.loadgen.load_task import LoadError
from rsocket_trio.loadgen.load_workers import WorkerError, run_workers
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.spark_load import Result, SlotsError, run
from rsocket_trio.loadgen.summary import Counts, Summary

__all__ = [
    "Counts",
    "Histogram",
    "LoadError",
    "Plan",
    "Result",
    "SlotsError",
    "Summary",
    "WorkerError",
    "run",
    "run_workers",
]
