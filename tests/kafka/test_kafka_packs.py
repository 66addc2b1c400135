"""Packs of messages of Kafka: they hold the rows of the messages, gaps and all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.replay.elements import PACK_ROWS, RECORD_METADATA, Pack, Record, arrow
from rsocket_trio.replay.kafka_log import packs_of
from tests.missing import missing_module, require

if TYPE_CHECKING:
    from confluent_kafka import Message

require(missing_module("pyarrow"))
require(missing_module("confluent_kafka"))


def rows_of(packs: Iterable[Pack]) -> list[Record]:
    """The records of packs."""
    return [record for pack in packs for record in arrow().rows_of(pack) if record.count]


def message(offset: int, value: bytes | None = b"", milliseconds: int = 5, **contents: Any) -> Message:
    from confluent_kafka import Message

    return Message(topic="t", partition=0, offset=offset, value=value, timestamp=(1, milliseconds), **contents)


def end_of_partition(offset: int) -> Message:
    from confluent_kafka import KafkaError, Message

    return Message(topic="t", partition=0, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF))


@st.composite
def fetches(draw: st.DrawFn) -> tuple[int, int, list[Message], list[Record]]:
    """A fetch: its first position and its end, its messages, and the records that they are."""
    start = draw(st.integers(0, 50))
    content = st.none() | st.binary(max_size=3)
    pairs = st.lists(st.tuples(st.sampled_from(["a", "b", RECORD_METADATA]), content), min_size=1, max_size=3)
    row = st.tuples(content, content, st.none() | pairs if draw(st.booleans()) else st.none(), st.integers(-1, 2))
    rows = sorted(draw(st.dictionaries(st.integers(start, start + 60), row, max_size=40)).items())
    messages = [message(offset, data, time, key=key, headers=headers) for offset, (data, key, headers, time) in rows]
    if not rows or draw(st.booleans()):
        messages.append(end_of_partition(start + 61))
    records = [
        Record(
            offset,
            data,
            dict(headers or ()).get(RECORD_METADATA),
            key=key,
            headers=[one for one in headers or () if one[0] != RECORD_METADATA] or None,
            timestamp=None if time < 0 else time * 1000,
        )
        for offset, (data, key, headers, time) in rows
    ]
    return start, draw(st.integers(start + 1, start + 70)), messages, records


@given(fetches())
def test_packs_hold_the_rows_of_the_messages_and_span_all_positions(
    drawn: tuple[int, int, list[Message], list[Record]],
) -> None:
    start, end, messages, records = drawn
    packs = list(packs_of(start, end, messages))

    expected = [one for one in records if one.position < end]
    assert rows_of(packs) == expected
    assert [row.timestamp for row in rows_of(packs)] == [record.timestamp for record in expected]
    position = start
    for pack in packs:
        assert pack.position == position
        assert bool(pack.data) == bool(rows_of([pack]))
        position = pack.end
    assert position == end


def test_packs_have_limits_of_rows_and_bytes() -> None:
    small = packs_of(0, 3 * PACK_ROWS, [message(offset) for offset in range(3 * PACK_ROWS)])
    large = packs_of(0, 4, [message(offset, bytes(300_000)) for offset in range(4)])
    sparse = packs_of(0, 2**31 + 1, [message(2**31)])

    assert [pack.count for pack in small] == [PACK_ROWS] * 3
    assert [pack.count for pack in large] == [1] * 4
    assert [(pack.count, len(rows_of([pack]))) for pack in sparse] == [(2**31 + 1, 1)]
