"""Writes in a real Spark: batches and streams arrive, and what can't be is said when the write is planned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from rsocket_trio.spark import register
from tests.blocks import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = "CAST(CAST(id AS STRING) AS BINARY) AS data"


class Sink:
    """The process of ``sink_server``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.jvm.sink_server", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.uri = self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server ended"
        return line.strip()

    def dump(self) -> dict[str, Any]:
        """Return what came."""
        assert self._process.stdin is not None
        self._process.stdin.write("dump\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._read())
        return found

    @property
    def rows(self) -> list[bytes]:
        """The data of what counts."""
        return [bytes.fromhex(data) for data, *_ in self.dump()["orders"]]

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def sink(spark: SparkSession) -> Iterator[Sink]:
    register(spark)
    started = Sink()
    yield started
    started.stop()


def write(frame: DataFrame, uri: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("rsocket").mode(mode).options(**({"route": "orders"} | options)).save(uri)


def numbers(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


@pytest.mark.parametrize(
    "options",
    [{}, {"interaction": "channel"}, {"delivery": "exactlyOnce"}],
    ids=["response", "channel", "exactlyOnce"],
)
def test_a_batch_arrives_once(options: dict[str, str], spark: SparkSession, sink: Sink) -> None:
    write(spark.range(0, 3000, 1, 3).selectExpr(NUMBERS), sink.uri, **options)

    assert sorted(sink.rows) == numbers(3000)


def test_arrow_payloads_and_their_columns_arrive(spark: SparkSession, sink: Sink) -> None:
    frame = spark.range(0, 1000, 1, 1).selectExpr("id", "CAST(id AS STRING) AS name", "id / 2 AS half")
    write(frame, sink.uri, payload="arrow", delivery="exactlyOnce")

    tables = [pa.ipc.open_stream(row).read_all() for row in sink.rows]
    assert [count for _, _, count, _ in sink.dump()["orders"]] == [1000]
    assert pa.concat_tables(tables).to_pylist() == [
        {"id": number, "name": str(number), "half": number / 2} for number in range(1000)
    ]


def test_keys_and_metadata_arrive_with_the_rows(spark: SparkSession, sink: Sink) -> None:
    frame = spark.sql("SELECT 'one' AS data, 'k' AS key, 'm' AS metadata")
    write(frame, sink.uri, delivery="exactlyOnce")

    assert sink.dump()["orders"] == [[text.hex() if text else 1 for text in (b"one", b"m", b"", b"k")]]


def test_refused_rows_fail_the_job_or_are_skipped(spark: SparkSession, sink: Sink) -> None:
    frame = spark.range(0, 20, 1, 1).selectExpr(NUMBERS)
    with pytest.raises(PySparkException, match=r"no sevens.*errorPolicy=skip"):
        write(frame, sink.uri, route="picky")
    before = len(sink.dump()["picky"])
    write(frame, sink.uri, route="picky", errorPolicy="skip")

    assert sorted(sink.dump()["picky"][before:]) == sorted(str(n) for n in range(20) if n % 10 != 7)


@pytest.mark.parametrize(
    ("columns", "mode", "options", "problem"),
    [
        (["id AS price", NUMBERS], "append", {}, "column 'price' is none of data, metadata, key,"),
        (["id AS data"], "append", {}, "column 'data' is BIGINT, wanted is BINARY or STRING"),
        ([NUMBERS], "overwrite", {}, "mode 'overwrite'.*Use mode 'append'"),
        ([NUMBERS], "append", {"delivry": "x"}, "unknown option 'delivry': did you mean 'delivery'"),
        ([NUMBERS], "append", {"route": "nowhere"}, "option 'route': there is no route 'nowhere' at tcp://127.0.0.1"),
        (
            [NUMBERS],
            "append",
            {"route": "nowhere", "delivery": "exactlyOnce", "auth.type": "bearer", "auth.token": "s3cret"},
            "option 'route': there is no route 'nowhere.stage' at tcp://127.0.0.1",
        ),
    ],
    ids=["another column", "wrong type", "overwrite", "unknown option", "no route", "no stage"],
)
def test_what_cant_be_is_said_clearly_and_without_secrets(
    columns: list[str], mode: str, options: dict[str, str], problem: str, spark: SparkSession, sink: Sink
) -> None:
    with pytest.raises(PySparkException, match=problem) as caught:
        write(spark.range(0, 4, 1, 1).selectExpr(*columns), sink.uri, mode, **options)

    assert "s3cret" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
def test_a_server_that_is_not_there_is_named(delivery: str, spark: SparkSession) -> None:
    register(spark)
    frame = spark.range(0, 4, 1, 1).selectExpr(NUMBERS)

    with pytest.raises(PySparkException, match=r"tcp://127.0.0.1:1.*refused"):
        write(frame, "tcp://127.0.0.1:1", delivery=delivery, reconnectMaxAttempts=0)


def test_a_stream_arrives_once_over_a_restart(spark: SparkSession, sink: Sink, tmp_path: Path) -> None:
    folder = tmp_path / "in"

    def run() -> None:
        query = (
            spark.readStream.schema("data STRING")
            .option("maxFilesPerTrigger", 1)
            .text(str(folder))
            .withColumnRenamed("value", "data")
            .writeStream.format("rsocket")
            .options(route="orders", delivery="exactlyOnce", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(sink.uri)
        )
        query.awaitTermination()

    for part in range(2):
        spark.range(100 * part, 100 * part + 100, 1, 1).selectExpr("CAST(id AS STRING)").write.mode("append").text(
            str(folder)
        )
        run()

    assert sorted(sink.rows) == numbers(200)
