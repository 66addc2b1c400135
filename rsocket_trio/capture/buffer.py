"""Where do frames wait to be looked at? Between the connections, which only append, and the one thread that reads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rsocket_trio.capture.connections import Kept
from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.mux.recording import Facts

RECEIVED: Final = 0
SENT: Final = 1
OPENED: Final = 2
CLOSED: Final = 3
OVER: Final = 4


class Entry(NamedTuple):
    """Something that was seen. ``frames`` passed, or ``text`` says why something ended.

    ``dropped`` are the frames of its connection that were not kept since its last entry.
    """

    source: Recorded
    kind: int
    now: int
    frames: list[Kept]
    size: int
    dropped: int
    text: str = ""


class Buffer:
    """What waits, bounded by frames and by bytes. All connections append in one thread; another one takes.

    No lock is needed: each number has one thread that changes it, and a ``deque`` may be used from both ends.
    ``wake`` is called when the buffer is half full.
    """

    def __init__(self, most_frames: int, most_bytes: int, wake: Callable[[], object]) -> None:
        self._entries: deque[Entry] = deque()
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._half = max(1, most_frames // 2), max(1, most_bytes // 2)
        self._wake = wake
        self._put_frames = self._put_bytes = 0
        self._taken_frames = self._taken_bytes = 0
        self.dropped = 0
        """Frames for which there was no room."""
        self.is_shut = False
        """Whether nothing more is taken: the capture is over, or has failed."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def frames(self) -> int:
        """Frames that wait."""
        return self._put_frames - self._taken_frames

    def put(self, source: Recorded, kind: int, frames: list[Kept], size: int) -> None:
        """Keep frames if there is room, else count them."""
        number = len(frames)
        waiting, held = self._put_frames - self._taken_frames, self._put_bytes - self._taken_bytes
        if self.is_shut or waiting >= self._most_frames or held >= self._most_bytes or source.is_lost:
            self.dropped += number
            source.dropped += number
            return
        self._put_frames += number
        self._put_bytes += size
        dropped, source.dropped = source.dropped, 0
        self._entries.append(Entry(source, kind, time.monotonic_ns(), frames, size, dropped))
        if waiting + number >= self._half[0] or held + size >= self._half[1]:
            self._wake()

    def tell(self, source: Recorded, kind: int, text: str = "") -> None:
        """Keep word of a connection; the beginning of one only where there is room for what it will say."""
        if self.is_shut or source.is_lost:
            return
        if kind == OPENED and len(self._entries) >= self._most_frames:
            source.is_lost = True
            return
        dropped, source.dropped = source.dropped, 0
        self._entries.append(Entry(source, kind, time.monotonic_ns(), [], 0, dropped, text))

    def take(self) -> Entry | None:
        """What waits longest."""
        try:
            entry = self._entries.popleft()
        except IndexError:
            return None
        self._taken_frames += len(entry.frames)
        self._taken_bytes += entry.size
        return entry


class Recorded:
    """The recorder of one transport connection: it appends, and nothing else."""

    __slots__ = ("_buffer", "dropped", "facts", "is_lost")

    def __init__(self, buffer: Buffer, facts: Facts) -> None:
        self._buffer = buffer
        self.facts = facts
        self.dropped = 0
        self.is_lost = False
        """Whether the capture never heard of it: there was no room."""
        buffer.tell(self, OPENED)

    def received(self, frames: Sequence[bytes]) -> None:
        """Whole frames came; in Streamux, bytes."""
        kept: list[Kept] = list(frames)
        self._buffer.put(self, RECEIVED, kept, sum(map(len, frames)))

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        """These frames leave in one write. Of one in pieces only the first is kept: the others are the user's data."""
        kept: list[Kept] = []
        size = 0
        for frame in frames:
            if isinstance(frame, bytes):
                kept.append(frame)
                size += len(frame)
            else:
                head = bytes(frame[0])
                kept.append((head, sum(map(len, frame[1:]))))
                size += len(head)
        self._buffer.put(self, SENT, kept, size)

    def closed(self, reason: str) -> None:
        """The transport is closed, or lost."""
        self._buffer.tell(self, CLOSED, reason)

    def over(self, reason: str) -> None:
        """The session that began here is over."""
        self._buffer.tell(self, OVER, reason)
