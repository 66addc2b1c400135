"""The CPU time of each workload by part: kernel, Trio, this library, program; and the next possible saving.

The figures are samples of the runs of ``aims``, taken if that is told a folder for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.aims import MEASURED
from benchmarks.harness import middle
from benchmarks.markdown import cpu, table
from benchmarks.profiling import KERNEL, OURS, PARTS, PROGRAM, SUFFIX, TRIO, read
from benchmarks.workloads import BY_NAME

SHOWN = ("ours", "floor")
"""The ways that are profiled."""
MOST = 4
"""Functions that are named for each part of a workload."""
COLUMNS = (KERNEL, TRIO, OURS, PROGRAM)
LEAST = 0.01
"""Share of the CPU below which a function is not named."""
NEXT = {
    "rr1": (
        "four tasks run for each request, the readers of both ends, the handler and the caller, and Trio's loop asks "
        "the kernel for readable sockets before each. Fewer tasks would help: a handler that begins in the reader's "
        "task, which Trio does not offer."
    ),
    "rr64": (
        "no function takes more than a few hundredths. Requests that came in one read could be handed to the workers "
        "together, as items of streams are."
    ),
    "stream": (
        "items move in runs; what is left is done for each of them: a payload at either end, and the handler and the "
        "reader that are resumed."
    ),
    "bulk": (
        "a third is what the kernel copies. What is left is done for each item and each read, and few items of 16 KiB "
        "share a read."
    ),
    "channel": "the handler sends each item by a call of its own; an iterator that is sent whole would move in runs.",
    "large": (
        "the kernel copies 2 MiB twice, and the payload is put together from fragments at each end; what is left is "
        "how many bytes one read of the socket gives."
    ),
    "connect": (
        "half of it is Trio's: tasks, nurseries and cancel scopes of a connection at both ends; a connection that "
        "begins without a task of its own would take less."
    ),
}
"""The next possible saving of each workload, by its name."""


def main(folder: Path | None) -> dict[str, Any] | None:
    """Return the samples by workload and way, by part and function; ``None`` without a folder that has some."""
    if folder is None or not any(folder.glob(f"*{SUFFIX}")):
        return None
    found: dict[str, Any] = {}
    for workload in MEASURED:
        for way in SHOWN:
            profile = read(folder.glob(f"{workload}-{way}-*{SUFFIX}"))
            if not profile.samples:
                continue
            functions = {
                part: [[name, count] for (of, name), count in profile.functions.most_common() if of == part][:MOST]
                for part in PARTS
            }
            parts = {part: profile.parts[part] for part in PARTS}
            found.setdefault(workload, {})[way] = {"samples": profile.samples, "parts": parts, "functions": functions}
            shares = ", ".join(f"{part} {count / profile.samples:.0%}" for part, count in parts.items() if count)
            print(f"{BY_NAME[workload].label} {way:6} {profile.samples:6} samples: {shares}", flush=True)
    return found


def written(figures: dict[str, Any]) -> list[str]:
    """The section of the report."""
    measured = figures.get("aims", {}).get("runs", {})
    rows, texts = [], []
    for workload, ways in figures["profiles"].items():
        label = f"{BY_NAME[workload].label} {BY_NAME[workload].what}"
        for way, of in ways.items():
            total = cpu(measured.get(workload, {}), way)
            parts = [of["parts"][part] / of["samples"] for part in COLUMNS]
            seconds = [f"{middle(total) * share:.3g}" for share in parts] if total else ["-"] * len(parts)
            cells = [f"{second} ({share:.0%})" for second, share in zip(seconds, parts, strict=True)]
            rows.append([f"{label}, {'ours' if way == 'ours' else 'the floor'}", *cells])
        texts.append(f"**{label}.** {sentence(ways['ours'])} Next: {NEXT[workload]}" if "ours" in ways else "")
    return [
        "## Where the CPU goes",
        (
            "Stacks of client and server were counted by the ticks of the kernel, in the runs of the aims; seconds are "
            "the shares of their medians. What a function of C takes is counted for the function that calls it. The "
            "program is handlers and the loops that ask; at the floor, it is everything but Trio."
        ),
        table(["CPU s of 100,000", *COLUMNS], rows),
        *filter(None, texts),
        "Measured by `make bench PROFILE=1`, or `python -m benchmarks aims profiles --profile build/profiles`.",
    ]


def sentence(of: dict[str, Any]) -> str:
    """Name the functions that took most, by part."""
    named = []
    for part in (KERNEL, TRIO, OURS):
        shares = [(name, count / of["samples"]) for name, count in of["functions"][part]]
        names = [f"`{short(name)}` {share:.0%}" for name, share in shares if share >= LEAST]
        if names:
            named.append(f"{'the kernel for' if part == KERNEL else part + ' in'} {', '.join(names)}")
    text = "; ".join(named)
    return f"{text[:1].upper()}{text[1:]}."


def short(name: str) -> str:
    """Return the last module of a function, and its name there."""
    module, _, function = name.partition(":")
    return f"{module.rpartition('.')[2]}.{function.replace('.<locals>', '')}"
