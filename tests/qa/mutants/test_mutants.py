"""The rows are fit to be used, one of the faults is found, and a fault that is none is not."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from qa.mutants.rows import MUTANTS, Mutant
from qa.mutants.running import PACKAGE, ROOT, Stale, functions, hunt, place, planted
from tests.each_row import each_row, whole

FUNCTIONS = functions(ROOT / PACKAGE)
QUICK = [
    mutant
    for mutant in MUTANTS
    if mutant.tests in {("tests/rsocket/test_keepalive.py",), ("tests/rsocket/test_lease.py",)}
][:1]
HARMLESS = attrs.evolve(QUICK[0], name="no fault", new=f"{QUICK[0].old}  # as before")


@each_row("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_old_text_of_a_fault_is_once_in_one_function(mutant: Mutant) -> None:
    function = place(mutant, FUNCTIONS)
    text = function.path.read_text("utf-8")

    assert planted(mutant, function, text) == text.replace(function.text, function.text.replace(mutant.old, mutant.new))
    assert all((ROOT / test).is_file() for test in mutant.tests)


@pytest.fixture(scope="module")
def found() -> dict[str, bool]:
    """Whether the quick faults are found, and one that is none."""
    return {mutant.name: found for mutant, found in hunt([*QUICK, HARMLESS])}


@whole
def test_quick_faults_are_found(found: dict[str, bool]) -> None:
    assert all(found[mutant.name] for mutant in QUICK)


@whole
def test_a_fault_that_changes_nothing_survives(found: dict[str, bool]) -> None:
    assert not found[HARMLESS.name]


@whole
def test_a_text_that_is_gone_is_said_and_not_passed_over() -> None:
    gone = attrs.evolve(QUICK[0], old="a line that nobody wrote")

    with pytest.raises(Stale, match="is not there"):
        list(hunt([gone]))


def test_a_text_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text("def add() -> int:\n    return 1 + 1\n", "utf-8")
    (tmp_path / "two.py").write_text(
        "def take() -> int:\n    return 1\n\n\ndef take() -> int:\n    return 1\n", "utf-8"
    )
    known = functions(tmp_path)

    with pytest.raises(Stale, match="2 times"):
        place(Mutant("in one function", "add", "1", "2", ()), known)
    with pytest.raises(Stale, match="2 times"):
        place(Mutant("in two functions", "take", "return 1", "return 2", ()), known)
