"""The fault of the wrong server that each case of RSocket 1.0 catches, as a file keeps it.

``python -m qa.wrong.findings`` plays the cases that the file does not know against one fault after the other
until each has caught one, adds what it finds, and names the cases that catch none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing

from qa.wrong.server import GENERAL, Switch, serve
from rsocket_trio.conformance.catalogue import NEEDS, Case, chosen
from rsocket_trio.conformance.play import Result
from rsocket_trio.conformance.report import BROKEN
from rsocket_trio.conformance.run import PATIENCE, Target, dial_to, run

PATH = Path(__file__).with_name("findings.txt")
CASES = chosen("rsocket/1.0", role="server")
SWITCHES = [switch for switch in Switch if switch not in GENERAL]
"""The faults that most cases do not see."""
IDLE = 0.01
"""Seconds without traffic after which the clock jumps: what a test waits for takes no time, and no test is in haste."""


@asynccontextmanager
async def serving(switch: Switch | None, *, patience: float = PATIENCE, at_once: int = 16) -> AsyncIterator[Target]:
    """Serve with this fault for as long as the block."""
    async with trio.open_nursery() as nursery:
        uri = await nursery.start(serve, switch)
        yield Target(dial_to(uri), frozenset(NEEDS), patience, at_once)
        nursery.cancel_scope.cancel()


async def played(switch: Switch | None, cases: Sequence[Case]) -> list[Result]:
    """Play cases against a server with this fault."""
    async with serving(switch) as target:
        return await run(cases, target)


async def found(cases: Sequence[Case]) -> dict[str, Switch]:
    """Play cases against the faults that name them, then against one after the other. Return what each caught."""
    caught: dict[str, Switch] = {}
    for switch in SWITCHES:
        named = [case for case in cases if case.id == switch.caught_by]
        caught |= dict.fromkeys(broken(await played(switch, named)), switch)
    for switch in reversed(SWITCHES):
        left = [case for case in cases if case.id not in caught]
        caught |= dict.fromkeys(broken(await played(switch, left)), switch)
    return caught


def broken(results: Sequence[Result]) -> list[str]:
    """Return the cases that did not pass."""
    return [result.case.id for result in results if result.outcome in BROKEN]


def read() -> dict[str, Switch]:
    """Return the fault that each case catches, as the file says. Raise ``KeyError`` for a fault that does not exist."""
    named = {str(switch): switch for switch in SWITCHES}
    rows = (line.partition(":") for line in PATH.read_text("utf-8").splitlines() if not line.startswith("#"))
    return {name: named[switch] for switch, _, names in rows for name in names.split()}


def write(caught: dict[str, Switch]) -> None:
    """Write the file, a row for each fault and its cases in the order of the catalogue."""
    rows = ["# Faults of the wrong server, and cases that catch them; qa/wrong/findings.py writes it."]
    for switch in SWITCHES:
        names = [case.id for case in CASES if caught.get(case.id) is switch]
        if names:
            rows.append(f"{switch}: {' '.join(names)}")
    PATH.write_text("\n".join(rows) + "\n", "utf-8")


def main() -> None:
    """Bring the file up to date."""
    known = read()
    fresh = [case for case in CASES if case.id not in known]
    caught = known | trio.run(found, fresh, clock=trio.testing.MockClock(autojump_threshold=IDLE))
    write(caught)
    for case in CASES:
        if case.id not in caught:
            print(f"{case.id} catches no fault")


if __name__ == "__main__":
    main()
