"""However the bytes are cut, the same frames come out, and too large is refused before it is stored."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.mux.framing import (
    CROWD,
    PORTION,
    EncodedFrame,
    Framing,
    Framing24,
    Framing32,
    NoFraming,
    keep_freed_memory,
    whole,
)

FRAMES = [b"a" * 6, b"b" * 7, bytes(range(256)), b"c" * 300, b"d" * 6]
LARGE = 5_000_000


def framing24() -> Framing:
    return Framing24(max_frame=LARGE, smallest=6)


def framing32() -> Framing:
    return Framing32(max_frame=LARGE, smallest=6)


both = pytest.mark.parametrize("make", [framing24, framing32])


def cut(data: bytes, borders: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(borders), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def feed_all(framing: Framing, chunks: Sequence[bytes]) -> list[bytes]:
    return [frame for chunk in chunks for frame in framing.feed(chunk)]


@both
@given(data=st.data())
def test_runs_of_frames_of_one_size_come_out_as_they_went_in(make: Callable[[], Framing], data: st.DataObject) -> None:
    sizes = st.integers(6, 9) | st.sampled_from([6, 64, 255, 256, 2000])
    runs = data.draw(st.lists(st.tuples(sizes, st.integers(1, 40), st.booleans()), max_size=8))
    frames = [
        (b"\0\0\0\6" * size)[number % 4 * varies :][:size] for size, many, varies in runs for number in range(many)
    ]
    sent = b"".join(map(bytes, make().parts(frames)))
    borders = data.draw(st.lists(st.integers(0, len(sent)), max_size=4))
    joined = [make().join(frames[start:end]) for start, end in itertools.pairwise([0, len(frames) // 2, len(frames)])]

    framing = make()
    come = feed_all(framing, cut(sent, borders))
    while framing.pending:
        come += framing.feed(b"")

    assert b"".join(joined) == sent
    assert come == frames


@both
def test_a_wrong_length_behind_many_that_are_alike_is_found(make: Callable[[], Framing]) -> None:
    framing = make()
    good = make().join([b"a" * 60] * 40)

    assert framing.feed(good + b"\0" * 8) == [b"a" * 60] * 40
    assert framing.error is not None


@both
def test_a_large_frame_has_the_memory_of_later_ones_kept_and_small_ones_do_not(make: Callable[[], Framing]) -> None:
    keep_freed_memory.cache_clear()
    framing = make()

    feed_all(framing, cut(framing.join([bytes(500_000)]), [100_000, 300_000]))
    assert keep_freed_memory.cache_info().currsize == 0
    feed_all(framing, cut(framing.join([bytes(1_100_000)]), [100_000, 300_000]))
    assert keep_freed_memory.cache_info().currsize == 1


def test_many_frames_too_large_for_their_length_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="frame of 16777216 bytes, limit 16777215"):
        Framing24().join([bytes(2**24)] * 20)


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
def test_every_split_point_gives_the_same_frames(make: Callable[[], Framing]) -> None:
    data = make().join(FRAMES)

    for border in range(len(data) + 1):
        framing = make()
        assert feed_all(framing, cut(data, [border])) == FRAMES
        assert not framing.mid_frame
        assert framing.error is None


@both
def test_byte_by_byte_gives_the_same_frames(make: Callable[[], Framing]) -> None:
    framing = make()
    data = framing.join(FRAMES)

    assert feed_all(framing, [data[index : index + 1] for index in range(len(data))]) == FRAMES


@both
def test_trailing_bytes_wait_for_the_rest_of_their_frame(make: Callable[[], Framing]) -> None:
    data = make().join(FRAMES)

    for extra in range(1, len(make().join(FRAMES[:1]))):
        framing = make()
        assert framing.feed(data + data[:extra]) == FRAMES
        assert framing.mid_frame
        assert framing.feed(data[extra:]) == FRAMES
        assert not framing.mid_frame


@both
@given(
    frames=st.lists(st.binary(min_size=6, max_size=400), max_size=8),
    borders=st.lists(st.integers(0, 3300), max_size=12),
)
def test_any_cut_gives_the_same_frames(make: Callable[[], Framing], frames: list[bytes], borders: list[int]) -> None:
    framing = make()
    data = framing.join(frames)

    assert feed_all(framing, cut(data, [min(border, len(data)) for border in borders])) == frames


@both
@pytest.mark.parametrize("size", [32_767, 32_768, 65_536, 1_000_000, LARGE])
@pytest.mark.parametrize("read", [1_000, 4_095, 65_536])
def test_large_frames_come_out_whole(make: Callable[[], Framing], size: int, read: int) -> None:
    framing = make()
    large = bytes(range(251)) * (size // 251 + 1)
    frames = [b"before", large[:size], b"behind"]
    data = framing.join(frames)

    out = feed_all(framing, [data[start : start + read] for start in range(0, len(data), read)])

    assert out == frames
    assert all(type(frame) is bytes for frame in out)


@both
def test_pieces_are_joined_into_one_frame(make: Callable[[], Framing]) -> None:
    pieces: list[EncodedFrame] = [(b"head", memoryview(b"..body..")[2:6], b""), b"single"]

    assert make().feed(make().join(pieces)) == [b"headbody", b"single"]
    assert whole(pieces[0]) == b"headbody"


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
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for framing in framings:
            framing.feed(prefix + b"body")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 100_000


@both
def test_a_peer_that_drips_a_large_frame_costs_little_more_than_its_bytes(make: Callable[[], Framing]) -> None:
    framing = make()
    data = framing.join([bytes(1_000_000)])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for start in range(0, 900_000, 10):
            framing.feed(data[start : start + 10])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert framing.mid_frame
    assert after - before < 1_500_000


@both
def test_gathering_a_large_frame_copies_what_is_there_at_most_now_and_then(make: Callable[[], Framing]) -> None:
    # While it is copied it stands in memory twice. The gate measures the time.
    framing = make()
    data = framing.join([bytes(4_000_000)])
    copies = now = 0
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for start in range(0, len(data) - 1_000, 1_000):
            tracemalloc.reset_peak()
            framing.feed(data[start : start + 1_000])
            now, peak = tracemalloc.get_traced_memory()
            copies += start > 1_000_000 and peak - now > start // 2
    finally:
        tracemalloc.stop()

    assert framing.mid_frame
    assert now - before >= 3_990_000
    assert copies < 40


def test_without_framing_each_chunk_is_a_frame() -> None:
    framing = NoFraming(max_frame=5)

    assert framing.feed(b"12345") == [b"12345"]
    assert framing.feed(b"") == [b""]
    assert framing.join([b"12", (b"3", b"4")]) == b"1234"
    assert not framing.mid_frame
    assert framing.feed(b"123456") == []
    assert str(framing.error) == "frame of 6 bytes, limit 5"


@both
def test_a_large_chunk_of_small_frames_is_handed_out_in_portions(make: Callable[[], Framing]) -> None:
    framing = make()
    frames = [b"%06d" % number for number in range(40_000)]

    portions = [framing.feed(framing.join(frames))]
    while framing.pending:
        portions.append(framing.feed(b""))

    assert [frame for portion in portions for frame in portion] == frames
    assert max(map(len, portions)) <= CROWD + PORTION // 9
    assert not framing.mid_frame


@both
def test_a_large_chunk_of_large_frames_is_handed_out_at_once(make: Callable[[], Framing]) -> None:
    framing = make()
    frames = [bytes([number]) * 65_000 for number in range(8)]

    assert framing.feed(framing.join(frames) + b"\0") == frames
    assert not framing.pending
    assert framing.mid_frame


@both
def test_what_is_broken_is_found_behind_the_frames_that_are_pending(make: Callable[[], Framing]) -> None:
    framing = make()
    frames = [b"%06d" % number for number in range(20_000)]

    came = framing.feed(framing.join(frames) + b"\xff" * 4)
    assert framing.error is None
    while framing.pending:
        came += framing.feed(b"")

    assert came == frames
    assert framing.error is not None


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
