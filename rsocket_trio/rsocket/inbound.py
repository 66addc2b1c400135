"""What a frame on a stream means: an event, an answer, an error of the peer's, or nothing."""

from __future__ import annotations

import attrs

from rsocket_trio.errors import RemoteProtocolError, stream_error
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    CreditGranted,
    Event,
    ItemReceived,
    RequestReceived,
    SendingCancelled,
    StreamCancelled,
    StreamCompleted,
    StreamFailed,
    StreamMetadataPushed,
)
from rsocket_trio.mux.fragments import Assembly
from rsocket_trio.mux.halves import (
    NEITHER,
    RECEIVE_COMPLETE,
    RECEIVE_HALF_CANCEL,
    RECEIVE_LAST_WORD,
    RECEIVING,
    SENDING,
    applied,
)
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.payload import MetadataPush, Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extension_terms import cost_of, misdirected
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
)
from rsocket_trio.rsocket.lease import CancelBudget, Permits
from rsocket_trio.rsocket.outbound import Outbound
from rsocket_trio.rsocket.streams import RESPONDERS_HALVES, Stream, StreamTable

REJECTED = 0x202
INVALID = 0x204
EMPTY = Payload()


class Inbound:
    """The rules for frames on streams. Events are collected in ``events``.

    ``now`` is the time of the frames at hand, ``draining`` refuses new requests, ``granted`` is what this side's
    lease still allows the peer (``None`` without leases), ``lingering`` are handlers that still run although their
    stream is over: they count as streams. ``ignored`` counts frames without effect, ``refused`` refused requests.
    """

    __slots__ = (
        "_cancels",
        "_outbound",
        "_outbox",
        "dialect",
        "draining",
        "events",
        "granted",
        "ignored",
        "limits",
        "lingering",
        "now",
        "refused",
        "table",
    )

    def __init__(
        self, dialect: Dialect, limits: Limits, table: StreamTable, outbound: Outbound, outbox: Outbox
    ) -> None:
        self.dialect = dialect
        self.limits = limits
        self.table = table
        self._outbound = outbound
        self._outbox = outbox
        self._cancels = CancelBudget(limits.cancels, limits.cancel_rate)
        self.events: list[Event] = []
        self.now = 0.0
        self.draining = False
        self.granted: Permits | None = None
        self.lingering = 0
        self.ignored = 0
        self.refused = 0

    def on_request(self, frame: RequestFrame) -> None:
        """A stream opens, unless its id is not the peer's to use or something refuses it."""
        stream_id = frame.stream_id
        if not self.table.is_peers(stream_id):
            self.ignored += 1  # ALL-RCT-12
            return
        live = self.table.theirs.get(stream_id)
        if live is not None:
            self._repeated_request(live, frame)
            return
        interaction = frame.interaction
        if self.table.late and self.table.is_late(frame):
            self.ignored += 1
            return
        answered = interaction is not Interaction.FIRE_AND_FORGET
        refusal = self._refusal(frame)
        if refusal is not None:
            self.refused += 1
            if not frame.complete and (frame.follows or interaction is Interaction.REQUEST_CHANNEL):
                self.table.expect_late(stream_id, interaction)
            if answered:
                self._outbound.refuse(stream_id, *refusal)
            return
        stream = Stream(stream_id, interaction, RESPONDERS_HALVES[interaction], requester=False)
        stream.room = 1 if interaction is Interaction.REQUEST_RESPONSE else frame.initial_n or 0
        if frame.follows and not frame.complete:
            self.table.theirs[stream_id] = stream
            # Without its payload, which is copied into the assembly: else the first pieces would be here twice.
            stream.request = attrs.evolve(frame, payload=EMPTY)
            self._continue_request(stream, frame.payload, follows=True, complete=False)
            return
        if answered:
            self.table.theirs[stream_id] = stream
        if frame.complete:
            stream.open &= ~RECEIVING
        self.events.append(RequestReceived(stream, frame.payload, not stream.open & RECEIVING, frame.extensions))

    def on_payload(self, frame: PayloadFrame) -> None:
        """An item, a fragment of one or of a request, or the end of the peer's half."""
        stream = self.table.mine.get(frame.stream_id) or self.table.theirs.get(frame.stream_id)
        if stream is None or (self.dialect.request_repeats and not stream.requester):
            self.ignored += 1  # RS10-UNX-12, ALL-RCT-14, RS01-FRAG-04
            return
        self._take(stream, frame)

    def check_reassembly(self) -> None:
        """Raise ``RemoteProtocolError`` for more than unfinished payloads may hold together."""
        limit = self.limits.reassembly_size
        if self.table.reassembling > limit:
            raise RemoteProtocolError(f"more than {limit} bytes in unfinished payloads")

    def _take(self, stream: Stream, frame: PayloadFrame) -> None:
        complete = frame.complete
        follows = frame.follows and not complete  # RS10-UNX-07
        if stream.request is not None:
            self._continue_request(stream, frame.payload, follows=follows, complete=complete)
        elif not stream.open & RECEIVING:
            self.ignored += 1
        elif follows or stream.assembly is not None:
            self._continue_item(stream, frame.payload, follows=follows, complete=complete)
        elif frame.next or (not complete and self.dialect.bare_payload_is_item and frame.payload != EMPTY):
            self._item(stream, frame.payload, complete)
        elif complete:
            self._completed(stream)  # what it carries is dropped: RS10-PAY-05
        else:
            self.ignored += 1  # RS10-PAY-03

    def on_error(self, frame: ErrorFrame) -> None:
        """The stream ends both ways."""
        table = self.table
        stream = table.find(frame.stream_id) if self.dialect.ids_have_parity else table.mine.get(frame.stream_id)
        table.late.pop(frame.stream_id, None)
        if stream is None or (stream.open == NEITHER and stream.request is None):
            self.ignored += 1  # RS10-UNX-11
            return
        self._spend_on(stream)
        known = stream.request is None
        self._drop(stream)
        if known:
            self.events.append(StreamFailed(stream, stream_error(frame.code, frame.data)))

    def on_cancel(self, frame: CancelFrame) -> None:
        """The peer wants no more items: of its requester's stream, or of our half of a channel."""
        stream = self.table.theirs.get(frame.stream_id)
        if stream is None:
            self.table.late.pop(frame.stream_id, None)
            self._half_cancel(self.table.mine.get(frame.stream_id))
            return
        ended, known = stream.open == NEITHER, stream.request is None
        if not ended:
            self._spend_on(stream)
        self._drop(stream)
        if known and not ended:
            self.events.append(StreamCancelled(stream))

    def on_metadata_push(self, frame: MetadataPushFrame) -> None:
        """Metadata for a stream: for our requester's, if both sides have one of that id (RS00-MP-04)."""
        table = self.table
        stream = table.mine.get(frame.stream_id) or table.theirs.get(frame.stream_id)
        if stream is None or stream.open == NEITHER or not self.dialect.pushes_on_streams:
            self.ignored += 1  # RS10-UNX-13
        else:
            self.events.append(StreamMetadataPushed(stream, MetadataPush(frame.metadata, frame.metadata_type)))

    def on_request_n(self, frame: RequestNFrame) -> None:
        """More items may be sent (cumulative, without upper wrap: ALL-RCT-09)."""
        # Where ids tell nothing, only a requester grants: then it is a stream of the peer's.
        stream = self.table.theirs.get(frame.stream_id) or self.table.mine.get(frame.stream_id)
        if stream is None or frame.request_n <= 0 or not stream.open & SENDING:
            self.ignored += 1  # ALL-RCT-08, RS10-UNX-18
            return
        if stream.interaction is Interaction.REQUEST_RESPONSE:
            return
        stream.room += frame.request_n
        if stream.request is None:
            self.events.append(CreditGranted(stream))

    def refuse_unread(self, stream_id: int, interaction: Interaction | None, code: int, text: str) -> None:
        """A request came of which only a part was not understood: answer it, unless its id is in use or not theirs."""
        if not self.table.is_peers(stream_id) or stream_id in self.table.theirs:
            self.ignored += 1  # ALL-RCT-12, RS10-UNX-09
            return
        self.refused += 1
        if interaction is not Interaction.FIRE_AND_FORGET:
            self._outbound.refuse(stream_id, code, text)

    def _refusal(self, frame: RequestFrame) -> tuple[int, str] | None:
        if frame.initial_n == 0 and self.dialect.zero_initial_n_invalid:
            return INVALID, "initial request-n of 0"  # RS10-N-01
        if frame.interaction not in self.dialect.interactions:
            return INVALID, f"{self.dialect.name} has no {frame.interaction.value}"
        if self.draining:
            return REJECTED, "no new requests: the connection is closing"  # RS02-ERR-08
        if len(self.table.theirs) + self.lingering >= self.limits.streams:
            return REJECTED, f"{self.limits.streams} streams are open already"
        if frame.extensions and misdirected(frame.extensions):
            return REJECTED, "a broker's address is unicast, multicast or shard"
        if self.granted is not None and not self.granted.take(self.now, cost_of(frame.extensions)):
            return REJECTED, self.dialect.lease_refusal
        return None

    def _repeated_request(self, live: Stream, frame: RequestFrame) -> None:
        waits = live.request is not None and frame.interaction is live.interaction
        if waits and self.dialect.request_continues:
            follows = frame.follows and not frame.complete
            self._continue_request(live, frame.payload, follows=follows, complete=frame.complete)
        elif live.interaction is frame.interaction and self.dialect.channel_items_are_requests and live.request is None:
            self._channel_item(live, frame)
        else:
            self.ignored += 1  # RS10-UNX-09

    def _channel_item(self, stream: Stream, frame: RequestFrame) -> None:
        """RS01-CH-02: a further REQUEST_CHANNEL is an item; a number that it carries is added as credit."""
        if stream.interaction is not Interaction.REQUEST_CHANNEL:
            self.ignored += 1
            return
        if frame.initial_n and stream.open & SENDING:
            stream.room += frame.initial_n
            self.events.append(CreditGranted(stream))
        empty = not frame.payload.data and frame.payload.metadata is None
        # RS01-RSP-03: an empty one that completes is no item.
        item = not (frame.complete and empty)
        self._take(stream, PayloadFrame(frame.stream_id, frame.payload, item, frame.complete, frame.follows))

    def _continue_request(self, stream: Stream, payload: Payload, *, follows: bool, complete: bool) -> None:
        joined = self._assemble(stream, payload, follows=follows)
        if joined is None:
            return
        request, stream.request = stream.request, None
        if stream.interaction is Interaction.FIRE_AND_FORGET:
            self.table.end(stream)
        if complete:
            stream.open &= ~RECEIVING
        entries = () if request is None else request.extensions
        self.events.append(RequestReceived(stream, joined, not stream.open & RECEIVING, entries))

    def _continue_item(self, stream: Stream, payload: Payload, *, follows: bool, complete: bool) -> None:
        if stream.assembly is None and stream.granted <= 0:
            self._surplus(stream)
            return
        joined = self._assemble(stream, payload, follows=follows)
        if joined is not None:
            self._item(stream, joined, complete)

    def _assemble(self, stream: Stream, payload: Payload, *, follows: bool) -> Payload | None:
        """The whole payload once its last piece came. A piece too many ends the stream, and its rest is ignored."""
        assembly = stream.assembly
        typed = payload.data_mime is not None or payload.metadata_mime is not None
        if assembly is None:
            stream.assembly = assembly = Assembly(payload.data_mime, payload.metadata_mime)
        elif typed:
            self.offence(stream, RemoteProtocolError("MIME types of a payload in a later fragment"))  # RSX-MIME-06
            return None
        table, limits = self.table, self.limits
        table.reassembling += payload.size
        try:
            assembly.add(payload, limits.payload_size, limits.tiny_fragments + (not follows))
            self.check_reassembly()
        except RemoteProtocolError as error:
            self.offence(stream, error, more=follows or stream.interaction is Interaction.REQUEST_CHANNEL)
            return None
        if follows:
            return None
        joined = assembly.join()
        table.drop_assembly(stream)
        return joined

    def _item(self, stream: Stream, payload: Payload, complete: bool) -> None:
        if stream.granted <= 0:
            self._surplus(stream)
            return
        stream.granted -= 1
        if stream.interaction is Interaction.REQUEST_RESPONSE:
            complete = True  # RS10-UNX-05
        self.events.append(ItemReceived(stream, payload, complete))
        if complete:
            self.close_receiving(stream)

    def _completed(self, stream: Stream) -> None:
        self.events.append(StreamCompleted(stream))
        self.close_receiving(stream)

    def close_receiving(self, stream: Stream) -> None:
        """The peer has completed its half."""
        if stream.requester and not self.dialect.halves:
            # RS02-SEQ-04: the responder's COMPLETE ends a channel on both sides.
            self._outbox.discard(stream)
            stream.open = applied(RECEIVE_LAST_WORD, stream.open)
        elif stream.open == RECEIVING:
            stream.open = NEITHER
        else:
            stream.open = applied(RECEIVE_COMPLETE, stream.open)
        if stream.open == NEITHER:
            self.table.end(stream)

    def _half_cancel(self, stream: Stream | None) -> None:
        if stream is None or not self.dialect.halves or not stream.open & SENDING:
            self.ignored += 1  # RS10-UNX-10
            return
        self._outbox.discard(stream)
        self._outbound.keep_credit(stream)
        stream.open = applied(RECEIVE_HALF_CANCEL, stream.open)  # RS10-SEQ-10
        if stream.open == NEITHER:
            self.table.end(stream)
        self.events.append(SendingCancelled(stream))

    def _surplus(self, stream: Stream) -> None:
        # ALL-RCT-10: the surplus is not queued, the stream ends, the offender is told.
        self.offence(stream, RemoteProtocolError(f"stream {stream.id}: more items than were granted"))

    def offence(self, stream: Stream, error: RemoteProtocolError, *, more: bool = True) -> None:
        """End a stream for a fault of the peer's; ``more`` says that frames of it may be on their way."""
        # Without its traceback, which would keep what was being joined for as long as somebody keeps the error.
        error = error.with_traceback(None)
        known = stream.request is None
        stream.request = None
        if more and not stream.requester:
            self.table.expect_late(stream.id, stream.interaction)
        if stream.interaction is Interaction.FIRE_AND_FORGET:
            self.table.end(stream)
        else:
            self._outbound.abort(stream, INVALID, str(error))
        if known:
            self.events.append(StreamFailed(stream, error))

    def _spend_on(self, stream: Stream) -> None:
        """The peer ends a stream of its own, by CANCEL or ERROR: unanswered ones are limited in their rate."""
        if not stream.requester and not stream.item_sent:
            self._cancels.spend(self.now)

    def _drop(self, stream: Stream) -> None:
        """End a stream both ways, with what waits in its lane and what of a payload has come."""
        stream.request = None
        self._outbox.discard(stream)
        self.table.end(stream)
