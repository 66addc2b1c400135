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
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")


class Process(NamedTuple):
    """A process as /proc/PID/stat shows it."""

    pid: int
    parent: int
    state: str
    """One letter: R runs, S sleeps, D waits for a device, T is stopped, Z has ended."""


def become_subreaper() -> None:
    """Have orphans among the descendants become children of this process. Raise ``OSError`` where there is no such."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def descendants() -> list[Process]:
    """Return every process below this one, parents first, also those that have ended and wait for their parent."""
    children: defaultdict[int, list[Process]] = defaultdict(list)
    for process in _all():
        children[process.parent].append(process)
    found: list[Process] = []
    pending = [os.getpid()]
    while pending:
        below = children.pop(pending.pop(0), [])
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
        except OSError:  # it ended meanwhile
            continue
        # The name, in parentheses, may have spaces and parentheses itself.
        state, parent = stat.rpartition(")")[2].split()[:2]
        found.append(Process(int(folder.name), int(parent), state))
    return found


def end_descendants() -> None:
    """Kill every process below this one and wait for it, until none is left."""
    while below := descendants():
        for process in below:
            if process.state != "Z":
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        reap()
        # A process that was killed may have started another in the meantime: the next round finds it.
        time.sleep(0.01)
    reap()


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
