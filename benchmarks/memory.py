"""Measures the memory of an idle connection and an open stream at both ends, and of a reader that stopped."""

from __future__ import annotations

from typing import Any

import trio

from benchmarks import harness
from benchmarks.comparing import interleaved
from benchmarks.harness import middle
from benchmarks.libraries import FLOOR, JS, OURS, THEIRS
from benchmarks.markdown import command, met, table
from benchmarks.workloads import BY_NAME, CREDIT, IDLE
from rsocket_trio import open_connection

LIBRARIES = (OURS, THEIRS, JS, FLOOR)
PAUSE = 10
"""Seconds that the reader stops for, while 1 GiB waits to be sent."""
ITEM = 16_384
BOUNDS = {"connection": (18, 12), "open": (5, 4)}
"""KiB that one must and should cost the server at most."""


async def pause(server: harness.Server) -> float:
    """Bytes that the server grows by while a stream's reader does nothing, with 1 GiB to send."""
    async with open_connection(f"tcp://127.0.0.1:{server.port}") as connection:
        await connection.request_response(b"")
        before = server.resident()
        asked = b"%d %d" % (2**30 // ITEM, ITEM)
        async with connection.request_stream(asked, initial_request_n=CREDIT) as items:
            await anext(items)
            await trio.sleep(PAUSE)
            return server.resident() - before


def main(repeat: int) -> dict[str, Any]:
    """Print and return what each library's processes grew by, and how far our server did beside a stopped reader."""
    there = [library.name for library in LIBRARIES if library.missing() is None]
    columns = {workload.name: there for workload in IDLE}
    runs = interleaved(columns, repeat, lambda workload, library: harness.run(library, workload))
    with harness.server(OURS.name) as server:
        grown = trio.run(pause, server)
    print(f"server growth beside a reader that stopped for {PAUSE} s: {grown / 2**20:.1f} MiB")
    return {"runs": runs, "pause": grown}


def sizes(runs: dict[str, list[dict[str, Any]]], library: str, role: str) -> list[float]:
    """KiB that one connection or stream takes in a library's client or server."""
    return [run[f"{role}_memory"] / run["count"] / 1024 for run in runs.get(library, [])]


def written(figures: dict[str, Any]) -> list[str]:
    """The section of the report."""
    runs = figures["memory"]["runs"]
    grown = figures["memory"]["pause"] / 2**20
    rows = []
    for name, (must, aim) in BOUNDS.items():
        workload = BY_NAME[name]
        for role in ("server", "client"):
            cells = []
            for library in LIBRARIES:
                found = sizes(runs[name], library.name, role)
                cells.append(f"{middle(found):.1f}" if found else "-")
            size = middle(sizes(runs[name], OURS.name, role))
            bars = [f"{must}", f"{aim}", met(-size, -must, -aim)] if role == "server" else [""] * 3
            rows.append([f"{workload.label} {workload.what}, {role} ({workload.count:,} of them)", *cells, *bars])
    return [
        "## Memory",
        (
            "KiB of resident memory that one more takes. An open stream waits in its handler: an async generator in "
            "ours and with rsocket-py, a callback with rsocket-js."
        ),
        table(["", *(library.title for library in LIBRARIES), "must", "aim", "met"], rows),
        f"A reader that stops for {PAUSE} s while 1 GiB waits for it makes the server grow by {grown:.1f} MiB.",
        command("memory"),
    ]


if __name__ == "__main__":
    main(3)
