"""The command ``load``: a table or JSON, errors in a line, and an end that loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from rsocket_trio.cli.main import commands

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Load = Callable[..., tuple[int, str, str]]
PATIENCE = 100.0
"""Seconds that Spark may take to start on a machine that has much else to do."""
WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from rsocket_trio.cli.entry import main; main()"


@pytest.fixture
def load(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Load:
    """The command in the session of the tests: its exit code, and what it says on stdout and stderr."""

    @contextmanager
    def this_session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("rsocket_trio.analytics.local_spark.local_session", this_session)

    def made(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = commands.main(["load", "--master", "local[2]", *arguments], standalone_mode=False)
        return code, *capfd.readouterr()

    return made


@pytest.mark.parametrize(
    ("arguments", "said", "expected"),
    [
        (("-r", "nowhere"), "Rejected: no request_response handler for route 'nowhere'\n", 5),
        (("--tasks", "3"), "rsocket-trio: 3 tasks need as many slots at the same time", 1),
    ],
    ids=["route", "slots"],
)
def test_a_load_that_cannot_be_made_fails_in_a_line(
    arguments: tuple[str, ...], said: str, expected: int, load: Load, uri: str
) -> None:
    code, out, err = load(uri, "--rate", "10", *arguments)

    assert (code, out) == (expected, ""), err
    assert err.startswith(said), err
    assert err.count("\n") == 1


async def test_without_the_extra_it_is_named() -> None:
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            [sys.executable, "-c", WITHOUT_SPARK, "load", "tcp://127.0.0.1:1", "--rate", "1", "--master", "local"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == (
        b"rsocket-trio: a load from Spark needs pyspark: pip install '.[spark]' in a checkout of rsocket_trio, "
        b"or leave out --master\n"
    )
