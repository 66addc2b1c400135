"""Where does a workload spend its time? ``python -m benchmarks.profiling WORKLOAD [trio|floor|...] [--lines N]``

Client and server run as they always do, each under cProfile with the processor's clock: waiting costs nothing. It makes
calls dearer than they are, so the order counts.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import pstats
import runpy
import sys
import tempfile
import time
from pathlib import Path

import attrs

from benchmarks.harness import line_of, started, tell
from benchmarks.libraries import BY_LIBRARY, Library
from benchmarks.workloads import BY_NAME

UNDER = "--under"
"""Leads the arguments of a process that is profiled: the file to write, the module, and the module's arguments."""


def profile(library: Library, workload: str, folder: Path) -> dict[str, pstats.Stats]:
    """The profiles of both processes, from their start to their end, without what their modules import."""
    files = {role: str(folder / role) for role in ("client", "server")}

    def under(role: str, *arguments: str) -> list[str]:
        python, _, *module = library.command(role, *arguments)
        return [python, "-m", "benchmarks.profiling", UNDER, files[role], *module]

    asked = json.dumps(attrs.asdict(BY_NAME[workload]))
    with started(under("server", "tcp")) as (server, said):
        port = line_of(server, said).split("/")[0].strip()
        with started(under("client", "tcp", port, asked, "rsocket/1.0")) as (client, errors):
            line_of(client, errors)
            tell(client)
            line_of(client, errors)
            client.communicate("\n")
        server.communicate("")
    return {role: pstats.Stats(file) for role, file in files.items()}


def run_under(file: str, module: str, *arguments: str) -> None:
    """Run a peer as ``python -m`` would, and write its profile."""
    importlib.import_module(module)
    sys.argv = [module, *arguments]
    profiled = cProfile.Profile(time.process_time)
    try:
        profiled.runcall(runpy.run_module, module, run_name="__main__")
    finally:
        profiled.dump_stats(file)


def main() -> None:
    """Print the functions that took most by themselves."""
    if sys.argv[1:2] == [UNDER]:
        run_under(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description="where a workload's time goes")
    parser.add_argument("workload", choices=BY_NAME)
    pythons = [name for name, library in BY_LIBRARY.items() if library.runtime == "python"]
    parser.add_argument("library", nargs="?", default="trio", choices=pythons)
    parser.add_argument("--lines", type=int, default=25)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for role, stats in profile(BY_LIBRARY[asked.library], asked.workload, Path(folder)).items():
            print(f"==== {role}")
            stats.strip_dirs().sort_stats("tottime").print_stats(asked.lines)


if __name__ == "__main__":
    main()
