"""The moves of a stream: the directions that each one needs open, and those that it closes."""

from __future__ import annotations

import attrs

from rsocket_trio.errors import LocalProtocolError

NEITHER = 0
SENDING = 1
RECEIVING = 2
BOTH = SENDING | RECEIVING


@attrs.frozen
class Move:
    """An action of this side or of the peer: the directions that it needs open and those that it closes."""

    name: str
    needs: int
    closes: int


# fmt: off
#                             the move                            needs      closes
SEND_NEXT              = Move("send a payload",                   SENDING,   NEITHER)
SEND_COMPLETE          = Move("complete",                         SENDING,   SENDING)
SEND_LAST_WORD         = Move("complete both ways",               SENDING,   BOTH)
SEND_ERROR             = Move("fail",                             SENDING,   BOTH)
SEND_CANCEL            = Move("cancel",                           NEITHER,   BOTH)
SEND_HALF_CANCEL       = Move("cancel the peer's half",           RECEIVING, RECEIVING)
RECEIVE_NEXT           = Move("receive a payload",                RECEIVING, NEITHER)
RECEIVE_COMPLETE       = Move("be completed",                     RECEIVING, RECEIVING)
RECEIVE_LAST_WORD      = Move("be completed both ways",           RECEIVING, BOTH)
RECEIVE_ERROR          = Move("be failed",                        NEITHER,   BOTH)
RECEIVE_CANCEL         = Move("be cancelled",                     NEITHER,   BOTH)
RECEIVE_HALF_CANCEL    = Move("have this half cancelled",         SENDING,   SENDING)
# fmt: on

MOVES: tuple[Move, ...] = (
    SEND_NEXT,
    SEND_COMPLETE,
    SEND_LAST_WORD,
    SEND_ERROR,
    SEND_CANCEL,
    SEND_HALF_CANCEL,
    RECEIVE_NEXT,
    RECEIVE_COMPLETE,
    RECEIVE_LAST_WORD,
    RECEIVE_ERROR,
    RECEIVE_CANCEL,
    RECEIVE_HALF_CANCEL,
)


def applied(move: Move, open_halves: int) -> int:
    """Return the directions that stay open after the move. Raise ``LocalProtocolError`` if it needs a closed one."""
    if move.needs & ~open_halves:
        raise LocalProtocolError(f"cannot {move.name}: that direction is closed")
    return open_halves & ~move.closes
