"""Ctrl-C while a command starts: one line and the exit code, whatever is being imported at that moment.

Nothing is loaded here that takes time: from this module on Ctrl-C is in good hands.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
INTERRUPTED_TEXT = "rsocket-trio: interrupted"


def command_starts() -> None:
    """Have Ctrl-C end the process at once, unless it is ignored: there is nothing to leave in order yet.

    Not by ``KeyboardInterrupt``, which may be raised, and lost, in any code that an import runs.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def work_begins() -> None:
    """Have Ctrl-C raise ``KeyboardInterrupt`` again: from now on there is something to leave in order."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    """Say in one line that it was interrupted, and end the process."""
    try:
        os.write(2, INTERRUPTED_TEXT.encode() + b"\n")
    except OSError:
        pass
    os._exit(INTERRUPTED)
