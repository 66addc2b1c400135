"""Runs a load as one barrier stage of Spark and adds up the counts of its tasks."""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Unpack

import attrs

from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.load_messages import LoadError, Part
from rsocket_trio.loadgen.load_task import COLUMNS, work
from rsocket_trio.loadgen.measures import Row
from rsocket_trio.loadgen.plan import Plan, Terms
from rsocket_trio.loadgen.stop_server import StopServer
from rsocket_trio.loadgen.summary import Summary, summarize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("rsocket_trio.spark")

REGISTRATION_TIMEOUT = 20.0
"""Seconds that the executors of a cluster get to register before their slots count as too few."""
POLL_INTERVAL = 0.5
"""Seconds between two looks at the slots."""
LOCALHOST = "127.0.0.1"


class SlotsError(RuntimeError):
    """Spark can't run so many tasks at the same time."""


@attrs.frozen(kw_only=True)
class Result:
    """The result of a load: ``summary``, and ``rows``, a data frame of the counts of each task in each second."""

    rows: DataFrame
    """The counts of each task and second, as they were made: columns ``task``, ``second``, ``measure``, ``name``,
    ``bucket``, ``count``."""
    summary: Summary
    """The same, added up over tasks."""


def run(spark: SparkSession, uri: str, **terms: Unpack[Terms]) -> Result:
    """Make a load on the server at ``uri`` with the session ``spark``, and wait until it is over. Return its result.

    ``terms`` are the fields of ``Plan``: ``rate`` requests per second of all ``tasks`` together, for ``seconds``
    seconds, with one ``interaction`` of one ``route``, on ``connections`` of each task.

    Ctrl-C in the main thread ends the load in order: the result covers the time up to then. A second one kills it.
    Raise ``ValueError`` for invalid terms, ``SlotsError`` if Spark has no room for so many tasks at once, ``LoadError``
    if no task makes its load because one of them fails to begin.
    """
    plan = Plan(uri=uri, **terms)
    check_slots(spark, plan.tasks)
    return run_plan(spark, plan)


def run_plan(spark: SparkSession, plan: Plan) -> Result:
    """Make the load of a plan, without checking for slots first."""
    seed = secrets.randbits(32) if plan.seed is None else plan.seed
    with stop_server(spark) as server, finishing(server.stop if server is not None else None) as interrupted:
        # Reading the frame makes the load, and reading it twice would make it twice: keep its rows.
        rows = load_frame(spark, plan, seed, server).localCheckpoint()
    found = list(added_up(rows))
    for _, measure, name, _, _ in found:
        if measure == measures.FAILED:
            raise LoadError(name)
    return Result(rows=rows, summary=summarize(plan, found, seed=seed, interrupted=interrupted.is_set()))


def added_up(rows: DataFrame) -> Iterator[Row]:
    """Yield the rows of all tasks added up: sums of counts, and the highest of each fact."""
    from pyspark.sql import functions

    # Sums of clocks overflow.
    kept = rows.where(rows.measure != measures.BEGAN).groupBy("second", "measure", "name", "bucket")
    for second, measure, name, bucket, total, highest in kept.agg(
        functions.sum("count"), functions.max("count")
    ).collect():
        yield second, measure, name, bucket, highest if measure in measures.FACTS else total


def load_frame(spark: SparkSession, plan: Plan, seed: int, server: StopServer | None) -> DataFrame:
    """Return the data frame that makes the load whenever it is read."""
    address = server.address if server is not None else None

    def task(numbers: Iterable[int]) -> Iterator[tuple[object, ...]]:
        for number in numbers:
            yield from work(Part(plan=plan, task=number, seed=seed), address)

    # mapInArrow has barriers, too, but needs pandas.
    stage = spark.sparkContext.parallelize(range(plan.tasks), plan.tasks).barrier()
    return spark.createDataFrame(stage.mapPartitions(task), COLUMNS, verifySchema=False)


def check_slots(spark: SparkSession, tasks: int) -> None:
    """Raise ``SlotsError`` if Spark can't run so many tasks at once: it would retry for minutes and not say why."""
    deadline = time.monotonic() + REGISTRATION_TIMEOUT
    while (slots := slots_of(spark)) < tasks:
        if is_local(spark) or time.monotonic() >= deadline:
            raise SlotsError(
                f"{tasks} tasks need as many slots at the same time, and Spark has {slots}: fewer tasks, or "
                + (f"a master of local[{tasks}]" if is_local(spark) else "more executor cores")
            )
        time.sleep(POLL_INTERVAL)


def slots_of(spark: SparkSession) -> int:
    """Return how many tasks the scheduler can run at once. Raise ``SlotsError`` if it can't be asked."""
    context: Any = getattr(spark, "_sc", None)
    if context is None:
        raise SlotsError("a load needs a session of its own: Spark Connect has no barrier stages of plain tasks")
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def is_local(spark: SparkSession) -> bool:
    """Return whether all tasks run on this machine."""
    return spark.conf.get("spark.master", "").startswith("local")  # type: ignore[union-attr]  # there is a default


@contextmanager
def stop_server(spark: SparkSession) -> Iterator[StopServer | None]:
    """Serve the tasks' stop requests during the block; ``None`` if the driver can't listen. Its end cuts them off."""
    host = spark.conf.get("spark.driver.host", LOCALHOST) or LOCALHOST
    bind = spark.conf.get("spark.driver.bindAddress", host) or host
    try:
        server = StopServer(bind, host)
    except OSError as error:
        logger.warning("the load cannot be stopped before its time: %s", error)
        yield None
        return
    try:
        yield server
    finally:
        server.close()


@contextmanager
def finishing(stop: Callable[[], object] | None) -> Iterator[threading.Event]:
    """Have the first Ctrl-C call ``stop`` and set the event; the second one reaches the handler from before."""
    interrupted = threading.Event()
    if stop is None or threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def handle(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)
        stop()

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
