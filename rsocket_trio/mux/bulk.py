"""Lane entries that leave as several frames, such as the fragments of a large payload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rsocket_trio.mux.framing import EncodedFrame


class Bulk(Protocol):
    """Frames that are made when they leave the lane. ``size`` is the bytes still to come, as the lane counts them."""

    size: int

    @property
    def next_size(self) -> int:
        """Return the bytes of the next frame; 0 when none is left."""
        ...

    def take(self) -> EncodedFrame | None:
        """Return the next frame, or ``None`` if it is needed no more."""
        ...


class Source:
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
