"""The catalogue is whole, tests name clauses that exist, and the page says how they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.blocks import ROOT, anchors, page
from tests.conformance.catalogue import LEVELS, PAGE, REMARKS, Clause, State, judged, read, shown_by_vectors, states_in
from tests.conformance.report import differences
from tests.conformance.report import page as page_of

CLAUSES = read()
IDS = [clause.id for clause in CLAUSES]
CHAPTERS = {"0": 14, "1": 98, "2": 145, "3": 126, "4": 86, "5": 174, "6": 77, "7": 9, "11": 18}
"""How many clauses each chapter has: none is lost, none is added in silence."""


def test_the_catalogue_has_every_clause_once() -> None:
    assert len(IDS) == len(set(IDS))
    counted: dict[str, int] = {}
    for clause in CLAUSES:
        number = clause.chapter.partition(".")[0]
        counted[number] = counted.get(number, 0) + 1
    assert counted == CHAPTERS


def test_every_clause_has_a_level_and_a_gist_and_a_remark_that_is_understood() -> None:
    for clause in CLAUSES:
        assert clause.level in LEVELS, clause
        assert clause.gist, clause
        assert not clause.remark or clause.remark.startswith(tuple(REMARKS)), clause
        assert set(clause.twins) <= set(IDS), clause


def test_what_is_documented_is_where_the_catalogue_says() -> None:
    for clause in CLAUSES:
        if clause.unless_shown[0] is State.DOCUMENTED:
            path, _, anchor = clause.unless_shown[1].partition("#")
            assert anchor in anchors(page(path)), clause


def test_vectors_name_clauses_that_exist() -> None:
    assert {name for name, _ in shown_by_vectors()} - set(IDS) == set()


@pytest.mark.timeout(600)  # it collects all tests
def test_tests_name_clauses_that_exist_and_the_page_tells_how_they_stand() -> None:
    # A run of its own, which collects everything: this one may be of a few files only.
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.report", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "up to date\n", "")


def test_tests_named_on_the_page_exist() -> None:
    tests = ROOT / "tests"
    sources = {path.relative_to(tests).as_posix(): path.read_text("utf-8") for path in tests.rglob("test_*.py")}
    named = re.findall(r"\| shown: ([\w/]+\.py): ([\w ]+)", PAGE.read_text("utf-8"))

    assert len(named) > 100
    assert [
        (file, name)
        for file, name in named
        if f"def test_{name.strip().replace(' ', '_')}(" not in sources.get(file, "")
    ] == []


# How clauses are judged

A, B, C, D = (
    Clause("1. One", "ONE-A-01", "MUST", "-", "a"),
    Clause("1. One", "ONE-B-01", "MAY", "-", "b", "none: nobody does"),
    Clause("2. Two", "TWO-A-01", "MUST", "-", "c", "as: ONE-A-01"),
    Clause("2. Two", "TWO-B-01", "READING", "-", "d", "later: moons"),
)


@pytest.mark.parametrize(
    ("shown", "states"),
    [
        ((), [State.OPEN, State.NOT_APPLICABLE, State.OPEN, State.OPEN]),
        (["ONE-A-01"], [State.SHOWN, State.NOT_APPLICABLE, State.SHOWN, State.OPEN]),
        (["ONE-B-01", "TWO-B-01"], [State.OPEN, State.SHOWN, State.OPEN, State.SHOWN]),
    ],
)
def test_a_test_weighs_more_than_a_remark(shown: Iterable[str], states: list[State]) -> None:
    found = judged([A, B, C, D], {name: ["test_x.py: it works"] for name in shown})

    assert [verdict.state for verdict in found] == states


def test_a_page_says_of_every_clause_how_it_stands() -> None:
    found = judged([A, B, C, D], {"ONE-A-01": ["test_x.py: it | works", "test_y.py: too"]})
    text = page_of(found)

    assert states_in(text) == {verdict.clause.id: verdict.state for verdict in found}
    assert differences(found, text) == []
    assert differences(judged([A, B, C], {"ONE-A-01": ["x"]}), page_of(judged([A, B, D], {}))) == [
        "ONE-A-01: open on the page, shown by the tests",
        "TWO-A-01: missing on the page, shown by the tests",
        "TWO-B-01: on the page, and no clause",
    ]
    assert "| ONE-A-01 | MUST | - | a | shown: test_x.py: it \\| works, and 1 more |" in text
    assert "| TWO-B-01 | READING | - | d | **open**: comes with moons |" in text
