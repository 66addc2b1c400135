"""What waits in a lane as one entry, and leaves as many frames?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rsocket_trio.mux.framing import EncodedFrame


def frame_size(frame: EncodedFrame) -> int:
    """Bytes of a frame, whole or in pieces."""
    return len(frame) if isinstance(frame, bytes) else sum(map(len, frame))


class Bulk(Protocol):
    """Frames that are made when they leave the lane. ``size`` is the bytes still to come, as they count here."""

    size: int

    def next_size(self) -> int:
        """Bytes of the frame that comes next; 0 when none is left."""
        ...

    def take(self) -> EncodedFrame | None:
        """The next frame, or ``None`` if it is needed no more."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether all frames are out."""
        ...


class Source:
    """The fragments of a payload, which is not copied before they leave."""

    __slots__ = ("_frames", "_next", "begun", "size")

    def __init__(self, frames: Iterator[EncodedFrame], size: int) -> None:
        self._frames = frames
        self._next = next(frames, None)
        self.begun = False
        self.size = size

    def next_size(self) -> int:
        """Bytes of the frame that comes next; 0 when none is left."""
        return 0 if self._next is None else frame_size(self._next)

    def take(self) -> EncodedFrame | None:
        """The next frame."""
        self.begun = True
        frame = self._next
        self._next = next(self._frames, None)
        return frame

    @property
    def is_empty(self) -> bool:
        """Whether all frames are out."""
        return self._next is None
