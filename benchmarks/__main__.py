"""``python -m benchmarks [WHAT ...] [--repeat N] [--json FILE]``: measure everything, or what is named."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import analytics, comparing, contents, machine
from benchmarks.workloads import WORKLOADS

NAMES = [workload.name for workload in WORKLOADS]
COMPARED = "workloads"
"""The section whose workloads can be named one by one."""


def main() -> int:
    """Run what was asked for; everything by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="this library beside its peers")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join([*contents.BY_NAME, *NAMES])}")
    parser.add_argument("--repeat", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--frames", type=int, default=analytics.FRAMES, help="of the capture for analytics (10000000)")
    parser.add_argument("--json", type=Path, help="write every figure to this file; what it has of other runs stays")
    parser.add_argument("--profile", type=Path, help="sample the runs of aims, and keep their stacks in this folder")
    words = parser.parse_args()
    if unknown := set(words.what) - set(NAMES) - set(contents.BY_NAME):
        parser.error(f"no workload or section {', '.join(sorted(unknown))}")
    chosen = words.what or list(contents.BY_NAME)
    some = [name for name in NAMES if name in chosen]
    asked = contents.Asked(words.repeat, words.frames, words.profile)
    figures: dict[str, Any] = json.loads(words.json.read_text()) if words.json and words.json.exists() else {}
    of_run = {"machine": machine.describe(), "repeat": words.repeat}
    if not words.what or "machine" not in figures:
        figures |= {**of_run, "alone": {}}
    for name, section in contents.BY_NAME.items():
        if name in chosen:
            keep(figures, name, section.measure(asked), of_run)
        elif name == COMPARED and some:
            found = comparing.compare(asked.repeat, some)
            kept = figures.get(name, {}).get("runs", {})
            keep(figures, name, {**found, "runs": {**kept, **found["runs"]}}, of_run)
        else:
            continue
        save(figures, words.json)
    return 0


def keep(figures: dict[str, Any], name: str, found: Any, of_run: dict[str, Any]) -> None:
    """Put the figures of a section in, and on which machine, and when, unless it was in the run of most of them."""
    if found is None:
        return
    figures[name] = found
    if figures["machine"] != of_run["machine"]:
        figures.setdefault("alone", {})[name] = of_run
    else:
        figures.get("alone", {}).pop(name, None)


def save(figures: dict[str, Any], file: Path | None) -> None:
    """Write what there is so far: a run takes long, and may be ended."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
