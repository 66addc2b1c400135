"""The CPU time and peak memory of a process and its descendants: Spark is a dozen processes, which come and go."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def descendants(process: int) -> list[int]:
    """The process and those that it started, and they."""
    found, waiting = [], [process]
    while waiting:
        process = waiting.pop()
        try:
            children = [
                int(word)
                for task in Path(f"/proc/{process}/task").glob("*/children")
                for word in task.read_text().split()
            ]
        except OSError:  # it has just ended
            continue
        found.append(process)
        waiting += children
    return found


def cpu_of_tree(process: int) -> float:
    """CPU seconds of all of them so far, and of those among them that have ended and were waited for."""
    total = 0
    for one in descendants(process):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def peak_memory(process: int) -> int:
    """Bytes of resident memory: the largest that each had so far, added up."""
    total = 0
    for one in descendants(process):
        try:
            status = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total
