"""``python -m benchmarks.report result.json [pipeline.json] [--out PAGE]``: the page of what was measured.

The page and its plots are made from the results and from nothing else: the same results give the same page.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import contents, sections, spark_pages
from benchmarks.libraries import ROOT
from benchmarks.markdown import described
from benchmarks.pipelined import pipeline

PAGE = ROOT / "docs" / "explanation" / "performance.md"
RESULT = ROOT / "benchmarks" / "result.json"
PIPELINE = ROOT / "benchmarks" / "pipeline.json"
FOLDER = "performance"
"""The folder of the plots, beside the page."""
INTRODUCTION = """\
# Performance

This page is generated: `make bench` measures on your machine and writes it anew, `python -m benchmarks.report
result.json` writes it from existing results.

**Compare ratios.** All libraries of a table were measured in the same run, in turn, repetition by repetition, in
reversed order every second time, so that changes of the machine affect all of them alike. Seconds depend on the
machine; ratios are about the same on another.

Client and server are two processes that talk over loopback TCP, `rsocket/1.0` unless a table says otherwise. CPU
seconds are those of both together, user and kernel, all threads, as the operating system counts them. They are given
for 100,000 operations: requests, items, connections. Requests and connections go on for two seconds, after 0.3 seconds
that are not counted; streams have 200,000 items of 64 B or 20,000 of 16 KiB, and channels 100,000, after a stream or
channel of 1,000 that is not. A cell is the median; in brackets are the least and the most.
"""


def page(figures: dict[str, Any], plots: Sequence[str] = ()) -> str:
    """The whole page as Markdown. ``plots`` are the names of the plots that exist beside it."""
    written = [INTRODUCTION.rstrip("\n"), *sections.machine(figures)]
    for section in contents.SECTIONS:
        written += part(section, figures, plots)
    parts = [text for section in contents.PIPELINE for text in part(section, figures, plots)]
    return "\n\n".join([*written, *pipeline(figures, parts)]) + "\n"


def part(section: contents.Section, figures: dict[str, Any], plots: Sequence[str]) -> list[str]:
    """One section, if it was measured."""
    if section.name not in figures:
        return []
    written = section.write(figures)
    if alone := figures.get("alone", {}).get(section.name):
        written.append(f"Measured by itself: {described(alone)}")
    return [*written, *(f"![{plot}]({FOLDER}/{plot}.svg)" for plot in section.plots if plot in plots)]


def read(files: Iterable[Path]) -> dict[str, Any]:
    """The results of several files as one."""
    figures: dict[str, Any] = {}
    for file in files:
        figures.update(json.loads(file.read_text()))
    return figures


def main() -> None:
    """Write the page and its plots, and the parts of other pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description="write the page and its plots")
    parser.add_argument("results", nargs="*", type=Path, help="benchmarks/result.json and pipeline.json by default")
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    figures = read(asked.results or [file for file in (RESULT, PIPELINE) if file.exists()])
    drawn: list[str] = []
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed, so there are no plots (pip install '.[bench]')")
    else:
        from benchmarks import plots

        folder = asked.out.parent / FOLDER
        folder.mkdir(exist_ok=True)
        drawn = plots.draw(figures, folder)
    asked.out.write_text(page(figures, drawn))
    if asked.out == PAGE:
        spark_pages.write(figures)


if __name__ == "__main__":
    main()
