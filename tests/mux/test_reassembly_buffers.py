"""What came in pieces is one again, and the memory that this took is there for the next one, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.mux import reassembly
from rsocket_trio.mux.reassembly import SMALL, WORTH_KEEPING, BufferPool, Reassembly

KIB = 1024


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> BufferPool:
    """Nothing of other tests is kept."""
    fresh = BufferPool()
    monkeypatch.setattr(reassembly, "BUFFER_POOL", fresh)
    return fresh


def some(size: int, first: int = 0) -> bytes:
    """Bytes that differ from place to place."""
    return bytes((first + each) % 251 for each in range(251)) * (size // 251 + 1)


def joined(*pieces: bytes | memoryview) -> bytes:
    one = Reassembly()
    for piece in pieces:
        one.add(piece)
    assert one.size == sum(map(len, pieces))
    return one.join()


def kept(pool: BufferPool) -> list[int]:
    """Sizes of what is kept."""
    return [len(memory) for memory in pool._kept]


@given(st.lists(st.sampled_from([1, 100, 64 * KIB, 300 * KIB, 2 * KIB * KIB]), max_size=6))
def test_whatever_came_before_pieces_join_to_what_they_were(sizes: list[int]) -> None:
    pieces = [some(size, index)[:size] for index, size in enumerate(sizes)]
    for _ in range(2):
        assert joined(*pieces) == b"".join(pieces)


def test_the_second_payload_is_joined_in_what_the_first_one_left(pool: BufferPool) -> None:
    pieces = [some(64 * KIB, index)[: 64 * KIB] for index in range(16)]
    assert joined(*pieces) == b"".join(pieces)
    assert kept(pool) == [1024 * KIB]
    second = Reassembly()
    for piece in pieces:
        second.add(piece)
    assert kept(pool) == []
    assert second.join() == b"".join(pieces)
    assert kept(pool) == [1024 * KIB]


def test_two_payloads_at_once_do_not_share_memory(pool: BufferPool) -> None:
    joined(bytes(512 * KIB))
    one, other = Reassembly(), Reassembly()
    for _ in range(8):
        one.add(b"1" * 64 * KIB)
        other.add(b"2" * 64 * KIB)
    assert one.join() == b"1" * 512 * KIB
    third = Reassembly()
    third.add(b"3" * 512 * KIB)
    assert other.join() == b"2" * 512 * KIB
    assert third.join() == b"3" * 512 * KIB
    assert kept(pool) == [512 * KIB, 512 * KIB]


def test_small_payloads_leave_nothing_and_large_ones_no_more_than_the_bound(pool: BufferPool) -> None:
    joined(bytes(WORTH_KEEPING - 1))
    assert kept(pool) == []
    joined(bytes(SMALL + 1))
    assert kept(pool) == []
    several = [Reassembly() for _ in range(6)]
    for each in several:
        each.add(bytes(1024 * KIB))
    for each in several:
        each.join()
    held = [Reassembly() for _ in range(6)]
    for each in held:
        each.add(bytes(1024 * KIB))
    for each in held:
        each.join()
    assert sum(kept(pool)) <= SMALL
    joined(bytes(SMALL))
    assert kept(pool) == [SMALL]
