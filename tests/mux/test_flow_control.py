"""Credit is topped up when half of it was used, one for each item, and never more than can be said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.mux.stream_state import MAX_REQUEST_N, Window, checked_request_n


@pytest.mark.parametrize(("size", "after"), [(1, 1), (2, 1), (3, 1), (4, 2), (256, 128), (MAX_REQUEST_N, 2**30 - 1)])
def test_a_window_asks_for_credit_when_half_of_it_was_used(size: int, after: int) -> None:
    window = Window(size)
    used = 1
    if after < 1000:
        while not window.use():
            used += 1
        assert used == after
        assert window.refill() == after
    else:
        assert not window.use()


@given(size=st.integers(1, 300), steps=st.lists(st.booleans(), max_size=400))
def test_what_is_granted_is_what_was_used_and_nothing_is_granted_twice(size: int, steps: list[bool]) -> None:
    window = Window(size)
    outstanding, used, granted = size, 0, 0
    for refill_now in steps:
        if not outstanding:
            break
        outstanding -= 1
        used += 1
        due = window.use()
        if due or refill_now:
            amount = window.refill()
            outstanding += amount
            granted += amount
            assert window.refill() == 0
        assert 0 < outstanding <= size
    assert granted <= used


@pytest.mark.parametrize("number", [0, -1, MAX_REQUEST_N + 1, 2**63])
def test_a_number_that_cannot_be_said_is_refused_by_name(number: int) -> None:
    with pytest.raises(ValueError, match=f"request_n of {number}"):
        checked_request_n(number)
