"""Helpers of the commands that run Spark: its settings, and the reason of a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from rsocket_trio.cli import interrupts
from rsocket_trio.cli.exit_codes import FAILED, MISUSED, Failure
from rsocket_trio.cli.options import MANY, Row
from rsocket_trio.errors import readable

MAX_REASON = 500
"""Characters of an error of Spark that a line repeats."""
STDERR = 2


def setting(text: str) -> tuple[str, str]:
    """Return key and value of a setting of Spark, from ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key.startswith("spark.") or not equals:
        raise click.BadParameter(f"{text!r}: a setting of Spark is given as in spark.driver.memory=4g")
    return key, value


SETTINGS = Row(
    "settings", "--conf", "A setting of Spark; several times.", {**MANY, "type": setting, "metavar": "KEY=VALUE"}
)


@contextmanager
def running_spark(missing: str) -> Iterator[None]:
    """Let the block start a Spark and use it, without stderr: Java begins there with warnings of no use.

    Raise ``Failure`` if Java is missing or Spark fails; with the text ``missing`` if one of its packages is.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from rsocket_trio.spark import JavaNotFoundError, ensure_java
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow"):
            raise
        raise Failure(missing, MISUSED) from error
    try:
        ensure_java()
    except JavaNotFoundError as error:
        raise Failure(str(error), FAILED) from error
    interrupts.work_begins()
    stderr, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    try:
        # Java inherits it, and keeps it for its life.
        os.dup2(nowhere, STDERR)
        yield
    except (PySparkException, Py4JError) as error:
        raise Failure(f"Spark failed: {reason(str(error))}", FAILED) from error
    finally:
        os.dup2(stderr, STDERR)
        os.close(stderr)
        os.close(nowhere)


def reason(text: str) -> str:
    """Return the text of an error of Spark, fit for a terminal: Java's exception, if any, and its first cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")] or lines[:1]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # A wait for a result says nothing of what was waited for.
    chain = [line for line in dict.fromkeys(thrown[:1] + causes) if "Exception thrown in awaitResult" not in line]
    return "; caused by ".join(readable(line)[:MAX_REASON] for line in chain[:2])
