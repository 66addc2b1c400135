"""The lanes of the outbox, one for each stream, and the types of their entries and of urgent frames."""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeAlias

from rsocket_trio.mux.bulk import Bulk


class Departed(Protocol):
    """The owner of frames in the outbox; ``left`` says that one of them has left."""

    left: bool


class Late(Protocol):
    """An urgent frame that is encoded when it leaves, so that several of its kind become one (credit, leases)."""

    def encoded(self) -> bytes | None:
        """Return the frame as it stands now; ``None`` if it is needed no more."""
        ...


Entry: TypeAlias = bytes | Bulk
Urgent: TypeAlias = bytes | Late


class Lane:
    """The waiting frames of one stream. A stream is its own lane: protocols derive their stream state from it.

    ``left`` says that a frame of it was taken already, ``ended`` that the owner is done once it is empty.
    """

    __slots__ = ("ended", "head", "in_turn", "left", "rest")

    head: Entry | None
    rest: deque[Entry] | None

    def __init__(self) -> None:
        # Most streams hold one frame at a time, and an empty deque costs 600 bytes.
        self.head = None
        self.rest = None
        self.in_turn = False
        self.left = False
        self.ended = False
