"""Which processes did Spark start? Found by their parents and their command lines."""

from __future__ import annotations

import os
import signal
import subprocess

SOURCE_RUNNER = "python_streaming_source_runner"
"""The module of the process on the driver that plans a streaming query of a source in Python."""
WORKER = "pyspark.daemon pyspark.worker"
"""The same of the processes that run tasks."""


def started_by(process: int, module: str) -> list[int]:
    """The processes of a module that a process started, by its children and theirs; not the one that forks them."""
    said = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [
        (int(pid), int(parent), words)
        for pid, parent, words in (
            line.split(None, 2) for line in said.stdout.splitlines() if len(line.split(None, 2)) == 3
        )
    ]
    found, family = set(), {process}
    while more := {pid for pid, parent, _ in rows if parent in family} - family:
        family |= more
    named = {pid for pid, _, words in rows if pid in family and module in words}
    found = {pid for pid, parent, _ in rows if pid in named and parent in named}
    # What forks none is itself the one.
    return sorted(found or named)


def kill_started(process: int, module: str) -> int:
    """Kill them at once; how many there were."""
    found = started_by(process, module)
    for one in found:
        os.kill(one, signal.SIGKILL)
    return len(found)
