"""What the commands that run Spark share: its settings, Java's output kept aside, and the reason of a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import click

from rsocket_trio.errors import readable

MAX_REASON = 500
"""Characters of Java's output that an error repeats."""
STDERR = 2


def setting(text: str) -> tuple[str, str]:
    """``KEY=VALUE``, as Spark takes it."""
    key, equals, value = text.partition("=")
    if not key.startswith("spark.") or not equals:
        raise click.BadParameter(f"{text!r}: a setting of Spark is given as in spark.driver.memory=4g")
    return key, value


@contextmanager
def aside(file: IO[bytes]) -> Iterator[None]:
    """Have what this process and those that it starts in the block say on stderr go to a file.

    Java keeps it for its life: it greets with warnings that are of no use to anybody.
    """
    kept = os.dup(STDERR)
    try:
        os.dup2(file.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(kept, STDERR)
    finally:
        os.close(kept)


def reason(text: str) -> str:
    """What an error of Spark says, fit for a terminal: what Java threw if it did, and what caused that."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")] or lines
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = thrown[:1] + [cause for cause in causes if cause != thrown[0]][:1]
    return "; caused by ".join(readable(line)[:MAX_REASON] for line in said)


def last_line(file: IO[bytes]) -> str:
    """The last thing that Java said."""
    file.seek(0)
    lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return readable(lines[-1])[:MAX_REASON] if lines else "no reason was given"
