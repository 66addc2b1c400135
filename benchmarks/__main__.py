"""``python -m benchmarks [WHAT ...] [--repeat N] [--json FILE]``: measure everything, or what is named."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    analytics,
    comparing,
    dialects,
    interpreters,
    latency,
    machine,
    memory,
    micro,
    oob,
    resume,
    scaling,
    spark,
    typed,
    workers,
)
from benchmarks.libraries import OURS, THEIRS
from benchmarks.workloads import WORKLOADS

NAMES = [workload.name for workload in WORKLOADS]


def main() -> int:
    """Run what was asked for; everything by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="this library beside its peers")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join([*NAMES, *further(5)])}; all by default")
    parser.add_argument("--repeat", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--frames", type=int, default=analytics.FRAMES, help="of the capture for analytics (10000000)")
    parser.add_argument("--json", type=Path, help="write every figure to this file; what it has of other runs stays")
    asked = parser.parse_args()
    parts = further(asked.repeat, asked.frames)
    if unknown := set(asked.what) - set(NAMES) - set(parts):
        parser.error(f"no workload {', '.join(sorted(unknown))}")
    chosen = asked.what or [*NAMES, *parts]
    figures: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    of_run = {"machine": machine.describe(), "repeat": asked.repeat}
    if not asked.what or "machine" not in figures:
        figures |= {**of_run, "alone": {}}
    if names := [name for name in NAMES if name in chosen]:
        found = comparing.compare(names, asked.repeat)
        figures["libraries"] = found["libraries"]
        figures.setdefault("workloads", {}).update(found["workloads"])
        note_run(figures, "workloads", of_run)
        save(figures, asked.json)
    for name, part in parts.items():
        if name in chosen:
            figures[name] = part()
            note_run(figures, name, of_run)
            save(figures, asked.json)
    return 0


def further(repeat: int, frames: int = analytics.FRAMES) -> dict[str, Callable[[], Any]]:
    """What is measured beside the workloads."""
    return {
        "websocket": partial(comparing.over_websocket, repeat),
        "memory": partial(memory.main, [library.name for library in (OURS, THEIRS) if not library.missing()]),
        "latency": latency.main,
        "scaling": partial(scaling.main, repeat),
        "dialects": partial(dialects.main, repeat),
        "resume": partial(resume.main, repeat),
        "typed": partial(typed.main, repeat),
        "oob": oob.main,
        "workers": partial(workers.main, min(repeat, 3)),
        "micro": micro.main,
        "interpreters": partial(interpreters.main, repeat),
        "analytics": partial(analytics.main, frames),
        "spark": spark.main,
    }


def note_run(figures: dict[str, Any], part: str, of_run: dict[str, Any]) -> None:
    """Note on which machine, and when, a part was measured, unless it was in the run of most of them."""
    if figures["machine"] != of_run["machine"]:
        figures.setdefault("alone", {})[part] = of_run
    else:
        figures.get("alone", {}).pop(part, None)


def save(figures: dict[str, Any], file: Path | None) -> None:
    """Write what there is so far: a run takes long, and may be ended."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
