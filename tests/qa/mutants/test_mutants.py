"""The rows are fit to be used, two of the faults are found, and a fault that is none is not."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from qa.mutants.rows import MUTANTS, Mutant
from qa.mutants.running import PACKAGE, ROOT, Copy, Stale, hunt, planted

QUICK = [
    mutant
    for mutant in MUTANTS
    if mutant.tests in {("tests/rsocket/test_keepalive.py",), ("tests/rsocket/test_lease.py",)}
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_old_text_of_a_fault_is_in_its_file_once(mutant: Mutant) -> None:
    text = (ROOT / PACKAGE / mutant.file).read_text("utf-8")

    assert planted(mutant, text) != text
    assert all((ROOT / test).is_file() for test in mutant.tests)


def test_there_are_twenty_faults_and_more_with_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_quick_faults_are_found() -> None:
    assert {found for _, found in hunt(QUICK)} == {True}


def test_a_fault_that_changes_nothing_survives() -> None:
    harmless = attrs.evolve(QUICK[0], new=f"{QUICK[0].old}  # as before")

    assert [found for _, found in hunt([harmless])] == [False]


def test_a_text_that_is_gone_is_said_and_not_passed_over() -> None:
    gone = attrs.evolve(QUICK[0], old="a line that nobody wrote")

    with pytest.raises(Stale, match="0 times"):
        list(hunt([gone]))


def test_tests_that_cannot_be_run_find_nothing() -> None:
    with Copy.made() as copy, pytest.raises(Stale, match="pytest ended with"):
        copy.complaint(["tests/no_such_file.py"])


def test_tests_that_fail_without_a_fault_are_no_judge(tmp_path: Path) -> None:
    failing = tmp_path / "test_failing.py"
    failing.write_text("def test_nothing() -> None:\n    assert not 'a reason'\n", "utf-8")

    with pytest.raises(Stale, match=r"without any fault(.|\n)*a reason"):
        list(hunt([attrs.evolve(QUICK[0], tests=(str(failing),))]))
