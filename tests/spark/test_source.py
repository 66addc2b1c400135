"""The data source itself: which reader each use gets, what can be pickled, what is imported, what is shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

import pyspark_rsocket
from rsocket_trio.spark import OptionError, RSocketDataSource, SchemaMismatchError
from rsocket_trio.spark.rows import RAW_SCHEMA
from rsocket_trio.spark.source import NAME

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
        (StructType([RAW.fields[0], RAW.fields[0]]), "column 'partition' comes twice"),
        (StructType([StructField("position", IntegerType())]), "column 'position' is int64, wanted is int32"),
        (StructType([StructField("data", BinaryType(), nullable=False)]), "column 'data' may be null"),
    ],
)
def test_other_columns_for_raw_rows_are_refused(schema: StructType, problem: str) -> None:
    with pytest.raises(SchemaMismatchError, match=rf"leave out .schema\(...\), which may name some .*{problem}"):
        source().reader(schema)


@pytest.mark.parametrize("module", ["rsocket_trio", "rsocket_trio.replay"])
def test_the_core_imports_neither_spark_nor_arrow(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "found = sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'pyarrow', 'pandas', 'numpy'})\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "given", [BASE | {"provider": "rsocket", "option.route": "orders"}, {}], ids=["created", "read"]
)
def test_a_table_of_a_catalog_is_refused_with_what_to_write(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"no tables USING rsocket.*read with rsocket_trio\.spark\.create_view"):
        RSocketDataSource(given)
