"""Over a stream of files the mergeable tables say in the end what they say of all files at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qa.synthetic import write_capture
from rsocket_trio.analytics import derive, name_frames, table_schema
from rsocket_trio.analytics.views import QUERIES
from tests.analytics.handwritten import MINUTE
from tests.analytics.writing import frame, interaction, write_parquet
from tests.each_row import ALL_CASES
from tests.spark.session import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HOUR = 60 * MINUTE
PIECES = 2

TABLES_OF_FRAMES = ("connection_seconds", "error_minutes", "frame_sizes")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames and interactions of some connections in pieces, and a last one, hours later, that ends all windows."""
    folder = tmp_path_factory.mktemp("pieces")
    write_capture(folder, 2700)
    # Of each kind: where a query looks at some frames only, only these move its watermark.
    late = [
        frame(30 * HOUR, 0, "out", 1, 4, conn_id="the last", interaction="request_response"),
        frame(30 * HOUR, 1, "in", 1, 11, conn_id="the last", error_code=0x201, error_text="late"),
    ]
    last_row = interaction(1, "request_response", "last", 30 * HOUR, 10, first=10)
    write_parquet(folder / "parts" / str(PIECES), {"frames": late, "interactions": [last_row]})
    for table, time in (("frames", "ts"), ("interactions", "t_end")):
        files = [pq.ParquetFile(path).read() for path in (folder / table).rglob("*.parquet")]
        rows = pa.concat_tables(files).sort_by(time)
        for number in range(PIECES):
            piece = folder / "parts" / str(number) / table / "date=2026-01-01"
            piece.mkdir(parents=True)
            start, end = (len(rows) * place // PIECES for place in (number, number + 1))
            pq.write_table(rows.slice(start, end - start), piece / "piece.parquet")
    for number in range(PIECES + 1):
        for path in (folder / "parts" / str(number)).rglob("*.parquet"):
            # A stream of files takes them by age.
            os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    return folder


def stream_of(spark: SparkSession, folder: Path, table: str, time: str) -> DataFrame:
    source = spark.readStream.schema(table_schema(table)).option("maxFilesPerTrigger", 1)
    return source.parquet(str(folder / "parts" / "*" / table / "*")).withWatermark(time, "1 minute")


def start(rows: DataFrame, name: str) -> StreamingQuery:
    written = rows.writeStream.format("memory").queryName(name).outputMode("append")
    return written.trigger(availableNow=True).start()


def test_streams_give_what_one_pass_over_all_files_does(spark: SparkSession, pieces: Path) -> None:
    whole = spark.read.schema(table_schema("frames")).parquet(str(pieces / "parts" / "*" / "frames" / "*"))
    ended = spark.read.schema(table_schema("interactions")).parquet(str(pieces / "parts" / "*" / "interactions" / "*"))
    named = name_frames(stream_of(spark, pieces, "frames", "ts"))
    # Each is a query with a state of its own.
    tables = TABLES_OF_FRAMES if ALL_CASES else TABLES_OF_FRAMES[:1]
    queries = {f"streamed_{name}": start(derive(name, frames=named), f"streamed_{name}") for name in tables}
    interactions = stream_of(spark, pieces, "interactions", "t_end")
    queries["streamed_latency_histogram"] = start(
        derive("latency_histogram", interactions=interactions), "streamed_latency_histogram"
    )
    for query in queries.values():
        finish(query)

    batches = {name: derive(name, frames=name_frames(whole)) for name in tables}
    batches["latency_histogram"] = derive("latency_histogram", interactions=ended)
    for name, batch in batches.items():
        time = "second" if "second" in batch.columns else "minute"
        # The last file's window is still open.
        expected = batch.filter(f"{time} < TIMESTAMP '2026-01-02 06:00:00'")
        streamed = spark.table(f"streamed_{name}")
        assert listed(streamed) == listed(expected), name
        assert streamed.columns == batch.columns
        assert expected.count() > 3


def test_each_table_that_streams_is_tested_here() -> None:
    assert {name for name, sql in QUERIES.items() if "time_bucket" in sql} == {*TABLES_OF_FRAMES, "latency_histogram"}


def listed(rows: DataFrame) -> list[str]:
    return sorted(map(repr, rows.collect()))
