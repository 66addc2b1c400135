"""The sections of the report that compare runs of the workloads: libraries, dialects, ways to resume."""

from __future__ import annotations

from typing import Any

from benchmarks import dialects, resume, typed
from benchmarks.harness import middle
from benchmarks.libraries import BY_LIBRARY, LIBRARIES, OURS, THEIRS
from benchmarks.markdown import NO, YES, command, cpu, met, spread, table, versions
from benchmarks.workloads import BY_NAME, TYPED, WORKLOADS

PEERS = (("rr64", "grpcio", 10), ("rr64", "js", 1), ("stream", "js", 1), ("bulk", "js", 1), ("channel", "js", 1))
"""The bars of single peers: workload, peer, and the least ratio of its CPU seconds to ours."""


def workloads(figures: dict[str, Any]) -> list[str]:
    """Ours against rsocket-py, then everyone."""
    measured = figures["workloads"]["runs"]
    against, all_of_them, waits = [], [], []
    shown = [library for library in LIBRARIES if library is not OURS]
    for workload in WORKLOADS:
        name = workload.name
        runs = measured.get(name)
        if not runs:
            continue
        ours = middle(cpu(runs, OURS.name))
        what = f"{workload.label} {workload.what}"
        row = [what, spread(cpu(runs, OURS.name))]
        if theirs := cpu(runs, THEIRS.name):
            ratio = middle(theirs) / ours
            bars = f"{workload.must:g}", f"{workload.aim:g}", met(ratio, workload.must, workload.aim)
            row += [spread(theirs), f"**{ratio:.2f}**", *bars]
        else:
            row += ["-"] * 5
        against.append(row)
        others = [cpu(runs, library.name) for library in shown]
        all_of_them.append([what, *(f"{middle(one) / ours:.2f}" if one else "-" for one in others)])
        for library in LIBRARIES:
            cuts = [run["waits"] for run in runs.get(library.name, []) if run["waits"]]
            if cuts:
                cells = [f"{middle(one[cut] for one in cuts):.2f}" for cut in cuts[0]]
                waits.append([f"{workload.label} {library.title}", *cells])
    return [
        "## Against rsocket-py",
        (
            "CPU seconds of rsocket-py (it reads 64 KiB at once) in ratio to those of this library. Slow libraries "
            "have a quarter of the items of streams and channels."
        ),
        *versions(figures["workloads"]["libraries"]),
        table(["workload", "ours, CPU s", "rsocket-py, CPU s", "ratio", "must", "aim", "met"], against),
        command("workloads"),
        "## All libraries",
        (
            "CPU seconds of each in ratio to this library. The gRPC libraries carry plain bytes, without protobuf; "
            "their streams have HTTP/2's flow control in place of credit. rsocket-js has TCP_NODELAY set."
        ),
        table(["workload", *(library.title for library in shown)], all_of_them),
        "Ratios that two of them have to reach:",
        table(["", "ratio", "must", "met"], peers(measured)),
        command("workloads"),
        "## Latency of one operation",
        "Percentiles in milliseconds, medians of the repetitions.",
        table(["", "p50", "p90", "p99", "p99.9"], waits),
        command("workloads"),
    ]


def objects(figures: dict[str, Any]) -> list[str]:
    """Objects by this library in three ways, by rsocket-py and by gRPC."""
    runs = figures["typed"]["runs"]
    costs = [[what, spread(cpu(runs, column))] for column, what in typed.WAYS.items() if column in runs]
    ratios = []
    for above, below, least, most in typed.BOUNDS:
        if above in runs and below in runs:
            found = [one / other for one, other in zip(cpu(runs, above), cpu(runs, below), strict=True)]
            bound = f"at least {least:g}" if most is None else f"at most {most:g}"
            verdict = YES if least <= middle(found) and (most is None or middle(found) <= most) else NO
            ratios.append([f"{typed.WAYS[above]} / {typed.WAYS[below]}", f"**{spread(found)}**", bound, verdict])
    return [
        "## Objects",
        (
            "An order of three fields goes out and a receipt of two comes back, 64 requests in flight, as in W2. Typed "
            "calls and contracts are JSON by codecs; by hand means bytes and msgspec in handler and caller; rsocket-py "
            "has its router and json, and makes its metadata once; grpcio has protobuf messages of the same fields. "
            "Ratios are those of each repetition."
        ),
        *versions(figures["typed"]["libraries"]),
        table([f"{TYPED.label} {TYPED.what}", "CPU s"], costs),
        table(["", "ratio", "must", "met"], ratios),
        command("typed"),
    ]


def peers(workloads: dict[str, Any]) -> list[list[str]]:
    """Return the rows of peers with a bar of their own: their CPU seconds in ratio to ours."""
    rows = []
    for name, library, bar in PEERS:
        if theirs := cpu(workloads.get(name, {}), library):
            ratio = middle(theirs) / middle(cpu(workloads[name], OURS.name))
            what = f"{BY_NAME[name].label} {BY_LIBRARY[library].title}"
            rows.append([what, f"{ratio:.2f}", f"{bar}", YES if ratio >= bar else NO])
    return rows


def websocket(figures: dict[str, Any]) -> list[str]:
    """Ours over WebSocket against rsocket-py, which does that with aiohttp."""
    rows = []
    for name, runs in figures["websocket"].items():
        ours, theirs = cpu(runs, OURS.name), cpu(runs, THEIRS.name)
        cells = [spread(theirs), f"**{middle(theirs) / middle(ours):.1f}**"] if theirs else ["-", "-"]
        rows.append([f"{BY_NAME[name].label} {BY_NAME[name].what}", spread(ours), *cells])
    return [
        "## Over WebSocket",
        "Ours cuts the messages itself, and masks by the C code of websockets; rsocket-py runs over aiohttp.",
        table(["workload", "ours, CPU s", "rsocket-py, CPU s", "ratio"], rows),
        command("websocket"),
    ]


def other_dialects(figures: dict[str, Any]) -> list[str]:
    """Return the section on the other dialects: their CPU seconds in ratio to those of 1.0."""
    yardstick = dialects.YARDSTICK
    others = [name for name in next(iter(figures["dialects"].values())) if name != yardstick]
    rows = []
    for name, runs in figures["dialects"].items():
        ours = middle(cpu(runs, yardstick))
        cells = [f"{middle(cpu(runs, other)) / ours:.2f}" if other in runs else "-" for other in others]
        rows.append([f"{BY_NAME[name].label} {BY_NAME[name].what}", spread(cpu(runs, yardstick)), *cells])
    return [
        "## The other dialects",
        f"CPU seconds of each in ratio to `{yardstick}`. Streamux has no streams.",
        table(["workload", f"{yardstick}, CPU s", *others], rows),
        command("dialects"),
    ]


def resumption(figures: dict[str, Any]) -> list[str]:
    """Return the section on the cost of resumption."""
    rows = []
    for name, runs in figures["resume"].items():
        off = middle(cpu(runs, resume.OFF))
        cells = [f"{middle(cpu(runs, way)) / off:.2f}" for way in (resume.OFFERED, resume.ON)]
        rows.append([f"{BY_NAME[name].label} {BY_NAME[name].what}", spread(cpu(runs, resume.OFF)), *cells])
    return [
        "## Resumption",
        (
            "CPU seconds in ratio to those without resumption, if the server offers it, and if the client asks for "
            "it as well."
        ),
        table(["workload", "without, CPU s", "offered", "on"], rows),
        command("resume"),
    ]
