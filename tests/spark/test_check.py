"""The check of Spark's interpreters: what counts as lacking, and the line and exit code that say so."""

from __future__ import annotations

import json
import sys

import pytest

from rsocket_trio.spark.check import judged, silent

PACKAGES = {"rsocket-trio": "0.1.0", "pyspark": "4.3.0", "pyarrow": "26.0.1", "trio": "0.35.0", "attrs": "26.1.0"}
VERSION = "{}.{}.0".format(*sys.version_info)


@pytest.mark.parametrize(
    ("version", "packages", "lacks"),
    [
        (VERSION, PACKAGES, ""),
        (VERSION, {"pyspark": "4.3.0"}, "rsocket-trio, pyarrow, trio, attrs"),
        (VERSION, PACKAGES | {"pyspark": "3.5.1"}, "pyspark 4.2 or newer"),
        ("3.1.0", PACKAGES, f"Python {VERSION[:-2]}, as at the driver"),
    ],
    ids=["nothing", "packages", "old", "python"],
)
def test_an_interpreter_lacks_what_it_has_not_or_has_in_another_version(
    version: str, packages: dict[str, str], lacks: str
) -> None:
    assert judged("executor", json.dumps(["node", "/py", version, packages])).lacks == lacks


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ('x\njava.io.IOException: Cannot run program "/no/python": error=2', 'Cannot run program "/no/python"'),
        (
            "x\n[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than\nmore",
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than",
        ),
        ("Traceback\nModuleNotFoundError: No module named 'pandas'\nmore", "No module named 'pandas'"),
        ("\nsomething else\n", "something else"),
    ],
    ids=["path", "version", "module", "other"],
)
def test_an_interpreter_that_does_not_answer_lacks_an_answer_with_its_reason(error: str, reason: str) -> None:
    assert silent("executor", RuntimeError(error)).lacks == f"an answer: {reason}"
