"""What guided runs once reached is right still, without a fuzzer."""

from __future__ import annotations

import pytest

from qa.fuzz import corpus
from qa.fuzz.decoders import GUIDED


@pytest.mark.parametrize("name", GUIDED)
def test_what_is_kept_is_refused_as_documented_or_means_what_it_says(name: str) -> None:
    inputs = corpus.kept(name)

    for data in inputs:
        GUIDED[name].judge(data)

    assert 0 < len(inputs) <= corpus.MOST


def test_everything_that_is_kept_has_a_target() -> None:
    assert {path.stem for path in corpus.FOLDER.iterdir()} == set(GUIDED)
