"""The other sections of the report: each turns its part of the results into Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks import latency, oob
from benchmarks.harness import middle
from benchmarks.markdown import NO, YES, command, cpu, described, spread, table
from benchmarks.scaling import CONNECTIONS
from benchmarks.workloads import BY_NAME

SCALED = 0.8
"""The part of the throughput of one connection that many at once have to reach."""
FLAT = 1.25
"""The most CPU seconds of a request beside many open streams, in ratio to those beside one."""


def machine(figures: dict[str, Any]) -> list[str]:
    """The machine."""
    return ["## The machine", described(figures)]


def beside_bulk(figures: dict[str, Any]) -> list[str]:
    """A small request beside large ones."""
    of = figures["latency"]
    row = [f"{of[cut]:.1f}" for cut in ("p50", "p99", "max")]
    return [
        "## A small request beside a large transfer",
        (
            f"Milliseconds that a request of 64 B takes while payloads of {latency.BULK >> 20} MiB go out and come "
            f"back on the same connection; p99 has to stay below {latency.BAR:g} ms."
        ),
        table(
            ["", "p50", "p99", "worst", "met"],
            [["64 B request", *row, YES if of["p99"] < latency.BAR else NO]],
        ),
        command("latency"),
    ]


def scaling(figures: dict[str, Any]) -> list[str]:
    """Many connections, many streams."""
    of = figures["scaling"]
    rows = []
    for name, what in (
        ("connections_64", "connections, 64 in flight on each"),
        ("connections_1", "connections, 1 in flight on each"),
        ("streams", "open streams beside the requests"),
    ):
        first = next(iter(of[name].values()))
        for count, runs in of[name].items():
            rates, costs = [run["rate"] for run in runs], [run["cpu"] for run in runs]
            share = middle(rates) / middle(run["rate"] for run in first)
            more = middle(costs) / middle(run["cpu"] for run in first)
            verdict = more <= FLAT if name == "streams" else share >= SCALED
            judged = name == "streams" or count == str(CONNECTIONS[-1])
            cells = [f"{middle(rates):,.0f}", f"{share:.0%}", spread(costs)]
            rows.append([f"{int(count):,} {what}", *cells, (YES if verdict else NO) if judged else ""])
    for count, runs in of["collected"].items():
        rates = [run["rate"] for run in runs]
        share = middle(rates) / middle(run["rate"] for run in next(iter(of["connections_64"].values())))
        cells = [f"{middle(rates):,.0f}", f"{share:.0%}", spread([run["cpu"] for run in runs])]
        rows.append([f"{int(count):,} connections, 64 in flight on each, Python's collector as it is", *cells, ""])
    return [
        "## Many connections, many streams",
        (
            "Requests a second and CPU microseconds of each, both ends together, after the first request of each "
            f"connection. A thousand connections at once have to reach {SCALED:.0%} of the rate of one; beside open "
            "streams a request has to cost the same. The thresholds of Python's collector are raised, as in "
            "[the how-to](../howto/many-requests.md)."
        ),
        table(["", "requests/s", "of the first", "CPU us a request", "met"], rows),
        command("scaling"),
    ]


def streamux(figures: dict[str, Any]) -> list[str]:
    """The urgent messages of Streamux."""
    rows = [
        [f"{what}, {way}", *(f"{of[cut]:.1f}" for cut in ("p50", "p99", "worst"))]
        for way, parts in figures["oob"].items()
        for what, of in parts.items()
        if what != "bulk"
    ]
    return [
        "## Streamux beside a message of 256 MiB",
        (
            f"Milliseconds of pings and cancels while the message goes out, and what its handler does with it; p99 has "
            f"to stay below {oob.BAR:g} ms."
        ),
        table(["", "p50", "p99", "worst"], rows),
        command("oob"),
    ]


def processes(figures: dict[str, Any]) -> list[str]:
    """Several processes on one address."""
    of = figures["workers"]
    rates = {int(number): middle(found) for number, found in of["rates"].items()}
    one = next(iter(rates.values()))
    rows = [[f"{number}", f"{rate:,.0f}", f"{rate / one:.2f}x"] for number, rate in rates.items()]
    restart = of["restart"]
    return [
        "## Several processes on one address",
        (
            "Requests a second that take about a millisecond of Python each, by the number of workers; the client runs "
            "on the same machine."
        ),
        table(["workers", "requests/s", "of one"], rows),
        (
            f"While all workers were replaced {restart['restarts']} times, {restart['connections']:,} new connections "
            f"asked one request each: {restart['failed']} failed, and the longest took {restart['longest']:.0f} ms."
        ),
        command("workers"),
    ]


def pieces(figures: dict[str, Any]) -> list[str]:
    """The pieces of the hot path."""
    rows = [[name, f"{cost:,.0f}"] for name, cost in figures["micro"].items()]
    return [
        "## The pieces",
        "Nanoseconds of CPU, the best of several rounds: rules without tasks or sockets, items of 64 B.",
        table(["", "ns"], rows),
        command("micro"),
    ]


def interpreters(figures: dict[str, Any]) -> list[str]:
    """The same library on several Pythons, beside what Python itself costs there."""
    runs, pieces = figures["interpreters"]["channel"], figures["interpreters"]["pieces"]
    first, *others = runs
    channel = BY_NAME["channel"]
    ours = middle(cpu(runs, first))
    row = [
        f"{channel.label} {channel.what}, {spread(cpu(runs, first))} CPU s of 100,000 on {first}",
        *(f"{middle(cpu(runs, version)) / ours:.2f}" for version in others),
    ]
    rows = [row]
    rows += [
        [f"{name}, {costs[first]:.0f} ns on {first}", *(f"{costs[version] / costs[first]:.2f}" for version in others)]
        for name, costs in pieces.items()
    ]
    return [
        "## On other Pythons",
        (
            f"CPU in ratio to that of Python {first}. The first row is this library; the others are the interpreter "
            "alone, the best of several rounds. The hot path consists of creating objects, starting coroutines and "
            "calling into C: if these cost more, a request does, and this library cannot change it."
        ),
        table(["", *others], rows),
        command("interpreters"),
    ]
