"""The page on analytics is true: its SQL runs in both engines, its code runs, its tables are complete."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rsocket_trio import analytics
from rsocket_trio.analytics.views import QUERIES, VIEWS
from rsocket_trio.cli.analyze import command as analyze
from tests.analytics.handwritten import TABLES_BY_HAND
from tests.analytics.reading import opened_in_spark
from tests.analytics.writing import write_parquet
from tests.blocks import blocks, page, snippets
from tests.each_row import ALL_CASES
from tests.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = page("docs/howto/analytics.md")
REFERENCE = page("docs/reference/analytics.md")
SQL = [block.text for block in blocks(PAGE) if block.language == "sql"]
CODE = snippets(PAGE)


def cells(heading: str, text: str) -> list[list[str]]:
    section = re.split(r"\n##+ ", text.partition(f"\n{heading}\n")[2])[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def names(heading: str) -> Iterator[tuple[str, list[str]]]:
    """The tables that the rows under a heading are about, and these rows."""
    for row in cells(heading, REFERENCE):
        yield from ((name, row) for name in re.findall(r"`(\w+)`", row[0]))


def test_every_table_is_on_the_page_and_those_that_stream_are_marked() -> None:
    tables = {name: row[3] == "yes" for name, row in names("## Tables")}
    filtered = {name: False for name, row in names("### Tables for filters")}

    assert tables | filtered == {name: "time_bucket" in sql for name, sql in QUERIES.items()}
    assert not tables.keys() & filtered.keys()


def test_every_option_is_on_the_page() -> None:
    documented = {row[0].strip("`").partition(" ")[0] for row in cells("## A report", PAGE)}

    assert documented | {"--stacktrace"} == {option.opts[0] for option in analyze.params[1:]}


def test_the_sql_of_the_page_runs_in_both_engines(spark: SparkSession, by_hand: Path) -> None:
    import duckdb  # where it is used: at its interpreter's end it complains of what pytest still holds

    with duckdb.connect() as connection, opened_in_spark(spark, by_hand) as engine:
        analytics.create_duckdb_views(connection, by_hand)
        if ALL_CASES:
            analytics.create_views(spark, by_hand)
        else:  # views of what was computed once are read much sooner
            for view in VIEWS:
                if any(re.search(rf"\b{view}\b", sql) for sql in SQL):
                    engine.ask(view)
        assert len(SQL) > 3

        with Rows() as row:
            for sql in SQL:
                with row(sql):
                    assert len(connection.sql(sql).to_arrow_table()) == len(spark.sql(sql).collect())


def test_the_code_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_parquet(tmp_path / "frames", TABLES_BY_HAND)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in CODE:
        # Java stays in the directory that it was started in.
        text = re.sub(r'"(frames/interactions/\*|histogram|checkpoint)"', rf'"{tmp_path}/\1"', block.text)
        exec(compile(text, "docs/howto/analytics.md", "exec"), names)

    assert names["spark"] is not None
    assert re.search(r"find\W+\d", capfd.readouterr().out)
    assert any(name.endswith(".parquet") for name in os.listdir(tmp_path / "histogram"))
