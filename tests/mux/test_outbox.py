"""Order within a queue, urgent before all, no queue waits for more than one round, sizes add up, discards are local."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.mux.outbox import SMALL, WRITE_SIZE, FragmentSource, Outbox
from rsocket_trio.mux.stream_state import StreamQueue


class Model:
    """The same in plain lists."""

    def __init__(self) -> None:
        self.urgent: list[bytes] = []
        self.replies: list[bytes] = []
        self.queues: dict[int, list[bytes]] = {}
        self.turns: list[int] = []

    def put(self, queue: int, frames: list[bytes]) -> None:
        self.queues.setdefault(queue, []).extend(frames)
        if queue not in self.turns:
            self.turns.append(queue)

    def take(self, limit: int) -> list[bytes]:
        taken: list[bytes] = []

        def fits(frame: bytes) -> bool:
            total = sum(map(len, taken))
            return not total or total + len(frame) <= limit

        while self.urgent and sum(map(len, taken)) < limit:
            taken.append(self.urgent.pop(0))
        while self.replies and fits(self.replies[0]):
            taken.append(self.replies.pop(0))
        while self.turns and sum(map(len, taken)) < limit:
            queue = self.turns[0]
            if not self.queues[queue]:
                self.turns.pop(0)
                continue
            if not fits(self.queues[queue][0]):
                break
            taken.append(self.queues[queue].pop(0))
            self.turns.pop(0)
            if self.queues[queue]:
                self.turns.append(queue)
        return taken

    @property
    def size(self) -> int:
        return sum(len(frame) for frames in self.queues.values() for frame in frames)


def numbered(rng: random.Random) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        size = rng.choice((10, 10, 100, SMALL, SMALL + 1, 20_000, WRITE_SIZE + 5))
        yield b"%08d" % number + bytes(size - 8)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_put_taken_and_discarded_it_behaves_like_plain_lists(seed: int) -> None:
    rng = random.Random(seed)
    frames = numbered(rng)
    outbox, model = Outbox(1 << 30, lambda queue: None), Model()
    queues = [StreamQueue() for _ in range(5)]
    for _ in range(600):
        action = rng.random()
        queue = rng.randrange(len(queues))
        if action < 0.1:
            frame = next(frames)
            outbox.put_urgent(frame)
            model.urgent.append(frame)
        elif action < 0.2:
            frame = next(frames)
            outbox.put_reply(frame)
            model.replies.append(frame)
        elif action < 0.6:
            frame = next(frames)
            is_apart = len(frame) > SMALL and rng.random() < 0.5
            outbox.put(queues[queue], (frame[:6], frame[6:]) if is_apart else frame)
            model.put(queue, [frame])
        elif action < 0.7:
            several = [next(frames) for _ in range(rng.randrange(1, 6))]
            outbox.put(queues[queue], FragmentSource(iter(several), sum(map(len, several))))
            model.put(queue, several)
        elif action < 0.75:
            outbox.discard(queues[queue])
            model.queues[queue] = []
        else:
            limit = rng.choice((1, 1000, WRITE_SIZE))
            assert [whole(frame) for frame in outbox.take(limit)] == model.take(limit)
        assert outbox.size == model.size
        assert outbox.reply_frames == len(model.replies)
        assert outbox.reply_size == sum(map(len, model.replies))
    while outbox:
        assert [whole(frame) for frame in outbox.take()] == model.take(WRITE_SIZE)
    assert model.take(WRITE_SIZE) == []
    assert (outbox.size, outbox.small_size, outbox.bulk_size, outbox.reply_size) == (0, 0, 0, 0)


def taken_one_by_one(outbox: Outbox) -> list[EncodedFrame]:
    frames = []
    while outbox:
        frames += outbox.take(1)
    return frames


def test_a_frame_to_leave_last_waits_for_all_others() -> None:
    outbox = Outbox(1 << 30, lambda queue: None)
    outbox.put_final(b"last")
    outbox.put(StreamQueue(), FragmentSource(iter([b"a", b"b", b"c"]), 3))
    outbox.put_reply(b"reply")

    assert taken_one_by_one(outbox) == [b"reply", b"a", b"b", b"c", b"last"]


def test_a_lane_that_has_ended_is_drained_once_with_its_last_frame() -> None:
    drained: list[StreamQueue] = []
    outbox = Outbox(1 << 30, drained.append)
    queue = StreamQueue()
    outbox.put(queue, b"a")
    outbox.put(queue, b"b")
    queue.ended = True

    outbox.take(1)
    assert drained == []
    outbox.take(1)
    outbox.take()
    assert drained == [queue]


def test_small_entries_have_room_beside_bulk_and_bulk_has_none_beside_bulk() -> None:
    outbox = Outbox(10_000, lambda queue: None)
    assert outbox.has_room(1 << 20)
    outbox.put(StreamQueue(), bytes(20_000))

    assert not outbox.has_room(SMALL + 1)
    assert outbox.has_room(SMALL)
    for _ in range(3):
        outbox.put(StreamQueue(), bytes(SMALL))
    assert not outbox.has_room(1)


def heard(outbox: Outbox) -> bool:
    """Return whether it is, asked anew."""
    return outbox.is_acknowledged


def test_everything_was_heard_once_the_last_that_left_is_answered() -> None:
    outbox, asked = Outbox(1000, lambda queue: None), StreamQueue()
    outbox.put(StreamQueue(), b"before")
    outbox.put(asked, b"ask")
    outbox.on_answer(asked)
    assert not heard(outbox)  # it has not even left
    assert outbox.take() == [b"before", b"ask"]
    assert not heard(outbox)
    outbox.on_answer(asked)
    assert heard(outbox)
    assert outbox.take() == []
    assert heard(outbox)
    outbox.put(StreamQueue(), b"more")
    outbox.take()
    assert not heard(outbox)


@pytest.mark.parametrize("behind", ["urgent", "reply", "queue", "last"])
def test_an_answer_says_nothing_of_what_left_behind_the_question(behind: str) -> None:
    outbox, asked = Outbox(1000, lambda queue: None), StreamQueue()
    outbox.put(asked, b"ask")
    outbox.take()
    match behind:
        case "urgent":
            outbox.put_urgent(b"credit")
        case "reply":
            outbox.put_reply(b"pong")
        case "queue":
            outbox.put(StreamQueue(), b"note")
        case "last":
            outbox.put_final(b"goodbye")
    assert len(outbox.take()) == 1
    outbox.on_answer(asked)
    assert not heard(outbox)


def test_an_answer_to_a_part_says_nothing_of_the_others() -> None:
    outbox, asked = Outbox(1 << 20, lambda queue: None), StreamQueue()
    outbox.put(asked, FragmentSource(iter([b"one", b"two"]), 6))
    outbox.take()
    outbox.on_answer(asked)
    assert not heard(outbox)
    twice = StreamQueue()
    for number in range(3):
        outbox.put(twice, b"item %d" % number)
    outbox.take()
    outbox.on_answer(twice)
    assert not heard(outbox)


def test_of_what_was_held_only_replies_leave_behind_a_refusal() -> None:
    outbox = Outbox(1 << 30, lambda queue: None)
    outbox.hold()
    outbox.put_urgent(b"urgent")
    outbox.put_signal(b"signal")
    outbox.put(StreamQueue(), b"in a queue")
    outbox.put_reply(b"refusal")
    assert outbox.take() == []
    outbox.drop_held()

    assert outbox.take() == [b"refusal"]
    assert not outbox


# Between the fragments of one payload


SIZE = 10
FIRST, SECOND, GRANT, LATER = (letter * SIZE for letter in (b"1", b"2", b"g", b"l"))


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(limit=1000, drained=lambda queue: None)


def test_an_entry_goes_right_behind_the_fragments_that_are_leaving(outbox: Outbox) -> None:
    queue = StreamQueue()
    outbox.put(queue, FragmentSource(iter((FIRST, SECOND)), 2 * SIZE))
    outbox.put(queue, LATER)
    assert outbox.take(SIZE) == [FIRST]

    assert outbox.put_behind_fragments(queue, FragmentSource(iter((GRANT,)), SIZE))

    assert outbox.size == 3 * SIZE
    assert outbox.take() == [SECOND, GRANT, LATER]
    assert outbox.size == 0
