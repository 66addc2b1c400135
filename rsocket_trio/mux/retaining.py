"""What has left and may have to be sent again: frames with positions, kept until the peer is known to have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.mux.lane import Lane
from rsocket_trio.mux.outbox import WRITE_SIZE, Outbox


class FrameStore:
    """Frames that left, in order. ``position`` is where the next one will begin, ``first`` where the oldest kept does.

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
        """Bytes kept."""
        return self.position - self.first

    @property
    def room(self) -> int:
        """Bytes that may still be kept."""
        return self.limit - self.size

    def append(self, frame: bytes) -> None:
        """A frame leaves."""
        self._frames.append(frame)
        self.position += len(frame)

    def trim(self, position: int) -> None:
        """The peer has everything before this position. One that is old, or was never reached, means nothing."""
        if not self.first < position <= self.position:
            return
        frames, first = self._frames, self.first
        while frames and first + len(frames[0]) <= position:
            first += len(frames.popleft())
        self.first = first

    def serves(self, position: int) -> bool:
        """Whether everything from this position on is here, and a frame begins there."""
        if not self.first <= position <= self.position:
            return False
        here = self.first
        for frame in self._frames:
            if here >= position:
                break
            here += len(frame)
        return here == position

    def kept(self) -> list[bytes]:
        """All frames kept."""
        return list(self._frames)


class RetainingOutbox(Outbox):
    """An outbox whose frames are kept when they leave, once ``retain`` was called.

    A frame that the store has no room for does not leave. ``is_tracked`` tells which frames have a position, and
    whoever has it retain may ask to be told of each that leaves, and say the same of it;
    ``half_full`` is asked for a frame to send at once when the store is half full, or has no room for what is next;
    ``overflow`` whether to keep nothing any more when that was asked and there is still no room.
    """

    __slots__ = (
        "_again",
        "_half_full",
        "_is_tracked",
        "_leaves",
        "_overflow",
        "_signals",
        "asked",
        "is_stalled",
        "store",
    )

    def __init__(
        self,
        limit: int,
        drained: Callable[[Lane], None],
        is_tracked: Callable[[bytes], bool],
        half_full: Callable[[], bytes],
        overflow: Callable[[], bool],
    ) -> None:
        super().__init__(limit, drained)
        self._is_tracked = self._leaves = is_tracked
        self._half_full = half_full
        self._overflow = overflow
        self._signals: deque[bytes] = deque()
        self._again: deque[bytes] = deque()
        self.asked = False
        self.is_stalled = False
        self.store: FrameStore | None = None

    def __bool__(self) -> bool:
        return bool(self._signals or self._again) or super().__bool__()

    def retain(self, limit: int, leaves: Callable[[bytes], bool] | None = None) -> None:
        """Keep what leaves from now on, up to so many bytes. ``leaves`` hears of each frame before it is kept, and says
        whether it has a position."""
        self.store = FrameStore(limit)
        if leaves is not None:
            self._leaves = leaves

    def forgo(self) -> None:
        """Keep nothing any more: over no other transport will anything be sent again. What was to be still is here."""
        self.store = None

    def discard_lanes(self) -> None:
        """Drop what waits in all lanes, and what was to be sent again."""
        self._again.clear()
        super().discard_lanes()

    def clear(self) -> None:
        """Keep nothing, of what left and of what waits."""
        super().clear()
        self._signals.clear()
        self.forgo()

    def again(self, first: bytes | None) -> None:
        """Send everything that is kept once more, behind this frame, and before anything that has not left yet.

        What only the lost transport mattered to, and what waits without a position, is not sent any more.
        """
        assert self.store is not None
        self._signals.clear()
        self._drop_untracked()
        if first is not None:
            self._signals.append(first)
        self._again = deque(self.store.kept())
        self.asked = self.is_stalled = False

    def release(self, first: bytes) -> None:
        """Let go, and this frame goes before all others."""
        self._held = False
        self._signals.appendleft(first)

    def drop_held(self) -> None:
        """Forget what was held, beside replies; does nothing where nothing is held."""
        if self._held:
            self._signals.clear()
        super().drop_held()

    def put_signal(self, frame: bytes) -> None:
        """Put a frame that has no position: it leaves whatever the store has room for."""
        self._signals.append(frame)

    def take(self, limit: int = WRITE_SIZE, room: int | None = None) -> list[EncodedFrame]:
        """The frames of the next write."""
        store = self.store
        if self._held:
            return []
        frames: list[EncodedFrame] = []
        total = 0
        signals, again = self._signals, self._again
        if signals or again:
            self.unheard()
        while signals and total < limit:
            signal = signals.popleft()
            frames.append(signal)
            total += len(signal)
        while again and total < limit:
            frame = again.popleft()
            frames.append(frame)
            total += len(frame)
        if again or total >= limit:
            return frames
        if store is None:
            return frames + super().take(limit - total)
        self._take_untracked_replies(frames, store)
        leaving = super().take(limit - total, store.room)
        if not leaving and self._is_blocked_by_untracked():
            leaving = super().take(1)
        self.is_stalled = not leaving and super().__bool__()
        if self.is_stalled and (self.asked or store.size == 0) and self._overflow():
            self.is_stalled = False
            return frames + super().take(limit - total)
        for taken in leaving:
            kept = whole(taken)
            frames.append(kept)
            if self._leaves(kept):
                store.append(kept)
        if not self.asked and (store.size * 2 >= store.limit or (self.is_stalled and store.size)):
            self.asked = True
            self.unheard()
            frames.append(self._half_full())
        return frames

    def _take_untracked_replies(self, frames: list[EncodedFrame], store: FrameStore) -> None:
        """Answers without a position need no room in the store, and go even if it is full."""
        if store.room < WRITE_SIZE and self._replies:
            waiting, self._replies = self._replies, []
            for reply in waiting:
                if self._is_tracked(reply):
                    self._replies.append(reply)
                else:
                    self.unheard()
                    frames.append(reply)
                    self.reply_size -= len(reply)

    def _is_blocked_by_untracked(self) -> bool:
        """Whether what leaves next needs no room in the store, where it may be larger than that ever is."""
        if self._urgent or self._replies or not self._turns:
            return False
        head = self._turns[0].head
        return isinstance(head, bytes) and not self._is_tracked(head)

    def drop_begun(self, is_lost: Callable[[Lane], bool]) -> None:
        """Forget the rest of what began to leave over a link that is gone, and will not be sent again."""
        for lane in self._turns:
            if lane.left and is_lost(lane):
                self.discard(lane)

    def _drop_untracked(self) -> None:
        """What is about streams that went with their transport, or answers what came over it."""
        self._urgent = [entry for entry in self._urgent if not isinstance(entry, bytes) or self._is_tracked(entry)]
        kept = [reply for reply in self._replies if self._is_tracked(reply)]
        self.reply_size = sum(map(len, kept))
        self._replies = kept
