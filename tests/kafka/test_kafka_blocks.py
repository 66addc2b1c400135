"""Blocks of records of Kafka: the packs that are made of them hold what the records do, gaps and all."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.replay.elements import PACK_ROWS, RECORD_METADATA, Pack, Record, arrow
from rsocket_trio.replay.kafka_log import Block, columnar, pack_block
from tests.missing import missing_module, require

require(missing_module("pyarrow"))
PLENTY = 2**30


def rows_of(packs: Iterable[Pack]) -> list[Record]:
    """The records of packs."""
    return [record for pack in packs for record in arrow().rows_of(pack) if record.count]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, list[Record], int, int | None]:
    """A block, the records that it must yield, and a range."""
    start = draw(st.integers(0, 50))
    content = st.none() | st.binary(max_size=3)
    pairs = st.lists(st.tuples(st.sampled_from(["a", "b", RECORD_METADATA]), content), min_size=1, max_size=3)
    row = st.tuples(content, content, st.none() | pairs if draw(st.booleans()) else st.none(), st.integers(0, 2))
    rows = draw(st.dictionaries(st.integers(start, start + 60), row, max_size=40))
    offsets = sorted(rows)
    end = draw(st.integers((offsets or [start])[-1] + 1, start + 70))
    records = [
        Record(
            offset,
            data,
            dict(headers or ()).get(RECORD_METADATA),
            key=key,
            headers=[one for one in headers or () if one[0] != RECORD_METADATA] or None,
            timestamp=time,
        )
        for offset, (data, key, headers, time) in sorted(rows.items())
    ]
    names = ("data", "key", "headers", "timestamp")
    columns = {name: [rows[offset][number] for offset in offsets] for number, name in enumerate(names)}
    low = draw(st.integers(start, end - 1))
    high = draw(st.one_of(st.none(), st.integers(low + 1, end + 5)))
    return columnar(start, end, offsets, columns), records, low, high


@given(blocks())
def test_packs_hold_the_rows_of_the_records_and_span_all_positions(
    drawn: tuple[Block, list[Record], int, int | None],
) -> None:
    found, expected, start, end = drawn
    packs = list(pack_block(found, start, end, PLENTY))

    expected = [one for one in expected if start <= one.position < (PLENTY if end is None else end)]
    assert rows_of(packs) == expected
    assert [row.timestamp for row in rows_of(packs)] == [record.timestamp for record in expected]
    position = start
    for pack in packs:
        assert pack.position == position
        assert bool(pack.data) == bool(rows_of([pack]))
        position = pack.end
    assert position == (found.end if end is None else min(found.end, end))


def test_packs_have_limits_of_rows_and_bytes() -> None:
    count = 3 * PACK_ROWS
    found = columnar(0, count, list(range(count)), {"data": [b""] * count, "timestamp": [5000] * count})

    packs = list(pack_block(found, 0, None, PLENTY))

    assert [pack.count for pack in packs] == [PACK_ROWS] * 3
    large = columnar(0, 4, [0, 1, 2, 3], {"data": [bytes(300_000)] * 4, "timestamp": [5000] * 4})
    assert [pack.count for pack in pack_block(large, 0, None, PLENTY)] == [1] * 4
