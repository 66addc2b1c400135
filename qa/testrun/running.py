"""Runs the tests of a part, or programs, and ends all that descends from them, in whatever group or session it is.

An item that hangs ends its process, which pytest-xdist counts as a failure of that item, and replaces.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from qa.testrun.descendants import become_subreaper, end_descendants, reap
from qa.testrun.record import RESULT, Result

TICK: Final = 0.1
"""Seconds between two looks at what runs."""
LIMIT: Final = 7200.0
"""Seconds that a part's tests, or one of its programs, may take."""


def run_tests(part: str, command: Sequence[str], folder: Path, *, workers: int = 1) -> Result:
    """Run pytest with the items shared file by file by so many processes. Return the result, which is written too."""
    path, log = folder / f"{part}.json", folder / f"{part}.txt"
    path.unlink(missing_ok=True)
    words = [*command, "-n", str(workers), "--dist=loadfile", "--max-worker-restart=20", "-o", "timeout_method=thread"]
    start = time.monotonic()
    with log.open("wb") as output:
        status = _run(words, LIMIT, output.fileno(), {RESULT: str(path)})
    result = Result.read(path) if path.exists() else Result(part)
    if status not in (0, 1, 5) or not path.exists():
        cause = f"did not end within {LIMIT:g} s" if status is None else f"ended early, exit status {status}"
        result.failures.append(("the tests", f"{cause}\n{log.read_text('utf-8', 'replace')[-4000:]}"))
    for name, text in result.failures:
        print(f"{part}: FAILED {name}\n{text}", flush=True)
    return _ended(result, start, path)


def run_programs(part: str, commands: Sequence[Sequence[str]], folder: Path) -> Result:
    """Run programs one after the other as a part, each as an item; the programs print for themselves."""
    result = Result(part)
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        name, began = " ".join(command), time.monotonic()
        status = _run(command, LIMIT)
        result.outcomes[name] = "failed" if status else "passed"
        result.files[name] = [time.monotonic() - began, 0.0, 1]
        if status is None:
            result.outcomes[name] = "failed"
            result.failures.append((name, f"did not end within {LIMIT:g} s, and was killed"))
        elif status:
            result.failures.append((name, f"exit status {status}"))
    return _ended(result, start, folder / f"{part}.json")


def _ended(result: Result, start: float, path: Path) -> Result:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result.wall, result.cpu = time.monotonic() - start, used.ru_utime + used.ru_stime
    result.write(path)
    return result


def _run(
    command: Sequence[str], seconds: float, output: int | None = None, variables: Mapping[str, str] | None = None
) -> int | None:
    """Run a program with all that it starts. Return its exit status, or ``None`` if it did not end in time."""
    become_subreaper()
    actions = [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)] if output is not None else []
    try:
        pid = os.posix_spawnp(command[0], list(command), os.environ | dict(variables or {}), file_actions=actions)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            statuses = reap()
            if pid in statuses:
                return os.waitstatus_to_exitcode(statuses[pid])
            time.sleep(TICK)
        return None
    finally:
        end_descendants()


def stop_on_signals() -> None:
    """Have SIGTERM and SIGHUP end this program as Ctrl-C does: with all that descends from it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128))
