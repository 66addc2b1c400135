"""However the bytes are cut, the same frames come out, and too large is refused before it is stored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.mux.framing import (
    Framing,
    Framing24,
    Framing32,
)
from tests.memory import traced

LARGE = 5_000_000


def framing24() -> Framing:
    return Framing24(max_frame=LARGE, smallest=6)


def framing32() -> Framing:
    return Framing32(max_frame=LARGE, smallest=6)


both = pytest.mark.parametrize("make", [framing24, framing32])


def cut(data: bytes, borders: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(borders), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def test_a_24_bit_length_does_not_count_itself() -> None:
    """RS10-FRM-01, RS10-FRM-03."""
    framing = Framing24()

    assert framing.join([b"123456", b"1234567"]) == b"\x00\x00\x06123456\x00\x00\x071234567"
    assert framing.feed(b"\x00\x00\x06123456\x00\x00\x071234567") == [b"123456", b"1234567"]


def test_a_32_bit_length_counts_its_own_four_bytes() -> None:
    """RS00-HDR-03, RS00-HDR-04."""
    framing = Framing32(max_frame=LARGE, smallest=8)

    assert framing.join([b"123456789012"]) == b"\x00\x00\x00\x10123456789012"
    assert framing.feed(b"\x00\x00\x00\x10123456789012") == [b"123456789012"]


@both
@pytest.mark.clause("RS10-FRM-05", "ALL-RCT-05")
def test_a_frame_above_the_limit_is_refused_from_its_prefix_alone(make: Callable[[], Framing]) -> None:
    """RS10-FRM-05, ALL-RCT-05."""
    framing = make()
    prefix_of_too_large = make().join([bytes(LARGE + 1)])[: 3 if make is framing24 else 4]

    assert framing.feed(prefix_of_too_large) == []
    assert isinstance(framing.error, RemoteProtocolError)
    assert str(framing.error) == f"frame of {LARGE + 1} bytes, limit {LARGE}"


@both
def test_frames_before_a_bad_prefix_are_not_lost_and_nothing_follows_it(make: Callable[[], Framing]) -> None:
    framing = make()
    good = make().join([b"good one", b"good two"])
    too_small = make().join([b"12345"])

    assert framing.feed(good + too_small + good) == [b"good one", b"good two"]
    assert str(framing.error) == "frame of 5 bytes, the smallest has 6"
    assert framing.feed(good) == []


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        (b"\x80\x00\x00\x10", "frame length 0x80000010: its top bit must be 0"),
        (b"\xff\xff\xff\xff", "frame length 0xFFFFFFFF: its top bit must be 0"),
        (b"\x01\x40\x00\x04", "frame of 20971520 bytes, limit 16777215"),
        (b"\x00\x00\x00\x03", "frame length 3, which must count its own 4"),
        (b"\x00\x00\x00\x00", "frame length 0, which must count its own 4"),
        (b"\x00\x00\x00\x0b", "frame of 7 bytes, the smallest has 8"),
    ],
)
def test_a_32_bit_length_that_cannot_be_says_why(prefix: bytes, text: str) -> None:
    """RS00-HDR-13."""
    framing = Framing32(max_frame=16_777_215, smallest=8)

    assert framing.feed(prefix) == []
    assert str(framing.error) == text


def test_the_largest_frame_of_24_bits_passes_and_one_byte_more_is_not_sent() -> None:
    """RS10-FRM-04."""
    framing = Framing24(max_frame=2**31 - 1)
    largest = bytes(2**24 - 1)

    assert framing.feed(framing.join([largest])) == [largest]
    with pytest.raises(LocalProtocolError, match="frame of 16777216 bytes, limit 16777215"):
        framing.join([b"small", (largest, b"1")])


@pytest.mark.parametrize("kind", [Framing24, Framing32])
def test_the_first_frame_may_have_a_limit_of_its_own(kind: type[Framing24 | Framing32]) -> None:
    framing = kind(1000, 6, first_max=10)
    data = framing.join([bytes(10), bytes(11), bytes(1000)])

    assert framing.feed(data) == [bytes(10), bytes(11), bytes(1000)]
    assert framing.error is None
    too_large_a_start = kind(1000, 6, first_max=10)
    assert too_large_a_start.feed(framing.join([bytes(11)])) == []
    assert str(too_large_a_start.error) == "frame of 11 bytes, limit 10"


@both
def test_an_announced_length_is_not_allocated(make: Callable[[], Framing]) -> None:
    prefix = make().join([bytes(LARGE)])[: 3 if make is framing24 else 4]
    framings = [make() for _ in range(100)]
    with traced() as memory:
        for framing in framings:
            framing.feed(prefix + b"body")
        grown = memory.now()

    assert grown < 100_000


@both
def test_a_peer_that_drips_a_large_frame_costs_little_more_than_its_bytes(make: Callable[[], Framing]) -> None:
    framing = make()
    data = framing.join([bytes(1_000_000)])
    with traced() as memory:
        for start in range(0, 900_000, 10):
            framing.feed(data[start : start + 10])
        grown = memory.now()

    assert framing.mid_frame
    assert grown < 1_500_000


def test_without_framing_each_chunk_is_a_frame() -> None:
    framing = Framing(max_frame=5)

    assert framing.feed(b"12345") == [b"12345"]
    assert framing.feed(b"") == [b""]
    assert framing.join([b"12", (b"3", b"4")]) == b"1234"
    assert not framing.mid_frame
    assert framing.feed(b"123456") == []
    assert str(framing.error) == "frame of 6 bytes, limit 5"


@given(
    st.lists(st.sampled_from([6, 7, 300, 5_000, 70_000]), min_size=1, max_size=400),
    st.integers(min_value=1, max_value=300_000),
    st.sampled_from([framing24, framing32]),
)
def test_portions_change_nothing_whatever_the_frames_and_chunks(
    sizes: list[int], chunk: int, make: Callable[[], Framing]
) -> None:
    framing = make()
    frames = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    data = framing.join(frames)

    came: list[bytes] = []
    for start in range(0, len(data), chunk):
        came += framing.feed(data[start : start + chunk])
        while framing.pending:
            came += framing.feed(b"")

    assert came == frames
    assert framing.error is None
