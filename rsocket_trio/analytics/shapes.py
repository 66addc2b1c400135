"""The twenty stream shapes of a synthetic capture, each with the interaction that pairing must derive from it."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.analytics.pairing import COMPLETE, FOLLOWS, NEXT


@attrs.frozen
class F:
    """One frame of a shape. ``asks``: whether the requester sends it."""

    type: str
    asks: bool
    flags: int = 0
    data: int = 0
    metadata: int = 0
    n: int | None = None
    credit: int | None = None
    pieces: int | None = None
    code: int | None = None


@attrs.frozen
class Shape:
    """The frames of a stream, a step of time apart, and the interaction that pairing must derive, in steps."""

    frames: tuple[F, ...]
    outcome: str = "complete"
    first: int | None = None
    last: int = 0
    stall: int = 0
    gap: int | None = None


ITEM, END, LAST = NEXT, COMPLETE, NEXT | COMPLETE
ASK = F("REQUEST_RESPONSE", True, 0x100, 120, 24, pieces=1)
WATCH = F("REQUEST_STREAM", True, 0x100, 40, 24, n=4, credit=4, pieces=1)
ANSWERED = Shape((ASK, F("PAYLOAD", False, LAST, 600, pieces=1)), first=1, last=1)
FAILED = Shape((ASK, F("ERROR", False, data=12, code=0x201)), "error", last=1)
REJECTED = Shape((ASK, F("ERROR", False, data=8, code=0x202)), "rejected", last=1)
GIVEN_UP = Shape((ASK, F("CANCEL", True), F("PAYLOAD", False, LAST, 600)), "cancel", last=1)
FORGOTTEN = Shape((F("REQUEST_FNF", True, 0x100, 200, 24, pieces=1),))
IN_PIECES = Shape(
    (
        F("REQUEST_RESPONSE", True, 0x100 | FOLLOWS, 1000, 24, pieces=0),
        F("PAYLOAD", True, ITEM, 700, pieces=2),
        F("PAYLOAD", False, ITEM | FOLLOWS, 1000, pieces=0),
        F("PAYLOAD", False, LAST, 300, pieces=2),
    ),
    *("complete", 3, 3),
)
# Four items, a stall of two steps, four more items.
WATCHED = Shape(
    (
        WATCH,
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2, 1, 0)),
        F("KEEPALIVE", True),
        F("REQUEST_N", True, n=4, credit=4),
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2, 1)),
        F("PAYLOAD", False, LAST, 300, credit=0, pieces=1),
    ),
    *("complete", 1, 10, 2, 3),
)
LEFT = Shape(
    (
        WATCH,
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2)),
        F("CANCEL", True),
        F("PAYLOAD", False, ITEM, 300),
    ),
    *("cancel", 1, 3, 0, 1),
)
TALKED = Shape(
    (
        F("REQUEST_CHANNEL", True, 0x100, 40, 24, n=8, credit=8, pieces=1),
        F("REQUEST_N", False, n=8, credit=8),
        F("PAYLOAD", True, ITEM, 150, credit=7, pieces=1),
        F("PAYLOAD", False, ITEM, 300, credit=7, pieces=1),
        F("PAYLOAD", True, END, credit=7, pieces=1),
        F("PAYLOAD", False, LAST, 300, credit=6, pieces=1),
    ),
    *("complete", 3, 5, 0, 2),
)
SHAPES: Final = (
    *(ANSWERED, WATCHED, ANSWERED, FORGOTTEN, ANSWERED, TALKED, ANSWERED, IN_PIECES, ANSWERED, WATCHED),
    *(ANSWERED, LEFT, ANSWERED, FAILED, ANSWERED, WATCHED, GIVEN_UP, TALKED, REJECTED, WATCHED),
)
PERIOD: Final = sum(len(shape.frames) for shape in SHAPES)
"""Number of frames of the twenty streams."""


def size_of(frame: F) -> int:
    """Return the bytes of a frame: header, metadata length if it has metadata, a number, data and metadata."""
    number = frame.n is not None or frame.code is not None
    return 6 + 3 * bool(frame.flags & 0x100) + 4 * number + frame.data + frame.metadata


def is_item(frame: F) -> bool:
    """Return whether this frame completes a payload."""
    whole = not frame.flags & FOLLOWS
    return whole and ((frame.type.startswith("REQUEST_") and frame.type != "REQUEST_N") or bool(frame.flags & NEXT))
