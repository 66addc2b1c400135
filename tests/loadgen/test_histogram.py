"""Histograms: little room, a known error, and sums that are the same in whatever order."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.loadgen.histogram import RELATIVE_ERROR, Histogram, bounds_of, bucket_of

NUMBERS = st.one_of(st.integers(0, 1000), st.integers(0, 2**63 - 1))
SAMPLES = st.lists(NUMBERS, min_size=1, max_size=60)
PARTS = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]), st.integers(0, 100).map(lambda one: one / 100))


def filled(numbers: list[int]) -> Histogram:
    """A histogram of these."""
    histogram = Histogram()
    for number in numbers:
        histogram.record(number)
    return histogram


@given(NUMBERS)
def test_a_number_lies_in_its_bucket_which_is_narrow(number: int) -> None:
    lowest, highest = bounds_of(bucket_of(number))

    assert lowest <= number <= highest
    assert highest - lowest <= lowest * RELATIVE_ERROR


@given(SAMPLES, PARTS)
def test_a_quantile_is_the_exact_one_or_a_little_above(numbers: list[int], part: float) -> None:
    rank = max(math.ceil(Fraction(str(part)) * len(numbers)), 1)
    exact = sorted(numbers)[rank - 1]

    found = filled(numbers).quantile(part)

    assert found is not None
    assert exact <= found <= exact + exact * Fraction(RELATIVE_ERROR)


@given(SAMPLES, SAMPLES)
def test_merged_histograms_are_the_histogram_of_all(some: list[int], others: list[int]) -> None:
    merged = filled(some)
    merged.merge(filled(others))

    assert list(merged.counts()) == list(filled(others + some).counts())
    assert merged.total == len(some) + len(others)
    assert list(Histogram(merged.counts()).counts()) == list(merged.counts())
