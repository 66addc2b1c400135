"""Runs client commands and maps their errors and Ctrl-C to one line on stderr and an exit code."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

import rsocket_trio
from rsocket_trio import errors
from rsocket_trio.cli import interrupts
from rsocket_trio.cli.interrupts import INTERRUPTED
from rsocket_trio.cli.output import STDERR, Output, ReaderGone, escaped_lines, is_terminal
from rsocket_trio.extras import install_command
from rsocket_trio.server.signals import until_interrupted

FAILED = 1
MISUSED = 2
CANNOT_CONNECT = 3
REFUSED_SETUP = 4
REJECTED = 5
APPLICATION_ERROR = 6
CANCELED_OR_INVALID = 7
TIMED_OUT = 8
ENDED = 128 + signal.SIGTERM
"""The code that a shell shows for a command which SIGTERM ended."""

MEANINGS: Final[Mapping[int, str]] = {
    0: "done, or the reader of the output closed it",
    FAILED: "something else failed",
    MISUSED: "wrong arguments",
    CANNOT_CONNECT: "it cannot connect, or the connection was lost",
    REFUSED_SETUP: "the server refused the SETUP",
    REJECTED: "the request was rejected, and not processed",
    APPLICATION_ERROR: "the handler failed, or chose a code of its own",
    CANCELED_OR_INVALID: "the server cancelled the request, or found it invalid",
    TIMED_OUT: "the time of --timeout is over",
    INTERRUPTED: "Ctrl-C",
    ENDED: "SIGTERM",
}
"""The exit codes, in the order in which the help of a command shows them."""
OF_EVERY_COMMAND: Final = {code: MEANINGS[code] for code in (0, FAILED, MISUSED, INTERRUPTED, ENDED)}
NAME = "rsocket-trio"
"""Begins the line of an error that the command found itself; others begin with the name of the error."""

CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.Rejected, REJECTED),
    (errors.ApplicationError, APPLICATION_ERROR),
    (errors.Canceled, CANCELED_OR_INVALID),
    (errors.Invalid, CANCELED_OR_INVALID),
    (errors.RejectedResume, CANNOT_CONNECT),  # of a session whose connection was lost
    (errors.SetupError, REFUSED_SETUP),
    (errors.ConnectionLost, CANNOT_CONNECT),
    (errors.ConnectionClosed, CANNOT_CONNECT),
    (trio.TooSlowError, TIMED_OUT),
    (errors.RSocketError, FAILED),
)
"""Exit codes by exception class; the first row that fits counts."""


BEFORE_EXTRAS = install_command("").partition("[")[0]
"""The beginning of the command that installs what an error misses."""


class Failure(Exception):
    """The failure of a command: its text is printed behind ``name``, ``code`` is the exit code."""

    def __init__(self, text: str, code: int = FAILED, *, name: str = NAME) -> None:
        super().__init__(text)
        self.code = code
        self.name = name


def run_client(work: Callable[[Output], Awaitable[None]], *, quiet: bool = False) -> int:
    """Run the work of a client command. Return the exit code 0.

    Ctrl-C leaves every block in order, so the peer gets its CANCEL.
    """
    # From here on there is something to leave in order: a connection, the files of a capture.
    interrupts.work_begins()
    trio.run(until_interrupted, partial(work, Output(quiet=quiet)))
    return 0


def report(error: BaseException, *, stacktrace: bool = False) -> int:
    """Print an error as one line on stderr. Return the exit code, 0 if the reader of our output has gone."""
    leaf = first_leaf(error)
    if isinstance(leaf, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(leaf, ReaderGone | BrokenPipeError):
        return 0
    if not isinstance(leaf, Exception):
        raise leaf
    text, code = described(leaf)
    if stacktrace:
        complain("".join(traceback.format_exception(leaf)).rstrip())
    complain(text)
    return code


def described(error: Exception) -> tuple[str, int]:
    """Return the line and the exit code of an exception."""
    text = errors.readable(str(error))
    if isinstance(error, Failure):
        return f"{error.name}: {text}", error.code
    if isinstance(error, ValueError):
        # Invalid terms, refused before anything was sent.
        return f"{NAME}: {text}", MISUSED
    if isinstance(error, ImportError | OSError):
        # A package of an extra is missing, a module of the user fails; or the system says why, behind a number.
        code = MISUSED if BEFORE_EXTRAS in text else FAILED
        return f"{NAME}: {errors.readable(getattr(error, 'strerror', None) or text)}", code
    name, known = public_name(type(error)), code_of(type(error))
    if known is None:
        return f"{name}: {text} (a fault of rsocket-trio: --stacktrace shows where)", FAILED
    return (f"{name}: {text}" if text else name), known


def code_of(kind: type[Exception]) -> int | None:
    """Return the exit code of a class of errors, ``None`` if it is none that a peer or the network causes."""
    return next((code for base, code in CODES if issubclass(kind, base)), None)


def public_name(kind: type[BaseException]) -> str:
    """Return the public name of an exception's class: its own, or that of its first public base class."""
    return next((parent.__name__ for parent in kind.__mro__ if parent.__name__ in rsocket_trio.__all__), kind.__name__)


def complain(text: str) -> None:
    """Write to stderr, if it can be written; control characters are escaped on a terminal."""
    try:
        print(escaped_lines(text) if is_terminal(STDERR) else text, file=sys.stderr, flush=True)
    except OSError:
        return


def first_leaf(error: BaseException) -> BaseException:
    """Return the exception itself, or the first one of a group, Ctrl-C before others."""
    while isinstance(error, BaseExceptionGroup):
        interrupts = error.subgroup(KeyboardInterrupt)
        error = (interrupts or error).exceptions[0]
    return error
