"""Blocks of records of Kafka: the packs that are made of them hold what the records do, gaps and all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.replay.kafka_blocks import LONGEST_GAP, Block, pack_block, records_of_block
from rsocket_trio.replay.packs import PACK_ROWS, check_pack, flattened

FOREVER = 2**62
PLENTY = 2**30


def block(offsets: list[int], start: int, end: int, **columns: object) -> Block:
    """A block whose rows are their offsets."""
    given = {"keys": None, "headers": None, "times": [offset // 3 for offset in offsets], **columns}
    return Block(start, end, offsets, [b"%d" % offset for offset in offsets], **given)  # type: ignore[arg-type]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, int, int | None]:
    start = draw(st.integers(0, 50))
    offsets = sorted(draw(st.sets(st.integers(start, start + 60), max_size=40)))
    end = draw(st.integers((offsets or [start])[-1] + 1, start + 70))
    rows = len(offsets)
    column = st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=rows, max_size=rows)
    keys = draw(st.one_of(st.none(), column))
    header = st.one_of(st.none(), st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=2)), max_size=3))
    headers = draw(st.one_of(st.none(), st.lists(header, min_size=rows, max_size=rows)))
    times = draw(st.lists(st.integers(-1, 3), min_size=rows, max_size=rows))
    found = block(offsets, start, end, keys=keys, headers=headers, times=times)
    low = draw(st.integers(start, end - 1))
    return found, low, draw(st.one_of(st.none(), st.integers(low + 1, end + 5)))


@given(blocks())
def test_packs_hold_the_rows_of_the_records_and_span_all_positions(drawn: tuple[Block, int, int | None]) -> None:
    found, start, end = drawn
    records = list(records_of_block(found, start, end, PLENTY))
    packs = list(pack_block(found, start, end, PLENTY))

    rows = [record for record in flattened(packs, 0, FOREVER) if record.count]
    assert rows == [record for record in records if record.count]
    assert [row.timestamp for row in rows] == [record.timestamp for record in records if record.count]
    position = start
    for pack in packs:
        check_pack(pack.data, pack.count)
        assert pack.position == position
        position = pack.end
    assert position == records[-1].end == (found.end if end is None else min(found.end, end))


def test_a_gap_longer_than_a_pack_may_span_is_several_packs() -> None:
    after = 3 * LONGEST_GAP + 5
    found = block([0, after], 0, after + LONGEST_GAP + 7)

    packs = list(pack_block(found, 0, None, PLENTY))

    assert [record.position for record in flattened(packs, 0, FOREVER) if record.count] == [0, after]
    assert packs[-1].end == found.end
    assert all(pack.count <= LONGEST_GAP + 5 for pack in packs)


def test_a_read_of_few_bytes_returns_few_rows_and_says_nothing_of_the_rest() -> None:
    found = block(list(range(100)), 0, 120)

    assert [record.position for record in records_of_block(found, 10, None, 1)] == [10]
    assert [(pack.position, pack.end) for pack in pack_block(found, 10, None, 1)] == [(10, 11)]


def test_packs_have_limits_of_rows_and_bytes() -> None:
    count = 3 * PACK_ROWS
    found = block(list(range(count)), 0, count)

    packs = list(pack_block(found, 0, None, PLENTY))

    assert [pack.count for pack in packs] == [PACK_ROWS] * 3
    large = Block(0, 4, [0, 1, 2, 3], [bytes(300_000)] * 4, None, None, [5] * 4)
    assert [(pack.count, pack.timestamp) for pack in pack_block(large, 0, None, PLENTY)] == [(1, 5000)] * 4
