"""Measures the channel on every Python that has an environment here, and what Python itself costs on each.

``make test PYTHON=...`` and ``make versions`` make the environments: ``.venv`` and ``.venv-3.x``.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.comparing import interleaved
from benchmarks.libraries import ROOT

WORKLOAD = "channel"
PIECES = """
import json, timeit

SETUP = '''
import struct
from collections import deque
class Point:
    __slots__ = ("x", "y")
    def __init__(self, x, y):
        self.x = x
        self.y = y
def function(x):
    return x
async def coroutine():
    return 1
unpack, four = struct.Struct(">I").unpack_from, bytes(4)
view, queue, point = memoryview(bytes(64)), deque(), Point(1, 2)
'''
PIECES = {
    "call a function": "function(1)",
    "read an attribute": "point.x",
    "create an object with slots": "Point(1, 2)",
    "run a coroutine that does not wait": "try: coroutine().send(None)\\nexcept StopIteration: pass",
    "slice a memoryview": "view[3:40]",
    "unpack four bytes": "unpack(four, 0)",
    "append to a deque and pop": "queue.append(1); queue.popleft()",
}
LOOPS, ROUNDS = 200_000, 15
print(json.dumps({name: min(timeit.repeat(piece, SETUP, number=LOOPS, repeat=ROUNDS)) / LOOPS * 1e9
                  for name, piece in PIECES.items()}))
"""
"""A program that prints, as JSON, the nanoseconds of what the hot path is made of: the least of its rounds."""


def main(repeat: int) -> dict[str, Any]:
    """Print and return CPU seconds of the channel by version, and nanoseconds of each piece by version."""
    pythons = environments()
    runs = interleaved(
        {WORKLOAD: list(pythons)}, repeat, lambda name, version: harness.run("trio", name, python=pythons[version])
    )
    pieces: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for version, python in pythons.items():
            done = subprocess.run([python, "-c", PIECES], capture_output=True, text=True, check=True)
            for name, cost in json.loads(done.stdout).items():
                costs = pieces.setdefault(name, {})
                costs[version] = min(cost, costs.get(version, cost))
    for name, costs in pieces.items():
        print(f"{name:36}", *(f"{version} {cost:6.1f} ns  " for version, cost in costs.items()), flush=True)
    return {WORKLOAD: runs[WORKLOAD], "pieces": pieces}


def environments(root: Path = ROOT) -> dict[str, str]:
    """Return the path of each Python that has an environment with this library, by its version, the lowest first."""
    found: dict[tuple[int, ...], str] = {}
    for python in sorted(root.glob(".venv*/bin/python")):
        code = "import sys, trio, attrs, rsocket_trio; print('%d.%d.%d' % sys.version_info[:3])"
        done = subprocess.run([str(python), "-c", code], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.setdefault(tuple(map(int, done.stdout.strip().split("."))), str(python))
    return {".".join(map(str, version)): found[version] for version in sorted(found)}


if __name__ == "__main__":
    main(5)
