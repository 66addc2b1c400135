"""Matrices by pairs: of all rows of values, as few as have each pair of values that any row has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import TypeAlias, TypeVar

from tests.each_row import ALL_CASES

Row = TypeVar("Row", bound=tuple[Hashable, ...])
Pair: TypeAlias = tuple[tuple[int, Hashable], ...]


def by_pairs(rows: Iterable[Row], first: Iterable[Row] = ()) -> list[Row]:
    """Return the rows that are played: all where the environment asks for them, and else some with all pairs."""
    return list(rows) if ALL_CASES else pairwise(list(rows), list(first))


def pairwise(rows: Sequence[Row], first: Sequence[Row] = ()) -> list[Row]:
    """Choose rows, in their order, so that each pair of values of ``rows`` stands in one. Those of ``first`` are chosen
    anyhow.

    The next row is the one with most pairs that stand in none so far, and of several the one whose pairs were used
    least: so the same rows give the same choice.
    """
    pairs = {row: pairs_of(row) for row in rows}
    missing = {pair for each in pairs.values() for pair in each}
    used: Counter[Pair] = Counter()
    chosen: set[Row] = set()
    wanted = list(first)
    while wanted or missing:
        row = (
            wanted.pop() if wanted else max(rows, key=lambda row: (len(pairs[row] & missing), -_uses(pairs[row], used)))
        )
        chosen.add(row)
        missing -= pairs[row]
        used.update(pairs[row])
    return [row for row in pairs if row in chosen]


def pairs_of(row: tuple[Hashable, ...]) -> set[Pair]:
    """Return its pairs of values, each with its column."""
    return set(combinations(enumerate(row), 2))


def _uses(pairs: set[Pair], used: Counter[Pair]) -> int:
    return sum(used[pair] for pair in pairs)
