"""The section of the report on the data pipeline: captures, Spark, and tables that a file of its own brings."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import command, table


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
    size = f"{of['frames']:,} frames ({of['write']['bytes'] / 2**20:,.0f} MiB of Parquet)"
    return [
        "### The questions of a capture",
        f"All tables of a capture of {size}, on each engine once.",
        table(["", "Spark", "DuckDB"], rows),
        command("analytics"),
    ]
