"""Tables, figures and verdicts of the report, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.harness import middle

YES, NO = "yes", "**missed**"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def command(*words: str) -> str:
    """Return the line that names the command which measures the table above it."""
    return f"Measured by `python -m benchmarks {' '.join(words)}`."


def spread(costs: Sequence[float]) -> str:
    """The median, and how far the others lie from it, in about three digits."""
    digits = 3 if max(costs) < 1 else 2 if max(costs) < 10 else 1
    return f"{middle(costs):.{digits}f} ({min(costs):.{digits}f} to {max(costs):.{digits}f})"


def met(ratio: float, must: float, aim: float) -> str:
    """Return the verdict on a ratio: at least the aim, at least what it must be, or missed."""
    return "aim" if ratio >= aim else "must" if ratio >= must else NO


def described(figures: dict[str, Any]) -> str:
    """Return the machine and the date of the figures, the number of repetitions and the load."""
    of = figures["machine"]
    python = of["python"]
    if "python_speed" in of:
        options = of["config_args"] or "no options"
        python += (
            f", {of['origin']}, configured by `{options}`: {of['python_speed']:.1f} million turns of a loop a second"
        )
    return (
        f"{of['processor']}, {of['cores']} cores, {of['memory_gib']} GiB; {of['system']}; {python}; "
        f"{of['date']}; {figures['repeat']} repetitions; load average {of['load'][0]:.1f} before the run."
    )


def versions(libraries: dict[str, Any]) -> list[str]:
    """The versions that were measured, and what is missing."""
    there = [f"{one['title']} {one['version']}" for one in libraries.values() if not one["missing"]]
    missing = [f"Missing: {one['title']}, because {one['missing']}." for one in libraries.values() if one["missing"]]
    return [f"Libraries: {', '.join(there)}.", *missing] if there else missing


def cpu(runs: dict[str, list[dict[str, Any]]], name: str) -> list[float]:
    """CPU seconds of one column."""
    return [run["cpu"] for run in runs.get(name, [])]
