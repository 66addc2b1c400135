"""Answers hex digits or JSON from standard input line by line, and turns the answers into an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from rsocket_trio.cli import interrupts
from rsocket_trio.cli.exit_codes import FAILED, report
from rsocket_trio.cli.output import write_text
from rsocket_trio.errors import LocalProtocolError

Answer: TypeAlias = tuple[str, bool]
"""A line of output, and whether it is a result (true) or an error (false)."""


def answer(answers: Iterable[Answer]) -> int:
    """Write every answer to stdout as it comes. Return the exit code: 1 if any line is an error."""
    interrupts.work_begins()
    exit_code = 0
    try:
        for text, good in answers:
            write_text(text)
            if not good:
                exit_code = FAILED
    except BaseException as error:
        return report(error)
    return exit_code


def error_at(text: str, offset: int = 0) -> Answer:
    """Return an error as JSON, with the offset of the byte at fault."""
    return json.dumps({"error": text, "offset": offset}), False


def object_lines(
    lines: Iterable[str], convert: Callable[[dict[str, object]], str], fail: Callable[[str], Answer]
) -> Iterator[Answer]:
    """Convert JSON objects, one a line; blank lines are skipped. ``fail`` makes an answer of the text of an error.

    ``convert`` may raise ``ValueError`` and ``LocalProtocolError``.
    """
    for line in filter(str.strip, lines):
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError(f"a JSON object expected, not {content!r:.80}")  # noqa: TRY004 - it is what came
            yield convert(content), True
        except RecursionError:
            yield fail("not JSON: nested too deeply")
        except json.JSONDecodeError as error:
            yield fail(f"not JSON: {error}")
        except (ValueError, LocalProtocolError) as error:
            yield fail(str(error))


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
