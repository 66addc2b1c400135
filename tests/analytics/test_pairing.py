"""Frames become the interactions that they are, whatever happened."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from qa.synthetic import write_capture
from rsocket_trio import Responder, open_connection, serve
from rsocket_trio.analytics import derive, read_capture
from rsocket_trio.analytics.views import open_duckdb
from rsocket_trio.capture import Capture
from rsocket_trio.capture.schema import TABLES
from tests.analytics.writing import Cells

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = [column.name for column in TABLES["interactions"]]
TIMES = ("t_start", "t_first", "t_end")


def test_spark_pairs_frames_to_the_interactions_that_the_generator_says(spark: SparkSession, tmp_path: Path) -> None:
    streams = write_capture(tmp_path, 2700)

    made = read_capture(spark, tmp_path)

    expected = by_stream(read(made.interactions))
    assert len(expected) == streams
    assert by_stream(read(derive("interactions", frames=made.frames))) == expected


def test_duckdb_pairs_by_the_same_text(tmp_path: Path) -> None:
    streams = write_capture(tmp_path, 2700)
    found = []
    for paired in (True, False):
        with open_duckdb(tmp_path, paired=paired) as engine:
            rows = engine.connection.execute(f"SELECT * REPLACE ({in_micros()}) FROM interactions").fetchall()
        found.append(by_stream(dict(zip(COLUMNS, row, strict=True)) for row in rows))

    assert len(found[0]) == streams
    assert found[0] == found[1]


async def test_what_a_capture_paired_itself_is_found_again(spark: SparkSession, tmp_path: Path) -> None:
    responder = Responder()

    @responder.request_response("double")
    async def double(payload: Any) -> bytes:
        return bytes(payload.data) * 2

    @responder.request_stream("count")
    async def count(payload: Any, out: Any) -> None:
        for number in range(int(payload.data)):
            await out.send(b"%d" % number)

    capture = Capture(tmp_path / "capture")
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve, responder, ["tcp://127.0.0.1:0"]))
        async with open_connection(str(listeners[0]), capture=capture) as client:
            for number in range(5):
                await client.request_response(b"%d" % number, route="double")
            async with client.request_stream(b"9", route="count", initial_request_n=2) as items:
                assert len([item async for item in items]) == 9
            async with client.request_stream(b"1000", route="count", initial_request_n=2) as items:
                await anext(items)
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(capture.close)

    tables = read_capture(spark, tmp_path / "capture")
    found, expected = (
        by_stream(read(derive("interactions", frames=tables.frames))),
        by_stream(read(tables.interactions)),
    )

    assert [row["outcome"] for row in expected.values()].count("complete") == 6
    assert {key: without(row, *TIMES) for key, row in found.items()} == {
        key: without(row, *TIMES) for key, row in expected.items()
    }


def in_micros() -> str:
    return ", ".join(f"epoch_us({name}) AS {name}" for name in TIMES)


def read(rows: DataFrame) -> list[Cells]:
    """Rows with times as microseconds."""
    chosen = [f"unix_micros({name}) AS {name}" if name in TIMES else name for name in COLUMNS]
    return [row.asDict() for row in rows.selectExpr(*chosen).collect()]


def by_stream(rows: Any) -> dict[tuple[str, int], Cells]:
    listed = list(rows)
    found: dict[tuple[str, int], Cells] = {
        (row["conn_id"], row["stream_id"]): {name: row[name] for name in COLUMNS} for row in listed
    }
    assert len(found) == len(listed)
    return found


def without(row: Cells, *names: str) -> Cells:
    return {name: value for name, value in row.items() if name not in names}
