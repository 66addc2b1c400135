"""Runs a load as one barrier stage of Spark, adds up the counts of its tasks, and stops it early.

Spark can only kill tasks, and then their counts are lost. So the driver serves one route that answers when the tasks
are to stop: each task asks there, over a connection of this library, and ends in order when it is answered or when the
driver is gone.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio

from rsocket_trio import ConnectionClosed, Invalid, Payload, Rejected, Responder, open_connection, serve
from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen.load_task import LoadError, Part, perform
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.summary import Row, Summary, summarize
from rsocket_trio.server.signals import until_interrupted
from rsocket_trio.tools.exception_groups import nursery_beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("rsocket_trio.spark")

REGISTRATION_TIMEOUT = 20.0
"""Seconds that the executors of a cluster get to register before their slots count as too few."""
POLL_INTERVAL = 0.5
"""Seconds between two looks at the slots."""
COLUMNS = (
    "task INT NOT NULL, second INT NOT NULL, measure STRING NOT NULL, name STRING NOT NULL, bucket INT, "
    "count BIGINT NOT NULL"
)
"""The columns of a load's rows, as a schema of Spark."""

Address: TypeAlias = tuple[str, bytes]
"""The URI that a task sends its stop request to, and the token that authorizes it."""


class SlotsError(RuntimeError):
    """Spark can't run so many tasks at the same time."""


@attrs.frozen(kw_only=True)
class Result:
    """The result of a load: ``summary``, and ``rows``, a data frame of the counts of each task in each second."""

    rows: DataFrame
    """Columns ``task``, ``second``, ``measure``, ``name``, ``bucket`` and ``count``."""
    summary: Summary


def run(spark: SparkSession, plan: Plan) -> Result:
    """Make the load of ``plan`` with the session ``spark``, and wait until it is over. Return its result.

    Ctrl-C in the main thread ends the load in order: the result covers the time up to then. A second one kills it.
    Raise ``SlotsError`` if Spark has no room for so many tasks at once, ``OSError``
    if the driver can't listen for them, and ``LoadError`` if none makes its load because one fails to begin.
    """
    check_slots(spark, plan.tasks)
    stop = trio.Event()
    return trio.run(until_interrupted, partial(run_plan, spark, plan, stop=stop), stop)


async def run_plan(spark: SparkSession, plan: Plan, *, stop: trio.Event) -> Result:
    """Make the load of a plan, without checking for slots first. Setting ``stop`` ends it in order."""
    from pyspark import inheritable_thread_target
    from pyspark.sql import functions

    seed = secrets.randbits(32) if plan.seed is None else plan.seed
    async with nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery:
        try:
            address = await serve_stop(nursery, spark, stop)
            # Reading the frame makes the load, and reading it twice would make it twice: keep its rows.
            read = inheritable_thread_target(spark)(load_frame(spark, plan, seed, address).localCheckpoint)
            rows = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        except trio.Cancelled:
            # As Spark itself does for Ctrl-C: the thread ends with its job.
            spark.sparkContext.cancelAllJobs()
            raise
    groups = rows.groupBy("second", "measure", "name", "bucket").agg(functions.sum("count"))
    counts: list[Row] = [
        (second, measure, name, bucket, count) for second, measure, name, bucket, count in groups.collect()
    ]
    for _, measure, name, _, _ in counts:
        if measure == "failed":
            raise LoadError(name)
    return Result(rows=rows, summary=summarize(plan, counts, seed=seed, interrupted=stop.is_set()))


def load_frame(spark: SparkSession, plan: Plan, seed: int, address: Address) -> DataFrame:
    """Return the data frame that makes the load whenever it is read."""

    def make_part(numbers: Iterable[int]) -> Iterator[tuple[object, ...]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()

        async def ready(problem: str) -> tuple[str, float]:
            # In a thread: connections must send keepalives while other tasks are not ready yet.
            problems = await trio.to_thread.run_sync(context.allGather, problem)
            return next(filter(None, problems), ""), trio.current_time()

        for number in numbers:
            part = Part(plan=plan, task=number, seed=seed)
            for row in trio.run(perform, part, ready, partial(wait_for_stop, address)):
                yield number, *row

    # mapInArrow has barriers, too, but needs pandas.
    stage = spark.sparkContext.parallelize(range(plan.tasks), plan.tasks).barrier()
    return spark.createDataFrame(stage.mapPartitions(make_part), COLUMNS, verifySchema=False)


def check_slots(spark: SparkSession, tasks: int) -> None:
    """Raise ``SlotsError`` if Spark can't run so many tasks at once: it would retry for minutes and not say why."""
    context: Any = getattr(spark, "_sc", None)
    if context is None:
        raise SlotsError("a load needs a session of its own: Spark Connect has no barrier stages of plain tasks")
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    is_local = str(spark.conf.get("spark.master", "")).startswith("local")
    deadline = time.monotonic() + (0 if is_local else REGISTRATION_TIMEOUT)
    while (slots := int(scala.maxNumConcurrentTasks(profile))) < tasks:
        if time.monotonic() >= deadline:
            more = f"a master of local[{tasks}]" if is_local else "more executor cores"
            raise SlotsError(
                f"{tasks} tasks need as many slots at the same time, and Spark has {slots}: fewer tasks, or {more}"
            )
        time.sleep(POLL_INTERVAL)


# Stopping early


async def serve_stop(nursery: trio.Nursery, spark: SparkSession, stop: trio.Event) -> Address:
    """Answer tasks in the nursery once ``stop`` is set; its end cuts them off. Return the address.

    Raise ``OSError`` if the driver can't listen.
    """
    host = spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    bind = spark.conf.get("spark.driver.bindAddress", host) or host
    host, bind = (f"[{name}]" if ":" in name and not name.startswith("[") else name for name in (host, bind))
    token = secrets.token_bytes(16)
    responder = Responder()

    @responder.request_response("stop")
    async def answer(request: Payload) -> bytes:
        if not hmac.compare_digest(request.data, token):
            raise Invalid("another token")
        await stop.wait()
        return b""

    [uri] = await nursery.start(partial(serve, responder, f"tcp://{bind}:0", grace=0))
    return f"tcp://{host}:{uri.rpartition(':')[2]}", token


async def wait_for_stop(address: Address) -> None:
    """Return when the driver asks for a stop or is gone. Wait for ever if it can't be reached or refuses."""
    uri, token = address
    connected = False
    try:
        async with open_connection(uri) as connection:
            await connection.ping()
            connected = True
            await connection.request_response(token, route="stop")
            return
    except RSocketError as error:
        if connected and (isinstance(error, ConnectionClosed) or not isinstance(error, Invalid | Rejected)):
            return
        logger.warning("the load cannot be stopped before its time: %s", str(error))
    # Outside the except block, which would keep the connection alive.
    await trio.sleep_forever()
