"""Processes that descend from this one: listed, and ended with all that they started (Linux).

The process becomes the subreaper of its descendants, so whatever loses its parent comes back to it, in whatever group
or session it is. See prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Container
from pathlib import Path

import attrs

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")


@attrs.frozen
class Process:
    """A process as /proc/PID/stat shows it."""

    pid: int
    parent: int
    state: str
    """One letter: R runs, S sleeps, D waits for a device, T is stopped, Z has ended."""
    command: str

    def __str__(self) -> str:
        return f"{self.pid} (parent {self.parent}, state {self.state}) {self.command}"


def become_subreaper() -> None:
    """Have orphans among the descendants become children of this process. Raise ``OSError`` where there is no such."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def descendants(*, spare: Container[int] = ()) -> list[Process]:
    """Return every process below this one, parents first, but for those to ``spare`` and what is below them.

    Processes that have ended and wait for their parent are among them.
    """
    children: defaultdict[int, list[Process]] = defaultdict(list)
    for process in _all():
        children[process.parent].append(process)
    found: list[Process] = []
    pending = [os.getpid()]
    while pending:
        below = [process for process in children.pop(pending.pop(0), []) if process.pid not in spare]
        found += below
        pending += [process.pid for process in below]
    return found


def _all() -> list[Process]:
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text("utf-8", "replace")
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:  # it ended meanwhile
            continue
        # The name, in parentheses, may have spaces and parentheses itself.
        before, _, after = stat.rpartition(")")
        state, parent = after.split()[:2]
        found.append(Process(int(folder.name), int(parent), state, words or before.partition("(")[2]))
    return found


def end_descendants(*, spare: Container[int] = ()) -> dict[int, int]:
    """Kill every process below this one and wait for it, until none is left. Return the wait statuses of children."""
    statuses: dict[int, int] = {}
    while below := descendants(spare=spare):
        for process in below:
            if process.state != "Z":
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        statuses |= reap()
        # A process that was killed may have started another in the meantime: the next round finds it.
        time.sleep(0.01)
    return statuses | reap()


def reap() -> dict[int, int]:
    """Take leave of the children that have ended. Return their wait statuses."""
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses
        if pid == 0:
            return statuses
        statuses[pid] = status
