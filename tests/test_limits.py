"""The cost of held entries beside their bytes: small frames that left are joined, those that wait count more."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from rsocket_trio.limits import ENTRY_OVERHEAD, charged
from rsocket_trio.mux.outbox import FragmentSource, Outbox, StreamQueue
from rsocket_trio.mux.retransmission import LOOSE, FrameStore, Run
from rsocket_trio.payload import Payload
from tests.each_row import ALL_CASES


def frame_of(number: int, size: int = 7) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def frames_of(store: FrameStore) -> list[bytes]:
    return [frame for kept in store.kept() for frame in (kept.frames() if isinstance(kept, Run) else (kept,))]


def test_many_small_frames_take_little_more_memory_than_their_bytes() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        store = FrameStore(1 << 20)
        for number in range(100_000):
            store.append(frame_of(number))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert store.size == 700_000
    assert taken < 1.5 * store.size


@pytest.mark.parametrize("make", [
    lambda number: Payload(number.to_bytes(1, "big")),
    lambda number: Payload(number.to_bytes(1, "big"), number.to_bytes(2, "big")),
    frame_of,
])  # fmt: skip
def test_an_entry_costs_no_more_than_it_counts_beside_its_bytes(make: object) -> None:
    assert callable(make)
    count = 1000
    gc.collect()
    tracemalloc.start()
    try:
        held = [make(number % 256) for number in range(count)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(held) == count
    assert taken / count < ENTRY_OVERHEAD


@pytest.mark.parametrize("seed", range(20 if ALL_CASES else 8))
def test_a_store_of_joined_frames_behaves_like_a_list(seed: int) -> None:
    rng = random.Random(seed)
    store, model, first, number = FrameStore(1 << 30), [], 0, 0
    for _ in range(60):
        for _ in range(rng.choice((1, 10, LOOSE, 3 * LOOSE))):
            number += 1
            frame = frame_of(number, rng.choice((4, 7, 100, 1024, 1025, 5000)))
            store.append(frame)
            model.append(frame)
        borders = [first]
        for frame in model:
            borders.append(borders[-1] + len(frame))
        assert (store.first, store.position, store.size) == (first, borders[-1], borders[-1] - first)
        for border in rng.sample(borders, min(5, len(borders))):
            assert store.serves(border)
            assert store.serves(border + 1) == (border + 1 in borders)
        assert frames_of(store) == model
        if rng.random() < 0.5:
            position = rng.choice(borders) + rng.choice((0, 0, 1))
            store.trim(position)
            while model and first + len(model[0]) <= position <= borders[-1]:
                first += len(model.pop(0))
    store.trim(store.position)
    assert (frames_of(store), store.size) == ([], 0)


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
