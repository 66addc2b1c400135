"""The fault that each case of the conformance tester catches, as a file keeps it.

``python -m qa.wrong.findings`` plays the cases that the file does not know against one fault after the other until each
has caught one, adds what it finds, and names the cases that catch none; with ``--anew`` it also plays those it knows.
Faults are those of a line that spoils what passes between the tester and a right peer. ``--check`` plays every case
without a fault and against its own.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
import trio.testing

from qa.wrong.line import Fault, dial_spoiled, faults_at, start_spoiled
from qa.wrong.right import Manner
from rsocket_trio.conformance.catalogue import NEEDS, TESTED_DIALECTS, Case, read_chapter
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.conformance.report import failure_lines
from rsocket_trio.conformance.run import Listening, Target, WrongPeer, run, start_clients
from tests.conformance.peers import serving as serving_right
from tests.conformance.peers import starting

PATH = Path(__file__).with_name("findings.txt")
HEAD: Final = "# Faults of wrong peers, and the cases that catch them. python -m qa.wrong.findings writes this file."
IDLE = 0.01
"""Seconds without traffic after which the clock jumps: what a test waits for takes no time, and no test is in haste."""
FEW = 3
"""Cases that may all meet the situation of a fault. Else half of them may: a fault that breaks most shows nothing."""
AT_ONCE = 16
"""Cases that are played at the same time."""
Chapter: TypeAlias = tuple[str, str]
"""A dialect and a role."""
CHAPTERS: Final[list[Chapter]] = [(dialect, role) for dialect in TESTED_DIALECTS for role in ("server", "client")]
Findings: TypeAlias = dict[Chapter, dict[str, Fault]]
"""The fault that each case catches."""


def cases_of(chapter: Chapter) -> list[Case]:
    """Return all cases of a dialect and a role that can be played over a byte stream."""
    return [case for case in read_chapter(chapter[0]).cases if case.role == chapter[1] and not case.messages_only]


def is_caught(result: CaseResult) -> bool:
    """Return whether the case caught a fault: it failed, or deviated if its level is not binding."""
    return result.outcome is CaseOutcome.FAIL or (
        result.outcome is CaseOutcome.DEVIATION and not result.case.level.is_binding
    )


@attrs.frozen
class Play:
    """A case that was played over a line with a fault, and the situations that it met there."""

    case: Case
    fault: Fault | None
    result: CaseResult
    met: frozenset[str]


async def played_over_lines(
    rows: Iterable[tuple[Case, Fault | None]], *, at_once: int = AT_ONCE, manner: Manner | None = None
) -> list[Play]:
    """Play cases, each over a line with its fault, side by side. The cases have the same dialect and role.

    A server may be unusual in a ``manner``.
    """
    plays: list[Play] = []
    limiter = trio.CapacityLimiter(at_once)
    rows = list(rows)

    async def play(case: Case, fault: Fault | None, uri: str, lines: trio.Nursery) -> None:
        met: set[str] = set()
        abilities = frozenset((*NEEDS, *case.options))
        async with limiter:
            if case.role == "server":
                target = Target(dial_spoiled(uri, case.dialect, fault, met, lines, manner), abilities)
                [result] = await run([case], target)
            else:
                result = await played_by_client(
                    case, Listening("tcp://127.0.0.1:0", start_spoiled(starting(), fault, met), abilities)
                )
        plays.append(Play(case, fault, result, frozenset(met)))

    for options in sorted({case.options for case, _ in rows}):
        some = [(case, fault) for case, fault in rows if case.options == options]
        async with serving_right(some[0][0].dialect, (*NEEDS, *options)) as uri, trio.open_nursery() as lines:
            async with trio.open_nursery() as nursery:
                for case, fault in some:
                    nursery.start_soon(play, case, fault, uri, lines)
            lines.cancel_scope.cancel()
    return plays


async def played_by_client(case: Case, listening: Listening) -> CaseResult:
    """Play a case against the client behind a line."""
    try:
        [result] = await start_clients([case], listening)
    except WrongPeer as error:
        return CaseResult(case, CaseOutcome.FAIL, str(error))
    return result


async def caught_by_lines(cases: Sequence[Case]) -> dict[str, Fault]:
    """Return what cases of one dialect and role catch, the rarest fault of each."""
    every = cases_of((cases[0].dialect, cases[0].role))
    traces = await played_over_lines((case, None) for case in every)
    counts = Counter(situation for play in traces for situation in play.met)
    ways: dict[str, list[Fault]] = {}
    for play in traces:
        if play.case not in cases:
            continue
        if play.result.outcome is not CaseOutcome.PASS:
            print(
                "\n".join([f"{play.case.dialect} {play.case.id} fails without a fault:", *failure_lines(play.result)])
            )
            continue
        ways[play.case.id] = [
            fault
            for situation in sorted(play.met, key=lambda one: (counts[one], one))
            for fault in faults_at(situation)
        ]
    caught: dict[str, Fault] = {}
    left = [case for case in cases if ways.get(case.id)]
    while left:
        plays = await played_over_lines((case, ways[case.id].pop(0)) for case in left)
        hits = [(play.case, play.fault) for play in plays if is_caught(play.result)]
        # Once more, among others: what is caught by chance alone is no finding.
        plays = await played_over_lines(hits, at_once=FEW)
        caught |= {play.case.id: play.fault for play in plays if is_caught(play.result) and play.fault}
        left = [case for case in left if case.id not in caught and ways[case.id]]
    return caught


# The file


def read() -> Findings:
    """Return the fault that each case catches, as the file says. Raise ``ValueError`` for a fault that is none."""
    found: Findings = {chapter: {} for chapter in CHAPTERS}
    chapter: Chapter = CHAPTERS[0]
    for line in PATH.read_text("utf-8").splitlines():
        name, _, rest = line.partition(": ")
        if line.startswith("["):
            dialect, _, role = line.strip("[]").partition(" ")
            chapter = (dialect, role)
        elif line and not line.startswith("#"):
            found[chapter] |= dict.fromkeys(rest.split(), Fault.parse(name))
    return found


def write(found: Mapping[Chapter, Mapping[str, Fault]]) -> None:
    """Write the file, a row for each fault and its cases in the order of the catalogue."""
    lines = [HEAD]
    for chapter in CHAPTERS:
        rows: dict[str, list[str]] = {}
        for case in cases_of(chapter):
            if case.id in found[chapter]:
                rows.setdefault(str(found[chapter][case.id]), []).append(case.id)
        lines += ["", f"[{' '.join(chapter)}]"] if rows else []
        lines += [f"{fault}: {' '.join(names)}" for fault, names in sorted(rows.items())]
    PATH.write_text("\n".join(lines) + "\n", "utf-8")


async def update(*, anew: bool = False) -> None:
    """Bring the file up to date, and name the cases that catch nothing.

    With ``anew`` known cases are played, too, and those that do not catch their fault get another one.
    """
    found = read()
    for chapter in CHAPTERS:
        cases = cases_of(chapter)
        known = {name: fault for name, fault in found[chapter].items() if name in {case.id for case in cases}}
        if anew:
            for name in await passing(chapter, cases):
                known.pop(name, None)
        fresh = [case for case in cases if case.id not in known]
        if fresh:
            known |= await caught_by_lines(fresh)
        for case in fresh:
            if case.id not in known:
                print(f"{case.dialect} {case.role} {case.id} catches no fault")
        found[chapter] = known
    write(found)


async def passing(chapter: Chapter, cases: Sequence[Case]) -> dict[str, Fault]:
    """Play each of these cases against its fault. Return those that pass, and the faults."""
    found = read()[chapter]
    rows = [(case, found[case.id]) for case in cases if case.id in found]
    plays = await played_over_lines(rows) if rows else []
    return {play.case.id: found[play.case.id] for play in plays if not is_caught(play.result)}


async def check(chapter: Chapter, cases: Sequence[Case]) -> list[str]:
    """Play each of these cases against its fault. Return what is not as the file says, in words."""
    known = read()[chapter]
    wrong = [f"{case.id} is not in the file" for case in cases if case.id not in known]
    missed = await passing(chapter, cases)
    return wrong + [f"{' '.join(chapter)}: {name} passes: {fault}" for name, fault in missed.items()]


async def check_right() -> list[str]:
    """Play all cases against the right peers. Return what fails, in words."""
    results: list[CaseResult] = []
    for chapter in CHAPTERS:
        results += [play.result for play in await played_over_lines((case, None) for case in cases_of(chapter))]
    return [line for result in results if result.outcome is not CaseOutcome.PASS for line in failure_lines(result)]


def main() -> int:
    """Bring the file up to date, or check it."""
    parser = argparse.ArgumentParser(prog="python -m qa.wrong.findings", description="faults that cases catch")
    parser.add_argument("--check", action="store_true", help="play every case against its fault, and write nothing")
    parser.add_argument("--anew", action="store_true", help="play known cases, too: some have changed")
    clock = trio.testing.MockClock(autojump_threshold=IDLE)
    asked = parser.parse_args()
    if asked.check:
        wrong = trio.run(check_all, clock=clock)
        print("\n".join(wrong) or "every case catches its fault")
        return int(bool(wrong))
    trio.run(partial(update, anew=asked.anew), clock=clock)
    return 0


async def check_all() -> list[str]:
    """Play every case against its fault, also the heavy ones. Return what is wrong, in words."""
    wrong = [line for chapter in CHAPTERS for line in await check(chapter, cases_of(chapter))]
    return wrong + await check_right()


if __name__ == "__main__":
    sys.exit(main())
