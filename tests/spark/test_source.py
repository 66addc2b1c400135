"""The data source itself: which reader each use gets, what can be pickled, what is imported, what is shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

import pyspark_rsocket
from rsocket_trio.spark import OptionError, RSocketDataSource, SchemaMismatchError
from rsocket_trio.spark.batch_reader import BatchReader, PushdownReader
from rsocket_trio.spark.live_reader import LiveStreamReader
from rsocket_trio.spark.rows import RAW_SCHEMA
from rsocket_trio.spark.source import NAME
from rsocket_trio.spark.stream_reader import ServerStreamReader
from tests.blocks import ROOT

BASE = {"path": "tcp://127.0.0.1:1", "route": "orders"}
RAW = (
    StructType()
    .add("partition", IntegerType())
    .add("position", LongType())
    .add("data", BinaryType())
    .add("metadata", BinaryType())
    .add("received_at", TimestampType())
    .add("route", StringType())
    .add("key", BinaryType())
    .add("timestamp", TimestampType())
)
ROWS = StructType().add("id", LongType())


def source(**given: str) -> RSocketDataSource:
    return RSocketDataSource(BASE | given)


def test_spark_finds_it_under_its_name() -> None:
    assert pyspark_rsocket.DefaultSource is RSocketDataSource
    assert RSocketDataSource.name() == NAME == "rsocket"


@pytest.mark.parametrize(
    ("given", "reader"), [({}, BatchReader), ({"positions": "server", "pushdown": "true"}, PushdownReader)]
)
def test_a_batch_read_gets_its_reader(given: dict[str, str], reader: type) -> None:
    found = source(**given).reader(RAW)

    assert type(found) is reader
    assert type(pickle.loads(pickle.dumps(found))) is reader


@pytest.mark.parametrize(
    ("positions", "reader"),
    [("server", ServerStreamReader), ("none", LiveStreamReader)],
)
def test_a_stream_gets_the_reader_of_its_positions(positions: str, reader: type) -> None:
    found = source(positions=positions).streamReader(RAW)

    assert type(found) is reader
    assert type(pickle.loads(pickle.dumps(found))) is reader


@pytest.mark.parametrize(
    ("given", "schema", "message"),
    [
        ({"positions": "server", "maxRows": "5"}, RAW, "'maxRows' is not for readStream"),
        ({"positions": "server"}, ROWS, "with payload=raw the columns are"),
    ],
)
def test_what_is_wrong_with_a_stream_is_said_when_spark_asks(
    given: dict[str, str], schema: StructType, message: str
) -> None:
    # What streamReader raises reaches the user as an error of Spark's own worker.
    found = pickle.loads(pickle.dumps(source(**given).streamReader(schema)))

    for question in (found.initialOffset, found.getDefaultReadLimit):
        with pytest.raises((OptionError, SchemaMismatchError), match=message):
            question()
    found.stop()


def test_a_source_can_be_pickled_and_shows_no_secret() -> None:
    found = source(**{"auth.type": "bearer", "auth.token": "hidden"})

    assert "hidden" not in repr(found)
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)


def test_columns_of_raw_rows_are_known() -> None:
    assert source().schema() == (
        "partition INT, position BIGINT, data BINARY, metadata BINARY, received_at TIMESTAMP, "
        "route STRING COMMENT 'the route that the row was read from', key BINARY, timestamp TIMESTAMP"
    )
    assert RAW.fieldNames() == RAW_SCHEMA.names
    wanted = ", timestamp TIMESTAMP, headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
    assert source(includeHeaders="true").schema().endswith(wanted)


def test_columns_of_arrow_payloads_are_the_users() -> None:
    with pytest.raises(OptionError, match="'payload' arrow needs the columns"):
        source(payload="arrow").schema()

    reader: Any = source(payload="arrow").reader(ROWS)
    assert reader._schema.names == ["id"]
    for columns, problem in (
        ([*ROWS, *ROWS], "column 'id' comes twice"),
        ([StructField("name", VarcharType(5))], "column 'name' can't be read: .*VarcharType"),
    ):
        with pytest.raises(SchemaMismatchError, match=problem):
            source(payload="arrow").reader(StructType(columns))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (ROWS, "column 'id' is missing"),
        (StructType([*RAW.fields[:4], *ROWS.fields]), "column 'id' is missing"),
        (StructType([RAW.fields[0], RAW.fields[0]]), "column 'partition' comes twice"),
        (StructType([StructField("position", IntegerType())]), "column 'position' is int64, wanted is int32"),
        (StructType([StructField("headers", MapType(StringType(), BinaryType()))]), "column 'headers' is missing"),
        (StructType([StructField("data", BinaryType(), nullable=False)]), "column 'data' may be null"),
    ],
)
def test_other_columns_for_raw_rows_are_refused(schema: StructType, problem: str) -> None:
    with pytest.raises(SchemaMismatchError, match=rf"leave out .schema\(...\), which may name some .*{problem}"):
        source().reader(schema)


def test_headers_without_their_option_are_refused_with_its_name() -> None:
    header = StructType([StructField("name", StringType()), StructField("value", BinaryType())])
    headers = StructType([StructField("headers", ArrayType(header))])
    with pytest.raises(SchemaMismatchError, match="timestamp, and headers with includeHeaders=true: leave out"):
        source().reader(headers)
    assert source(includeHeaders="true").reader(headers)._schema.names == ["headers"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("names", [RAW_SCHEMA.names[:5], ["data"], ["timestamp", "key", "position"]])
def test_some_columns_of_raw_rows_may_be_named(names: list[str]) -> None:
    reader: Any = source().reader(StructType([field for name in names for field in RAW.fields if field.name == name]))
    assert reader._schema.names == names
    everything: Any = source().reader(RAW)
    assert everything._schema is None


@pytest.mark.parametrize(("given", "message"), [({"rout": "x"}, "did you mean 'route'"), ({"credit": "x"}, "'credit'")])
def test_wrong_options_are_refused_when_the_source_is_made(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source(**given)


@pytest.mark.parametrize("module", ["rsocket_trio", "rsocket_trio.replay"])
def test_the_core_imports_neither_spark_nor_arrow(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "found = sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'pyarrow', 'pandas', 'numpy'})\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", sorted((ROOT / "rsocket_trio" / "spark").glob("*.py")), ids=lambda path: path.name)
def test_nothing_asks_for_the_spark_context(path: Path) -> None:
    # Spark Connect has none.
    assert "sparkContext" not in path.read_text("utf-8")


@pytest.mark.parametrize(
    "given", [BASE | {"provider": "rsocket", "option.route": "orders"}, {}], ids=["created", "read"]
)
def test_a_table_of_a_catalog_is_refused_with_what_to_write(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"no tables USING rsocket.*read with rsocket_trio\.spark\.create_view"):
        RSocketDataSource(given)
