"""Encoded frames waiting for the next write: urgent ones, replies, then the queue of each stream in turn; a final one.

All may be held for a handshake. The limit on what waits is here as well: senders ask whether there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from rsocket_trio.limits import ENTRY_OVERHEAD, charged

if TYPE_CHECKING:
    from rsocket_trio.mux.framing import EncodedFrame
    from rsocket_trio.mux.stream_state import StreamQueue
    from rsocket_trio.payload import Payload

WRITE_SIZE = 66 * 1024
"""Bytes that one write holds at most: an urgent frame never waits behind megabytes. A larger frame goes alone.

A little more than 64 KiB, so that bodies of that size in all fit with their headers.
"""
URGENT_SIZE = 64
"""Bytes that an urgent frame has at most, where that matters: cancels and credit."""
SMALL = 4096
"""Bytes up to which an entry counts as small: small ones have room of their own beside bulk."""
HEAD = attrgetter("head")


class FrameSource(Protocol):
    """Frames that are made when they leave the queue. ``size`` is the bytes still to come, as the queue counts them.

    An urgent one makes one frame, so that several of its kind become one (credit).
    """

    size: int

    @property
    def next_size(self) -> int:
        """Return the bytes of the next frame; 0 when none is left."""
        ...

    def take(self) -> EncodedFrame | None:
        """Return the next frame, or ``None`` if it is needed no more."""
        ...


class FragmentSource:
    """The fragments of a payload. The payload is not copied before they leave."""

    __slots__ = ("_frames", "_next", "begun", "next_size", "size")

    def __init__(self, frames: Iterator[EncodedFrame], size: int) -> None:
        self._frames = frames
        self._next: EncodedFrame | None = None
        self.size = size
        self.take()  # returns nothing yet: it fetches the first
        self.begun = False

    def take(self) -> EncodedFrame | None:
        """Return the next frame, or ``None`` if none is left."""
        self.begun = True
        taken = self._next
        self._next = frame = next(self._frames, None)
        if frame is None:
            self.next_size = 0
        else:
            self.next_size = len(frame) if isinstance(frame, bytes) else sum(map(len, frame))
        return taken


QueueEntry: TypeAlias = bytes | tuple[bytes, bytes] | FrameSource
"""A frame, a large frame as its header and its body, which is not copied, or the source of several."""
Urgent: TypeAlias = bytes | FrameSource


@attrs.define(eq=False, repr=False)
class Outbox:
    """All frames that wait to be written on one connection.

    ``size`` is the bytes in the queues, ``entries`` what they are in, ``charge`` what both count towards the limit.
    Replies (answers that the peer provokes) are counted apart, in ``reply_size`` and ``reply_frames``. ``drained`` is
    called when a queue that has ended becomes empty. ``has_urgent`` says that frames beside the queues may wait, which
    the send task was not told of. ``is_acknowledged`` says that the peer has read all that left.
    """

    _limit: int
    _drained: Callable[[StreamQueue], None]
    _last: bytes | None = None
    _sole_queue: int = 0  # id() of the queue whose only frame left last; no reference, to keep nothing alive
    is_acknowledged: bool = False
    _held: bool = False
    _introduced: bool = False
    # Lists, and no deque where nothing waits: an empty one costs 600 bytes, and these are empty most of the time.
    _urgent: list[Urgent] = attrs.Factory(list)
    _replies: list[bytes] = attrs.Factory(list)
    _turns: deque[StreamQueue] | tuple[()] = ()
    small_size: int = 0
    bulk_size: int = 0
    entries: int = 0
    has_urgent: bool = False
    reply_size: int = 0
    _shared: object = None
    """The limit that several outboxes share, of one that has such a limit."""
    is_stalled: bool = False
    """True if nothing leaves until the peer says that it has what left before."""

    def __bool__(self) -> bool:
        return bool(self._urgent or self._replies or self._turns or self._last)

    @property
    def size(self) -> int:
        """Bytes waiting in the queues."""
        return self.small_size + self.bulk_size

    @property
    def charge(self) -> int:
        """The charge of all queued entries towards the limit, in bytes."""
        return charged(self.small_size + self.bulk_size, self.entries)

    @property
    def reply_frames(self) -> int:
        """Replies waiting."""
        return len(self._replies)

    def has_room(self, item: Payload | int) -> bool:
        """Return whether a payload, or an entry of so many bytes, may be put now.

        Small ones need not wait for large ones to leave. A caller that waits for room calls ``ask_for_room`` first.
        """
        waiting = self.small_size + self.entries * ENTRY_OVERHEAD + self.bulk_size
        if waiting < self._limit and self._shared is None:
            return True  # of any size
        size = item if isinstance(item, int) else item.size
        if waiting >= self._limit and self._is_full_for(size):
            return False
        return self._shared is None or self._has_shared_room(size, waiting)

    def ask_for_room(self, size: int) -> bool:
        """Return whether an entry of ``size`` bytes may be put now; if not, see to it that there will be room.

        To be called before waiting. Where nothing but a write makes room, there is nothing to see to.
        """
        return self.has_room(size)

    def _is_full_for(self, size: int) -> bool:
        """Return whether a full outbox has no room for so many bytes either: small ones have room of their own."""
        return size > SMALL or self.small_size + self.entries * ENTRY_OVERHEAD >= self._limit

    def _has_shared_room(self, size: int, waiting: int) -> bool:
        """Return whether a limit that several outboxes share leaves room, too: see ``RetainingOutbox``."""
        return True

    def on_answer(self, queue: StreamQueue) -> None:
        """Note that the peer answered what left this queue, and so has read all that left before it."""
        # Of a queue that has said nothing the number may be that of an earlier one, which is no more.
        if queue.left and self._sole_queue == id(queue):
            self.is_acknowledged = True

    def mark_unacknowledged(self) -> None:
        """Note that a frame left, or leaves, that is in no queue: an answer says nothing of it."""
        self._sole_queue = 0
        self.is_acknowledged = False

    def hold(self) -> None:
        """Hold all frames until ``release``. An error that ends the session leaves earlier, by ``drop_held``."""
        self._held = True

    def release(self, first: bytes) -> None:
        """Release the held frames, behind this one. The first write may exceed its limit by its size."""
        self._held = False
        self._introduced = True
        self._urgent.insert(0, first)
        self.has_urgent = True

    def drop_held(self) -> None:
        """Drop the held frames except replies. Do nothing if none are held."""
        if self._held:
            self._held = False
            self._urgent.clear()
            self.discard_queues()

    def put_urgent(self, frame: Urgent) -> None:
        """Put a frame that overtakes all queues."""
        self._urgent.append(frame)
        self.has_urgent = True

    def put_reply(self, frame: bytes) -> None:
        """Put an answer that the peer provoked; it overtakes all queues as well."""
        self._replies.append(frame)
        self.has_urgent = True
        self.reply_size += len(frame)

    def put_final(self, frame: bytes) -> None:
        """Put the frame that leaves when nothing else is left."""
        self._last = frame
        self.has_urgent = True

    def put(self, queue: StreamQueue, entry: QueueEntry) -> None:
        """Put an entry at the end of its queue."""
        if queue.head is None:
            queue.head = entry
            if not queue.in_turn:
                queue.in_turn = True
                turns = self._turns
                if type(turns) is deque:
                    turns.append(queue)
                else:
                    self._turns = deque((queue,))
        elif queue.tail is None:
            queue.tail = deque((entry,))
        else:
            queue.tail.append(entry)
        self.entries += 1
        if type(entry) is bytes:
            size = len(entry)
            if size <= SMALL:
                self.small_size += size
            else:
                self.bulk_size += size
        elif type(entry) is tuple:
            self.bulk_size += len(entry[0]) + len(entry[1])
        else:
            self.bulk_size += entry.size  # type: ignore[union-attr]

    def offer(self, queue: StreamQueue, frame: bytes) -> bool:
        """Put a small frame at the end of its queue, unless the outbox is full. Return whether it was put."""
        if self.small_size + self.entries * ENTRY_OVERHEAD + self.bulk_size >= self._limit or self._shared is not None:
            return False
        tail = queue.tail
        if tail is None:
            self.put(queue, frame)
        else:
            tail.append(frame)
            self.entries += 1
            self.small_size += len(frame)
        return True

    def put_behind_fragments(self, queue: StreamQueue, entry: FrameSource) -> bool:
        """Put an entry right behind the payload whose fragments are leaving the queue; not if there is none."""
        head = queue.head
        if type(head) is not FragmentSource or not head.begun:
            return False
        if queue.tail is None:
            queue.tail = deque((entry,))
        else:
            queue.tail.appendleft(entry)
        self.entries += 1
        self.bulk_size += entry.size
        return True

    def discard(self, queue: StreamQueue) -> None:
        """Drop the waiting frames of one queue."""
        entry = queue.head
        while entry is not None:
            self._forget(entry)
            entry = queue.tail.popleft() if queue.tail else None
        queue.head = None
        queue.tail = None

    def discard_queues(self) -> None:
        """Drop the frames of all queues: after an error that ends the connection no other frame is sent."""
        for queue in self._turns:
            self.discard(queue)
            if queue.ended:
                self._drained(queue)

    def clear(self) -> None:
        """Drop all frames: none will be written any more."""
        self.discard_queues()
        self._turns = ()
        self._urgent = []
        self._replies = []
        self._last = None
        self.reply_size = 0

    def put_signal(self, frame: bytes) -> None:
        """Put a frame that concerns this transport only; it overtakes all queues."""
        self.put_urgent(frame)

    def take(self, limit: int = WRITE_SIZE, room: int | None = None) -> list[EncodedFrame]:
        """Return the frames of the next write: ``limit`` bytes at most, or one larger frame; no more than ``room``.

        The send task of the link calls this for each write, and sleeps once it returns nothing. Putting a frame wakes
        nobody: a task of the application that puts one wakes the link, and the connection does after each read that
        left ``entries`` or ``has_urgent``. ``room`` is what the store for resumption has left; frames beyond it stay.

        Urgent frames come first, then replies: a cancel or credit that waited behind items would come too late to save
        any. Then each queue gives one frame in turn, so that no large payload holds up the other streams, and the frame
        that ends the connection comes when nothing else is left.
        """
        frames: list[EncodedFrame] = []
        if self._held:
            return frames
        total = 0
        if self._urgent or self._replies:
            self.mark_unacknowledged()
            total = self._take_urgent(frames, limit, room)
        self.has_urgent = bool(self._urgent or self._replies or self._last)
        if self._introduced:
            # The frame that released the others does not count: it may be larger than a write.
            self._introduced = False
            total = 0
        turns = self._turns
        is_split = 1 < len(turns) == self.entries and room is None and not self.bulk_size
        if is_split and type(turns) is deque and total + self.small_size <= limit:
            heads = [*map(HEAD, turns)]
            if {*map(type, heads)} == {bytes}:
                # All that waits is one small frame of each stream, as most requests and answers are.
                frames += heads
                self._sole_queue = 0 if turns[-1].left else id(turns[-1])
                self.entries = self.small_size = 0
                for queue in turns:
                    queue.head = queue.tail = None
                    queue.in_turn = False
                    queue.left = True
                    if queue.ended:
                        self._drained(queue)
                turns = ()
        while turns and total < limit:
            queue = turns[0]
            entry = queue.head
            if entry is None:
                # Its frames were discarded; the queue kept its turn, since a deque is slow to search.
                turns.popleft()
                queue.in_turn = False
                continue
            if type(entry) is bytes:
                size = len(entry)
                after = total + size
                if (after > limit and total) or (room is not None and after > room):
                    break
                tail = queue.tail
                if tail and room is None and len(turns) == 1 and size <= SMALL and after <= limit:
                    # Nobody else waits for a turn: the items of one busy stream are taken together.
                    self._sole_queue = 0
                    total = self._take_run(queue, frames, total, limit)
                    continue
                frames.append(entry)
                self.entries -= 1
                self._sole_queue = 0 if queue.left else id(queue)
                if size <= SMALL:
                    self.small_size -= size
                else:
                    self.bulk_size -= size
                queue.head = tail.popleft() if tail else None
            elif type(entry) is tuple:
                size = len(entry[0]) + len(entry[1])
                if (total and total + size > limit) or (room is not None and total + size > room):
                    break
                frames.append(entry)
                self.entries -= 1
                self.bulk_size -= size
                self._sole_queue = 0 if queue.left else id(queue)
                queue.head = queue.tail.popleft() if queue.tail else None
            else:
                size = entry.next_size  # type: ignore[union-attr]
                if (total and total + size > limit) or (room is not None and total + size > room):
                    break
                self._sole_queue = 0
                self._take_part(queue, entry, frames, size)  # type: ignore[arg-type]
            total += size
            queue.left = True
            if queue.head is None:
                # ``_drained`` comes last: it may forget the stream, and with it this queue.
                turns.popleft()
                queue.in_turn = False
                queue.tail = None
                if queue.ended:
                    self._drained(queue)
            elif len(turns) > 1:
                turns.rotate(-1)
        if not turns:
            self._turns = ()
        if self._last is not None and not (frames or turns):
            frames.append(self._last)
            self._last = None
            self._sole_queue = 0
        if frames:
            # From here on silence of the peer may mean that these were lost: see ``on_answer``.
            self.is_acknowledged = False
        return frames

    def _take_urgent(self, frames: list[EncodedFrame], limit: int, room: int | None) -> int:
        total = taken = 0
        for entry in self._urgent:
            if total >= limit or (room is not None and total + URGENT_SIZE > room):
                break
            taken += 1
            frame = entry if isinstance(entry, bytes) else entry.take()
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

    def _take_run(self, queue: StreamQueue, frames: list[EncodedFrame], total: int, limit: int) -> int:
        """Take small entries of the only queue that waits, all but the last one. Return the bytes taken in all."""
        tail, entry, before, taken = queue.tail, queue.head, total, len(frames)
        assert tail is not None
        if not self.bulk_size and total + self.small_size <= limit and type(entry) is bytes:
            # All that waits is small frames, and there is room for them.
            queue.head = last = tail.pop()
            assert type(last) is bytes
            frames.append(entry)
            frames += tail  # type: ignore[arg-type]
            tail.clear()
            queue.left = True
            self.entries = 1
            size, self.small_size = self.small_size, len(last)
            return total + size - len(last)
        while tail and type(entry) is bytes and (size := len(entry)) <= SMALL and total + size <= limit:
            frames.append(entry)
            total += size
            entry = tail.popleft()
        queue.head = entry
        queue.left = True
        self.small_size -= total - before
        self.entries -= len(frames) - taken
        return total

    def _take_part(self, queue: StreamQueue, source: FrameSource, frames: list[EncodedFrame], size: int) -> None:
        frame = source.take()
        if frame is not None:
            frames.append(frame)
        if not source.next_size:
            self.entries -= 1
            self.bulk_size -= source.size
            queue.head = queue.tail.popleft() if queue.tail else None
        else:
            size = min(size, source.size)
            source.size -= size
            self.bulk_size -= size

    def _forget(self, entry: QueueEntry) -> None:
        self.entries -= 1
        if isinstance(entry, tuple):
            self.bulk_size -= sum(map(len, entry))
        elif not isinstance(entry, bytes):
            self.bulk_size -= entry.size
        elif len(entry) <= SMALL:
            self.small_size -= len(entry)
        else:
            self.bulk_size -= len(entry)
