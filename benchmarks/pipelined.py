"""The section of the report on the data pipeline: captures, Spark, and tables that a file of its own brings."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import middle
from benchmarks.markdown import command, spread, table


def pipeline(figures: dict[str, Any], parts: list[str]) -> list[str]:
    """The heading, the parts that were measured, and the tables of ``pipeline.json``, which it says itself:

    ``{"pipeline": [{"title", "text", "columns": [...], "rows": [[...], ...], "command"}, ...]}``
    """
    written = ["## The data pipeline", *parts]
    for part in figures.get("pipeline", ()):
        cells = [[str(cell) for cell in row] for row in part["rows"]]
        shown = table(part["columns"], cells)
        written += [f"### {part['title']}", part["text"], shown, f"Measured by `{part['command']}`."]
    if len(written) == 1:
        written.append("Not measured in this run.")
    return written


def analytics(figures: dict[str, Any]) -> list[str]:
    """The questions of a capture."""
    of = figures["analytics"]
    rows = [
        [name, *(f"{of[engine][key] / unit:,.1f}" for engine in ("spark", "duckdb"))]
        for name, key, unit in (
            ("seconds from a cold start", "seconds", 1),
            ("CPU seconds", "cpu", 1),
            ("peak memory, MiB", "memory", 2**20),
        )
    ]
    return [
        "### The questions of a capture",
        f"All tables of a capture of {of['frames']:,} frames ({of['write']['bytes'] / 2**20:,.0f} MiB of Parquet).",
        table(["", "Spark", "DuckDB"], rows),
        command("analytics"),
    ]


def spark(figures: dict[str, Any]) -> list[str]:
    """Rows into and out of Spark, beside sources and sinks of Spark's own."""
    of = figures["spark"]
    rows = [
        [
            f"{job['job']}, {job['of']}",
            f"{job['rows']:,}",
            f"{job['rows'] / middle(job['seconds']):,.0f}",
            spread([1e6 * cpu / job["rows"] for cpu in job["cpu"]]),
        ]
        for job in of["jobs"]
    ]
    floors = [[name, f"{milliseconds:,.0f}"] for name, milliseconds in of["floor_ms"].items()]
    return [
        "### Spark",
        "CPU is that of the server, Spark and its Python workers together.",
        table(["", "rows", "rows/s", "CPU us a row"], rows),
        "Milliseconds of a micro-batch of two rows:",
        table(["", "ms"], floors),
        command("spark"),
    ]
