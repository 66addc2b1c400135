"""Sent frames kept with their positions for resumption, and the limit on them that several sessions share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.mux.outbox import SMALL, WRITE_SIZE, Outbox
from rsocket_trio.mux.stream_state import StreamQueue

UNCHARGED_FRAMES = 256
"""Frames that are kept for their bytes alone."""
FRAME_OVERHEAD = 64
"""Bytes that a further one takes beside its own, about what its object and its place cost."""
UNCOUNTED = 4096
"""Bytes that may be put before they count towards a shared limit; the next write counts them."""
FREE_SHARES: Final = 8
"""The number of times what is left of the limit that one session may keep: the sessions that keep most wait first,
however many they are, and one that comes later still finds room."""
MIN_KEPT_BYTES: Final = 16 * 1024
"""Bytes that a session may keep whatever the others do: about what a connection costs by itself."""
MIN_KEPT_PART: Final = 1024
"""The part of a small limit that ``MIN_KEPT_BYTES`` is at most."""
EXCESS_PART: Final = 8
"""The part of the limit by which large items may exceed it, so that sessions that keep little find room for theirs."""


class FrameStore:
    """Sent frames in order. The next one will begin at ``position``, the oldest kept one begins at ``first``.

    Positions count the bytes of encoded frames from 0 on, as the peer counts those that it receives.
    """

    __slots__ = ("_frames", "first", "limit", "position")

    def __init__(self, limit: int) -> None:
        self._frames: deque[bytes] = deque()
        self.limit = limit
        self.first = 0
        self.position = 0

    @property
    def size(self) -> int:
        """Return the bytes that are kept."""
        return self.position - self.first

    @property
    def charge(self) -> int:
        """Return what is kept as it counts towards limits: many frames count more than their bytes."""
        return self.position - self.first + FRAME_OVERHEAD * max(0, len(self._frames) - UNCHARGED_FRAMES)

    @property
    def room(self) -> int:
        """Return the bytes that may still be kept."""
        return self.limit - self.charge

    def append(self, frame: bytes) -> None:
        """Keep a frame that leaves."""
        self._frames.append(frame)
        self.position += len(frame)

    def trim(self, position: int) -> None:
        """Drop the frames before this position, which the peer has. An old one, or one ahead, has no effect."""
        if not self.first < position <= self.position:
            return
        frames, first = self._frames, self.first
        while frames and first + len(frames[0]) <= position:
            first += len(frames.popleft())
        self.first = first

    def serves(self, position: int) -> bool:
        """Return whether all frames from this position on are kept, and one begins there."""
        if not self.first <= position <= self.position:
            return False
        here = self.first
        for frame in self._frames:
            if here >= position:
                break
            here += len(frame)
        return here == position

    def kept(self) -> list[bytes]:
        """Return all kept frames."""
        return list(self._frames)


class Shared:
    """A limit in bytes for all that several sessions keep. The sessions that keep most wait first.

    A large item waits until it fits in ``most``; one above the limit would wait for ever, and is let through.
    ``soon`` has ``look`` called when the running task is done, once for any number of calls.
    """

    __slots__ = ("_soon", "_waiting", "grace", "limit", "most", "total")

    def __init__(self, limit: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self.limit = limit
        self.most = limit + limit // EXCESS_PART
        self.grace = max(1, min(MIN_KEPT_BYTES, limit // MIN_KEPT_PART))
        self.total = 0
        self._soon = soon
        self._waiting: dict[RetainingOutbox, None] = {}

    @property
    def waiting(self) -> int:
        """The number of sessions whose senders wait."""
        return len(self._waiting)

    def admits(self, kept: int, size: int = 0) -> bool:
        """Return whether a session that keeps ``kept`` bytes may keep an entry of ``size`` bytes more."""
        if kept >= self.grace and kept >= FREE_SHARES * (self.limit - self.total):
            return False
        return size <= SMALL or size <= self.most - self.total or size > self.limit

    def wait(self, outbox: RetainingOutbox) -> None:
        """Note that a sender of this session waits until less is kept."""
        self._waiting[outbox] = None
        outbox.ask()

    def changed(self, by: int) -> None:
        """Count ``by`` bytes more, or less if negative. Fewer bytes let waiting sessions look again, soon."""
        self.total += by
        if by < 0 and self._waiting:
            self._soon(self.look)

    def forget(self, outbox: RetainingOutbox) -> bool:
        """Take this session from those that wait. Return whether it was among them."""
        return self._waiting.pop(outbox, self) is None

    def look(self) -> None:
        """Wake the sessions that may keep more, and have the others ask their peers for positions."""
        for outbox in list(self._waiting):
            if self.admits(outbox.counted):
                del self._waiting[outbox]
                outbox.on_room()
            else:
                outbox.ask()


@attrs.define(eq=False, repr=False)
class RetainingOutbox(Outbox):
    """An outbox whose frames are kept when they leave, once ``retain`` was called.

    A frame that the store has no room for does not leave.
    ``half_full`` returns a frame to send at once, when the store is half full or has no room for the next frame.

    Under a limit that several sessions share there is room only while this one may keep more; ``counted`` are its bytes
    that the limit counts. ``on_room`` wakes senders that waited for it, ``wake`` what writes.
    """

    _half_full: Callable[[], bytes] = attrs.field(kw_only=True)
    _is_tracked: Callable[[bytes], bool] = bool
    _note_leaving: Callable[[bytes], bool] = bool
    _signals: deque[bytes] = attrs.Factory(deque)
    _resending: deque[bytes] = attrs.Factory(deque)
    asked: bool = False
    store: FrameStore | None = None
    counted: int = 0
    is_away: bool = False
    _shared: Shared | None = None
    wake: Callable[[], object] = bool
    on_room: Callable[[], object] = bool

    def __bool__(self) -> bool:
        return bool(self._signals or self._resending) or super().__bool__()

    def retain(
        self, limit: int, is_tracked: Callable[[bytes], bool], note_leaving: Callable[[bytes], bool] | None = None
    ) -> None:
        """Keep the frames that leave from now on, up to ``limit`` bytes.

        ``is_tracked`` tells which have a position; ``note_leaving`` does, too, once for each frame that leaves.
        """
        self.store = FrameStore(limit)
        self._is_tracked, self._note_leaving = is_tracked, note_leaving or is_tracked

    def stop_retaining(self) -> None:
        """Keep no frames any more: the session will not be resumed. Frames queued by ``send_again`` still leave."""
        self.store = None
        self.leave()
        self._shared, self.wake, self.on_room = None, bool, bool

    def share(self, shared: Shared, wake: Callable[[], object], on_room: Callable[[], object]) -> None:
        """Keep no more than this session may under a limit that several share."""
        self._shared, self.wake, self.on_room = shared, wake, on_room
        self.is_away = False

    def leave(self) -> None:
        """Stop counting towards the shared limit: the peer is away, or no frames are kept any more."""
        self._recount(0)
        self.is_away = True
        if self._shared is not None and self._shared.forget(self):
            self.on_room()

    def come_back(self) -> None:
        """Count towards the shared limit again: the peer is back."""
        self.is_away = False
        self._look()

    def _has_shared_room(self, size: int, waiting: int) -> bool:
        """Return whether this session may keep so many bytes more; ``waiting`` are those in its queues.

        Bytes that came since they were counted last are counted now.
        """
        shared, store = self._shared, self.store
        if shared is None or store is None or self.is_away:
            return True
        kept = waiting + store.charge
        if not 0 <= kept - self.counted < UNCOUNTED:
            self._recount(kept)
        return shared.admits(kept, size)

    def ask_for_room(self, size: int) -> bool:
        """Return whether an entry of ``size`` bytes may be put now; if not, see to it that there will be room.

        Under a shared limit this session then waits for the limit, and the peer is asked for its position.
        """
        if self.has_room(size):
            return True
        if self._shared is not None and not (self.charge >= self._limit and self._is_full_for(size)):
            self._shared.wait(self)  # else a write makes room
        return False

    def ask(self) -> None:
        """Ask the peer for its position, if frames are kept and it was not asked yet."""
        if self.asked or self.store is None or not self.store.size:
            return
        self.asked = True
        self.mark_unacknowledged()
        self.put_signal(self._half_full())
        self.wake()

    def on_trimmed(self) -> None:
        """Go on after the peer acknowledged more than was known before."""
        self.asked = self.is_stalled = False
        self._look()

    def discard(self, queue: StreamQueue) -> None:
        """Drop the waiting frames of one queue."""
        super().discard(queue)
        self._look()

    def _look(self) -> None:
        if self._shared is not None and self.store is not None and not self.is_away:
            self._recount(self.charge + self.store.charge)

    def _recount(self, kept: int) -> None:
        if self._shared is not None:
            before, self.counted = self.counted, kept
            self._shared.changed(kept - before)

    def discard_queues(self) -> None:
        """Drop the waiting frames of all queues, and those that were to be sent again."""
        self._resending.clear()
        super().discard_queues()

    def clear(self) -> None:
        """Drop all frames, those that left and those that wait."""
        super().clear()
        self._signals.clear()
        self.stop_retaining()

    def send_again(self, first: bytes | None) -> None:
        """Send all kept frames once more, behind ``first`` and before any frame that has not left yet.

        Signals of the lost transport, and urgent frames and replies without a position, are not sent any more.
        """
        assert self.store is not None
        self._signals.clear()
        self._drop_untracked()
        self._look()
        if first is not None:
            self._signals.append(first)
        self._resending = deque(self.store.kept())
        self.has_urgent = True
        self.asked = self.is_stalled = False

    def release(self, first: bytes) -> None:
        """Release the held frames, behind this one."""
        self._held = False
        self._signals.appendleft(first)
        self.has_urgent = True

    def drop_held(self) -> None:
        """Drop the held frames except replies. Do nothing if none are held."""
        if self._held:
            self._signals.clear()
        super().drop_held()

    def put_signal(self, frame: bytes) -> None:
        """Put a frame that has no position: it leaves even if the store is full."""
        self._signals.append(frame)
        self.has_urgent = True

    def take(self, limit: int = WRITE_SIZE, room: int | None = None) -> list[EncodedFrame]:
        """Return the frames of the next write."""
        store = self.store
        if self._held:
            return []
        frames: list[EncodedFrame] = []
        total = 0
        signals, resending = self._signals, self._resending
        if signals or resending:
            self.mark_unacknowledged()
        while signals and total < limit:
            signal = signals.popleft()
            frames.append(signal)
            total += len(signal)
        while resending and total < limit:
            kept_frame = resending.popleft()
            frames.append(kept_frame)
            total += len(kept_frame)
        if resending or total >= limit:
            return frames
        if store is None:
            return frames + super().take(limit - total)
        self._take_untracked_replies(frames, store)
        leaving = super().take(limit - total, store.room)
        if not leaving and self._is_blocked_by_untracked():
            leaving = super().take(1)
        self.is_stalled = not leaving and super().__bool__()
        for taken in leaving:
            kept = whole(taken)
            frames.append(kept)
            if self._note_leaving(kept):
                store.append(kept)
        if not self.asked and (store.room * 2 <= store.limit or (self.is_stalled and store.size)):
            self.asked = True
            self.mark_unacknowledged()
            frames.append(self._half_full())
        if self._shared is not None:
            self._look()
        return frames

    def _take_untracked_replies(self, frames: list[EncodedFrame], store: FrameStore) -> None:
        """Take the replies without a position: they need no room in the store and leave even if it is full."""
        if store.room < WRITE_SIZE and self._replies:
            waiting, self._replies = self._replies, []
            for reply in waiting:
                if self._is_tracked(reply):
                    self._replies.append(reply)
                else:
                    self.mark_unacknowledged()
                    frames.append(reply)
                    self.reply_size -= len(reply)

    def _is_blocked_by_untracked(self) -> bool:
        """Return whether the next frame needs no room in the store; it may be larger than the store's limit."""
        if self._urgent or self._replies or not self._turns:
            return False
        head = self._turns[0].head
        return isinstance(head, bytes) and not self._is_tracked(head)

    def drop_begun(self, is_lost: Callable[[StreamQueue], bool]) -> None:
        """Drop the rest of the queues that began to leave over a lost transport and will not be sent again."""
        for queue in self._turns:
            if queue.left and is_lost(queue):
                self.discard(queue)

    def _drop_untracked(self) -> None:
        """Drop urgent frames and replies without a position: they concern streams or frames of the lost transport."""
        self._urgent = [entry for entry in self._urgent if not isinstance(entry, bytes) or self._is_tracked(entry)]
        kept = [reply for reply in self._replies if self._is_tracked(reply)]
        self.reply_size = sum(map(len, kept))
        self._replies = kept
