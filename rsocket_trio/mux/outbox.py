"""Encoded frames waiting for the next write: urgent ones first, then each stream's lane in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rsocket_trio.mux.bulk import Bulk, Source
from rsocket_trio.mux.charge import ENTRY, charged
from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.mux.lane import Departed, Entry, Lane, Urgent

WRITE_SIZE = 65536
"""Bytes that one write holds at most: an urgent frame never waits behind megabytes. A larger frame goes alone."""
URGENT_SIZE = 64
"""Bytes that an urgent frame has at most, where that matters: cancels and credit."""
SMALL = 4096
"""Bytes up to which an entry counts as small: small ones have room of their own beside bulk."""


class Outbox:
    """Everything that waits to be written on one connection.

    ``size`` is the bytes in the lanes, ``entries`` what they are in, ``charge`` what both count towards the limit.
    Replies (answers that the peer provokes) are counted apart, in ``reply_size`` and ``reply_frames``. ``drained`` is
    called when a lane that has ended becomes empty. ``is_heard`` says that what left has been read by the peer, all of
    it.
    """

    __slots__ = (
        "_drained",
        "_held",
        "_introduced",
        "_last",
        "_limit",
        "_replies",
        "_tail",
        "_turns",
        "_urgent",
        "bulk_size",
        "entries",
        "is_heard",
        "reply_size",
        "small_size",
    )

    is_stalled = False
    """Whether nothing leaves until the peer says that it has what left before."""

    def __init__(self, limit: int, drained: Callable[[Lane], None]) -> None:
        self._limit = limit
        self._drained = drained
        self._last: bytes | None = None
        self._tail = 0  # which lane the frame that left last was the whole of; no reference, to keep nothing alive
        self.is_heard = False
        self._held = False
        self._introduced = False
        # Lists, and no deque where nothing waits: an empty one costs 600 bytes, and these are empty most of the time.
        self._urgent: list[Urgent] = []
        self._replies: list[bytes] = []
        self._turns: deque[Lane] | tuple[()] = ()
        self.small_size = 0
        self.bulk_size = 0
        self.entries = 0
        self.reply_size = 0

    def __bool__(self) -> bool:
        return bool(self._urgent or self._replies or self._turns or self._last)

    @property
    def size(self) -> int:
        """Bytes waiting in the lanes."""
        return self.small_size + self.bulk_size

    @property
    def charge(self) -> int:
        """What waits in the lanes, as it counts towards the limit."""
        return charged(self.small_size + self.bulk_size, self.entries)

    @property
    def reply_frames(self) -> int:
        """Replies waiting."""
        return len(self._replies)

    def has_room(self, size: int) -> bool:
        """Whether an entry of this size may be put now. Small ones need not wait for bulk to leave."""
        small = self.small_size + self.entries * ENTRY
        return small + self.bulk_size < self._limit or (size <= SMALL and small < self._limit)

    def on_answer(self, lane: Departed) -> None:
        """The peer answered all that this lane said. What left before it the peer has read, too."""
        # Of a lane that has said nothing the number may be that of an earlier one, which is no more.
        if lane.left and self._tail == id(lane):
            self.is_heard = True

    def unheard(self) -> None:
        """Something left, or leaves, in another way than from a lane."""
        self._tail = 0
        self.is_heard = False

    def hold(self) -> None:
        """Let nothing leave until ``release``; errors that end everything excepted, which ``drop_held`` lets out."""
        self._held = True

    def release(self, first: bytes) -> None:
        """Let go, and this frame goes before all others; the first write may be larger for it."""
        self._held = False
        self._introduced = True
        self._urgent.insert(0, first)

    def drop_held(self) -> None:
        """Forget what was held, beside replies; does nothing where nothing is held."""
        if self._held:
            self._held = False
            self._urgent.clear()
            self.discard_lanes()

    def put_urgent(self, frame: Urgent) -> None:
        """Put a frame that overtakes all lanes."""
        self._urgent.append(frame)

    def put_reply(self, frame: bytes) -> None:
        """Put an answer that the peer provoked; it overtakes all lanes as well."""
        self._replies.append(frame)
        self.reply_size += len(frame)

    def put_last(self, frame: bytes) -> None:
        """Put the frame that leaves when nothing else is left."""
        self._last = frame

    def put(self, lane: Lane, entry: Entry) -> None:
        """Put an entry at the end of its lane."""
        if lane.head is None:
            lane.head = entry
            if not lane.in_turn:
                lane.in_turn = True
                turns = self._turns
                if type(turns) is deque:
                    turns.append(lane)
                else:
                    self._turns = deque((lane,))
        elif lane.rest is None:
            lane.rest = deque((entry,))
        else:
            lane.rest.append(entry)
        self.entries += 1
        if type(entry) is bytes:
            size = len(entry)
            if size <= SMALL:
                self.small_size += size
            else:
                self.bulk_size += size
        else:
            self.bulk_size += entry.size  # type: ignore[union-attr]

    def put_behind_fragments(self, lane: Lane, entry: Bulk) -> bool:
        """Put an entry right behind the payload whose fragments are leaving the lane; not if there is none."""
        head = lane.head
        if type(head) is not Source or not head.begun:
            return False
        if lane.rest is None:
            lane.rest = deque((entry,))
        else:
            lane.rest.appendleft(entry)
        self.entries += 1
        self.bulk_size += entry.size
        return True

    def discard(self, lane: Lane) -> None:
        """Drop what waits in one lane; the others are not touched."""
        entry = lane.head
        while entry is not None:
            self._forget(entry)
            entry = lane.rest.popleft() if lane.rest else None
        lane.head = None
        lane.rest = None

    def discard_lanes(self) -> None:
        """Drop what waits in all lanes: after an error that ends the connection nothing else is said."""
        for lane in self._turns:
            self.discard(lane)
            if lane.ended:
                self._drained(lane)

    def clear(self) -> None:
        """Keep nothing: nothing will be written any more."""
        self.discard_lanes()
        self._turns = ()
        self._urgent = []
        self._replies = []
        self._last = None
        self.reply_size = 0

    def put_signal(self, frame: bytes) -> None:
        """Put a frame that concerns this transport only; it overtakes all lanes."""
        self._urgent.append(frame)

    def take(self, limit: int = WRITE_SIZE, room: int | None = None) -> list[EncodedFrame]:
        """The frames of the next write: at most ``limit`` bytes, or one larger frame; never more than ``room``."""
        frames: list[EncodedFrame] = []
        if self._held:
            return frames
        total = 0
        if self._urgent or self._replies:
            self.unheard()
            total = self._take_urgent(frames, limit, room)
        if self._introduced:
            self._introduced = False
            total = 0
        turns = self._turns
        while turns and total < limit:
            lane = turns[0]
            entry = lane.head
            if entry is None:
                # What was discarded left its lane in the round.
                turns.popleft()
                lane.in_turn = False
                continue
            if type(entry) is bytes:
                size = len(entry)
                if (total and total + size > limit) or (room is not None and total + size > room):
                    break
                if lane.rest and room is None and len(turns) == 1 and size <= SMALL and total + size <= limit:
                    self._tail = 0
                    total = self._take_run(lane, frames, total, limit)
                    continue
                frames.append(entry)
                self.entries -= 1
                self._tail = 0 if lane.left else id(lane)
                if size <= SMALL:
                    self.small_size -= size
                else:
                    self.bulk_size -= size
                rest = lane.rest
                lane.head = rest.popleft() if rest else None
            else:
                size = entry.next_size  # type: ignore[union-attr]
                if (total and total + size > limit) or (room is not None and total + size > room):
                    break
                self._tail = 0
                self._take_part(lane, entry, frames, size)  # type: ignore[arg-type]
            total += size
            lane.left = True
            if lane.head is None:
                turns.popleft()
                lane.in_turn = False
                lane.rest = None
                if lane.ended:
                    self._drained(lane)
            elif len(turns) > 1:
                turns.rotate(-1)
        if not turns:
            self._turns = ()
        if self._last is not None and not (frames or turns):
            frames.append(self._last)
            self._last = None
            self._tail = 0
        if frames:
            self.is_heard = False
        return frames

    def _take_urgent(self, frames: list[EncodedFrame], limit: int, room: int | None) -> int:
        total = taken = 0
        for entry in self._urgent:
            if total >= limit or (room is not None and total + URGENT_SIZE > room):
                break
            taken += 1
            frame = entry if isinstance(entry, bytes) else entry.encoded()
            if frame is not None:
                frames.append(frame)
                total += len(frame)
        del self._urgent[:taken]
        taken = 0
        for reply in self._replies:
            if (total and total + len(reply) > limit) or (room is not None and total + len(reply) > room):
                break
            taken += 1
            frames.append(reply)
            total += len(reply)
            self.reply_size -= len(reply)
        del self._replies[:taken]
        return total

    def _take_run(self, lane: Lane, frames: list[EncodedFrame], total: int, limit: int) -> int:
        """Take small entries of the only lane that waits, all but the last one. Returns the bytes taken in all."""
        rest, entry, before, taken = lane.rest, lane.head, total, len(frames)
        assert rest is not None
        while rest and type(entry) is bytes and (size := len(entry)) <= SMALL and total + size <= limit:
            frames.append(entry)
            total += size
            entry = rest.popleft()
        lane.head = entry
        lane.left = True
        self.small_size -= total - before
        self.entries -= len(frames) - taken
        return total

    def _take_part(self, lane: Lane, source: Bulk, frames: list[EncodedFrame], size: int) -> None:
        frame = source.take()
        if frame is not None:
            frames.append(frame)
        if not source.next_size:
            self.entries -= 1
            self.bulk_size -= source.size
            lane.head = lane.rest.popleft() if lane.rest else None
        else:
            size = min(size, source.size)
            source.size -= size
            self.bulk_size -= size

    def _forget(self, entry: Entry) -> None:
        self.entries -= 1
        if not isinstance(entry, bytes):
            self.bulk_size -= entry.size
        elif len(entry) <= SMALL:
            self.small_size -= len(entry)
        else:
            self.bulk_size -= len(entry)
