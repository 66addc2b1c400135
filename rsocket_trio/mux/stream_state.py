"""The state of a stream: its interaction, its open directions, the moves that need and close them, ids and credit."""

from __future__ import annotations

import enum
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections import deque

    from rsocket_trio.mux.outbox import QueueEntry

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


class StreamQueue:
    """The waiting frames of one stream. A stream is its own queue: protocols derive their stream state from it.

    ``left`` says that a frame of it was taken already, ``ended`` that the owner is done once it is empty.
    """

    __slots__ = ("ended", "head", "in_turn", "left", "tail")

    head: QueueEntry | None
    tail: deque[QueueEntry] | None

    def __init__(self) -> None:
        # Most streams hold one frame at a time, and an empty deque costs 600 bytes.
        self.head = None
        self.tail = None
        self.in_turn = False
        self.left = False
        self.ended = False


class StreamState(StreamQueue):
    """A stream of a session, which is its own queue in the outbox.

    ``owner`` belongs to the connection: the object that waits for the stream's events, or ``None``. ``open`` are the
    open halves, ``room`` the items that may be sent, ``requester`` says that this side opened it.
    """

    __slots__ = ("id", "interaction", "open", "owner", "requester")

    id: int
    interaction: Interaction
    requester: bool
    owner: Any
    room: int
    open: int

    def __repr__(self) -> str:
        side = "ours" if self.requester else "theirs"
        return f"<{type(self).__name__} {self.id} {self.interaction.value}, {side}, open {self.open}>"


class StreamIds:
    """Ids from ``first`` by ``step`` up to ``last``; then again from the start, if the dialect allows re-use.

    A dialect without re-use refuses new streams once the range is used up (RS02-SID-05); one with re-use wraps and
    skips ids still in use (RS10-SID-07).
    """

    __slots__ = ("_first", "_last", "_next", "_reuse", "_size", "_step")

    def __init__(self, first: int, last: int, *, reuse: bool, step: int = 2) -> None:
        self._last = last
        self._reuse = reuse
        self._step = step
        self._first = self._next = first
        self._size = (last - first) // step + 1

    def start_at(self, stream_id: int) -> None:
        """Continue from this id, which must be in this side's range."""
        if (stream_id - self._first) % self._step or not self._first <= stream_id <= self._last:
            second = self._first + self._step
            raise ValueError(f"stream id {stream_id} is not one of {self._first}, {second} ... {self._last}")
        self._next = stream_id

    def begin_at(self, first: int) -> None:
        """Use the range from this id on. No id may have been taken before."""
        self._first = self._next = first
        self._size = (self._last - first) // self._step + 1

    def take(self, in_use: Container[int]) -> int:
        """Return the next free id. Raise ``LocalProtocolError`` if there is none: a new connection is needed."""
        stream_id = self._next
        if stream_id <= self._last and stream_id not in in_use:
            self._next = stream_id + self._step
            return stream_id
        return self._search(in_use)

    def _search(self, in_use: Container[int]) -> int:
        for _ in range(self._size):
            if self._next > self._last:
                if not self._reuse:
                    break
                self._next = self._first
            stream_id = self._next
            self._next += self._step
            if stream_id not in in_use:
                return stream_id
        raise LocalProtocolError(f"no stream id up to {self._last} is left on this connection")


MAX_REQUEST_N = 2**31 - 1
"""The largest number that one REQUEST_N or initial request-n can say."""

UNBOUNDED = 1 << 62
"""A credit that no peer uses up, for one that pays no heed to credit at all."""


class Window:
    """Tops credit up when half of it was used, so that the peer never waits for a reader that keeps up.

    ``size`` is the credit that a stream starts with, in items; ``used`` is how many were read since the last time, and
    ``half`` when that is enough.
    """

    __slots__ = ("half", "used")

    def __init__(self, size: int) -> None:
        self.half = max(1, size // 2)
        self.used = 0

    def use(self, items: int = 1) -> bool:
        """Count items that their reader took. Return whether it is time to top up."""
        self.used += items
        return self.used >= self.half

    def refill(self) -> int:
        """Return the credit to grant now: one for each item used since the last time, possibly 0."""
        used, self.used = self.used, 0
        return used


@attrs.define(eq=False, repr=False)
class Permits:
    """The permits of the last LEASE, which replaces all former ones; an expired or absent lease has none.

    Time to live counts from reception, or from sending at the side that granted (RS10-LEASE-04). The side that granted
    has to reckon with requests that were on their way when it renewed: they used the former lease. ``crossing`` is
    for how many seconds what was left of that is honoured beside a new lease, unless that stops all requests.
    """

    _crossing: float = 0.0
    _left: int = 0
    _expires: float = 0.0
    _former: int = 0
    _former_expires: float = 0.0

    def grant(self, number_of_requests: int, time_to_live: float, now: float) -> None:
        """Replace the lease by one that was received or sent."""
        if self._crossing and number_of_requests:
            self._former = self.remaining(now)
            self._former_expires = min(self._expires, now + self._crossing)
        else:
            self._former = 0
        self._left = number_of_requests
        self._expires = now + time_to_live

    def remaining(self, now: float) -> int:
        """Return the number of requests that may still be sent."""
        return self._left if now < self._expires else 0

    def expires_in(self, now: float) -> float:
        """Return the seconds until the lease expires, 0 once it has."""
        return max(0.0, self._expires - now)

    def take(self, now: float, cost: int = 1) -> bool:
        """Use ``cost`` permits. Return ``False`` if fewer are left."""
        if self._former >= cost and now < self._former_expires:
            self._former -= cost
            return True
        if now >= self._expires or self._left < cost:
            return False
        self._left -= cost
        return True


def checked_request_n(request_n: int) -> int:
    """Return ``request_n``. Raise ``TypeError`` or ``ValueError``, which name it, if the wire can't carry it."""
    if type(request_n) is not int:
        raise TypeError(f"request_n is an int, not {type(request_n).__name__}")
    if not 1 <= request_n <= MAX_REQUEST_N:
        raise ValueError(f"request_n of {request_n}: must be between 1 and {MAX_REQUEST_N}")
    return request_n
