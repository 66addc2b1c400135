"""What a frame on a stream means: an event, an answer, an error of the peer's, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from rsocket_trio.errors import RemoteProtocolError, stream_error
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    CreditGranted,
    Event,
    ItemReceived,
    ItemsReceived,
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
from rsocket_trio.rsocket.plain import Plain
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
        "_dialect",
        "_limits",
        "_outbound",
        "_outbox",
        "_table",
        "draining",
        "events",
        "granted",
        "ignored",
        "lingering",
        "now",
        "refused",
    )

    def __init__(
        self, dialect: Dialect, limits: Limits, table: StreamTable, outbound: Outbound, outbox: Outbox
    ) -> None:
        self._dialect = dialect
        self._limits = limits
        self._table = table
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
        if not self._table.is_peers(stream_id):
            self.ignored += 1  # ALL-RCT-12
            return
        live = self._table.theirs.get(stream_id)
        if live is not None:
            self._repeated_request(live, frame)
            return
        interaction = frame.interaction
        if self._table.late and self._table.is_late(frame):
            self.ignored += 1
            return
        answered = interaction is not Interaction.FIRE_AND_FORGET
        refusal = self._refusal(frame)
        if refusal is not None:
            self.refused += 1
            if not frame.complete and (frame.follows or interaction is Interaction.REQUEST_CHANNEL):
                self._table.expect_late(stream_id, interaction)
            if answered:
                self._outbound.refuse(stream_id, *refusal)
            return
        stream = Stream(stream_id, interaction, RESPONDERS_HALVES[interaction], requester=False)
        stream.room = 1 if interaction is Interaction.REQUEST_RESPONSE else frame.initial_n or 0
        if frame.follows and not frame.complete:
            self._table.theirs[stream_id] = stream
            # Without its payload, which is copied into the assembly: else the first pieces would be here twice.
            stream.request = attrs.evolve(frame, payload=EMPTY)
            self._continue_request(stream, frame.payload, follows=True, complete=False)
            return
        if answered:
            self._table.theirs[stream_id] = stream
        if frame.complete:
            stream.open &= ~RECEIVING
        self.events.append(RequestReceived(stream, frame.payload, not stream.open & RECEIVING, frame.extensions))

    def on_payload(self, frame: PayloadFrame) -> None:
        """An item, a fragment of one or of a request, or the end of the peer's half."""
        stream = self._table.mine.get(frame.stream_id) or self._table.theirs.get(frame.stream_id)
        if stream is None or (self._dialect.request_repeats and not stream.requester):
            self.ignored += 1  # RS10-UNX-12, ALL-RCT-14, RS01-FRAG-04
            return
        self._take(stream, frame)

    def take_plain(self, plain: Plain, frames: Sequence[bytes], index: int) -> int:
        """Take a request or a part that has nothing but data, or such items of one stream that follow one another.

        Returns how many frames from ``index`` on that were. It is 0 when the first one is in any way unusual, a fault
        among that: then it has to be decoded like every other frame.
        """
        data = frames[index]
        size = plain.size
        kind = data[plain.kind]
        stream_id = int.from_bytes(data[plain.stream_id], "big")
        if kind != plain.item and kind != plain.last:
            if kind == plain.part:
                return self._take_part(memoryview(data)[size:], stream_id)
            interaction = plain.requests.get(kind)
            if interaction is None or stream_id > plain.last_id or len(data) < size:
                return 0
            self.on_request(RequestFrame(stream_id, interaction, Payload(data[size:])))
            return 1
        table = self._table
        stream = table.mine.get(stream_id) or table.theirs.get(stream_id)
        if (
            stream is None
            or len(data) <= size  # cut off; or empty, which where it completes is no item in some dialects
            or stream.granted <= 0
            or not stream.open & RECEIVING
            or stream.request is not None
            or stream.assembly is not None
            or (self._dialect.request_repeats and not stream.requester)
        ):
            return 0
        if kind == plain.last or stream.interaction is Interaction.REQUEST_RESPONSE:
            stream.granted -= 1
            self.events.append(ItemReceived(stream, Payload(data[size:]), True))
            self._close_receiving(stream)
            return 1
        head = data[:size]
        payloads = [Payload(data[size:])]
        end = min(len(frames), index + stream.granted)
        index += 1
        while index < end and (data := frames[index]).startswith(head):
            payloads.append(Payload(data[size:]))
            index += 1
        taken = len(payloads)
        stream.granted -= taken
        if taken == 1:
            self.events.append(ItemReceived(stream, payloads[0], False))
        else:
            self.events.append(ItemsReceived(stream, payloads))
        return taken

    def _take_part(self, data: memoryview, stream_id: int) -> int:
        """Take a fragment that is neither the first nor the last: 1, or 0 where it is unusual."""
        stream = self._table.mine.get(stream_id) or self._table.theirs.get(stream_id)
        if (
            stream is None
            or stream.assembly is None
            or not data
            or not (stream.request is not None or stream.open & RECEIVING)
            or (self._dialect.request_repeats and not stream.requester)
        ):
            return 0
        limits = self._limits
        self._table.reassembling += len(data)
        try:
            stream.assembly.add_data(data, limits.payload_size, limits.tiny_fragments)
            self._check_reassembly()
        except RemoteProtocolError as error:
            self._offence(stream, error)
        return 1

    def _check_reassembly(self) -> None:
        limit = self._limits.reassembly_size
        if self._table.reassembling > limit:
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
        elif frame.next or (not complete and self._dialect.bare_payload_is_item and frame.payload != EMPTY):
            self._item(stream, frame.payload, complete)
        elif complete:
            self._completed(stream)  # what it carries is dropped: RS10-PAY-05
        else:
            self.ignored += 1  # RS10-PAY-03

    def on_error(self, frame: ErrorFrame) -> None:
        """The stream ends both ways."""
        table = self._table
        stream = table.find(frame.stream_id) if self._dialect.ids_have_parity else table.mine.get(frame.stream_id)
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
        stream = self._table.theirs.get(frame.stream_id)
        if stream is None:
            self._table.late.pop(frame.stream_id, None)
            self._half_cancel(self._table.mine.get(frame.stream_id))
            return
        ended, known = stream.open == NEITHER, stream.request is None
        if not ended:
            self._spend_on(stream)
        self._drop(stream)
        if known and not ended:
            self.events.append(StreamCancelled(stream))

    def on_metadata_push(self, frame: MetadataPushFrame) -> None:
        """Metadata for a stream: for our requester's, if both sides have one of that id (RS00-MP-04)."""
        table = self._table
        stream = table.mine.get(frame.stream_id) or table.theirs.get(frame.stream_id)
        if stream is None or stream.open == NEITHER or not self._dialect.pushes_on_streams:
            self.ignored += 1  # RS10-UNX-13
        else:
            self.events.append(StreamMetadataPushed(stream, MetadataPush(frame.metadata, frame.metadata_type)))

    def on_request_n(self, frame: RequestNFrame) -> None:
        """More items may be sent (cumulative, without upper wrap: ALL-RCT-09)."""
        # Where ids tell nothing, only a requester grants: then it is a stream of the peer's.
        stream = self._table.theirs.get(frame.stream_id) or self._table.mine.get(frame.stream_id)
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
        if not self._table.is_peers(stream_id) or stream_id in self._table.theirs:
            self.ignored += 1  # ALL-RCT-12, RS10-UNX-09
            return
        self.refused += 1
        if interaction is not Interaction.FIRE_AND_FORGET:
            self._outbound.refuse(stream_id, code, text)

    def _refusal(self, frame: RequestFrame) -> tuple[int, str] | None:
        if frame.initial_n == 0 and self._dialect.zero_initial_n_invalid:
            return INVALID, "initial request-n of 0"  # RS10-N-01
        if frame.interaction not in self._dialect.interactions:
            return INVALID, f"{self._dialect.name} has no {frame.interaction.value}"
        if self.draining:
            return REJECTED, "no new requests: the connection is closing"  # RS02-ERR-08
        if len(self._table.theirs) + self.lingering >= self._limits.streams:
            return REJECTED, f"{self._limits.streams} streams are open already"
        if frame.extensions and misdirected(frame.extensions):
            return REJECTED, "a broker's address is unicast, multicast or shard"
        if self.granted is not None and not self.granted.take(self.now, cost_of(frame.extensions)):
            return REJECTED, self._dialect.lease_refusal
        return None

    def _repeated_request(self, live: Stream, frame: RequestFrame) -> None:
        waits = live.request is not None and frame.interaction is live.interaction
        if waits and self._dialect.request_continues:
            follows = frame.follows and not frame.complete
            self._continue_request(live, frame.payload, follows=follows, complete=frame.complete)
        elif (
            live.interaction is frame.interaction and self._dialect.channel_items_are_requests and live.request is None
        ):
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
            self._table.end(stream)
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
            self._offence(stream, RemoteProtocolError("MIME types of a payload in a later fragment"))  # RSX-MIME-06
            return None
        table, limits = self._table, self._limits
        table.reassembling += payload.size
        try:
            assembly.add(payload, limits.payload_size, limits.tiny_fragments + (not follows))
            self._check_reassembly()
        except RemoteProtocolError as error:
            self._offence(stream, error, more=follows or stream.interaction is Interaction.REQUEST_CHANNEL)
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
            self._close_receiving(stream)

    def _completed(self, stream: Stream) -> None:
        self.events.append(StreamCompleted(stream))
        self._close_receiving(stream)

    def _close_receiving(self, stream: Stream) -> None:
        if stream.requester and not self._dialect.halves:
            # RS02-SEQ-04: the responder's COMPLETE ends a channel on both sides.
            self._outbox.discard(stream)
            stream.open = applied(RECEIVE_LAST_WORD, stream.open)
        elif stream.open == RECEIVING:
            stream.open = NEITHER
        else:
            stream.open = applied(RECEIVE_COMPLETE, stream.open)
        if stream.open == NEITHER:
            self._table.end(stream)

    def _half_cancel(self, stream: Stream | None) -> None:
        if stream is None or not self._dialect.halves or not stream.open & SENDING:
            self.ignored += 1  # RS10-UNX-10
            return
        self._outbox.discard(stream)
        self._outbound.keep_credit(stream)
        stream.open = applied(RECEIVE_HALF_CANCEL, stream.open)  # RS10-SEQ-10
        if stream.open == NEITHER:
            self._table.end(stream)
        self.events.append(SendingCancelled(stream))

    def _surplus(self, stream: Stream) -> None:
        # ALL-RCT-10: the surplus is not queued, the stream ends, the offender is told.
        self._offence(stream, RemoteProtocolError(f"stream {stream.id}: more items than were granted"))

    def _offence(self, stream: Stream, error: RemoteProtocolError, *, more: bool = True) -> None:
        """End a stream for a fault of the peer's; ``more`` says that frames of it may be on their way."""
        known = stream.request is None
        stream.request = None
        if more and not stream.requester:
            self._table.expect_late(stream.id, stream.interaction)
        if stream.interaction is Interaction.FIRE_AND_FORGET:
            self._table.end(stream)
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
        self._table.end(stream)
