"""A capture is read as it was written, in both formats; one that is broken is refused by file and column."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rsocket_trio.analytics import Unreadable, read_capture
from rsocket_trio.analytics.capture_tables import capture_files
from rsocket_trio.capture.schema import TABLES
from tests.analytics.handwritten import CONNECTIONS, FRAMES, TABLES_BY_HAND
from tests.analytics.writing import connection, frame, write_jsonl, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING: dict[str, list[Any]] = {"interactions": [], "connections": []}
TRACE = bytes(range(16))


def test_both_formats_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    tables = {**TABLES_BY_HAND, "frames": [{**FRAMES[0], "trace_id": TRACE}, *FRAMES[1:]]}
    lines = read_capture(spark, write_jsonl(tmp_path / "lines", tables))
    columns = read_capture(spark, write_parquet(tmp_path / "columns", tables))

    for table in TABLES:
        one, two = getattr(lines, table), getattr(columns, table)
        assert one.schema == two.schema
        assert sorted(map(repr, one.collect())) == sorted(map(repr, two.collect()))
    assert lines.connections.count() == len(CONNECTIONS)
    assert [bytes(row.trace_id) for row in lines.frames.filter("trace_id IS NOT NULL").collect()] == [TRACE]


def test_frames_are_named_by_the_dialect_of_their_connection(spark: SparkSession, tmp_path: Path) -> None:
    frames = [
        frame(0, 0, "out", 1, 9, conn_id="new"),
        frame(0, 0, "out", 1, 9, conn_id="old"),
        frame(0, 1, "in", 1, 99, conn_id="old"),
        frame(0, 0, "out", 1, 9, conn_id="open still"),
    ]
    connections = [connection(conn_id="new"), connection(conn_id="old", dialect="reactivesocket/0.1")]
    tables = {"frames": frames, "interactions": [], "connections": connections}
    capture = read_capture(spark, write_jsonl(tmp_path, tables))

    assert sorted((row.conn_id, row.seq, row.frame_name) for row in capture.frames.collect()) == [
        ("new", 0, "CANCEL"),
        ("old", 0, "REQUEST_N"),
        ("old", 1, "UNKNOWN"),
        ("open still", 0, "CANCEL"),
    ]


def cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, pa.field(name, kind), table.column(name).cast(kind))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns(["seq"]), "the column seq is missing"),
        (lambda table: cast(table, "stream_id", pa.int64()), "the column stream_id is BIGINT, not INTEGER"),
        (
            lambda table: cast(table, "ts", pa.timestamp("us")),
            "the column ts is TIMESTAMP, not TIMESTAMP WITH TIME ZONE",
        ),
    ],
)
def test_a_foreign_schema_is_refused_by_file_and_column(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    path = next(write_parquet(tmp_path, {"frames": FRAMES, **NOTHING}).rglob("frames/*/*.parquet"))
    parquet.write_table(change(parquet.ParquetFile(path).read()), path)

    with pytest.raises(Unreadable) as refused:
        capture_files(tmp_path)

    assert str(refused.value) == f"{path}: {said}"


def test_half_a_parquet_file_is_refused_by_name(tmp_path: Path) -> None:
    path = next(write_parquet(tmp_path, {"frames": FRAMES, **NOTHING}).rglob("frames/*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(Unreadable, match="no complete Parquet file, it may be half written") as refused:
        capture_files(tmp_path)

    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"seq": 1', "line 20 is no JSON, it may be half written"),
        (b"[" * 100_000, "line 20: Expected `object`, got `array`"),
        (b"{}\n", "line 20: Object missing required field `capture_id`"),
        ({"seq": "1"}, "line 20: Expected `int`, got `str` - at `$.seq`"),
        ({"frame_type": 128}, "line 20: Expected `int` <= 127 - at `$.frame_type`"),
        ({"trace_id": "0x"}, "line 20: Expected `str` matching regex '^([0-9a-fA-F]{2})*$' - at `$.trace_id`"),
    ],
    ids=str,
)
def test_a_line_that_is_none_is_refused_by_number(tmp_path: Path, line: bytes | dict[str, Any], said: str) -> None:
    path = next(write_jsonl(tmp_path, {"frames": FRAMES, **NOTHING}).rglob("frames/*/*.jsonl"))
    if isinstance(line, dict):
        line = json.dumps({**json.loads(path.read_bytes().splitlines()[0]), **line}).encode()
    path.write_bytes(path.read_bytes() + line)

    with pytest.raises(Unreadable) as refused:
        capture_files(tmp_path)

    assert str(refused.value).startswith(f"{path}: {said}")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no such directory"):
        capture_files(tmp_path / "nowhere")
    for table in ("frames", "interactions"):
        (tmp_path / table).mkdir()
    with pytest.raises(Unreadable, match=r"connections: the table is missing"):
        capture_files(tmp_path)
    (tmp_path / "connections").mkdir()
    with pytest.raises(Unreadable, match=r"frames: there is no file of a capture .*: it is empty"):
        capture_files(tmp_path)
