"""The command of the long runs says what it did, and fails when something was found."""

from __future__ import annotations

import attrs
import pytest

from qa.fuzz.__main__ import main
from qa.fuzz.decoders import TARGETS


def test_a_run_prints_its_seed_and_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decoders", "--runs", "200", "--seed", "7", "--target", "routing"]) == 0

    seed, tally = capsys.readouterr().out.splitlines()
    assert seed == "seed 7"
    assert tally.startswith("routing")
    assert "200 runs" in tally
    assert tally.endswith("nothing found")


def test_a_finding_is_printed_with_its_bytes_and_fails_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(data: bytes) -> object:
        raise IndexError("index out of range")

    monkeypatch.setitem(TARGETS, "routing", attrs.evolve(TARGETS["routing"], read=read))

    assert main(["decoders", "--runs", "200", "--seed", "7", "--target", "routing"]) == 1

    assert "routing: raised IndexError('index out of range'); bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["conversations", "--runs", "60", "--seed", "1"], ["server", "--frames", "200", "--seed", "1"]],
    ids=lambda words: words[0],
)
def test_short_runs_of_the_others_are_clean(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0

    assert capsys.readouterr().out.startswith("seed 1\n")
