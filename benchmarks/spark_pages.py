"""The figures of Spark as the pages show them: the section of the report, and parts of other pages.

Such a part stands between two comments, ``<!-- measured: NAME -->`` and ``<!-- end -->``, and comes from the results
and from nothing else: ``python -m benchmarks.report`` writes it anew, and a test compares it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import middle
from benchmarks.libraries import ROOT
from benchmarks.markdown import command, spread, table

WIDTH: Final = 120
STORES: Final = {"memory": "in memory", "files": "in files", None: ""}


def section(figures: dict[str, Any]) -> list[str]:
    """Rows into and out of Spark, beside sources and sinks of Spark's own."""
    of = figures["spark"]
    floors = [[name, spread(milliseconds)] for name, milliseconds in of["floor_ms"].items()]
    return [
        "### Spark",
        f"{conditions(figures)} CPU is that of the server, Spark and its Python workers together.",
        jobs_table(of["jobs"], lambda job: f"{job['job']}, {job['of']}"),
        "Milliseconds of a micro-batch of two rows, ours and that of Spark's rate source in turns: medians of 30.",
        table(["", "ms"], floors),
        command("spark"),
    ]


def jobs_table(jobs: Iterable[dict[str, Any]], label: Callable[[dict[str, Any]], str]) -> str:
    """Jobs with where their rows are, rows a second, and CPU."""
    rows = [
        [
            label(job),
            STORES[store_of(job)],
            f"{job['rows']:,}",
            f"{rate_of(job):,.0f}",
            spread([1e6 * cpu / job["rows"] for cpu in job["cpu"]]),
        ]
        for job in jobs
    ]
    return table(["", "rows at the server", "rows", "rows/s", "CPU us a row"], rows)


def store_of(job: dict[str, Any]) -> str | None:
    """Return the store of a job's rows at the server; memory, if the results name none."""
    own = job["job"] in {"read tuples", "read range", "write rows in Python", "write noop"}
    found: str | None = job.get("store", None if own else "memory")
    return found


def rate_of(job: dict[str, Any]) -> float:
    """Rows a second."""
    return float(job["rows"] / middle(job["seconds"]))


def conditions(figures: dict[str, Any]) -> str:
    """Return the conditions under which all figures of Spark were measured."""
    of = figures["spark"]
    machine = figures.get("alone", {}).get("spark", figures)["machine"]
    repeat = of.get("repeat", max(len(job["seconds"]) for job in of["jobs"]))
    counted = "one repetition" if repeat == 1 else f"medians of {repeat} repetitions, with the least and the most"
    return (
        f"Rows of 28 bytes, in memory (`Log()`) or in files (`Log(path)`); {counted}, after "
        f"one that is not counted; Spark, its workers and the server share {of['cores']} cores; {machine['date']}, "
        f"load average {of['load'][0]:.1f} before the run."
    )


# Parts of other pages


def reads(figures: dict[str, Any]) -> str:
    """Rows out of a server."""
    return _selected(figures, "read ")


def writes(figures: dict[str, Any]) -> str:
    """Rows into a server."""
    return _selected(figures, "write ")


def _selected(figures: dict[str, Any], verb: str) -> str:
    jobs = [
        job
        for job in figures["spark"]["jobs"]
        if job["job"].startswith(verb) and job["of"] == "2 partitions" and store_of(job) is not None
    ]
    shown = jobs_table(jobs, lambda job: f"`{job['job'].removeprefix(verb)}`")
    said = textwrap.fill(f"{conditions(figures)} Two partitions, CPU of all processes.", WIDTH)
    return f"{said}\n\n{shown}"


PARTS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {"spark reads": reads, "spark writes": writes}
PAGES: Final = (ROOT / "docs/howto/spark.md", ROOT / "docs/explanation/spark-guarantees.md")
"""The pages that have parts."""
PART: Final = re.compile(r"(<!-- measured: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, figures: dict[str, Any]) -> str:
    """Return a page with its parts as the results have them. Raise ``KeyError`` for a name that no part has."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]](figures)}\n\n{found[3]}", text)


def write(figures: dict[str, Any], pages: Iterable[Path] = PAGES) -> None:
    """Write the parts of the pages anew, if Spark was measured."""
    if "spark" in figures:
        for page in pages:
            page.write_text(filled(page.read_text(), figures))
