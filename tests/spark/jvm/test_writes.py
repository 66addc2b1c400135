"""Writes in a real Spark: batches and streams arrive, and what can't be is said when the write is planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from tests.rows import Rows
from tests.spark.session import finish
from tests.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = "CAST(CAST(id AS STRING) AS BINARY) AS data"


def write(frame: DataFrame, uri: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("rsocket").mode(mode).options(**({"route": "orders"} | options)).save(uri)


def numbers(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


def test_arrow_payloads_and_their_columns_arrive(spark: SparkSession, sink: Sink) -> None:
    frame = spark.range(0, 1000, 1, 1).selectExpr("id", "CAST(id AS STRING) AS name", "id / 2 AS half")
    write(frame, sink.uri, payload="arrow", delivery="exactlyOnce")

    tables = [pa.ipc.open_stream(row).read_all() for row in sink.rows()]
    assert [record.count for record in sink.records()] == [1000]
    assert pa.concat_tables(tables).to_pylist() == [
        {"id": number, "name": str(number), "half": number / 2} for number in range(1000)
    ]


def test_what_cant_be_is_said_clearly_and_without_secrets(spark: SparkSession, sink: Sink) -> None:
    secret = {"auth.type": "bearer", "auth.token": "s3cret"}
    nowhere = "option 'route': there is no route '{}' at tcp://127.0.0.1"
    with Rows() as row:
        for columns, mode, options, problem in (
            (["id AS price", NUMBERS], "append", {}, "column 'price' is none of data, metadata, key,"),
            (["id AS data"], "append", {}, "column 'data' is BIGINT, wanted is BINARY or STRING"),
            ([NUMBERS], "overwrite", {}, "mode 'overwrite'.*Use mode 'append'"),
            ([NUMBERS], "append", {"delivry": "x"}, "unknown option 'delivry': did you mean 'delivery'"),
            ([NUMBERS], "append", {"route": "nowhere"}, nowhere.format("nowhere")),
            (
                [NUMBERS],
                "append",
                {"route": "nowhere", "delivery": "exactlyOnce", **secret},
                nowhere.format("nowhere.stage"),
            ),
        ):
            with row(problem):
                with pytest.raises(PySparkException, match=problem) as caught:
                    write(spark.range(0, 4, 1, 1).selectExpr(*columns), sink.uri, mode, **options)
                assert "s3cret" not in str(caught.value)
                assert "Traceback" not in str(caught.value)


def test_a_sink_belongs_to_one_checkpoint_until_another_takes_it_over(
    spark: SparkSession, sink: Sink, tmp_path: Path
) -> None:
    spark.range(0, 100, 1, 1).selectExpr("CAST(id AS STRING)").write.text(str(tmp_path / "in"))

    def run(checkpoint: str, **more: str) -> None:
        rows = spark.readStream.schema("data STRING").text(str(tmp_path / "in")).withColumnRenamed("value", "data")
        writer = rows.writeStream.format("rsocket").options(route="orders", delivery="exactlyOnce", sinkId="x", **more)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        finish(writer.start(sink.uri))

    run("one")
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"sink 'x' belongs to query [-0-9a-f]+, not to query [-0-9a-f]+"):
            run("two")
    run("two", takeOver="true")
    with pytest.raises(PySparkException, match="option 'takeOver' needs 'sinkId'"):
        write(spark.range(1).selectExpr(NUMBERS), sink.uri, delivery="exactlyOnce", takeOver="true")

    assert sorted(sink.rows()) == sorted(numbers(100) * 2)


def test_a_stream_arrives_once_over_a_restart(spark: SparkSession, sink: Sink, tmp_path: Path) -> None:
    folder = tmp_path / "in"

    def run() -> None:
        finish(
            spark.readStream.schema("data STRING")
            .option("maxFilesPerTrigger", 1)
            .text(str(folder))
            .withColumnRenamed("value", "data")
            .writeStream.format("rsocket")
            .options(route="orders", delivery="exactlyOnce", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(sink.uri)
        )

    for part in range(2):
        spark.range(100 * part, 100 * part + 100, 1, 1).selectExpr("CAST(id AS STRING)").write.mode("append").text(
            str(folder)
        )
        run()

    assert sorted(sink.rows()) == numbers(200)
