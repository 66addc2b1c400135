"""What leaves is kept within its bound until the peer has it, then sent again as it was: none lost, none twice."""

from __future__ import annotations

import random
from collections import deque
from itertools import accumulate

import pytest

from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.outbox import WRITE_SIZE, FragmentSource
from rsocket_trio.mux.retransmission import FrameStore, RetainingOutbox
from rsocket_trio.mux.stream_state import StreamQueue

BEAT = b"how far are you?"


@pytest.mark.parametrize("seed", range(10))
def test_a_store_behaves_like_a_plain_list(seed: int) -> None:
    rng = random.Random(seed)
    store, frames, gone = FrameStore(1 << 20), list[bytes](), 0
    for _ in range(300):
        if rng.random() < 0.6:
            frame = rng.randbytes(rng.randrange(1, 50))
            store.append(frame)
            frames.append(frame)
        else:
            position = rng.randrange(store.position + 20)
            store.trim(position)
            ends = list(accumulate(map(len, frames)))
            if ends and position <= ends[-1]:
                gone = max(gone, sum(end <= position for end in ends))
        starts = [0, *accumulate(map(len, frames))]
        assert store.kept() == frames[gone:]
        assert (store.first, store.position) == (starts[gone], starts[-1])
        wanted = rng.randrange(store.position + 2)
        assert store.serves(wanted) == (wanted in starts[gone:])


# The outbox


def tracked(frame: bytes) -> bool:
    return frame.startswith(b"T")


def retaining(limit: int, *, size: int = 1 << 30) -> tuple[RetainingOutbox, FrameStore]:
    outbox = RetainingOutbox(size, lambda queue: None, half_full=lambda: BEAT)
    outbox.retain(limit, tracked)
    assert outbox.store is not None
    return outbox, outbox.store


def taken(outbox: RetainingOutbox, limit: int = WRITE_SIZE) -> list[bytes]:
    return [whole(frame) for frame in outbox.take(limit)]


class Walk:
    """An outbox, a peer that gets what leaves unless the link is cut, and what each queue was told to send."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.limit = self.rng.choice((1024, 3000, 100_000))
        self.outbox, self.store = retaining(self.limit)
        self.queues = [StreamQueue() for _ in range(4)]
        self.waiting: dict[int, deque[bytes]] = {index: deque() for index in range(4)}
        self.tracked: set[bytes] = set()
        self.flying: list[bytes] = []
        self.arrived: list[bytes] = []
        self.discarded: set[bytes] = set()
        self.promised: list[bytes] = []
        """Signals and untracked replies that have to leave with the next write."""
        self.others: list[bytes] = []
        self.others_arrived: list[bytes] = []
        self.beats = self.answers = self.number = 0

    def frame(self, size: int | None = None, kind: bytes = b"T") -> bytes:
        self.number += 1
        size = self.rng.choice((10, 30, 200, self.limit // 3, self.limit)) if size is None else size
        frame = kind + b"%07d" % self.number + bytes(size - 8)
        if tracked(frame):
            self.tracked.add(frame)
        return frame

    def put(self) -> None:
        index = self.rng.randrange(4)
        queue, waiting = self.queues[index], self.waiting[index]
        chance = self.rng.random()
        if chance < 0.5:
            frame = self.frame()
            self.outbox.put(queue, frame)
            waiting.append(frame)
        elif chance < 0.65:
            frames = [self.frame() for _ in range(self.rng.randrange(1, 5))]
            self.outbox.put(queue, FragmentSource(iter(frames), sum(map(len, frames))))
            waiting.extend(frames)
        elif chance < 0.75:
            self.outbox.discard(queue)
            self.discarded.update(waiting)
            waiting.clear()
        elif chance < 0.8:
            frame = self.frame(self.rng.choice((20, 2 * self.limit)), b"u")
            self.outbox.put(queue, frame)
            waiting.append(frame)
            self.others.append(frame)
        elif chance < 0.85:
            frame = self.frame(20)
            self.rng.choice((self.outbox.put_urgent, self.outbox.put_reply))(frame)
        else:
            frame = self.frame(20, b"u")
            self.rng.choice((self.outbox.put_signal, self.outbox.put_reply))(frame)
            self.promised.append(frame)

    def take(self, limit: int | None = None) -> None:
        limit = self.rng.choice((1, 500, WRITE_SIZE)) if limit is None else limit
        for frame in taken(self.outbox, limit):
            if frame == BEAT:
                self.beats += 1
            elif tracked(frame):
                self.flying.append(frame)
            else:
                self.others_arrived.append(frame)
            for waiting in self.waiting.values():
                if frame in waiting:
                    assert waiting.popleft() == frame, "out of the order of its queue"
        if limit == WRITE_SIZE and not self.outbox._resending:
            assert set(self.promised) <= set(self.others_arrived)
            self.promised.clear()
        assert self.store.size <= self.limit
        assert self.outbox.size == sum(len(frame) for waiting in self.waiting.values() for frame in waiting)

    def arrive(self, number: int) -> None:
        self.arrived += self.flying[:number]
        del self.flying[:number]

    def confirm(self) -> None:
        self.arrive(self.rng.randrange(len(self.flying) + 1))
        self.store.trim(sum(map(len, self.arrived)))
        self.outbox.asked = False
        self.answers += 1

    def cut(self) -> None:
        self.arrive(self.rng.randrange(len(self.flying) + 1))
        self.flying.clear()
        position = sum(map(len, self.arrived))
        assert self.store.serves(position)
        self.store.trim(position)
        self.outbox.send_again(b"hello again")
        self.answers += 1
        self.promised.clear()  # what only the lost link mattered to
        expected = [b"hello again", *self.store.kept()]
        again = taken(self.outbox, sum(map(len, expected)))
        assert again[: len(expected)] == expected, "not what was kept, as it was"
        self.flying += [frame for frame in again if tracked(frame)]
        for frame in again[len(expected) :]:
            self.beats += frame == BEAT

    def to_the_end(self) -> None:
        for _ in range(10_000):
            if not self.outbox:
                break
            self.take(WRITE_SIZE)
            self.arrive(len(self.flying))
            self.confirm()
        assert not self.outbox
        self.arrive(len(self.flying))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_cut_and_confirmed_the_peer_gets_each_frame_once_in_the_order_of_its_lane(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(400):
        action = walk.rng.random()
        if action < 0.5:
            walk.put()
        elif action < 0.85:
            walk.take()
        elif action < 0.95:
            walk.confirm()
        else:
            walk.cut()
        assert walk.beats <= walk.answers + 1
    walk.to_the_end()

    assert len(set(walk.arrived)) == len(walk.arrived), "a frame came twice"
    assert set(walk.arrived) == walk.tracked - walk.discarded, "a frame was lost"
    assert sum(map(len, walk.arrived)) == walk.store.position
    assert set(walk.others) - walk.discarded <= set(walk.others_arrived)


@pytest.mark.parametrize("limit", [100, 10 * WRITE_SIZE])
def test_signals_and_answers_without_a_position_leave_although_the_store_is_full(limit: int) -> None:
    outbox, store = retaining(limit)
    outbox.put(StreamQueue(), b"T" * limit)
    outbox.take(limit)
    assert store.room == 0
    outbox.put(StreamQueue(), b"Twaits")
    outbox.put_reply(b"Treply")
    outbox.put_reply(b"pong")
    outbox.put_signal(b"lease")

    assert taken(outbox) == [b"lease", b"pong"]
    assert (outbox.reply_size, outbox.reply_frames) == (6, 1)
    store.trim(limit)
    assert taken(outbox) == [b"Treply", b"Twaits"]


def test_a_store_that_is_half_full_asks_once_until_it_is_answered() -> None:
    outbox, _ = retaining(100)
    queue = StreamQueue()
    asked = []
    for number in range(8):
        outbox.put(queue, b"T" * 10)
        asked.append(BEAT in taken(outbox))
        if number == 5:
            outbox.asked = False  # answered, and nothing of it was new
    assert asked == [False, False, False, False, True, False, True, False]


def test_sending_again_goes_behind_the_first_frame_and_before_all_that_is_new() -> None:
    outbox, store = retaining(1000)
    queue = StreamQueue()
    for frame in (b"T1", b"T2", b"T3"):
        outbox.put(queue, frame)
    taken(outbox)
    outbox.put(queue, b"T4")
    outbox.put_urgent(b"T5")
    outbox.put_reply(b"T6")
    outbox.put_reply(b"for the lost link")
    outbox.put_signal(b"for the lost link as well")
    store.trim(2)
    outbox.send_again(b"first")
    outbox.put_signal(b"new")

    assert taken(outbox, 1) == [b"first"]
    assert taken(outbox, 1) == [b"new"]
    assert taken(outbox, 3) == [b"T2", b"T3"]
    assert taken(outbox) == [b"T5", b"T6", b"T4"]
    assert store.kept() == [b"T2", b"T3", b"T5", b"T6", b"T4"]
    assert (outbox.reply_size, outbox.reply_frames) == (0, 0)


def test_what_is_held_leaves_behind_the_frame_that_lets_it_go() -> None:
    outbox, _ = retaining(100)
    outbox.hold()
    outbox.put_signal(b"signal")
    outbox.put(StreamQueue(), b"Tracked")
    assert taken(outbox) == []

    outbox.release(b"first")
    assert taken(outbox) == [b"first", b"signal", b"Tracked"]


def test_the_last_word_waits_for_lanes_that_wait_for_room() -> None:
    outbox, store = retaining(100)
    outbox.put(StreamQueue(), b"T" * 100)
    taken(outbox)
    outbox.put(StreamQueue(), b"T" * 60)
    outbox.put_final(b"last")
    assert taken(outbox) == []

    store.trim(100)
    assert taken(outbox) == [b"T" * 60]
    assert taken(outbox) == [b"last"]
    assert not outbox
