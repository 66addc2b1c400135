"""Round trips over Aeron and TCP through the transports alone, and the CPU time of both while idle."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Process, cpu_of, middle, started
from benchmarks.markdown import NO, YES, command, spread, table

PEER = Path(__file__).parent / "peers" / "transport_alone.py"
SIZE = 128
"""Bytes of a frame."""
TRIPS = 5_000
REST = 4.0
"""Seconds without a frame."""
IDLE_BAR = 3.0
"""Percent of a core that one side may take over UDP while its one connection is idle."""
WAYS = {
    "tcp": "TCP",
    "udp": "Aeron over UDP, drivers within both processes",
    "ipc": "Aeron over shared memory, a driver within the server",
}


def main(repeat: int) -> dict[str, Any]:
    """Print and return what each took, in turn."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(repeat):
        for way in WAYS:
            found[way].append(measure(way))
            shown = ", ".join(f"{name} {figure:.1f}" for name, figure in found[way][-1].items())
            print(f"{way}: {shown}", flush=True)
    return found


def measure(way: str) -> dict[str, float]:
    """Return microseconds of a round trip, CPU microseconds of one, and percent of a core at rest of either side."""
    with tempfile.TemporaryDirectory() as folder:
        uri = {
            "tcp": "tcp://127.0.0.1:0",
            "udp": "aeron:udp?endpoint=127.0.0.1:0",
            "ipc": f"aeron:ipc?directory={folder}/driver",
        }[way]
        with started([sys.executable, str(PEER), "serve", uri]) as (server, _):
            bound = line(server)
            with started([sys.executable, str(PEER), "ask", bound]) as (client, errors):
                assert line(client) == "ready", errors.read_text()
                before = [cpu_of(each.pid) for each in (client, server)]
                took = json.loads(line(client, f"trips {TRIPS} {SIZE}"))
                after = [cpu_of(each.pid) for each in (client, server)]
                line(client, f"rest {REST}")
                rested = [cpu_of(each.pid) for each in (client, server)]
                finish(client)
            finish(server)
    cuts = statistics.quantiles(took, n=100)
    idle = [100 * (end - begin) / REST for begin, end in zip(after, rested, strict=True)]
    busy = sum(after) - sum(before)
    return {
        "p50": cuts[49],
        "p99": cuts[98],
        "cpu": busy / TRIPS * 1e6,
        "client_idle": idle[0],
        "server_idle": idle[1],
    }


def line(process: Process, said: str | None = None) -> str:
    """Say a line to a process, if there is one, and return the next that it prints."""
    assert process.stdin is not None
    assert process.stdout is not None
    if said is not None:
        print(said, file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def finish(process: Process) -> None:
    """End a process by the end of its standard input: it removes what it keeps in shared memory."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait(harness.LONGEST)


def written(figures: dict[str, Any]) -> list[str]:
    """Aeron beside TCP."""
    of = figures["aeron"]
    tcp = middle(run["p50"] for run in of["tcp"])
    rows = []
    for way, what in WAYS.items():
        runs = of[way]
        idle = [max(run["client_idle"], run["server_idle"]) for run in runs]
        met = ""
        if way == "udp":
            met = YES if middle(run["p50"] for run in runs) < tcp and middle(idle) < IDLE_BAR else NO
        cells = [spread([run[name] for run in runs]) for name in ("p50", "p99", "cpu")]
        rows.append([what, *cells, spread(idle), met])
    return [
        "## Over Aeron",
        (
            f"Round trips of frames of {SIZE} B through the transport alone, client and server in two processes, and "
            "the share of a core that a side takes while that one connection is idle. Over UDP the median has to be "
            f"below TCP's, and the share at rest below {IDLE_BAR:g} %."
        ),
        table(["", "p50 us", "p99 us", "CPU us of both", "one idle connection, % of a core", "met"], rows),
        command("aeron"),
    ]


if __name__ == "__main__":
    main(5)
