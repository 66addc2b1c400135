"""The deadline of a call travels as milliseconds left, rounded up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import decode_deadline, encode_deadline

LONGEST = 2**32 - 1


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (2.5, 2500),
        (0.0001, 1),
        (0.0011, 2),
        (1.1, 1100),
        (0.0, 0),
        (-3.0, 0),
        (LONGEST / 1000, LONGEST),
        (1e12, LONGEST),
    ],
)
def test_the_time_left_is_four_bytes_of_milliseconds(seconds: float, milliseconds: int) -> None:
    data = encode_deadline(seconds)

    assert data == milliseconds.to_bytes(4, "big")
    assert decode_deadline(data) == milliseconds / 1000


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
def test_a_call_without_a_deadline_has_no_entry(seconds: float) -> None:
    with pytest.raises(ValueError, match="carries no entry"):
        encode_deadline(seconds)


@pytest.mark.parametrize("size", [0, 3, 5, 8])
def test_another_length_is_the_peers_fault(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"deadline of {size} bytes, not 4") as caught:
        decode_deadline(bytes(size))

    assert caught.value.offset == 0


@given(st.integers(0, LONGEST))
def test_whole_milliseconds_pass_unchanged(milliseconds: int) -> None:
    data = milliseconds.to_bytes(4, "big")

    assert encode_deadline(decode_deadline(data)) == data
