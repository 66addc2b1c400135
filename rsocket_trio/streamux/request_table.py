"""Requests of both sides with their state, the ids in use (pings and cancelled ones too), and the bytes buffered."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import (
    BOTH,
    MAX_REQUEST_N,
    NEITHER,
    SENDING,
    Interaction,
    StreamIds,
    StreamQueue,
    StreamState,
)

if TYPE_CHECKING:
    from rsocket_trio.mux.reassembly import Reassembly

UNBOUNDED = MAX_REQUEST_N
"""Items that may be sent: the protocol has no credit, and this is the largest credit of a protocol that has."""


class Exchange(StreamState):
    """One request and its response.

    ``begun`` tells that this side's message has a chunk. ``dropping`` tells that the rest
    of the peer's request is dropped as it comes, and the id stays taken until its end. ``refused`` tells that the
    request was not wanted before it was answered. ``joined`` collects a message that is delivered as a whole,
    ``weight`` is the size in bytes of a whole request that its handler has.
    """

    __slots__ = ("begun", "dropping", "joined", "refused", "weight")

    room: int = UNBOUNDED

    def __init__(self, request_id: int, interaction: Interaction, *, requester: bool) -> None:
        # StreamQueue.__init__ is spelled out: one exchange is made for every request.
        self.head = None
        self.tail = None
        self.in_turn = False
        self.left = False
        self.ended = False
        self.id = request_id
        self.interaction = interaction
        self.requester = requester
        self.open = BOTH
        self.begun = False
        self.dropping = False
        self.refused = False
        self.joined: Reassembly | None = None
        self.weight = 0
        self.owner: Any = None


class Lock(enum.Enum):
    """An id of ours whose cancel waits for its ack (SMX-CAN-02)."""

    LOCKED = enum.auto()


LOCKED: Final = Lock.LOCKED


@attrs.frozen
class Ping:
    """An id of ours that a ping occupies until its ack (SMX-OOB-04); ``token`` identifies it to the connection."""

    token: object


Occupant: TypeAlias = Exchange | Ping | Lock


class RequestTable:
    """All request ids in use: ``mine`` of this side, ``theirs`` of the peer's requests.

    The two are apart: both sides may use one number at once (SMX-FLD-03). A request of the peer's stays until its last
    chunk left the outbox, so that a late cancel still finds it. ``is_full`` says that a new request of this side's has
    to wait for an id (SMX-FLD-07), ``draining`` that neither side may make new ones. ``reassembling`` is the size in
    bytes of all messages that are still being joined, ``buffered`` that of the requests that handlers have as a whole.
    """

    __slots__ = ("_cap", "_ids", "buffered", "draining", "is_full", "mine", "reassembling", "theirs")

    def __init__(self) -> None:
        self._cap = 0
        self._ids = StreamIds(0, 0, reuse=True, step=1)
        self.is_full = True
        self.draining = False
        self.reassembling = 0
        self.buffered = 0
        self.mine: dict[int, Occupant] = {}
        self.theirs: dict[int, Exchange] = {}

    def agree(self, id_cap: int, in_flight: int, randbelow: Callable[[int], int]) -> None:
        """Set the negotiated range of ids; the first one is unpredictable (SMX-FLD-04)."""
        self._cap = min(id_cap, in_flight)
        self._ids = StreamIds(0, id_cap - 1, reuse=True, step=1)
        self._ids.start_at(randbelow(id_cap))
        self.is_full = False

    @property
    def live(self) -> list[Exchange]:
        """The exchanges of both sides that are not over."""
        mine = [entry for entry in self.mine.values() if isinstance(entry, Exchange)]
        return mine + [entry for entry in self.theirs.values() if entry.open]

    @property
    def is_quiet(self) -> bool:
        """Return whether no exchange is open, and the last chunk of each has left."""
        return not self.live and all(entry.head is None for entry in self.theirs.values())

    def new(self, interaction: Interaction) -> Exchange:
        """Return a new request of this side's. Raise ``LocalProtocolError`` if all ids are in flight."""
        exchange = Exchange(self._take_id(), interaction, requester=True)
        self.mine[exchange.id] = exchange
        return exchange

    def new_ping(self, token: object) -> int:
        """Return the id of a new ping. Raise ``LocalProtocolError`` if all ids are in flight."""
        request_id = self._take_id()
        self.mine[request_id] = Ping(token)
        return request_id

    def release(self, request_id: int) -> None:
        """Release an id of this side's: its request or ping is answered, or its cancel acknowledged."""
        del self.mine[request_id]
        self.is_full = False

    def free(self, exchange: Exchange) -> None:
        """Free the id of an answered request of ours."""
        exchange.open = NEITHER
        if exchange.joined is not None:
            self.drop_joined(exchange)
        if self.mine.get(exchange.id) is exchange:
            self.release(exchange.id)

    def lock(self, exchange: Exchange) -> None:
        """Lock the id of a cancelled request of ours until the peer's ack."""
        exchange.open = NEITHER
        self.drop_joined(exchange)
        self.mine[exchange.id] = LOCKED

    def complete(self, exchange: Exchange) -> None:
        """Close this side's half: its last chunk is in the outbox."""
        exchange.open &= ~SENDING
        if not exchange.requester:
            self.lighten(exchange)
            exchange.ended = True  # ``forget`` ends it once its last chunk has left

    def forget(self, queue: StreamQueue) -> None:
        """End a response whose last chunk has left."""
        assert isinstance(queue, Exchange)
        if not queue.requester and not queue.open and not queue.dropping:
            self.over(queue)

    def over(self, exchange: Exchange) -> None:
        """Free the id of a peer's request that is answered or cancelled."""
        exchange.open = NEITHER
        if exchange.joined is not None:
            self.drop_joined(exchange)
        if exchange.weight:
            self.lighten(exchange)
        if self.theirs.get(exchange.id) is exchange:
            del self.theirs[exchange.id]

    def lighten(self, exchange: Exchange) -> None:
        """Release the weight of a request whose handler is done with it."""
        self.buffered -= exchange.weight
        exchange.weight = 0

    def drop_joined(self, exchange: Exchange) -> None:
        """Drop the received part of a message that is not whole."""
        if exchange.joined is not None:
            self.reassembling -= exchange.joined.size
            exchange.joined = None

    def _take_id(self) -> int:
        """Return an id that the caller occupies at once."""
        if self.is_full:
            raise LocalProtocolError(f"all {self._cap} request ids are in flight")
        self.is_full = len(self.mine) + 1 >= self._cap
        return self._ids.take(self.mine)
