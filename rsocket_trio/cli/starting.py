"""Ctrl-C while a command starts: one line and the exit code, whatever is being imported at that moment.

Nothing is loaded here that takes time: from this module on Ctrl-C is in good hands.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

TYPE_CHECKING = False  # as type checkers take it, for to import typing takes time
if TYPE_CHECKING:
    from typing import NoReturn

STDERR = 2
INTERRUPTED = 128 + signal.SIGINT
SAID = "rsocket-trio: interrupted"


def begin() -> None:
    """Have Ctrl-C end the process at once, unless it is ignored: there is nothing to leave in order yet.

    Not by ``KeyboardInterrupt``, which may be raised, and lost, in any code that an import runs.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def done() -> None:
    """Have Ctrl-C raise ``KeyboardInterrupt`` again: the command has begun its work."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end() -> NoReturn:
    """Say in one line that it was interrupted, and end the process."""
    try:
        os.write(STDERR, SAID.encode() + b"\n")
    except OSError:
        pass
    os._exit(INTERRUPTED)


def _end(number: int, frame: FrameType | None) -> None:
    end()
