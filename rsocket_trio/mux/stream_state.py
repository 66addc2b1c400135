"""The state of a stream: its interaction, its open directions, and the table of moves that need and close them."""

from __future__ import annotations

import enum
from typing import Any, Protocol

import attrs

from rsocket_trio.errors import LocalProtocolError

NEITHER = 0
SENDING = 1
RECEIVING = 2
BOTH = SENDING | RECEIVING


class Interaction(enum.StrEnum):
    """The kind of a request. The value is the name that users know it by, and the member equals it."""

    REQUEST_RESPONSE = "request_response"
    FIRE_AND_FORGET = "fire_and_forget"
    REQUEST_STREAM = "request_stream"
    REQUEST_SUBSCRIPTION = "request_subscription"
    REQUEST_CHANNEL = "request_channel"

    # A text keeps its hash, which is much cheaper than Enum's own hash of the name.
    __hash__ = str.__hash__


# The members that each request is compared with: on Python 3.11 a member costs several times as much as a global.
REQUEST_RESPONSE = Interaction.REQUEST_RESPONSE
FIRE_AND_FORGET = Interaction.FIRE_AND_FORGET
REQUEST_CHANNEL = Interaction.REQUEST_CHANNEL


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
RECEIVE_COMPLETE       = Move("be completed",                     RECEIVING, RECEIVING)
RECEIVE_LAST_WORD      = Move("be completed both ways",           RECEIVING, BOTH)
RECEIVE_HALF_CANCEL    = Move("have this half cancelled",         SENDING,   SENDING)
# fmt: on


def applied(move: Move, open_halves: int) -> int:
    """Return the directions that stay open after the move. Raise ``LocalProtocolError`` if it needs a closed one."""
    if move.needs & ~open_halves:
        raise LocalProtocolError(f"cannot {move.name}: that direction is closed")
    return open_halves & ~move.closes


class StreamState(Protocol):
    """The state of a session's stream that a connection may use.

    ``owner`` belongs to the connection: the object that waits for the stream's events, or ``None``. ``open`` are the
    open halves, ``room`` the items that may be sent, ``left`` says that a frame of it was sent.
    """

    id: int
    interaction: Interaction
    requester: bool
    owner: Any
    room: int
    open: int
    left: bool
