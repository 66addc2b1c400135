"""Answers hex digits or JSON from standard input line by line, and turns the answers into an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TypeAlias

from rsocket_trio.cli import starting
from rsocket_trio.cli.exit_codes import report
from rsocket_trio.cli.output import write_text

Answer: TypeAlias = tuple[str, bool]
"""A line of output, and whether it is a result (true) or an error (false)."""


def answer(answers: Iterable[Answer]) -> int:
    """Write every answer to stdout as it comes. Return the exit code."""
    starting.done()
    try:
        return run(answers, write_text)
    except BaseException as error:
        return report(error)


def run(answers: Iterable[Answer], write: Callable[[str], object]) -> int:
    """Write every line as it comes. Return the exit code: 1 if any line is an error."""
    exit_code = 0
    for text, good in answers:
        write(text)
        if not good:
            exit_code = 1
    return exit_code


def error_at(text: str, offset: int = 0) -> Answer:
    """Return an error as JSON, with the offset of the byte at fault."""
    return json.dumps({"error": text, "offset": offset}), False


def unhex(text: str) -> bytes:
    """Return the bytes of hex digits; white space may be anywhere. Raise ``ValueError`` that names the fault."""
    digits = "".join(text.split())
    try:
        return bytes.fromhex(digits)
    except ValueError:
        for place, digit in enumerate(digits):
            if digit not in "0123456789abcdefABCDEF":
                raise ValueError(f"not hex: {digit!r} at digit {place}") from None
        raise ValueError(f"not hex: {len(digits)} digits, which is odd") from None
