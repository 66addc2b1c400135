"""The page on the peers, made of the records of their runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from qa.peers.findings import Findings, Told, explain, findings
from qa.peers.rows import BY_NAME, OURS
from rsocket_trio.conformance.catalogue import Case, Level
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.report import CaseRun, as_json, chapter_of

ROLES: Final = {"server": "Servers", "client": "Clients"}
NOBODY: Final = "none"
"""Stands for a peer in the rows on cases that no foreign implementation passes."""


@attrs.frozen
class Record:
    """One run: the peer and its version, its role, when it began (ISO 8601, UTC), and the outcome of each case."""

    peer: str
    title: str
    version: str
    runtime: str
    role: str
    began: str
    outcomes: Mapping[str, CaseOutcome]

    def write(self, path: Path, run: CaseRun) -> None:
        """Write the record with what passed on the wire."""
        facts = {"peer": self.peer, "title": self.title, "version": self.version, "runtime": self.runtime}
        path.write_text(json.dumps(facts | json.loads(as_json(run)), indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a record."""
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        outcomes = {str(case["id"]): CaseOutcome(case["outcome"]) for case in content["cases"]}
        facts = {name: str(content[name]) for name in ("peer", "title", "version", "runtime", "role", "began")}
        return cls(outcomes=outcomes, **facts)


@attrs.frozen
class Page:
    """The page as Markdown, and what is wrong with its sentences, a line each."""

    text: str
    complaints: Sequence[str]


def made(records: Sequence[Record], cases: Sequence[Case], findings: Findings, left_out: Mapping[str, str]) -> Page:
    """Return the page of these records. ``cases`` are all of the catalogue; ``left_out`` says why a peer is lacking."""
    records = [_leveled(record, cases) for record in records]
    text: list[str] = [HEAD, *_versions(records, cases, left_out)]
    complaints: list[str] = []
    for role, title in ROLES.items():
        some = [record for record in records if record.role == role]
        if some:
            text += [f"## {title}", "", *_by_chapter(some, cases), ""]
    text += ["## What fails, and why", ""]
    for record in records:
        named = {case.id: case for case in cases if case.role == record.role}
        ran = [named[name] for name in record.outcomes if name in named]
        broken = [case for case in ran if record.outcomes[case.id] is CaseOutcome.FAIL]
        over = BY_NAME[record.peer].over
        told = explain(findings.failures, over or record.peer, record.role, broken, ran, list(named.values()))
        if over:  # over one transport not all fails that does over the other
            told = attrs.evolve(told, idle=())
        text += _section(f"{record.title} {record.version}, {record.role}", told, "Nothing.")
        complaints += _complaints(f"{record.peer} {record.role}", told)
    text += ["## Cases that no foreign implementation passes", "", ALONE, ""]
    for role in ROLES:
        foreign = [record for record in records if record.role == role and record.peer != OURS]
        if not foreign:
            continue
        asked = [case for case in cases if case.role == role and any(case.id in one.outcomes for one in foreign)]
        never = [case for case in asked if not any(one.outcomes.get(case.id) is CaseOutcome.PASS for one in foreign)]
        told = explain(findings.alone, NOBODY, role, never, asked, asked)
        text += _section(f"As a {role}", told, "None.")
        complaints += _complaints(f"no foreign {role}", told)
    return Page("\n".join(text).rstrip() + "\n", complaints)


def _leveled(record: Record, cases: Sequence[Case]) -> Record:
    """Return the record by the levels of today: what is not binding any more is no failure."""
    milder = {case.id for case in cases if case.role == record.role and not case.level.is_binding}
    outcomes = {
        name: CaseOutcome.DEVIATION if outcome is CaseOutcome.FAIL and name in milder else outcome
        for name, outcome in record.outcomes.items()
    }
    return attrs.evolve(record, outcomes=outcomes)


def _complaints(where: str, told: Told) -> Iterator[str]:
    for name in told.unexplained:
        yield f"{where}: {name} is unexplained"
    for pattern in told.idle:
        yield f"{where}: the pattern {pattern} fits nothing any more"


HEAD: Final = """# Peers

The [conformance cases](howto/conformance.md) of RSocket 1.0 over TCP, and over WebSocket where that is said, against
implementations in other languages, and against this one. `make peers` installs them, runs the cases and writes this
page. The servers and clients are those of [examples/conformance](../examples/conformance).

A result is about one version and the small program around it. A case that fails breaks a MUST of the document, or what
the document draws or states as a fact (implied), as this project reads it; many of these cases send what a correct peer
never sends. A deviation is allowed: the document recommends, permits or leaves open another reaction, or the connection
ends as it should, with another code or without one. A case that failed was run twice more, and failed each time.
"""
ALONE: Final = (
    "A case that only rsocket-trio passes may be wrong. Each was held against the document, with this reason."
)


def _versions(records: Sequence[Record], cases: Sequence[Case], left_out: Mapping[str, str]) -> Iterator[str]:
    yield (
        "| implementation | version | on | as a | run (UTC) | pass | deviation: SHOULD | reading | another code "
        "| fail: MUST | implied | not applicable |"
    )
    yield "|---|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for record in records:
        level = {case.id: case.level for case in cases if case.role == record.role}
        counts = Counter((outcome, level[name]) for name, outcome in record.outcomes.items() if name in level)
        began = record.began.removesuffix("+00:00").replace("T", " ")
        cells = (
            sum(counts[CaseOutcome.PASS, each] for each in Level),
            counts[CaseOutcome.DEVIATION, Level.SHOULD],
            counts[CaseOutcome.DEVIATION, Level.READING],
            counts[CaseOutcome.DEVIATION, Level.MUST] + counts[CaseOutcome.DEVIATION, Level.IMPLIED],
            counts[CaseOutcome.FAIL, Level.MUST],
            counts[CaseOutcome.FAIL, Level.IMPLIED],
            sum(counts[CaseOutcome.NOT_APPLICABLE, each] for each in Level),
        )
        numbers = " | ".join(map(str, cells))
        yield f"| {record.title} | {record.version} | {record.runtime} | {record.role} | {began} | {numbers} |"
    yield ""
    for title, why in left_out.items():
        yield f"{title} was left out: {why}."
        yield ""


def _by_chapter(records: Sequence[Record], cases: Sequence[Case]) -> Iterator[str]:
    """Yield a table: a row for each chapter, a column for each peer."""
    chapter = {case.id: chapter_of(case) for case in cases if case.role == records[0].role}
    counts = [Counter((chapter.get(name), outcome) for name, outcome in one.outcomes.items()) for one in records]
    yield "Passed, deviated, failed; a single number means that all that apply passed."
    yield ""
    yield f"| chapter | about | {' | '.join(record.title for record in records)} |"
    yield f"|---|---|{'--:|' * len(records)}"
    for code in sorted(set(chapter.values())):
        cells = [_cell([count[code, outcome] for outcome in CaseOutcome]) for count in counts]
        yield f"| {code} | {findings().chapters.get(code, '')} | {' | '.join(cells)} |"


def _cell(numbers: Sequence[int]) -> str:
    passed, deviated, failed, _ = numbers
    if deviated or failed:
        return f"{passed}, {deviated}, {failed}"
    return str(passed) if passed else "-"


def _section(title: str, told: Told, otherwise: str) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    for says, names in told.explained.items():
        yield f"* {says} {_listed(names)}"
    for name in told.unexplained:
        yield f"* `{name}` is unexplained."
    if not told.explained and not told.unexplained:
        yield otherwise
    yield ""


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(f'`{name}`' for name in names)})"
