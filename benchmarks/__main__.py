"""``python -m benchmarks [WORKLOAD ...] [--repeat N] [--json FILE]``: the table of ratios."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
from pathlib import Path

from benchmarks import dialects, harness, latency, memory, oob, resume
from benchmarks.workloads import BY_NAME, WORKLOADS


def main() -> int:
    """Run what was asked for, everything by default."""
    extra = ("latency", "memory", "dialects", "oob", "resume")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="this library against rsocket-py")
    parser.add_argument("what", nargs="*", metavar="WORKLOAD", help=f"{', '.join([*BY_NAME, *extra])}; all by default")
    parser.add_argument("--repeat", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    asked = parser.parse_args()
    unknown = set(asked.what) - set(BY_NAME) - set(extra)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}")
    chosen = asked.what or [*BY_NAME, *extra]
    libraries = ["trio", "asyncio"]
    if importlib.util.find_spec("rsocket") is None:
        print("rsocket-py is missing: no ratios (pip install 'rsocket-trio[interop]')")
        libraries = ["trio"]
    print(f"{platform.machine()}, Python {platform.python_version()}, {asked.repeat} repetitions, medians")
    results: dict[str, object] = {}
    names = [workload.name for workload in WORKLOADS if workload.name in chosen]
    if names:
        results.update(measure(names, libraries, asked.repeat))
    if "latency" in chosen:
        results["latency"] = latency.main()
    if "memory" in chosen:
        results["memory"] = memory.main(libraries)
    if "dialects" in chosen:
        results["dialects"] = dialects.main(asked.repeat)
    if "oob" in chosen:
        results["oob"] = oob.main()
    if "resume" in chosen:
        results["resume"] = resume.main(asked.repeat)
    if asked.json is not None:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def measure(names: list[str], libraries: list[str], repeat: int) -> dict[str, object]:
    """Run each workload ``repeat`` times, the libraries in turn, and print medians and ratios."""
    print(f"{'workload':38} {'CPU s':>16} {'wall s':>16}   {'CPU':>6} {'wall':>6}")
    figures: dict[str, object] = {}
    for name in names:
        costs: dict[str, list[harness.Cost]] = {library: [] for library in libraries}
        for _ in range(repeat):
            for library in libraries:
                costs[library].append(harness.run(library, name))
        cpu = {library: statistics.median(cost.cpu for cost in runs) for library, runs in costs.items()}
        wall = {library: statistics.median(cost.wall for cost in runs) for library, runs in costs.items()}
        line = f"{BY_NAME[name].what:38} {cpu['trio']:16.2f} {wall['trio']:16.2f}"
        if "asyncio" in libraries:
            line = (
                f"{BY_NAME[name].what:38} {cpu['trio']:6.2f} : {cpu['asyncio']:6.2f}  {wall['trio']:6.2f} : "
                f"{wall['asyncio']:6.2f}   {cpu['asyncio'] / cpu['trio']:5.1f}x {wall['asyncio'] / wall['trio']:5.1f}x"
            )
        print(line, flush=True)
        figures[name] = {
            library: [{"cpu": cost.cpu, "wall": cost.wall} for cost in runs] for library, runs in costs.items()
        }
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
