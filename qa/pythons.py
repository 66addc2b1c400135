"""Finds the Pythons of this machine, and the fastest of them: ``python -m qa.pythons`` prints its path.

Knows nothing of the library, so that any Python can run it before an environment is made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LOOP_SECONDS = 2.0
LOOP = """
import sys, time
class Counter:
    __slots__ = ("total", "items")
    def __init__(self):
        self.total, self.items = 0, {}
    def add(self, number):
        self.items[number & 63] = self.total
        self.total += len(self.items)
def numbers(end):
    for number in range(end):
        yield number
rounds, counter, ends = 0, Counter(), time.process_time() + float(sys.argv[1])
while time.process_time() < ends:
    for number in numbers(10_000):
        counter.add(number)
    rounds += 1
print(rounds * 10_000 / float(sys.argv[1]) / 1e6)
"""
"""A program of attributes, calls, a dictionary and a generator; prints million turns of its loop a CPU second."""
FACTS = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2]); print(sys.base_prefix)"


class Interpreter(NamedTuple):
    """A Python that can make environments."""

    path: str
    version: str
    origin: str


def interpreters() -> list[Interpreter]:
    """Return the Pythons on PATH and under pyenv, each installation once, the lowest version first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = os.get_exec_path()
    found: dict[tuple[str, str], Interpreter] = {}
    for version in VERSIONS:
        on_path = [path for folder in folders if (path := shutil.which(f"python{version}", path=folder))]
        for path in (*map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))), *on_path):
            # A shim of pyenv may lead to nothing.
            done = subprocess.run([path, "-c", FACTS], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.startswith(f"{version}\n"):
                origin = done.stdout.split("\n")[1]
                found.setdefault((version, origin), Interpreter(path, version, origin))
    return list(found.values())


def speed(python: str, seconds: float = LOOP_SECONDS) -> float:
    """Return million turns of the loop that ``python`` makes in a CPU second."""
    done = subprocess.run([python, "-c", LOOP, str(seconds)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print the path of the fastest Python, and on stderr the figure of each."""
    speeds = {}
    for interpreter in interpreters():
        speeds[interpreter.path] = speed(interpreter.path)
        print(f"{interpreter.version} {interpreter.origin}: {speeds[interpreter.path]:.1f}", file=sys.stderr)
    print(max(speeds, key=lambda path: speeds[path]))


if __name__ == "__main__":
    main()
