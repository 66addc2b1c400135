"""The report: a page that a browser draws without a network, in which nothing that a peer said is more than text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rsocket_trio.analytics.capture_tables import capture_files
from rsocket_trio.analytics.report import DRAWN, TEMPLATE, TITLES, as_script, cell, page_data, render
from rsocket_trio.analytics.views import REPORT_TABLES, Answer
from rsocket_trio.cli.analyze import make_report
from rsocket_trio.cli.entry import main
from tests.analytics.conftest import Reported
from tests.analytics.handwritten import HOSTILE, TABLES_BY_HAND
from tests.analytics.writing import write_jsonl, write_parquet
from tests.blocks import ROOT
from tests.rows import Rows

PATIENCE = 120.0
"""Seconds that a command may take; only a fault takes so long."""


@pytest.fixture(scope="module")
def page(told: Mapping[str, Answer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the capture that is written by hand."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(told, title=f"Capture {HOSTILE}"), "utf-8")
    return path


def test_no_tag_of_a_peer_is_in_the_page(page: Path) -> None:
    text = page.read_text("utf-8")
    # What plotly itself consists of is no concern of ours.
    own = re.sub(r'<script nonce="[^"]+">.*?</script>', "", text, flags=re.DOTALL)
    data = re.findall(r'<script nonce="[^"]+" type="application/json" id="data">(.*?)</script>', text)

    assert "<img" not in own
    assert "javascript:alert" in own
    assert not re.search(r"<a [^>]*javascript:", own)
    assert own.count("&lt;img src=x onerror=alert(1)&gt;") > 2
    assert text.count("</script>") == 4
    assert len(data) == 1
    assert HOSTILE in json.loads(data[0])["names"]
    assert not re.search(r'(src|href)="(https?:)?//', own)


def test_the_page_forbids_what_it_does_not_need(page: Path) -> None:
    head = page.read_text("utf-8")[:1000]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', head)

    assert policy.startswith("default-src 'none'; script-src 'nonce-")
    assert "connect-src" not in policy


def test_a_capture_in_which_nothing_happened_has_a_page_as_well(told: Mapping[str, Answer]) -> None:
    nothing = {name: Answer(name, answer.columns, ()) for name, answer in told.items()}

    assert page_data(nothing)["tables"] == {}
    assert "No frames." in render(nothing, title="nothing")
    assert "No frames." in render({}, title="not even tables")


def test_every_table_and_every_chart_has_its_place_in_the_page(told: Mapping[str, Answer]) -> None:
    assert {asked.view for asked in REPORT_TABLES} == set(told)
    shown = render(told, title="all")

    charts = re.findall(r'^  "([a-z-]+)": {"title"', TEMPLATE.read_text(), re.MULTILINE)
    assert len(charts) == 15
    places = [f"table-{name}" for name in TITLES] + [f"plot-{name}" for name in charts]
    assert [place for place in places if f'id="{place}"' not in shown] == []
    assert all(f'href="#{name}"' in shown for name in charts)


def test_what_charts_are_drawn_from_has_all_rows_and_every_text_once(told: Mapping[str, Answer]) -> None:
    data: Any = json.loads(as_script(page_data(told)))

    assert set(data["tables"]) == {name for name in DRAWN if told[name].rows}
    assert len(data["names"]) == len(set(data["names"]))
    slow = data["tables"]["slow_requests"]
    assert slow["n"] == len(told["slow_requests"].rows)
    begun = slow["columns"]["t_start"]
    first = next(told["slow_requests"].dicts())
    assert datetime.fromtimestamp((begun["base"] + begun["step"] * begun["values"][0]) / 1e6, UTC) == first["t_start"]
    assert data["names"][slow["columns"]["peer"]["values"][0]] == first["peer"]
    assert {len(column["values"]) for table in data["tables"].values() for column in table["columns"].values()} == {
        table["n"] for table in data["tables"].values()
    }


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("total_p50_us", 999, "999 µs"),
        ("error_share", 0.25, "25.0 %"),
        ("error_code", -2, "0xFFFFFFFE"),
        ("frames", 1_234_567, "1,234,567"),
        ("share", float("nan"), ""),
        ("route", None, "(no route)"),
        ("route", "a\x1b[31m\n", r"a\x1b[31m\n"),
        ("minute", datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 00:00:00"),
    ],
)
def test_values_are_shown_as_people_read_them(column: str, value: object, shown: str) -> None:
    assert cell(column, value).text == shown


# The command


Analyze = Callable[..., tuple[object, str, str]]


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Analyze:
    """The command in this process: its exit code, and what it says on stdout and stderr."""

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr("sys.argv", ["rsocket-trio", "analyze", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capfd.readouterr()

    return run


def test_the_command_writes_the_report_and_says_where(reported: Reported, by_hand: Path) -> None:
    size = sum(files.size for files in capture_files(by_hand).values())

    assert (reported.code, reported.stdout) == (None, f"{reported.out}\n")
    assert reported.session == ("local[2]", {"spark.ui.enabled": "false"}, size)
    assert "<title>By hand</title>" in reported.out.read_text("utf-8")
    assert [path.name for path in reported.out.parent.iterdir()] == ["report.html"]


def test_wrong_words_are_one_line_and_no_spark_is_started(analyze: Analyze) -> None:
    with Rows() as row:
        for arguments, said in (
            (["nowhere"], "rsocket-trio: nowhere: no such directory\n"),
            ([], "missing argument 'DIR'"),
            (["nowhere", "--conf", "memory=4g"], "a setting of Spark is given as in spark.driver.memory=4g"),
            (["nowhere", "--engine", "polars"], "'polars' is not one of 'duckdb', 'spark'"),
            (["nowhere", "--engine", "duckdb", "--master", "local[2]"], "--master local[2] is where Spark runs"),
            (["nowhere", "--conf", "spark.a=b"], "--conf spark.a is a setting of Spark: --engine spark is missing"),
        ):
            with row(arguments):
                code, out, err = analyze(*arguments)
                assert (code, out, err.count("\n")) == (2, "", 1)
                assert said in err


def test_the_command_needs_duckdb_and_no_java_whatever_its_directory_is_named(tmp_path: Path) -> None:
    directory = write_parquet(tmp_path / "cap [x]{y,z}*a?%41 '\\b", TABLES_BY_HAND)
    hidden = "import sys; sys.modules.update(pyspark=None, pyarrow=None, py4j=None, sqlglot=None)"
    env = {"PATH": "", "JAVA_HOME": str(tmp_path)}

    done = command(hidden, str(directory), "--out", str(tmp_path / "report.html"), env=env)

    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{tmp_path / 'report.html'}\n")
    assert "Rate, errors and duration" in (tmp_path / "report.html").read_text("utf-8")


def test_a_page_of_parquet_that_is_damaged_is_named_by_duckdb_too(analyze: Analyze, tmp_path: Path) -> None:
    """The footer is whole, and the pages are not."""
    path = next(write_parquet(tmp_path, TABLES_BY_HAND).rglob("frames/*/*.parquet"))
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 3] = bytes(len(content) // 3 - 4)
    path.write_bytes(content)

    code, _, err = analyze(str(tmp_path), "--out", str(tmp_path / "report.html"))

    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"rsocket-trio: {path}: it is damaged: ")


def test_a_broken_capture_is_named_before_spark_starts(tmp_path: Path) -> None:
    write_jsonl(tmp_path, TABLES_BY_HAND)
    path = next(tmp_path.rglob("connections/*/*.jsonl"))
    path.write_text('{"half": ')

    settings = {"server": None, "engine": "spark", "master": "local[1]", "settings": ()}
    with pytest.raises(ValueError, match="line 1 is no JSON, it may be half written"):
        make_report(str(tmp_path), SimpleNamespace(**settings), "t")


@pytest.mark.parametrize(
    ("missing", "engine", "said"),
    [("pyspark", "spark", "pip install '.[spark,report]'"), ("duckdb", "duckdb", "pip install '.[report]'")],
)
def test_a_missing_extra_is_named(by_hand: Path, missing: str, engine: str, said: str) -> None:
    done = command(f"import sys; sys.modules[{missing!r}] = None", str(by_hand), "--engine", engine)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


def command(before: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, behind this code."""
    code = f"{before}\nfrom rsocket_trio.cli.entry import main; main()"
    words = [sys.executable, "-c", code, "analyze", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT, env=env)
