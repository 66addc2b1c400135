"""Frames become the interactions that they are, whatever happened: in one job for hundreds of random traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from qa.synthetic import write_capture
from rsocket_trio import Responder, open_connection, serve
from rsocket_trio.analytics import derive, read_capture
from rsocket_trio.analytics.views import open_duckdb
from rsocket_trio.capture import Capture
from rsocket_trio.capture.schema import TABLES
from tests.analytics.traces import paired, random_trace
from tests.analytics.writing import Cells, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRACES = 400
COLUMNS = [column.name for column in TABLES["interactions"]]
TIMES = ("t_start", "t_first", "t_end")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Cells]]]:
    """A capture of so many connections, and its frames by connection."""
    made = [random_trace(seed) for seed in range(TRACES)]
    frames = [cells for trace in made for cells in trace]
    tables: dict[str, Sequence[Cells]] = {"frames": frames, "interactions": [], "connections": []}
    return write_parquet(tmp_path_factory.mktemp("traces"), tables), made


def test_traces_are_of_all_kinds(traces: tuple[Path, list[list[Cells]]]) -> None:
    rows = [row for trace in traces[1] for row in paired(trace)]

    outcomes = {row["outcome"] for row in rows}
    assert outcomes == {"complete", "error", "cancel", "rejected", "lease_denied", "unknown"}
    assert {row["role"] for row in rows} == {"requester", "responder"}
    assert sum(row["stalls"] > 1 for row in rows) > 5
    assert len(rows) > 2 * TRACES


def test_spark_pairs_as_one_who_reads_frame_by_frame(
    spark: SparkSession, traces: tuple[Path, list[list[Cells]]]
) -> None:
    directory, made = traces
    found = read_capture(spark, directory, paired=False).interactions

    assert found.columns == COLUMNS
    assert by_stream(read(found)) == by_stream(row for trace in made for row in paired(trace))


def test_duckdb_pairs_by_the_same_text(traces: tuple[Path, list[list[Cells]]]) -> None:
    directory, made = traces
    expected = by_stream(row for trace in made for row in paired(trace))

    with open_duckdb(directory, paired=False) as engine:
        rows = engine.connection.execute(f"SELECT * REPLACE ({in_micros()}) FROM interactions").fetchall()

    assert by_stream(dict(zip(COLUMNS, row, strict=True)) for row in rows) == expected


def test_what_the_generator_says_is_what_a_pairing_finds(spark: SparkSession, tmp_path: Path) -> None:
    streams = write_capture(tmp_path, 2700)

    made = read_capture(spark, tmp_path)

    expected = by_stream(read(made.interactions))
    assert len(expected) == streams
    assert by_stream(read(derive("interactions", frames=made.frames))) == expected


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


def test_connections_are_made_of_frames(spark: SparkSession, by_hand: Path) -> None:
    found = derive("connections", frames=read_capture(spark, by_hand).frames)

    assert found.columns == [column.name for column in TABLES["connections"]]
    (row,) = found.collect()
    assert (row.conn_id, row.dialect, row.streams, row.frames_in, row.frames_out, row.drop_count) == (
        *("c1", "rsocket/1.0", 6, 10, 9, 2),
    )
    assert row.keepalive_rtt == [0] * 32


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
