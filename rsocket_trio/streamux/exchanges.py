"""Which request ids are taken, and by what: requests of both sides, pings, and ids that wait for a cancel ack."""

from __future__ import annotations

import enum
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, TypeAlias

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.credit import MAX_REQUEST_N
from rsocket_trio.mux.halves import BOTH, NEITHER
from rsocket_trio.mux.ids import RoundIds
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.mux.lane import Lane

UNBOUNDED = MAX_REQUEST_N
"""Items that may be sent: the protocol has no credit, and so much can be handed on where there is one."""


class Exchange(Lane):
    """One request and its response. It is its own lane in the outbox.

    ``open`` are its open halves, ``begun`` says that this side's message has a chunk. ``dropping`` says that the rest
    of the peer's request is not wanted: it is dropped as it comes, and the id stays taken. ``refused`` says that it is
    not wanted although it was not answered. ``joined`` is a message that is wanted as a whole and still arrives,
    ``weight`` the bytes of a request that its handler has as a whole. ``owner`` belongs to the connection.
    """

    __slots__ = ("begun", "dropping", "id", "interaction", "joined", "open", "owner", "refused", "requester", "weight")

    room: int = UNBOUNDED

    def __init__(self, request_id: int, interaction: Interaction, *, requester: bool) -> None:
        # Lane.__init__ is spelled out: one exchange is made for every request.
        self.head = None
        self.rest = None
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
        self.joined: BytesIO | None = None
        self.weight = 0
        self.owner: Any = None

    def __repr__(self) -> str:
        side = "ours" if self.requester else "theirs"
        return f"<Exchange {self.id} {self.interaction.value}, {side}, open {self.open}>"


class Lock(enum.Enum):
    """An id of ours whose cancel waits for its ack (SMX-CAN-02)."""

    LOCKED = enum.auto()


LOCKED: Final = Lock.LOCKED


class Ping:
    """An id of ours that a ping occupies until its ack (SMX-OOB-04); ``token`` is what the connection knows it by."""

    __slots__ = ("token",)

    def __init__(self, token: object) -> None:
        self.token = token


Occupant: TypeAlias = Exchange | Ping | Lock


class Exchanges:
    """All ids that are taken: ``mine`` by this side, ``theirs`` by the peer's requests.

    The two are apart: both sides may use one number at once (SMX-FLD-03). A request of the peer's stays until its last
    chunk left the outbox, so that a late cancel still finds it. ``joining`` is the bytes of all messages that still
    arrive to be joined, ``in_hand`` of the requests that handlers have as a whole.
    """

    __slots__ = ("_cap", "_ids", "in_hand", "joining", "mine", "theirs")

    def __init__(self) -> None:
        self._cap = 0
        self._ids = RoundIds(1, 0)
        self.joining = 0
        self.in_hand = 0
        self.mine: dict[int, Occupant] = {}
        self.theirs: dict[int, Exchange] = {}

    def agree(self, id_cap: int, in_flight: int, randbelow: Callable[[int], int]) -> None:
        """The range of ids is known; the first one is unpredictable (SMX-FLD-04)."""
        self._cap = min(id_cap, in_flight)
        self._ids = RoundIds(id_cap, randbelow(id_cap))

    @property
    def is_full(self) -> bool:
        """Whether a new request has to wait for an id (SMX-FLD-07)."""
        return len(self.mine) >= self._cap

    @property
    def live(self) -> list[Exchange]:
        """The exchanges of both sides that are not over."""
        mine = [entry for entry in self.mine.values() if isinstance(entry, Exchange)]
        return mine + [entry for entry in self.theirs.values() if entry.open]

    @property
    def is_quiet(self) -> bool:
        """Whether no exchange is open, and the last chunk of each has left."""
        return not self.live and all(entry.head is None for entry in self.theirs.values())

    def new(self, interaction: Interaction) -> Exchange:
        """A request of this side's. Raises ``LocalProtocolError`` when all ids are in flight."""
        exchange = Exchange(self._take_id(), interaction, requester=True)
        self.mine[exchange.id] = exchange
        return exchange

    def new_ping(self, token: object) -> int:
        """The id of a ping. Raises ``LocalProtocolError`` when all ids are in flight."""
        request_id = self._take_id()
        self.mine[request_id] = Ping(token)
        return request_id

    def free(self, exchange: Exchange) -> None:
        """A request of ours is answered: its id may be used again."""
        exchange.open = NEITHER
        self.drop_joined(exchange)
        if self.mine.get(exchange.id) is exchange:
            del self.mine[exchange.id]

    def lock(self, exchange: Exchange) -> None:
        """A request of ours is cancelled: its id is not used before the ack."""
        exchange.open = NEITHER
        self.drop_joined(exchange)
        self.mine[exchange.id] = LOCKED

    def over(self, exchange: Exchange) -> None:
        """A request of the peer's is answered or cancelled: its id may be used again."""
        exchange.open = NEITHER
        self.drop_joined(exchange)
        self.lighten(exchange)
        if self.theirs.get(exchange.id) is exchange:
            del self.theirs[exchange.id]

    def lighten(self, exchange: Exchange) -> None:
        """The handler has done with the request."""
        self.in_hand -= exchange.weight
        exchange.weight = 0

    def drop_joined(self, exchange: Exchange) -> None:
        """Drop what came of a message that is not whole."""
        if exchange.joined is not None:
            self.joining -= exchange.joined.tell()
            exchange.joined = None

    def forget(self, lane: Lane) -> None:
        """The last chunk of a response has left."""
        assert isinstance(lane, Exchange)
        if not lane.requester and not lane.open and not lane.dropping:
            self.over(lane)

    def _take_id(self) -> int:
        if self.is_full:
            raise LocalProtocolError(f"all {self._cap} request ids are in flight")
        return self._ids.take(self.mine)
