"""The SQL of DuckDB is translated for Spark: every function of it has a name there."""

from __future__ import annotations

import re

from rsocket_trio.analytics.sql import IN_SPARK, TYPES, for_spark, reads_of, spark_type
from rsocket_trio.analytics.views import QUERIES, SIDES
from rsocket_trio.capture.schema import TABLES

ALL = [*QUERIES.values()]


def test_no_function_of_duckdb_is_left_in_a_translation() -> None:
    left = re.compile(rf"\b({'|'.join(IN_SPARK)}|time_bucket|date_bin)\(|//|::|QUALIFY", re.IGNORECASE)

    assert [found for sql in ALL for found in left.findall(for_spark(sql))] == []


def test_times_are_cut_by_windows_over_a_stream() -> None:
    sql = "SELECT time_bucket(INTERVAL '1 minute', ts) AS m FROM frames GROUP BY time_bucket(INTERVAL '1 minute', ts)"

    assert for_spark(sql) == "SELECT DATE_TRUNC('MINUTE', ts) AS m FROM frames GROUP BY DATE_TRUNC('MINUTE', ts)"
    assert for_spark(sql, ("frames",), streams=True) == (
        "SELECT WINDOW(ts, '1 MINUTE').start AS m FROM {frames} AS frames GROUP BY WINDOW(ts, '1 MINUTE')"
    )


def test_what_a_query_reads_is_a_table_of_a_capture_or_a_derived_one() -> None:
    known = {*TABLES, *QUERIES, *SIDES}

    assert {source for sql in ALL for source in reads_of(sql)} <= known
    assert reads_of(QUERIES["red"]) == ("request_cells", "capture_span", "routes")


def test_each_type_of_the_schema_has_one_in_spark() -> None:
    assert {kind: spark_type(kind) for kind in TYPES} == {
        "string": "STRING",
        "int8": "TINYINT",
        "int16": "SMALLINT",
        "int32": "INT",
        "int64": "BIGINT",
        "bool": "BOOLEAN",
        "binary": "BINARY",
        "timestamp": "TIMESTAMP",
        "list<int64>": "ARRAY<BIGINT>",
    }
