"""Escapes control and invisible characters in text of a peer that is written to a terminal.

Pipes and files get the bytes unchanged.
"""

from __future__ import annotations

import logging
import os
import re

STDERR = 2

OBEYED = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls: escape sequences of both kinds begin here
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or turn text round
    "\ud800-\udfff"  # bytes that are no UTF-8, as surrogateescape has them
    "\U000e0000-\U000e0fff"
    "]"
)
FIRST_BYTE = 0xDC00


def is_terminal(descriptor: int) -> bool:
    """Return whether a file descriptor is a terminal."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def escaped(data: bytes) -> bytes:
    r"""Return the bytes escaped, on one line: ``\x1b`` for ESC, ``\n`` for a newline, ``\xff`` for no UTF-8."""
    return escaped_text(data.decode("utf-8", "surrogateescape")).encode()


def escaped_text(text: str) -> str:
    """Return text escaped, on one line."""
    return OBEYED.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """Return text with each of its lines escaped; newlines stay."""
    return "\n".join(map(escaped_text, text.split("\n")))


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - FIRST_BYTE:02x}"
    return repr(char)[1:-1]


class LogFormatter(logging.Formatter):
    """Formats log lines with the time, and escapes them if stderr is a terminal, since they may quote a peer."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or several lines with a traceback."""
        text = super().format(record)
        return escaped_lines(text) if is_terminal(STDERR) else text


def show_log(level: str) -> None:
    """Write log lines from this level on to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
