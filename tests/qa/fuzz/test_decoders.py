"""No decoder lets anything but its documented errors out, and what it accepts is what the bytes say."""

from __future__ import annotations

from typing import Final

import pytest

from qa.fuzz.blocks import BLOCKS
from qa.fuzz.codecs import CODECS, LARGE_CODECS
from qa.fuzz.decoders import GUIDED, TARGETS, fuzz
from qa.fuzz.frames import FRAMES
from qa.fuzz.guided import FOLDER, MOST, kept
from qa.fuzz.streams import STREAMS, said
from rsocket_trio.rsocket.detection import UNDECIDED
from tests.each_row import ALL_CASES

SEED: Final = 1
RUNS: Final = {
    **dict.fromkeys(FRAMES, 3_000 if ALL_CASES else 500),
    **dict.fromkeys((*BLOCKS, *CODECS), 1_500 if ALL_CASES else 250),
    **dict.fromkeys(STREAMS, 300),
    **dict.fromkeys(LARGE_CODECS, 3),
}


@pytest.mark.parametrize("name", [name for name in TARGETS if ALL_CASES or name not in LARGE_CODECS])
def test_mutated_bytes_are_refused_as_documented_or_mean_what_they_say(name: str) -> None:
    tally = fuzz(TARGETS[name], RUNS[name], SEED)

    assert tally.findings == []
    if name in LARGE_CODECS:
        return  # of a few runs no share can be said
    # Otherwise the mutations would be too wild, or too tame, to show anything.
    assert tally.accepted / tally.runs > 0.05
    assert name in STREAMS or tally.accepted / tally.runs < 0.9


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - LARGE_CODECS.keys()))
def test_what_mutations_begin_with_is_accepted(name: str) -> None:
    accepted = [TARGETS[name].judge(seed) for seed in TARGETS[name].seeds]

    assert sum(accepted) >= 0.5 * len(accepted) > 0  # the vectors have malformed frames too


def test_what_stands_behind_an_empty_frame_is_no_misplaced_resume() -> None:
    first = bytes.fromhex("000000  00260000 34")

    verdicts = [said(first[:size], ended=False) for size in range(1, len(first) + 1)]

    assert set(verdicts) - {UNDECIDED.name} == {"nobody, told in silence"} == {verdicts[-1]}


@pytest.mark.parametrize("name", GUIDED)
def test_what_a_guided_run_once_reached_is_right_still(name: str) -> None:
    inputs = kept(name)

    for data in inputs:
        GUIDED[name].judge(data)

    assert 0 < len(inputs) <= MOST


def test_everything_that_is_kept_has_a_target() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(GUIDED)
