"""The cost of held entries beside their bytes: many small frames count more than those."""

from __future__ import annotations

import pytest

from rsocket_trio.limits import ENTRY_OVERHEAD, charged
from rsocket_trio.mux.outbox import FragmentSource, Outbox
from rsocket_trio.mux.retransmission import FrameStore
from rsocket_trio.mux.stream_state import StreamQueue
from rsocket_trio.payload import Payload
from tests.memory import traced


def frame_of(number: int, size: int = 7) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def test_many_small_frames_take_no_more_memory_than_they_count() -> None:
    with traced() as memory:
        store = FrameStore(1 << 20)
        while store.room > 0:
            store.append(frame_of(store.position))
        taken = memory.now()

    assert taken < 1.1 * store.limit


@pytest.mark.parametrize("make", [
    lambda number: Payload(number.to_bytes(1, "big")),
    lambda number: Payload(number.to_bytes(1, "big"), number.to_bytes(2, "big")),
    frame_of,
])  # fmt: skip
def test_an_entry_costs_no_more_than_it_counts_beside_its_bytes(make: object) -> None:
    assert callable(make)
    count = 1000
    with traced() as memory:
        held = [make(number % 256) for number in range(count)]
        taken = memory.now()

    assert len(held) == count
    assert taken / count < ENTRY_OVERHEAD


def test_entries_without_bytes_fill_an_outbox_as_well() -> None:
    outbox, lane = Outbox(10 * ENTRY_OVERHEAD, lambda lane: None), StreamQueue()
    while outbox.has_room(0):
        outbox.put(lane, b"")
    assert (outbox.entries, outbox.size, outbox.charge) == (10, 0, 10 * ENTRY_OVERHEAD)

    outbox.take(1)
    assert not outbox
    assert outbox.has_room(0)
    assert outbox.charge == 0


@pytest.mark.parametrize("how", ["taken", "taken one by one", "discarded"])
def test_what_was_counted_is_given_back(how: str) -> None:
    outbox, lanes = Outbox(1 << 20, lambda lane: None), [StreamQueue(), StreamQueue()]
    for lane in lanes:
        for size in (1, 10, 5000):
            outbox.put(lane, bytes(size))
        outbox.put(lane, FragmentSource(iter([bytes(3000), bytes(3000)]), 6000))
        outbox.put(lane, b"last")
    assert outbox.charge == charged(2 * (1 + 10 + 5000 + 6000 + 4), 10)

    if how == "discarded":
        for lane in lanes:
            outbox.discard(lane)
    else:
        while outbox:
            outbox.take(1 if how == "taken one by one" else 1 << 20)
    assert (outbox.entries, outbox.size, outbox.charge) == (0, 0, 0)
