"""The parts of ``make test``, ``make quick`` and ``make gate``: what each runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parent.parent.parent
TESTS: Final = "tests"


@attrs.frozen
class Tests:
    """Tests that share a process, and with it the one session of Spark or the one broker that they need."""

    name: str
    paths: tuple[str, ...]
    """Folders and files of tests; ``TESTS`` has what no other part has."""
    workers: int = 1
    """Processes that share the items file by file."""
    options: tuple[str, ...] = ()
    """Further options of pytest."""


SPARK_AGAIN: Final = ("--reruns=1", "--only-rerun=Python worker failed to connect back")
"""Spark gives a Python worker ten seconds to start, which can't be set. Its message alone has an item run once more."""

SLOW: Final = "--timeout=400"
"""Seconds for an item of Spark: a job of its is many processes, each of which waits for the others."""

PARTS: Final = (
    Tests("spark", ("tests/spark",), options=(*SPARK_AGAIN, SLOW)),
    Tests("analytics", ("tests/analytics", "tests/loadgen/jvm"), options=(*SPARK_AGAIN, SLOW)),
    Tests("kafka", ("tests/kafka",)),
    Tests("peers", ("tests/interop", "tests/benchmarks/test_under_java.py")),
    Tests(
        "commands", ("tests/cli", "tests/capture", "tests/loadgen", "tests/server", "tests/test_examples.py"), workers=2
    ),
    Tests("pure", (TESTS,), workers=3),
)
QUICK: Final = ("commands", "pure")
"""Parts that need no Java and no peer."""


def program(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a program of this project."""
    return (sys.executable, "-m", module, *arguments)


def whole(name: str, *options: str) -> tuple[str, ...]:
    """Return the command that runs a part of ``make test`` with all that this leaves out."""
    return ("env", "RSOCKET_TRIO_ALL_CASES=1", *program("qa.testrun", "part", "--run", "whole", name, "--", *options))


LOADS: Final = (
    "load",
    "reconnect",
    "requests",
    "crowd",
    "bulk",
    "tokens",
    "uncollected",
    "mtu",
    "abandoned",
    "leftovers",
    "long-tokens",
)
GATE: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "attacks": (program("qa.attacks", "--full"),),
    "load": tuple(program("qa.attacks", load) for load in LOADS),
    "restarts": (
        program("qa.restarts"),
        *(program("qa.pool", "--listen", f"{scheme}://127.0.0.1:0") for scheme in ("tcp", "ws", "h2")),
        *(program("qa.forwarder", "--scheme", scheme) for scheme in ("tcp", "ws", "h2")),
    ),
    "times": (program("qa.times"), program("qa.analytics"), program("qa.spark_bars"), program("qa.kafka", "--rates")),
    "resume": (
        program("qa.resume", "--cuts", "200"),
        program("qa.resume", "--cuts", "100", "--scheme", "h2"),
        program("qa.resume", "--cuts", "40", "--replays"),
        program("qa.resume", "--aimed"),
    ),
    "simulation": (
        program("qa.simulation", "--seeds", "300", "--resume"),
        program("qa.simulation", "--seeds", "150"),
        program("qa.simulation", "--races", "100"),
        program("qa.simulation", "--buffers", "100"),
    ),
    "mutants": (program("qa.mutants"),),
    "conformance": (program("qa.wrong.findings", "--check"),),
    "tests": (whole("pure"), whole("commands")),
    "kafka": (program("qa.kafka", "--kills"),),
    "log": (program("qa.log"),),
    "analytics": (whole("analytics"),),
    "spark": (whole("spark", "--ignore=tests/spark/cluster"), program("qa.spark_kills")),
}
"""The programs of each part of ``make gate``, one after the other."""


def part(name: str) -> Tests:
    """Return the part of a name. Raise ``KeyError`` if there is none."""
    return {part.name: part for part in PARTS}[name]


def command(tests: Tests, more: Iterable[str] = ()) -> list[str]:
    """Return the command that runs a part: its paths, without what lies below them and has a part of its own."""
    others = [path for other in PARTS if other is not tests for path in other.paths]
    apart = [path for path in others if any(_is_below(path, own) for own in tests.paths)]
    ignored = [f"--ignore={path}" for path in apart]
    return [
        sys.executable,
        "-m",
        "pytest",
        "--continue-on-collection-errors",
        *tests.options,
        *more,
        *ignored,
        *tests.paths,
    ]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")
