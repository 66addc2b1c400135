"""The aims: what each workload may cost in ratio to the floor, to rsocket-js and to TCP, in one interleaved run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from benchmarks import harness
from benchmarks.comparing import described, interleaved
from benchmarks.harness import middle
from benchmarks.libraries import FLOOR, JS, OURS, Library
from benchmarks.markdown import NO, YES, command, cpu, spread, table, versions
from benchmarks.memory import sizes
from benchmarks.profiling import SUFFIX
from benchmarks.scaling import CONNECTIONS
from benchmarks.workloads import BY_NAME
from rsocket_trio.transports.schemes import REGISTRY


@attrs.frozen
class Way:
    """One configuration of a workload: a library, a scheme, a dialect, and more arguments of the server.

    ``needs`` is a module without which it can't be.
    """

    library: Library
    what: str
    scheme: str = "tcp"
    dialect: str = "rsocket/1.0"
    to_server: tuple[str, ...] = ()
    needs: str = ""

    def missing(self) -> str | None:
        """Return the reason why it can't be measured here, or ``None``."""
        if self.library is OURS and self.scheme not in REGISTRY:
            return f"there is no transport {self.scheme}"
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        return self.library.missing()


# fmt: off
WAYS = {
    "ours":     Way(OURS,  "ours"),
    "plain":    Way(OURS,  "ours, a plain function answers", to_server=("plain",)),
    "ws":       Way(OURS,  "ours over ws", scheme="ws"),
    "h2":       Way(OURS,  "ours over h2", scheme="h2", needs="h2"),
    "0.0":      Way(OURS,  "ours in reactivesocket/0.0", dialect="reactivesocket/0.0"),
    "streamux": Way(OURS,  "ours in streamux/1", dialect="streamux/1"),
    "js":       Way(JS,    "rsocket-js"),
    "floor":    Way(FLOOR, "floor (Trio)"),
}
MEASURED: dict[str, tuple[str, ...]] = {
    "rr1":     ("ours", "plain", "js", "floor"),
    "rr64":    ("ours", "plain", "ws", "h2", "js", "floor"),
    "stream":  ("ours", "ws", "h2", "js", "floor"),
    "bulk":    ("ours", "h2", "js", "floor"),
    "channel": ("ours", "js", "floor"),
    "large":   ("ours", "ws", "0.0", "streamux", "js", "floor"),
    "connect": ("ours", "js", "floor"),
}
# fmt: on

Figures: TypeAlias = dict[str, Any]
Found: TypeAlias = tuple[float, Sequence[float]]
"""A figure, and what the repetitions gave by themselves."""


@attrs.frozen
class Aim:
    """One bound. ``find`` gives its figure, or ``None`` if that was not measured."""

    what: str
    bound: float
    find: Callable[[Figures], Found | None]
    is_least: bool = False

    def row(self, figures: Figures) -> list[str]:
        """Return the row of the table: what, the bound, the figure, and whether it is met."""
        bound = f"at {'least' if self.is_least else 'most'} {self.bound:g}"
        found = self.find(figures)
        if found is None:
            return [self.what, bound, "not measured", ""]
        value, repeated = found
        is_met = value >= self.bound if self.is_least else value <= self.bound
        shown = f"**{value:.2f}** ({min(repeated):.2f} to {max(repeated):.2f})"
        return [self.what, bound, shown, YES if is_met else NO]


def ratio(section: str, workload: str, above: str, below: str) -> Callable[[Figures], Found | None]:
    """Return what finds the CPU seconds of one column in ratio to another, of their medians."""

    def find(figures: Figures) -> Found | None:
        runs = figures.get(section, {}).get("runs", {}).get(workload, {})
        over, under = cpu(runs, above), cpu(runs, below)
        if not over or not under:
            return None
        return middle(over) / middle(under), [one / other for one, other in zip(over, under, strict=True)]

    return find


def resident(workload: str) -> Callable[[Figures], Found | None]:
    """Return what finds the KiB that our server takes for one."""

    def find(figures: Figures) -> Found | None:
        found = sizes(figures.get("memory", {}).get("runs", {}).get(workload, {}), OURS.name, "server")
        return (middle(found), found) if found else None

    return find


def many_connections(figures: Figures) -> Found | None:
    """The requests a second of the most connections in ratio to those of one, with 64 in flight on each."""
    if "scaling" not in figures:
        return None
    one, *_, most = (
        [run["rate"] for run in runs]
        for count, runs in figures["scaling"]["connections_64"].items()
        if int(count) in CONNECTIONS
    )
    return middle(most) / middle(one), [above / below for above, below in zip(most, one, strict=True)]


# fmt: off
AIMS = [
    Aim("W1 to the floor",                                        1.35, ratio("aims", "rr1", "ours", "floor")),
    Aim("W2 to rsocket-js",                                       1,    ratio("aims", "rr64", "ours", "js")),
    Aim("W2 to the floor",                                        1.6,  ratio("aims", "rr64", "ours", "floor")),
    Aim("W3 to the floor",                                        1.8,  ratio("aims", "stream", "ours", "floor")),
    Aim("W4 to the floor",                                        1.2,  ratio("aims", "bulk", "ours", "floor")),
    Aim("W5 to the floor",                                        2,    ratio("aims", "channel", "ours", "floor")),
    Aim("W7 to the floor",                                        1.05, ratio("aims", "connect", "ours", "floor")),
    Aim("W2 over ws to tcp",                                      1.2,  ratio("aims", "rr64", "ws", "ours")),
    Aim("W3 over ws to tcp",                                      1.2,  ratio("aims", "stream", "ws", "ours")),
    Aim("W6 over ws to tcp",                                      1.4,  ratio("aims", "large", "ws", "ours")),
    Aim("W2 over h2 to tcp",                                      1.8,  ratio("aims", "rr64", "h2", "ours")),
    Aim("W3 over h2 to tcp",                                      1.8,  ratio("aims", "stream", "h2", "ours")),
    Aim("W4 over h2 to tcp",                                      1.8,  ratio("aims", "bulk", "h2", "ours")),
    Aim("W2 over tls to rsocket-py over TLS",                     1,    ratio("tls", "rr64", "trio", "asyncio")),
    Aim("W2 over tls to grpcio over TLS",                         1,    ratio("tls", "rr64", "trio", "grpcio")),
    Aim("W3 over tls to rsocket-py over TLS",                     1,    ratio("tls", "stream", "trio", "asyncio")),
    Aim("W3 over tls to grpcio over TLS",                         1,    ratio("tls", "stream", "trio", "grpcio")),
    Aim("W4 over tls to rsocket-py over TLS",                     1,    ratio("tls", "bulk", "trio", "asyncio")),
    Aim("W4 over tls to grpcio over TLS",                         1,    ratio("tls", "bulk", "trio", "grpcio")),
    Aim("W6 in reactivesocket/0.0 to rsocket/1.0",                1.2,  ratio("aims", "large", "0.0", "ours")),
    Aim("W6 in streamux/1 to rsocket/1.0",                        1.2,  ratio("aims", "large", "streamux", "ours")),
    Aim("W8c idle connection, KiB of the server",                 12,   resident("connection")),
    Aim("W8s open stream, KiB of the server",                     4,    resident("open")),
    Aim("1,000 connections, 64 in flight on each, to one",        0.8,  many_connections, is_least=True),
    Aim("W2 under rsocket-java's client, to its own server",      3.5,  ratio("java", "rr64", "trio", "java")),
    Aim("W3 under rsocket-java's client, to its own server",      1.1,  ratio("java", "stream", "trio", "java")),
]
# fmt: on


def main(repeat: int, share: float = 1, profiles: Path | None = None) -> dict[str, Any]:
    """Print and return what each way cost, by workload; or a share of the operations.

    With ``profiles``, processes of Python are sampled, and write their stacks into that folder.
    """
    number = count()
    if profiles is not None:
        profiles.mkdir(parents=True, exist_ok=True)
        for file in profiles.glob(f"*{SUFFIX}"):
            file.unlink()
    missing = {name: why for name, way in WAYS.items() if (why := way.missing())}
    for name, why in missing.items():
        print(f"{WAYS[name].what} is missing: {why}")
    columns = {workload: [name for name in names if name not in missing] for workload, names in MEASURED.items()}

    def run(workload: str, name: str) -> harness.Cost:
        way = WAYS[name]
        return harness.run(
            way.library.name,
            workload,
            way.scheme,
            way.dialect,
            to_server=way.to_server,
            share=share,
            profile=profiles / f"{workload}-{name}-{next(number)}"
            if profiles and way.library.runtime == "python"
            else None,
        )

    return {"libraries": described([OURS, JS, FLOOR]), "runs": interleaved(columns, repeat, run)}


def written(figures: Figures) -> list[str]:
    """The section of the report."""
    runs = figures["aims"]["runs"]
    names = [name for name in WAYS if any(name in of_workload for of_workload in runs.values())]
    costs = [
        [
            f"{BY_NAME[workload].label} {BY_NAME[workload].what}",
            *(spread(found) if (found := cpu(of_workload, name)) else "-" for name in names),
        ]
        for workload, of_workload in runs.items()
    ]
    return [
        "## The aims",
        (
            "CPU seconds of client and server for 100,000 operations: medians, and in brackets the least and the most. "
            "Handlers are coroutines unless a column says otherwise. The floor is Trio with a pooled task for each "
            "request below a cancel scope that lasts, a socket that is read once when it is readable, credit as an "
            "integer, and nothing else: no errors, no limits, no cancellation on the wire. It copies large payloads as "
            "Trio's own streams do, so that it is none for W6."
        ),
        *versions(figures["aims"]["libraries"]),
        table(["CPU s of 100,000", *(WAYS[name].what for name in names)], costs),
        (
            "Ratios are those of the medians; in brackets are those of single repetitions. Rows about memory, many "
            "connections and other peers are figures of the sections below."
        ),
        table(["", "aim", "figure", "met"], (aim.row(figures) for aim in AIMS)),
        command("aims"),
    ]


if __name__ == "__main__":
    main(5)
