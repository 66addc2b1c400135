"""Writes items to stdout, one a line, at once and without holding up the connection; escaped for a terminal only.

Control and invisible characters of a peer's text are escaped on a terminal. Pipes and files get the bytes unchanged.
"""

from __future__ import annotations

import logging
import os
import re
import select
from collections.abc import Sequence
from functools import partial

import trio

STDOUT = 1
STDERR = 2
ALWAYS_FITS = 4096
"""Bytes that a pipe or terminal takes at once when it says that it is writable."""
OBEYED = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls: escape sequences of both kinds begin here
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or turn text round
    "\ud800-\udfff"  # bytes that are no UTF-8, as surrogateescape has them
    "\U000e0000-\U000e0fff"
    "]"
)
FIRST_BYTE = 0xDC00


class ReaderGone(Exception):
    """The reader of our output has gone, as in ``| head -1``."""


class Output:
    """Writes lines to stdout, unbuffered, so that a reader has each at once.

    A reader that is slow makes ``write_line`` wait, so that no more is asked of the peer, while keepalives go on.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.lines = 0
        self._is_terminal = is_terminal(STDOUT)
        self._poll = select.poll()
        self._poll.register(STDOUT, select.POLLOUT)

    async def write_line(self, data: bytes) -> None:
        """Write one item: its bytes unchanged, and a newline. On a terminal control characters are escaped.

        Raise ``ReaderGone``.
        """
        self.lines += 1
        if self._quiet:
            return
        line = memoryview((escaped(data) if self._is_terminal else data) + b"\n")
        try:
            while line and self._poll.poll(0):
                line = line[os.write(STDOUT, line[:ALWAYS_FITS]) :]
            if line:
                await trio.to_thread.run_sync(partial(write_all, line), abandon_on_cancel=True)
        except BrokenPipeError:
            raise ReaderGone from None


def write_all(data: bytes | memoryview) -> None:
    """Write all of it to stdout, waiting where that takes time."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(STDOUT, view) :]
        except BlockingIOError:
            # The process that started us has made stdout non-blocking.
            poll = select.poll()
            poll.register(STDOUT, select.POLLOUT)
            poll.poll()


def write_text(line: str) -> None:
    """Write a line of text, or several. On a terminal control characters are escaped. Raise ``ReaderGone``."""
    if is_terminal(STDOUT):
        line = escaped_lines(line)
    try:
        write_all(line.encode("utf-8", "backslashreplace") + b"\n")
    except BrokenPipeError:
        raise ReaderGone from None


def columns(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Return the rows as lines of a table; ``align`` has ``<`` or ``>`` for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(format, row, map("{}{}".format, align, widths))).rstrip() for row in rows]


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


def _escape(match: re.Match[str]) -> str:
    char = match[0]
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
