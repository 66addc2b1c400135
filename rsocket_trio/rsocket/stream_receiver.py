"""The rules for a frame on a stream: it becomes an event, an answer, a fault of the peer, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from rsocket_trio.errors import DRAIN_SIGN, Drained, Invalid, Rejected, RemoteProtocolError, stream_error
from rsocket_trio.limits import Limits, RateBudget
from rsocket_trio.mux.events import (
    CreditGranted,
    Event,
    ItemReceived,
    ItemsReceived,
    MetadataPushed,
    PeerDraining,
    PeerFault,
    RequestReceived,
    SendingCancelled,
    StreamCancelled,
    StreamCompleted,
    StreamFailed,
    StreamMetadataPushed,
)
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.reassembly import PartialPayload
from rsocket_trio.mux.stream_state import (
    FIRE_AND_FORGET,
    NEITHER,
    RECEIVE_COMPLETE,
    RECEIVE_HALF_CANCEL,
    RECEIVE_LAST_WORD,
    RECEIVING,
    REQUEST_CHANNEL,
    REQUEST_RESPONSE,
    SENDING,
    UNBOUNDED,
    Interaction,
    applied,
)
from rsocket_trio.payload import MetadataPush, Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
)
from rsocket_trio.rsocket.leases_and_keepalive import Leases
from rsocket_trio.rsocket.stream_sender import StreamSender
from rsocket_trio.rsocket.stream_table import RESPONDERS_HALVES, Stream, StreamTable

REJECTED: Final = Rejected.default_code
INVALID: Final = Invalid.default_code
EMPTY = Payload()


@attrs.define(eq=False, repr=False)
class StreamReceiver:
    """The rules for received frames on streams. Events are collected in ``events``.

    ``now`` is the time of the frames at hand, ``draining`` refuses new requests that expect an answer,
    ``peer_draining`` says that the peer gave the sign that it does so. ``leases`` are those of both sides (``None``
    without leases), ``detached`` are handlers that still run although their stream is over: they count as streams.
    ``ignored`` counts frames without effect, ``refused`` refused requests.
    """

    dialect: Dialect
    limits: Limits
    table: StreamTable
    _sender: StreamSender
    _outbox: Outbox
    events: list[Event] = attrs.Factory(list)
    ignored: int = 0
    _cancels: RateBudget = attrs.Factory(
        lambda self: RateBudget(self.limits.cancels, self.limits.cancel_rate), takes_self=True
    )
    now: float = 0.0
    draining: bool = False
    peer_draining: bool = False
    leases: Leases | None = None
    detached: int = 0
    refused: int = 0

    def on_request(self, frame: RequestFrame) -> None:
        """Take a request, a fragment of one, or a further request frame that has a meaning in some dialects."""
        live = self.table.theirs.get(frame.stream_id)
        if live is not None:
            self._repeated_request(live, frame)
        elif self.table.late and self.table.take_late(frame):
            self.ignored += 1
        else:
            self.take_request(frame.stream_id, frame.interaction, frame.payload, frame)

    def take_request(
        self, stream_id: int, interaction: Interaction, payload: Payload, frame: RequestFrame | None = None
    ) -> None:
        """Open a stream, unless its id is not the peer's to use or the request is refused.

        ``frame`` is the request if it was decoded; the fast path knows one that says nothing but its payload. The id
        is that of no stream of the peer's.
        """
        table = self.table
        if stream_id not in table.peer_ids:
            self._ignore_request(stream_id)
            return
        if table.learns:
            table.learn(stream_id)
        refusal = self._admit(interaction, frame)
        if refusal is not None:
            self._refuse_request(stream_id, interaction, frame, refusal)
            return
        stream = Stream(stream_id, interaction, RESPONDERS_HALVES[interaction], False)
        if interaction is REQUEST_RESPONSE:
            stream.room = 1
        elif frame is not None:
            stream.room = frame.initial_n or 0
        if not self.dialect.keeps_credit:
            stream.granted = UNBOUNDED
        if interaction is not FIRE_AND_FORGET:
            table.theirs[stream_id] = stream
        if frame is None:
            self.events.append(RequestReceived(stream, payload, True))
        elif frame.follows and not frame.complete:
            table.theirs[stream_id] = stream
            # Without its payload, which is copied into the assembly: else the first pieces would be here twice.
            stream.request = attrs.evolve(frame, payload=EMPTY)
            self._continue_request(stream, payload, follows=True, complete=False)
        else:
            if frame.complete:
                stream.open &= ~RECEIVING
            self.events.append(RequestReceived(stream, payload, not stream.open & RECEIVING, frame.extensions))

    def on_payload(self, frame: PayloadFrame) -> None:
        """Take an item, a fragment of an item or request, or the end of the peer's half."""
        stream = self.table.mine.get(frame.stream_id) or self.table.theirs.get(frame.stream_id)
        if stream is None or (self.dialect.request_repeats and not stream.requester and not self._ends(stream, frame)):
            self.ignored += 1  # RS10-UNX-12, ALL-RCT-14, RS01-FRAG-04
            return
        self._take(stream, frame)

    def on_error(self, frame: ErrorFrame) -> None:
        """End the stream both ways."""
        if self.dialect.misplaces(frame.stream_id, frame.code):
            self.ignored += 1  # ALL-RCT-07
            return
        table = self.table
        stream = table.find(frame.stream_id) if self.dialect.ids_have_parity else table.mine.get(frame.stream_id)
        table.late.pop(frame.stream_id, None)
        if stream is None or (stream.open == NEITHER and stream.request is None):
            self.ignored += 1  # RS10-UNX-11
            return
        self._spend_on(stream)
        known = stream.request is None
        self._drop(stream)
        if not known:
            return
        error = stream_error(frame.code, frame.data)
        if stream.requester and frame.code == REJECTED and frame.data == DRAIN_SIGN:
            error = Drained._received(frame.code, frame.data)
            self.on_drain_sign()
        self.events.append(StreamFailed(stream, error))

    def on_drain_sign(self) -> None:
        """Note that the peer drains, unless it is known, or this side drains itself: some peers echo its sign."""
        if not self.draining and not self.peer_draining:
            self.peer_draining = True
            self.events.append(PeerDraining(closing=not self.dialect.has_connection_close))

    def on_cancel(self, frame: CancelFrame) -> None:
        """Cancel the peer's own stream, or this side's half of a channel."""
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
        """Take metadata for a stream: this side's own, if both sides have one of that id (RS00-MP-04)."""
        table = self.table
        stream = table.mine.get(frame.stream_id) or table.theirs.get(frame.stream_id)
        if self.dialect.any_push_id:
            self.events.append(MetadataPushed(frame.metadata))
        elif not self.dialect.pushes_on_streams:
            self.ignored += 1  # RS10-UNX-13
            text = f"metadata pushed on stream {frame.stream_id} is ignored: {self.dialect.name} has it on stream 0"
            self.events.append(PeerFault(text))
        elif stream is None or stream.open == NEITHER:
            self.ignored += 1
        else:
            self.events.append(StreamMetadataPushed(stream, MetadataPush(frame.metadata, frame.metadata_type)))

    def on_request_n(self, frame: RequestNFrame) -> None:
        """Add credit to a stream (cumulative, without upper wrap: ALL-RCT-09)."""
        # Where ids tell nothing, only a requester grants: then it is a stream of the peer's.
        stream = self.table.theirs.get(frame.stream_id) or self.table.mine.get(frame.stream_id)
        if stream is None or frame.request_n <= 0 or not stream.open & SENDING:
            self.ignored += 1  # ALL-RCT-08, RS10-UNX-18
            return
        if stream.interaction is REQUEST_RESPONSE:
            return
        stream.room += frame.request_n
        if stream.request is None:
            self.events.append(CreditGranted(stream))

    def refuse_unread(self, stream_id: int, interaction: Interaction | None, code: int, text: str) -> None:
        """Answer a request that was understood in part, unless its id is in use or not the peer's to use."""
        if stream_id not in self.table.peer_ids:
            self._ignore_request(stream_id)
            return
        if stream_id in self.table.theirs:
            self._ignore_request(stream_id, "that id is in use")  # RS10-UNX-09
            return
        self.refused += 1
        if interaction is not FIRE_AND_FORGET:
            self._sender.refuse(stream_id, code, text)

    def _ignore_request(self, stream_id: int, reason: str | None = None) -> None:
        """Ignore a request whose id the peer may not use (ALL-RCT-12), and report it as an event for the log."""
        self.ignored += 1
        if reason is None:
            reason = f"the peer's ids are {self.table.peers_parity}" if stream_id else "that is the connection"
        self.events.append(PeerFault(f"a request on stream {stream_id} is ignored: {reason}"))

    def _admit(self, interaction: Interaction, frame: RequestFrame | None) -> tuple[int, str] | None:
        """Admit a new request of the peer. Return the code and text that refuse it, ``None`` if it is admitted.

        With leases an admitted request uses its permits.
        """
        if frame is not None and frame.initial_n == 0 and self.dialect.zero_initial_n_invalid:
            return INVALID, "initial request-n of 0"  # RS10-N-01
        if interaction not in self.dialect.interactions:
            return INVALID, f"{self.dialect.name} has no {interaction.value}"
        if self.draining and interaction is not FIRE_AND_FORGET:
            return REJECTED, DRAIN_SIGN.decode()  # RS02-ERR-08
        if len(self.table.theirs) + self.detached >= self.limits.streams:
            return REJECTED, f"{self.limits.streams} streams are open already"
        cost = 1
        if frame is not None and frame.extensions:
            if self.dialect.extensions.misdirected(frame.extensions):
                return REJECTED, "a broker's address is unicast, multicast or shard"
            cost = self.dialect.extensions.cost_of(frame.extensions)
        if self.leases is not None and not self.leases.take(self.now, cost):
            return REJECTED, self.dialect.lease_refusal
        return None

    def _refuse_request(
        self, stream_id: int, interaction: Interaction, frame: RequestFrame | None, refusal: tuple[int, str]
    ) -> None:
        """Answer a request with ERROR, unless it expects no answer. Frames of its stream may be on their way."""
        self.refused += 1
        channel = interaction is REQUEST_CHANNEL
        if frame is not None and not frame.complete and (frame.follows or channel):
            self.table.expect_late(stream_id, interaction)
        if interaction is not FIRE_AND_FORGET:
            self._sender.refuse(stream_id, *refusal)

    def _repeated_request(self, live: Stream, frame: RequestFrame) -> None:
        waits = live.request is not None and frame.interaction is live.interaction
        if waits and self.dialect.request_continues:
            follows = frame.follows and not frame.complete
            self._continue_request(live, frame.payload, follows=follows, complete=frame.complete)
        elif live.interaction is frame.interaction and self.dialect.channel_items_are_requests and live.request is None:
            self._channel_item(live, frame)
        else:
            self._ignore_request(frame.stream_id, "that id is in use")  # RS10-UNX-09

    def _channel_item(self, stream: Stream, frame: RequestFrame) -> None:
        """Take a further REQUEST_CHANNEL as an item, and add its number as credit (RS01-CH-02)."""
        if stream.interaction is not REQUEST_CHANNEL:
            self.ignored += 1
            return
        if frame.initial_n and stream.open & SENDING:
            stream.room += frame.initial_n
            self.events.append(CreditGranted(stream))
        payload, item = frame.payload, True
        if frame.complete and stream.assembly is None and self.dialect.only_completes(payload, frame.initial_n):
            payload, item = EMPTY, False
        self._take(stream, PayloadFrame(frame.stream_id, payload, item, frame.complete, frame.follows))

    def _ends(self, stream: Stream, frame: PayloadFrame) -> bool:
        """Return whether a channel's requester ends its half with an empty RESPONSE between its payloads."""
        return (
            self.dialect.requester_responds
            and frame.complete
            and not frame.next
            and stream.interaction is REQUEST_CHANNEL
            and stream.request is None
            and stream.assembly is None
        )

    def _half_cancel(self, stream: Stream | None) -> None:
        if stream is None or not self.dialect.half_close or not stream.open & SENDING:
            self.ignored += 1  # RS10-UNX-10
            return
        self._outbox.discard(stream)
        self._sender.keep_credit(stream)
        stream.open = applied(RECEIVE_HALF_CANCEL, stream.open)  # RS10-SEQ-10
        if stream.open == NEITHER:
            self.table.end(stream)
        self.events.append(SendingCancelled(stream))

    def _spend_on(self, stream: Stream) -> None:
        """Charge the cancel budget for an unanswered stream that the peer ends by CANCEL or ERROR."""
        if not stream.requester and not stream.item_sent:
            self._cancels.spend(self.now)

    def _drop(self, stream: Stream) -> None:
        """End a stream both ways; discard its queue and the fragments of an unfinished payload."""
        stream.request = None
        self._outbox.discard(stream)
        self.table.end(stream)

    def _take(self, stream: Stream, frame: PayloadFrame) -> None:
        complete = frame.complete
        follows = frame.follows and not complete  # RS10-UNX-07
        if stream.request is not None:
            self._continue_request(stream, frame.payload, follows=follows, complete=complete)
        elif not stream.open & RECEIVING:
            self.ignored += 1
        elif follows or stream.assembly is not None:
            self._continue_item(stream, frame.payload, follows=follows, complete=complete)
        elif frame.next or (self.dialect.bare_payload_is_item and frame.payload != EMPTY):
            self.take_item(stream, frame.payload, complete)  # RS02-PAY-03, RS02-PAY-04
        elif complete:
            self._completed(stream)  # what it carries is dropped: RS10-PAY-05
        else:
            self.ignored += 1  # RS10-PAY-03

    def _continue_request(self, stream: Stream, payload: Payload, *, follows: bool, complete: bool) -> None:
        joined = self._assemble(stream, payload, follows=follows)
        if joined is None:
            return
        request, stream.request = stream.request, None
        if stream.interaction is FIRE_AND_FORGET:
            self.table.end(stream)
        if complete:
            stream.open &= ~RECEIVING
        entries = () if request is None else request.extensions
        self.events.append(RequestReceived(stream, joined, not stream.open & RECEIVING, entries))

    def _continue_item(self, stream: Stream, payload: Payload, *, follows: bool, complete: bool) -> None:
        if stream.assembly is None and stream.granted <= 0 and stream.ahead:
            self._surplus(stream)
            return
        joined = self._assemble(stream, payload, follows=follows)
        if joined is not None:
            self.take_item(stream, joined, complete)

    def _assemble(self, stream: Stream, payload: Payload, *, follows: bool) -> Payload | None:
        """Add a fragment. Return the payload after its last one; one beyond the limits ends the stream."""
        if stream.assembly is None:
            stream.assembly = PartialPayload(payload.data_mime, payload.metadata_mime)
        elif payload.data_mime is not None or payload.metadata_mime is not None:
            self.offence(stream, RemoteProtocolError("MIME types of a payload in a later fragment"))  # RSX-MIME-06
            return None
        assembly = stream.assembly
        self._join(stream, payload.size, partial(assembly.add, payload), follows=follows)
        if follows or stream.assembly is None:
            return None
        joined = assembly.join()
        self.table.drop_assembly(stream)
        return joined

    def take_part(self, stream: Stream, part: bytes | memoryview) -> None:
        """Add a fragment that has nothing but data, and is not the last."""
        if stream.assembly is not None:
            self._join(stream, len(part), partial(stream.assembly.add_data, part), follows=True)

    def _join(self, stream: Stream, size: int, add: Callable[[int, int], None], *, follows: bool) -> None:
        """Add ``size`` bytes to what is joined, within all limits. Bytes beyond one end the stream."""
        limits, table = self.limits, self.table
        table.reassembling += size
        try:
            add(limits.payload_size, limits.tiny_fragments + (not follows))
            if table.reassembling > limits.reassembly_size:
                raise RemoteProtocolError(f"more than {limits.reassembly_size} bytes in unfinished payloads")
        except RemoteProtocolError as error:
            self.offence(stream, error, more=follows or stream.interaction is REQUEST_CHANNEL)

    def joining_room(self, stream: Stream) -> int:
        """Return the bytes that may still be added to the payload of this stream that is being joined."""
        size = 0 if stream.assembly is None else stream.assembly.size
        return min(self.limits.payload_size - size, self.limits.reassembly_size - self.table.reassembling)

    def take_large_parts(self, stream: Stream, parts: list[memoryview]) -> None:
        """Add fragments that are not tiny, and for which there is room."""
        if stream.assembly is not None:
            self.table.reassembling += stream.assembly.add_large(parts)

    def take_item(self, stream: Stream, payload: Payload, complete: bool) -> None:
        """Take one item, for which the peer needs credit: one item in all may be early."""
        if stream.granted > 0:
            stream.granted -= 1
        elif stream.ahead:
            self._surplus(stream)
            return
        else:
            stream.ahead = True
            self.events.append(PeerFault(f"stream {stream.id}: an item came before it was granted"))
        if stream.interaction is REQUEST_RESPONSE:
            complete = True  # RS10-UNX-05
        self.events.append(ItemReceived(stream, payload, complete))
        if complete:
            self._close_receiving(stream)

    def take_items(self, stream: Stream, payloads: list[Payload]) -> None:
        """Take as many items as were granted, or fewer; none completes."""
        stream.granted -= len(payloads)
        self.events.append(ItemsReceived(stream, payloads))

    def _completed(self, stream: Stream) -> None:
        self.events.append(StreamCompleted(stream))
        self._close_receiving(stream)

    def _close_receiving(self, stream: Stream) -> None:
        if stream.open == RECEIVING and stream.head is None and stream.assembly is None:
            # Nothing else is left of it. It is in its table: only what is open there receives.
            stream.open = NEITHER
            table = self.table
            del (table.mine if stream.requester else table.theirs)[stream.id]
            return
        if stream.requester and not self.dialect.half_close:
            # RS02-SEQ-04: the responder's COMPLETE ends a channel on both sides.
            self._outbox.discard(stream)
            stream.open = applied(RECEIVE_LAST_WORD, stream.open)
        elif stream.open == RECEIVING:
            stream.open = NEITHER
        else:
            stream.open = applied(RECEIVE_COMPLETE, stream.open)
        if stream.open == NEITHER:
            self.table.end(stream)

    def _surplus(self, stream: Stream) -> None:
        # ALL-RCT-10: one item may be early, in all. The next is not queued, the stream ends, the offender is told.
        self.offence(stream, RemoteProtocolError(f"stream {stream.id}: more items than were granted"))

    def offence(self, stream: Stream, error: RemoteProtocolError, *, more: bool = True) -> None:
        """End a stream for a fault of the peer; ``more`` means that frames of it may be on their way."""
        # Without its traceback, which would keep what was being joined for as long as somebody keeps the error.
        error = error.with_traceback(None)
        known = stream.request is None
        stream.request = None
        if more and not stream.requester:
            self.table.expect_late(stream.id, stream.interaction)
        if stream.interaction is FIRE_AND_FORGET:
            self.table.end(stream)
        else:
            self._sender.abort(stream, INVALID, str(error))
        if known:
            self.events.append(StreamFailed(stream, error))
