"""The page on the peers is made of records: what they hold is counted, explained by sentences, or complained about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from qa.peers.findings import Finding, Findings, findings
from qa.peers.page import NOBODY, Record, made
from qa.peers.rows import EXAMPLES, OURS, PEERS, Peer
from qa.peers.running import DIALECT, ROLES
from rsocket_trio.conformance.catalogue import Case, Level, read_chapter
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.conformance.report import CaseRun

CASES = [case for case in read_chapter(DIALECT).cases if case.role == "server"][:4]
ONE, TWO, THREE, FOUR = CASES
NOTHING = Findings([], [])


def record(peer: str, **outcomes: CaseOutcome) -> Record:
    """A record in which the cases passed, but for those that are named by their place."""
    by_case = {case.id: outcomes.get(f"case_{place}", CaseOutcome.PASS) for place, case in enumerate(CASES)}
    return Record(peer, peer.title(), "1.2", "Lisp 3", "server", "2026-11-23T04:05:06+00:00", by_case)


def finding(says: str, *cases: Case, peer: str = "java") -> Finding:
    return Finding(says, {(peer, "server"): tuple(case.id for case in cases)})


def page(*records: Record, findings: Findings = NOTHING, left_out: Mapping[str, str] | None = None) -> list[str]:
    return made(records, CASES, findings, left_out or {}).text.splitlines()


def complaints(*records: Record, findings: Findings = NOTHING) -> list[str]:
    return list(made(records, CASES, findings, {}).complaints)


@pytest.mark.parametrize(
    ("level", "outcome", "cells"),
    [
        (Level.SHOULD, CaseOutcome.DEVIATION, "3 | 1 | 0 | 0 | 0 | 0 | 0"),
        (Level.READING, CaseOutcome.DEVIATION, "3 | 0 | 1 | 0 | 0 | 0 | 0"),
        (Level.MUST, CaseOutcome.DEVIATION, "3 | 0 | 0 | 1 | 0 | 0 | 0"),
        (Level.MUST, CaseOutcome.FAIL, "3 | 0 | 0 | 0 | 1 | 0 | 0"),
        (Level.IMPLIED, CaseOutcome.FAIL, "3 | 0 | 0 | 0 | 0 | 1 | 0"),
    ],
)
def test_what_does_not_pass_is_counted_by_its_level(level: Level, outcome: CaseOutcome, cells: str) -> None:
    cases = [attrs.evolve(ONE, level=level), TWO, THREE, FOUR]

    text = made([record("java", case_0=outcome)], cases, NOTHING, {}).text

    assert f"| 2026-11-23 04:05:06 | {cells} |" in text


def test_sentences_are_about_a_peer_over_each_transport() -> None:
    rows = Findings([finding("It is so.", ONE, TWO)], [])
    broken = record("java-ws", case_0=CaseOutcome.FAIL)

    assert f"* It is so. (`{ONE.id}`)" in page(broken, record("go"), findings=rows)
    assert complaints(broken, record("go"), findings=rows) == []  # over TCP more may fail


def test_a_failure_stands_under_the_first_sentence_that_fits() -> None:
    rows = Findings([finding("It is so.", ONE), finding("It is otherwise.", ONE, TWO)], [])
    broken = record("java", case_0=CaseOutcome.FAIL, case_1=CaseOutcome.FAIL)

    lines = page(broken, record("go"), findings=rows)

    assert f"* It is so. (`{ONE.id}`)" in lines
    assert f"* It is otherwise. (`{TWO.id}`)" in lines
    assert complaints(broken, record("go"), findings=rows) == []


def test_a_failure_without_a_sentence_is_complained_about() -> None:
    broken = record("java", case_2=CaseOutcome.FAIL)

    assert f"* `{THREE.id}` is unexplained." in page(broken, record("go"))
    assert complaints(broken, record("go")) == [f"java server: {THREE.id} is unexplained"]


def test_a_sentence_that_fits_no_failure_any_more_is_complained_about() -> None:
    rows = Findings([finding("It is so.", FOUR)], [])

    assert complaints(record("java"), findings=rows) == [f"java server: the pattern {FOUR.id} fits nothing any more"]


def test_a_case_that_nobody_else_passes_needs_a_reason() -> None:
    alone = [record("java", case_0=CaseOutcome.DEVIATION), record("go", case_0=CaseOutcome.DEVIATION), record(OURS)]
    rows = Findings([], [finding("The documents leave it open.", ONE, peer=NOBODY)])

    assert complaints(*alone) == [f"no foreign server: {ONE.id} is unexplained"]
    assert complaints(*alone, findings=rows) == []
    assert f"* The documents leave it open. (`{ONE.id}`)" in page(*alone, findings=rows)


def test_a_peer_that_is_missing_is_named() -> None:
    assert "Java was left out: mvn not found on PATH." in page(record("go"), left_out={"Java": "mvn not found on PATH"})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = record("java", case_1=CaseOutcome.DEVIATION)
    results = [CaseResult(case, kept.outcomes[case.id]) for case in CASES]

    kept.write(tmp_path / "it.json", CaseRun("Java 1.2", DIALECT, kept.role, kept.began, results))

    assert Record.read(tmp_path / "it.json") == kept


def test_the_sentences_are_about_peers_that_there_are() -> None:
    named = {place for row in findings().failures for place in row.patterns}

    assert named <= {(peer.name, role) for peer in PEERS for role in ROLES}
    assert {place for row in findings().alone for place in row.patterns} <= {(NOBODY, role) for role in ROLES}
    assert [row for row in findings().failures if not row.says.endswith(".")] == []


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.name != OURS], ids=lambda peer: peer.name)
def test_the_programs_of_a_peer_are_examples(peer: Peer) -> None:
    for word in peer.command("server") + peer.command("client"):
        assert not word.startswith(str(EXAMPLES)) or Path(word).is_file()
    assert not peer.source or (EXAMPLES / peer.source).is_dir()
