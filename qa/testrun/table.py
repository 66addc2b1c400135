"""The table of a test run: its parts, what was left out and why, the slowest files, and the failures once more."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from qa.testrun.record import Result

COLUMNS: Final = ("part", "items", "passed", "failed", "skipped", "run again", "wall s", "CPU s")
SLOWEST: Final = 10


def results(folder: Path, names: Sequence[str]) -> list[Result]:
    """Return the results of parts; one that left none has failed."""
    found = []
    for name in names:
        path = folder / f"{name}.json"
        if path.exists():
            found.append(Result.read(path))
        else:
            found.append(Result(name, failures=[(name, "ended without a result")]))
    return found


def ended(folder: Path, names: Sequence[str]) -> float:
    """Return when the last part left its result, in seconds since the epoch: now, if none did."""
    times = [path.stat().st_mtime for name in names if (path := folder / f"{name}.json").exists()]
    return max(times, default=time.time())


def table(found: Sequence[Result], wall: float) -> Iterator[str]:
    """The lines of both tables, in Markdown."""
    yield from _rows(COLUMNS, [*map(_row, found), _total(found, wall)])
    files = sorted(
        ((seconds, cpu, items, name) for one in found for name, (seconds, cpu, items) in one.files.items()),
        reverse=True,
    )
    if any("::" in item for one in found for item in one.outcomes):
        yield ""
        yield from _rows(
            ("slowest files", "items", "wall s", "CPU s"),
            [(name, f"{items:.0f}", f"{seconds:.1f}", f"{cpu:.1f}") for seconds, cpu, items, name in files[:SLOWEST]],
        )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return f"| {first[0]:<{first[1]}} | {' | '.join(f'{cell:>{width}}' for cell, width in others)} |"

    yield line(head)
    yield f"|{'-' * (widths[0] + 2)}|{'|'.join('-' * (width + 1) + ':' for width in widths[1:])}|"
    yield from map(line, rows)


def _row(result: Result) -> tuple[str, ...]:
    counts = result.counts
    numbers = (len(result.outcomes), counts["passed"] + counts["xfailed"], len(result.failures), counts["skipped"])
    return (result.part, *map(str, (*numbers, len(result.again))), f"{result.wall:.0f}", f"{result.cpu:.0f}")


def _total(found: Sequence[Result], wall: float) -> tuple[str, ...]:
    columns = list(zip(*map(_row, found), strict=True))[1:]
    *sums, _, cpu = (str(sum(map(int, column))) for column in columns)
    return ("all", *sums, f"{wall:.0f}", cpu)


def report(found: Sequence[Result], wall: float) -> Iterator[str]:
    """Everything that a run ends with."""
    for one in found:
        for name, text in one.failures:
            yield f"FAILED {one.part}: {name}\n{_first_lines(text)}"
    for one in found:
        for reason, items in sorted(one.skips.items()):
            yield f"skipped {items} of {one.part}: {reason}"
        for item in one.again:
            yield f"run once more: {item}"
    yield ""
    yield from table(found, wall)
    counts = [one.counts for one in found]
    passed = sum(count["passed"] + count["xfailed"] for count in counts)
    failed = sum(len(one.failures) for one in found)
    yield f"\n{passed} passed, {failed} failed, {sum(count['skipped'] for count in counts)} skipped"


def _first_lines(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(f"    {line}" for line in (lines if len(lines) <= 40 else [*lines[:15], "...", *lines[-24:]]))


def write(page: Path, name: str, found: Sequence[Result], wall: float) -> None:
    """Put the tables of a run into a page, between the comments that name it, with the date and the machine."""
    text = page.read_text("utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head = f"`{name}`, {dt.datetime.now(dt.UTC):%Y-%m-%d}, {machine()}:"
    body = "\n".join([begin, "", head, "", *table(found, wall), "", end])
    written, places = re.subn(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: body, text, flags=re.DOTALL)
    if places != 1:
        raise SystemExit(f"{page}: no place for {name}")
    page.write_text(written, "utf-8")


def machine() -> str:
    """Return what matters of this machine: cores, processor, system, Python."""
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        model = None
    name = model[1] if model else platform.machine()
    return f"{os.cpu_count()} cores ({name}), {platform.system()}, Python {platform.python_version()}"
