"""The fixtures of the analyses' tests: the small capture that is written by hand, and the one report of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.spark.session import tend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rsocket_trio.analytics.views import Answer


pytest_runtest_call = pytest.hookimpl(wrapper=True)(tend)


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """In place of the one for all tests: the session keeps processes and sockets until the end of the run."""


def spare_java(file: str) -> Callable[[list[pytest.Item]], None]:
    """Return a hook that ignores, in the tests beside a file, warnings that are not ours to mend."""

    def modify(items: list[pytest.Item]) -> None:
        for item in items:
            if Path(file).parent in item.path.parents:
                # py4j leaves its sockets to the collector.
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
                item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))

    return modify


pytest_collection_modifyitems = spare_java(__file__)


@pytest.fixture(scope="session")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capture of ``handwritten.py``, in JSON lines."""
    from tests.analytics.handwritten import TABLES_BY_HAND
    from tests.analytics.writing import write_jsonl

    return write_jsonl(tmp_path_factory.mktemp("by_hand"), TABLES_BY_HAND)


@attrs.frozen
class Reported:
    """One run of the command ``analyze`` with Spark, in the session of the tests."""

    out: Path
    code: int | None
    stdout: str
    session: tuple[str, Mapping[str, str], int]
    """The master, the settings and the size of the capture that it opened its session with."""
    answers: Mapping[str, Answer]


@pytest.fixture(scope="session")
def reported(spark: SparkSession, by_hand: Path, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The report of the capture by Spark: made once, since each of its tables takes a second."""
    from rsocket_trio.analytics import views as module
    from rsocket_trio.cli.main import commands

    out = tmp_path_factory.mktemp("reported") / "report.html"
    opened: list[tuple[str, Mapping[str, str], int]] = []
    found: dict[str, Answer] = {}
    original = module.answers

    @contextmanager
    def this_session(master: str, settings: Mapping[str, str], *, size: int) -> Iterator[SparkSession]:
        opened.append((master, settings, size))
        yield spark

    def noted(*arguments: Any, **options: Any) -> Iterator[Answer]:
        for answer in original(*arguments, **options):
            found[answer.view] = answer
            yield answer

    words = ["analyze", str(by_hand), "--out", str(out), "--title", "By hand", "--engine", "spark"]
    words += ["--conf", "spark.ui.enabled=false"]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as said:
        patch.setattr("rsocket_trio.analytics.local_spark.local_session", this_session)
        patch.setattr(module, "answers", noted)
        kept = os.dup(1)
        os.dup2(said.fileno(), 1)
        try:
            code = commands.main(words, standalone_mode=False)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        said.seek(0)
        [session] = opened
        return Reported(out, code, said.read().decode(), session, found)


@pytest.fixture(scope="session")
def told(by_hand: Path) -> Mapping[str, Answer]:
    """All answers about it, by DuckDB."""
    from rsocket_trio.analytics.views import REPORT_TABLES, open_duckdb

    with open_duckdb(by_hand) as engine:
        return {asked.view: engine.ask(asked.view) for asked in REPORT_TABLES}
