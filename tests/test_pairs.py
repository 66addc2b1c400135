"""Matrices by pairs have every pair of values, in few rows, and always the same ones."""

from __future__ import annotations

from itertools import product

import pytest

from tests.pairs import pairs_of, pairwise

FULL = list(product("abcdefgh", "xyz", (True, False), (1, 2, 3)))
PARTIAL = [row for row in FULL if row[1] != "z" or row[2]]


@pytest.mark.parametrize("rows", [FULL, PARTIAL], ids=["full", "partial"])
def test_each_pair_that_any_row_has_stands_in_a_chosen_row(rows: list[tuple[str, str, bool, int]]) -> None:
    chosen = pairwise(rows)

    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, rows))
    assert set(chosen) < set(rows)
    assert len(chosen) <= 30, "8 x 3 rows are the fewest that there can be"


def test_the_choice_is_the_same_each_time_and_in_the_order_of_the_rows() -> None:
    chosen = pairwise(FULL)

    assert chosen == pairwise(FULL) == [row for row in FULL if row in set(chosen)]


def test_rows_that_are_wanted_are_chosen() -> None:
    assert {("a", "x"), ("b", "y")} <= set(pairwise([*product("ab", "xy")], [("a", "x")]))
    wanted = [row for row in FULL if row not in set(pairwise(FULL))][:3]

    assert set(wanted) <= set(pairwise(FULL, wanted))


def test_rows_of_two_columns_are_all_chosen() -> None:
    assert pairwise([*product("ab", "xy")]) == [*product("ab", "xy")]
