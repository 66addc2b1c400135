"""The program of the page on clusters shows the interpreters of a real Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.blocks import blocks, page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

[PROGRAM] = [
    block.text for block in blocks(page("docs/spark-cluster.md")) if block.text.startswith("# interpreters.py")
]


def test_every_interpreter_is_shown(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="option 'path' is missing"):
        exec(compile(PROGRAM, "interpreters.py", "exec"), {"__name__": "__main__"})

    driver, executor = capsys.readouterr().out.splitlines()
    assert driver.startswith("driver: ")
    assert sys.executable in driver
    assert executor == f"executor: {driver.removeprefix('driver: ')}"
