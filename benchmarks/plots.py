"""The plots of the report, as SVG: ratios as bars, waits by percentile, what an operation costs beside many others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.harness import middle
from benchmarks.libraries import BY_LIBRARY, LIBRARIES, OURS, THEIRS
from benchmarks.markdown import cpu
from benchmarks.workloads import BY_NAME

# The same results make the same file, and its text stays text.
mpl.rcParams.update({"svg.hashsalt": "rsocket-trio", "svg.fonttype": "none", "font.size": 9})
SIZE = (8.0, 4.0)
"""Inches."""
COLOURS = {library.name: f"C{place}" for place, library in enumerate(LIBRARIES)}
WAITED = ("rr1", "rr64")


def draw(figures: dict[str, Any], folder: Path) -> list[str]:
    """Write every plot that there are results for; their names."""
    drawn = []
    for name, (part, plot) in PLOTS.items():
        if figures.get(part):
            figure = Figure(figsize=SIZE, layout="constrained")
            FigureCanvasSVG(figure)
            plot(figure, figures[part])
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            drawn.append(name)
    return drawn


def ratios(figure: Figure, of: dict[str, Any]) -> None:
    """CPU seconds of each library as multiples of ours, on a logarithmic axis."""
    workloads = of["runs"]
    axes = figure.subplots()
    names = [name for name in BY_NAME if name in workloads]
    others = [library for library in LIBRARIES if library is not OURS]
    width = 0.8 / len(others)
    for place, library in enumerate(others):
        found = [(at, cpu(workloads[name], library.name)) for at, name in enumerate(names)]
        heights = [middle(costs) / middle(cpu(workloads[names[at]], OURS.name)) for at, costs in found if costs]
        places = [at + (place - len(others) / 2 + 0.5) * width for at, costs in found if costs]
        above = [height - 1 for height in heights]
        bars = axes.bar(places, above, width, bottom=1, label=library.title, color=COLOURS[library.name])
        if library is THEIRS:
            axes.bar_label(bars, [f"{height:.1f}x" for height in heights], fontsize=8)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(range(len(names)), [f"{BY_NAME[name].label} {name}" for name in names])
    axes.set_ylabel("CPU seconds, ours = 1")
    axes.set_title("What each library takes where rsocket_trio takes 1 (less is better)")
    axes.legend(ncols=3, fontsize=8)


def waits(figure: Figure, of: dict[str, Any]) -> None:
    """Milliseconds by percentile."""
    workloads = of["runs"]
    names = [name for name in WAITED if name in workloads]
    for axes, name in zip(figure.subplots(1, max(1, len(names)), squeeze=False)[0], names, strict=True):
        for library, runs in workloads[name].items():
            cuts = list(runs[0]["waits"])
            heights = [middle(run["waits"][cut] for run in runs) for cut in cuts]
            axes.plot(
                [f"p{cut}" for cut in cuts],
                heights,
                marker="o",
                label=BY_LIBRARY[library].title,
                color=COLOURS[library],
            )
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("ms")
        axes.set_title(f"{BY_NAME[name].label} {BY_NAME[name].what}")
        axes.legend(fontsize=8)


def scaling(figure: Figure, of: dict[str, Any]) -> None:
    """CPU microseconds of a request, by how much there is beside it."""
    axes = figure.subplots()
    for name, title in (
        ("connections_64", "connections, 64 in flight on each"),
        ("connections_1", "connections, 1 in flight on each"),
        ("streams", "open streams on one connection"),
    ):
        counts = [int(count) for count in of[name]]
        axes.plot(counts, [middle(run["cpu"] for run in runs) for runs in of[name].values()], marker="o", label=title)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("how many")
    axes.set_ylabel("CPU us of a request, both ends")
    axes.set_title("What a request costs beside many others")
    axes.legend()


PLOTS: dict[str, tuple[str, Callable[[Figure, dict[str, Any]], None]]] = {
    "ratios": ("workloads", ratios),
    "latency": ("workloads", waits),
    "scaling": ("scaling", scaling),
}
