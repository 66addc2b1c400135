"""The streams of one session, their ids and the parity of the peer's, and late requests of streams that are over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rsocket_trio.mux.stream_state import (
    BOTH,
    FIRE_AND_FORGET,
    NEITHER,
    RECEIVING,
    REQUEST_CHANNEL,
    REQUEST_RESPONSE,
    SENDING,
    Interaction,
    StreamIds,
    StreamQueue,
    StreamState,
)

if TYPE_CHECKING:
    from rsocket_trio.mux.reassembly import PartialPayload
    from rsocket_trio.rsocket.dialect import Dialect
    from rsocket_trio.rsocket.frames import RequestFrame

REQUESTERS_HALVES = {
    REQUEST_RESPONSE: RECEIVING,
    FIRE_AND_FORGET: NEITHER,
    Interaction.REQUEST_STREAM: RECEIVING,
    Interaction.REQUEST_SUBSCRIPTION: RECEIVING,
    REQUEST_CHANNEL: BOTH,
}
RESPONDERS_HALVES = {kind: SENDING if halves == RECEIVING else halves for kind, halves in REQUESTERS_HALVES.items()}

REMEMBERED = 1024
"""The number of streams remembered that ended before their requester knew; the oldest is forgotten first."""


class Stream(StreamState):
    """One stream.

    ``granted`` are the items that the peer may still send, ``ahead`` whether it sent one item before it was granted,
    which is the only one. ``request`` is the request frame whose fragments still arrive, ``assembly`` any payload that
    does. ``item_head`` is the header of an item with nothing but data, once one was sent.
    """

    __slots__ = ("ahead", "assembly", "grant", "granted", "item_head", "item_sent", "request", "room")

    def __init__(self, stream_id: int, interaction: Interaction, halves: int, requester: bool) -> None:
        # StreamQueue.__init__ is spelled out, and arguments have no names: one stream is made for every request.
        self.head = None
        self.tail = None
        self.in_turn = False
        self.left = False
        self.ended = False
        self.id = stream_id
        self.interaction = interaction
        self.requester = requester
        self.open = halves
        self.room = 0
        self.granted = 0
        self.ahead = False
        self.item_sent = False
        self.item_head: bytes | None = None
        self.owner: Any = None
        self.assembly: PartialPayload | None = None
        self.request: RequestFrame | None = None
        self.grant: object | None = None


class StreamTable:
    """All streams that are not over: ``mine`` were opened by this side, ``theirs`` by the peer.

    A stream that has ended stays until its last frame left the outbox, so that a late CANCEL still finds it.
    ``reassembling`` is the bytes of all payloads that still arrive. ``late`` are streams of the peer's that this side
    ended or refused while the peer was still sending: where its items and fragments are request frames, what is on its
    way must not open them anew (ALL-RCT-14). ``learns`` says that the peer's parity is not certain yet;
    ``peer_ids`` are the ids with which it may open streams, ``ids`` the source of this side's.
    """

    __slots__ = (
        "_document_parity",
        "_last_id",
        "_requests_repeat",
        "ids",
        "late",
        "learns",
        "mine",
        "peer_ids",
        "reassembling",
        "theirs",
    )

    def __init__(self, dialect: Dialect, *, client: bool) -> None:
        first, peers_first = dialect.client_first_id, dialect.server_first_id
        if not client or dialect.client_swaps_ids:
            first, peers_first = peers_first, first
        self.ids = StreamIds(first, dialect.last_id, reuse=dialect.id_reuse)
        self._document_parity = peers_first % 2
        self._last_id = dialect.codec.layout.last_id
        self.learns = dialect.parity_is_learnt and not client
        # RS10-SID-03, -04; any unused one: RS10-SID-05
        has_any = self.learns or not dialect.ids_have_parity
        self.peer_ids = range(1 if has_any else 2 - self._document_parity, self._last_id + 1, 1 if has_any else 2)
        self._requests_repeat = dialect.request_repeats and dialect.request_fragments
        self.late: dict[int, Interaction] = {}
        self.reassembling = 0
        self.mine: dict[int, Stream] = {}
        self.theirs: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self.mine) + len(self.theirs)

    @property
    def peers_parity(self) -> str:
        """The parity of the peer's ids in a word, for messages about an id that is none of them."""
        return "odd" if self.peer_ids.start % 2 else "even"

    def learn(self, stream_id: int) -> None:
        """The peer keeps to the parity of this id, that of the first request, and this side takes the other."""
        self.learns = False
        parity = stream_id % 2
        if parity != self._document_parity:
            self.ids.begin_at(1 + parity)
        self.peer_ids = range(2 - parity, self._last_id + 1, 2)

    def find(self, stream_id: int) -> Stream | None:
        """Return the stream of this id, opened by either side; this side's where ids tell nothing."""
        return self.mine.get(stream_id) or self.theirs.get(stream_id)

    def all(self) -> list[Stream]:
        """Return the streams of both sides, as they are now."""
        return [*self.mine.values(), *self.theirs.values()]

    def new(self, interaction: Interaction) -> Stream:
        """Return a new stream of this side's. Raise ``LocalProtocolError`` when ids are used up."""
        stream_id = self.ids.take(self.mine)
        if self.learns:
            # ALL-RCT-12: the first to ask uses the document's parity, the other side the other.
            self.learn(self._document_parity)
        stream = Stream(stream_id, interaction, REQUESTERS_HALVES[interaction], True)
        if interaction is not FIRE_AND_FORGET:
            self.mine[stream_id] = stream
        return stream

    def end(self, stream: Stream) -> None:
        """Both halves are closed: forget the stream, at once or when its queue is empty."""
        stream.open = NEITHER
        if stream.assembly is not None:
            self.drop_assembly(stream)
        if stream.head is None:
            self.forget(stream)
        else:
            stream.ended = True

    def expect_late(self, stream_id: int, interaction: Interaction) -> None:
        """This side ended the peer's stream, or never let it open, and the peer may not know yet."""
        if self._requests_repeat:
            if len(self.late) >= REMEMBERED:
                del self.late[next(iter(self.late))]
            self.late[stream_id] = interaction

    def take_late(self, frame: RequestFrame) -> bool:
        """Take a request frame of such a stream, and forget it with the last. Return ``False`` for a new stream."""
        interaction = self.late.get(frame.stream_id)
        if interaction is None:
            return False
        if interaction is REQUEST_CHANNEL:
            late, over = not frame.initial_n, frame.complete  # RS01-CH-02: a later one grants nothing.
        else:
            late, over = True, not frame.follows or frame.complete
        late = late and frame.interaction is interaction
        if over or not late:
            del self.late[frame.stream_id]
        return late

    def drop_assembly(self, stream: Stream) -> None:
        """Drop the pieces of a payload that have come."""
        if stream.assembly is not None:
            self.reassembling -= stream.assembly.size
            stream.assembly = None

    def forget(self, queue: StreamQueue) -> None:
        """The last frame of a stream that ended has left."""
        assert isinstance(queue, Stream)
        table = self.mine if queue.requester else self.theirs
        if table.get(queue.id) is queue:
            del table[queue.id]
