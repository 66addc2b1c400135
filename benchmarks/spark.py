"""Rows per second through the Spark source and sink, beside Spark's own sources and a plain Python one.

``python -m benchmarks.spark server|jobs`` is one process of these, as ``main`` runs them: the server says its URI, the
jobs print one JSON line. Server and Spark share the machine, as they do in every figure here.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from benchmarks.descendants import cpu_of_tree
from benchmarks.harness import ROOT, cpu_of, line_of, started
from benchmarks.rows import ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_ROWS = 500_000
"""Rows of 28 bytes that one raw read takes."""
ARROW_ROWS = 5_000_000
PIECE = 5000
"""Rows of one Arrow payload."""
WRITTEN = {"atLeastOnce": 60_000, "exactlyOnce": 500_000, "arrow": 3_000_000}
"""Rows that each kind of write writes."""
REPEAT = 3
"""Repetitions of each job, after one that is not counted."""
FILES = ".files"
"""The end of a route whose rows are in files; those of the others are in memory."""
ROUTES: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("raw", SMALL_ROWS, {}),
    (f"raw{FILES}", SMALL_ROWS, {}),
    ("arrow", ARROW_ROWS, {"payload": "arrow"}),
)
"""The routes of sources: rows of each partition, and the options that reading them needs."""
MICRO_BATCHES, WARM_UP = 30, 3
"""Micro-batches of a query that are measured, and those before them."""
LONGEST = 120
"""Seconds of one streaming query at most."""
LONGEST_RUN = 1200
"""Seconds of everything."""
SINK_BYTES = 2**28
"""Bytes of rows that the sink's log keeps."""


# The server


async def serve_rows() -> None:
    """Serve the routes until stdin ends."""
    import pyarrow as pa
    import trio

    from rsocket_trio import Responder, serve
    from rsocket_trio.replay import Element, Ledger, Log, add_sink, add_source

    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(PIECE)), "data": [ROW] * PIECE})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    piece = stream.getvalue().to_pybytes()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with (
            Log(partitions=2, limit_bytes=2**30) as log,
            Log(partitions=2, limit_bytes=2**30) as arrow,
            Log(folder / "raw.db", 2) as files,
            Log(folder / "written.db", 2) as written,
            trio.open_nursery() as nursery,
        ):
            for partition in range(2):
                for _ in range(0, SMALL_ROWS, 10_000):
                    await log.append_all({partition: [Element(ROW)] * 10_000})
                    await files.append_all({partition: [Element(ROW)] * 10_000})
                for _ in range(0, ARROW_ROWS, PIECE):
                    await arrow.append(piece, partition=partition, count=PIECE)
            responder = Responder()
            add_source(responder, "raw", log)
            add_source(responder, "arrow", arrow)
            add_source(responder, f"raw{FILES}", files)
            add_sink(responder, "sink", Ledger(Log(partitions=2, limit_bytes=SINK_BYTES), staged_bytes=2**30))
            add_sink(responder, f"sink{FILES}", Ledger(written))
            [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
            print(uri, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()


# The jobs


@attrs.frozen
class Job:
    """One thing that is measured: ``run`` does it once, and moves ``rows`` rows; ``of`` is what is compared.

    ``store`` is where the server has the rows, ``memory`` or ``files``; ``None`` if there is no server.
    """

    name: str
    of: str
    rows: int
    run: Callable[[], object]
    store: str | None = None


def jobs(spark: SparkSession, uri: str) -> Iterator[Job]:
    """Everything that is measured but the floor of a micro-batch."""
    yield from reads(spark, uri)
    yield from streams(spark, uri)
    yield from writes(spark, uri)


def reads(spark: SparkSession, uri: str) -> Iterator[Job]:
    """Batch reads, one partition and two, each into a sink that does nothing."""
    for partitions in (1, 2):
        for route, rows, options in ROUTES:
            reader = spark.read.format("rsocket").options(route=route, positions="server", **options)
            # The other partition is left out by beginning at its end.
            start = json.dumps({str(one): rows for one in range(partitions, 2)})
            reader = reader.option("startingPosition", start) if partitions == 1 else reader
            frame = (reader.schema("id BIGINT, data BINARY") if options else reader).load(uri)
            kind, store = stored(route)
            yield Job(f"read {kind}", f"{partitions} partitions", rows * partitions, partial(drain, frame), store)
        tuples = spark.read.format("tuples").options(rows=SMALL_ROWS, partitions=partitions).load()
        yield Job("read tuples", f"{partitions} partitions", SMALL_ROWS * partitions, partial(drain, tuples))
        own = spark.range(0, ARROW_ROWS * partitions, 1, partitions).selectExpr("id", f"X'{ROW.hex()}' AS data")
        yield Job("read range", f"{partitions} partitions", ARROW_ROWS * partitions, partial(drain, own))


def streams(spark: SparkSession, uri: str) -> Iterator[Job]:
    """Streaming queries that take what is available in five micro-batches."""
    for route, rows, options in ROUTES:
        reader = spark.readStream.format("rsocket").options(route=route, positions="server", **options)
        reader = reader.option("startingPosition", "earliest").option("maxRowsPerTrigger", 2 * rows // 5)
        frame = (reader.schema("id BIGINT, data BINARY") if options else reader).load(uri)
        kind, store = stored(route)
        yield Job(f"stream {kind}", "2 partitions", rows * 2, partial(run_available, frame), store)


def writes(spark: SparkSession, uri: str) -> Iterator[Job]:
    """Batch writes by two tasks."""
    kinds: dict[str, dict[str, str]] = {
        "atLeastOnce": {},
        "exactlyOnce": {"delivery": "exactlyOnce"},
        "arrow": {"payload": "arrow"},
        "arrow exactlyOnce": {"payload": "arrow", "delivery": "exactlyOnce"},
    }
    for kind, options in kinds.items():
        rows = WRITTEN[kind.split()[0]]
        frame = spark.range(0, rows, 1, 2).selectExpr(f"X'{ROW.hex()}' AS data")
        for route in ("sink", f"sink{FILES}") if "delivery" in options else ("sink",):
            writer = frame.write.format("rsocket").mode("append").options(route=route, **options)
            yield Job(f"write {kind}", "2 partitions", rows, partial(writer.save, uri), stored(route)[1])
    frame = spark.range(0, SMALL_ROWS, 1, 2).selectExpr(f"X'{ROW.hex()}' AS data")
    rows_alone = frame.write.format("tuples").mode("append")
    own = spark.range(0, ARROW_ROWS, 1, 2)
    yield Job("write rows in Python", "2 partitions", SMALL_ROWS, rows_alone.save)
    yield Job("write noop", "2 partitions", ARROW_ROWS, partial(drain, own))


def stored(route: str) -> tuple[str, str]:
    """The kind of a route's rows, and where the server has them."""
    kind = route.removesuffix(FILES)
    return kind, "memory" if kind == route else "files"


def drain(frame: DataFrame) -> None:
    """Read everything, and do nothing with it."""
    frame.write.format("noop").mode("overwrite").save()


def run_available(frame: DataFrame) -> None:
    """Run a query of what is available into a sink that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination(LONGEST)


def micro_batch_ms(frame: DataFrame) -> float:
    """Milliseconds of a micro-batch of a query into a sink that does nothing: the median of ``MICRO_BATCHES``."""
    found: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            deadline = time.monotonic() + LONGEST
            while len(found) < MICRO_BATCHES + WARM_UP and time.monotonic() < deadline:
                query.awaitTermination(1)
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        finally:
            query.stop()
    return statistics.median([found[batch] for batch in sorted(found)][WARM_UP : WARM_UP + MICRO_BATCHES])


def floors(spark: SparkSession, uri: str, repeat: int) -> dict[str, list[float]]:
    """Milliseconds of a micro-batch that has next to nothing to do: ours and Spark's own source, in turns."""
    reader = spark.readStream.format("rsocket").options(route="raw", positions="server", startingPosition="earliest")
    ours = reader.option("maxRowsPerTrigger", 2).load(uri)
    own = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).option("numPartitions", 2).load()
    found: dict[str, list[float]] = {"rsocket": [], "rate": []}
    for _ in range(repeat):
        found["rsocket"].append(micro_batch_ms(ours))
        found["rate"].append(micro_batch_ms(own))
    return found


def run_jobs(uri: str, server: int, repeat: int) -> dict[str, Any]:
    """Run every job, each once to warm up and then ``repeat`` times."""
    from rsocket_trio.spark import ensure_java, register

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    from pyspark.sql import SparkSession

    from benchmarks.tuples import TupleSource

    builder = SparkSession.builder.master("local[2]").appName("benchmarks")
    settings = {"bindAddress": "127.0.0.1", "host": "127.0.0.1", "memory": "2g"}
    for key, value in settings.items():
        builder = builder.config(f"spark.driver.{key}", value)
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
    found: list[dict[str, Any]] = []
    try:
        register(spark)
        spark.dataSource.register(TupleSource)
        for job in jobs(spark, uri):
            job.run()
            seconds, cpu = [], []
            for _ in range(repeat):
                before, begun = cpu_of(server) + cpu_of_tree(os.getpid()), time.perf_counter()
                job.run()
                seconds.append(time.perf_counter() - begun)
                used = cpu_of(server) + cpu_of_tree(os.getpid()) - before
                if used > 0:  # else somebody ended whom nobody waited for, and took what it had used with it
                    cpu.append(used)
            said = {"job": job.name, "of": job.of, "store": job.store, "rows": job.rows}
            found.append(said | {"seconds": seconds, "cpu": cpu})
        return {"jobs": found, "floor_ms": floors(spark, uri, repeat), "repeat": repeat}
    finally:
        spark.stop()


def main(repeat: int = REPEAT) -> dict[str, Any]:
    """Print and return the figures, of ``repeat`` repetitions."""
    command = [sys.executable, "-m", "benchmarks.spark"]
    before = os.getloadavg()[0]
    with started([*command, "server"], LONGEST_RUN) as (server, errors):
        uri = line_of(server, errors).strip()
        with started([*command, "jobs", uri, str(server.pid), str(repeat)], LONGEST_RUN) as (spark, said):
            figures: dict[str, Any] = json.loads(line_of(spark, said))
    figures["load"] = [before, os.getloadavg()[0]]
    figures["python"], figures["cores"] = platform.python_version(), os.cpu_count()
    print(f"{'job':24} {'of':14} {'in':6} {'rows':>9} {'rows/s':>10} {'best':>10}  CPU us/row")
    for job in figures["jobs"]:
        speed, best = (job["rows"] / choose(job["seconds"]) for choose in (statistics.median, min))
        cpu = statistics.median(job["cpu"]) / job["rows"] * 1e6
        what = f"{job['job']:24} {job['of']:14} {job['store'] or '':6} {job['rows']:9}"
        print(f"{what} {speed:10.0f} {best:10.0f}  {cpu:10.2f}")
    for name, floor in figures["floor_ms"].items():
        print(f"micro-batch of 2 rows, {name:8} {statistics.median(floor):8.0f} ms")
    print(f"load {figures['load'][0]:.1f} before, {figures['load'][1]:.1f} after")
    return figures


if __name__ == "__main__":
    if sys.argv[1] == "server":
        import trio

        trio.run(serve_rows)
    else:
        print(json.dumps(run_jobs(sys.argv[2], *map(int, sys.argv[3:]))))
