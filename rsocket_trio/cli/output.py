"""Where do items go? To stdout as they are, one a line, at once, without holding up the connection."""

from __future__ import annotations

import os
import select
from functools import partial

import trio

STDOUT = 1
ALWAYS_FITS = 4096
"""Bytes that a pipe or terminal takes at once when it says that it is writable."""


class ReaderGone(Exception):
    """Nobody reads our output any more, as in ``| head -1``."""


class Output:
    """Lines onto stdout, unbuffered: who reads them has each at once.

    A reader that is slow makes ``write_line`` wait, so that no more is asked of the peer, while keepalives go on.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.lines = 0
        self._poll = select.poll()
        self._poll.register(STDOUT, select.POLLOUT)

    async def write_line(self, data: bytes) -> None:
        """One item: its bytes, whatever they are, and a newline. Raises ``ReaderGone``."""
        self.lines += 1
        if self._quiet:
            return
        line = memoryview(data + b"\n")
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
            # Whoever started us made it so that writing does not wait.
            poll = select.poll()
            poll.register(STDOUT, select.POLLOUT)
            poll.poll()


def write_text(line: str) -> None:
    """A line of text, at once. Raises ``ReaderGone``."""
    try:
        write_all(line.encode("utf-8", "backslashreplace") + b"\n")
    except BrokenPipeError:
        raise ReaderGone from None
