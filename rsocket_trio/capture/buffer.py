"""The bounded buffer of captured frames between the connections, which append, and the one thread that reads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rsocket_trio.capture.connection_decoder import CapturedFrame
from rsocket_trio.mux.framing import EncodedFrame, Facts

RECEIVED: Final = 0
SENT: Final = 1
OPENED: Final = 2
CLOSED: Final = 3
OVER: Final = 4


class BufferEntry(NamedTuple):
    """An observed event: ``frames`` passed, or ``text`` says why a transport or session ended.

    ``dropped`` counts the frames of its connection that were not kept since its last entry.
    """

    source: Recorded
    kind: int
    now: int
    frames: Sequence[CapturedFrame]
    size: int
    dropped: int
    text: str = ""

    def __repr__(self) -> str:
        return f"<capture entry of {len(self.frames)} frames>"


class FrameBuffer:
    """A queue of entries, bounded by frames and bytes. All connections append in one thread; another thread takes.

    No lock is needed: each counter is changed by one thread only, and a ``deque`` is safe to use from both ends.
    ``wake`` is called when the buffer is half full.
    """

    def __init__(self, most_frames: int, most_bytes: int, wake: Callable[[], object]) -> None:
        self._entries: deque[BufferEntry] = deque()
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._half = max(1, most_frames // 2), max(1, most_bytes // 2)
        self._wake = wake
        self._put_frames = self._put_bytes = 0
        self._taken_frames = self._taken_bytes = 0
        self.dropped = 0
        """Frames for which there was no room."""
        self.is_shut = False
        """True if new entries are refused: the capture is over, or has failed."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(
        self, source: Recorded, kind: int, frames: Sequence[CapturedFrame] = (), size: int = 0, text: str = ""
    ) -> None:
        """Append an event of a connection; where there is no room, drop its frames, or a connection that starts."""
        number = len(frames)
        waiting, held = self._put_frames - self._taken_frames, self._put_bytes - self._taken_bytes
        if kind == OPENED and len(self._entries) >= self._most_frames:
            source.is_lost = True
        is_full = waiting >= self._most_frames or held >= self._most_bytes
        if self.is_shut or source.is_lost or (is_full and number):
            self.dropped += number
            source.dropped += number
            return
        self._put_frames += number
        self._put_bytes += size
        dropped, source.dropped = source.dropped, 0
        self._entries.append(BufferEntry(source, kind, time.monotonic_ns(), frames, size, dropped, text))
        # Wakes the writing thread early, so that a burst need not wait for its next look.
        if number and (waiting + number >= self._half[0] or held + size >= self._half[1]):
            self._wake()

    def take(self) -> BufferEntry | None:
        """Remove and return the oldest entry, or ``None`` if the buffer is empty."""
        try:
            entry = self._entries.popleft()
        except IndexError:
            return None
        self._taken_frames += len(entry.frames)
        self._taken_bytes += entry.size
        return entry


class Recorded:
    """The recorder of one transport connection; it only appends to the buffer."""

    __slots__ = ("_buffer", "dropped", "facts", "is_lost")

    def __init__(self, buffer: FrameBuffer, facts: Facts) -> None:
        self._buffer = buffer
        self.facts = facts
        self.dropped = 0
        self.is_lost = False
        """True if the capture does not know the connection, because the buffer was full at its start."""
        buffer.put(self, OPENED)

    def received(self, frames: Sequence[bytes]) -> None:
        """Record received frames; in Streamux, received bytes."""
        self._buffer.put(self, RECEIVED, list(frames), sum(map(len, frames)))

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        """Record the frames of one write. Of a frame in pieces only the first is kept: the others are user data."""
        kept: list[CapturedFrame] = []
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
        """Record that the transport is closed or lost."""
        self._buffer.put(self, CLOSED, text=reason)

    def over(self, reason: str) -> None:
        """Record the end of the session that began on this connection."""
        self._buffer.put(self, OVER, text=reason)
