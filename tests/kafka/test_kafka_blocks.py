"""Blocks of records of Kafka: the packs that are made of them hold what the records do, gaps and all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.replay.element_metadata import RECORD_METADATA
from rsocket_trio.replay.elements import PACK_ROWS, Pack, Record, arrow
from rsocket_trio.replay.kafka_log import Block, columnar, pack_block
from tests.missing import missing_module, require

require(missing_module("pyarrow"))
PLENTY = 2**30


def block(offsets: list[int], start: int, end: int, **columns: Any) -> Block:
    """A block whose rows are their offsets."""
    times = [offset // 3 * 1000 for offset in offsets]
    return columnar(
        start, end, offsets, {"data": [b"%d" % offset for offset in offsets], "timestamp": times, **columns}
    )


def records_of(packs: Iterable[Pack]) -> Iterator[Record]:
    """The records of packs, and one of 0 rows behind the last of them if nothing else is there."""
    for pack in packs:
        yield from arrow().rows_of(pack)


def rows_of(packs: Iterable[Pack]) -> Iterator[Record]:
    """The records of packs."""
    for pack in packs:
        yield from arrow().records_of(pack)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, list[Record], int, int | None]:
    """A block, the records that it must yield, and a range."""
    start = draw(st.integers(0, 50))
    offsets = sorted(draw(st.sets(st.integers(start, start + 60), max_size=40)))
    end = draw(st.integers((offsets or [start])[-1] + 1, start + 70))
    rows = len(offsets)

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(st.none() | values, min_size=rows, max_size=rows))

    content = st.binary(max_size=3)
    data, keys, times = column(content), column(content), column(st.integers(0, 2))
    pair = st.tuples(st.sampled_from(["a", "b", RECORD_METADATA]), st.none() | content)
    headers = column(st.lists(pair, min_size=1, max_size=3)) if draw(st.booleans()) else [None] * rows
    records = [
        Record(
            offset,
            data[row],
            dict(headers[row] or ()).get(RECORD_METADATA),
            key=keys[row],
            headers=[one for one in headers[row] or () if one[0] != RECORD_METADATA] or None,
            timestamp=times[row],
        )
        for row, offset in enumerate(offsets)
    ]
    low = draw(st.integers(start, end - 1))
    found = block(offsets, start, end, data=data, key=keys, headers=headers, timestamp=times)
    return found, records, low, draw(st.one_of(st.none(), st.integers(low + 1, end + 5)))


@given(blocks())
def test_packs_hold_the_rows_of_the_records_and_span_all_positions(
    drawn: tuple[Block, list[Record], int, int | None],
) -> None:
    found, expected, start, end = drawn
    expected = [one for one in expected if start <= one.position < (PLENTY if end is None else end)]
    records = list(records_of(pack_block(found, start, end, PLENTY)))
    packs = list(pack_block(found, start, end, PLENTY))

    rows = list(rows_of(packs))
    assert rows == [record for record in records if record.count] == expected
    assert [row.timestamp for row in rows] == [record.timestamp for record in expected]
    position = start
    for pack in packs:
        assert pack.position == position
        assert pack.has_gaps == (len(list(rows_of([pack]))) < pack.count)
        position = pack.end
    assert position == records[-1].end == (found.end if end is None else min(found.end, end))


def test_packs_have_limits_of_rows_and_bytes() -> None:
    count = 3 * PACK_ROWS
    found = block(list(range(count)), 0, count, data=[b""] * count)

    packs = list(pack_block(found, 0, None, PLENTY))

    assert [pack.count for pack in packs] == [PACK_ROWS] * 3
    large = columnar(0, 4, [0, 1, 2, 3], {"data": [bytes(300_000)] * 4, "timestamp": [5000] * 4})
    assert [pack.count for pack in pack_block(large, 0, None, PLENTY)] == [1] * 4
