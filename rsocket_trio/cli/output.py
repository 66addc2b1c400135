"""Writes items to stdout, one a line, at once and without holding up the connection; escaped for a terminal only."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from functools import partial

import trio

from rsocket_trio.cli.terminal import escaped, escaped_lines, is_terminal

STDOUT = 1
ALWAYS_FITS = 4096
"""Bytes that a pipe or terminal takes at once when it says that it is writable."""


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
