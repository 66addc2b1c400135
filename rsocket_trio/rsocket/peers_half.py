"""The rules for the peer's half of an open stream: payloads, fragments, completion and offences."""

from __future__ import annotations

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    Event,
    ItemReceived,
    PeerFault,
    RequestReceived,
    StreamCompleted,
    StreamFailed,
)
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.reassembly import PartialPayload
from rsocket_trio.mux.stream_state import (
    NEITHER,
    RECEIVE_COMPLETE,
    RECEIVE_LAST_WORD,
    RECEIVING,
    Interaction,
    applied,
)
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import PayloadFrame
from rsocket_trio.rsocket.outbound import Outbound
from rsocket_trio.rsocket.streams import Stream, StreamTable

INVALID = 0x204
EMPTY = Payload()


class PeersHalf:
    """The rules for payloads of the peer on an open stream. Events are collected in ``events``.

    ``ignored`` counts frames without effect.
    """

    __slots__ = ("_outbound", "_outbox", "dialect", "events", "ignored", "limits", "table")

    def __init__(
        self, dialect: Dialect, limits: Limits, table: StreamTable, outbound: Outbound, outbox: Outbox
    ) -> None:
        self.dialect = dialect
        self.limits = limits
        self.table = table
        self._outbound = outbound
        self._outbox = outbox
        self.events: list[Event] = []
        self.ignored = 0

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
            self._item(stream, frame.payload, complete)  # RS02-PAY-03, RS02-PAY-04
        elif complete:
            self._completed(stream)  # what it carries is dropped: RS10-PAY-05
        else:
            self.ignored += 1  # RS10-PAY-03

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
        if stream.assembly is None and stream.granted <= 0 and stream.ahead:
            self._surplus(stream)
            return
        joined = self._assemble(stream, payload, follows=follows)
        if joined is not None:
            self._item(stream, joined, complete)

    def _assemble(self, stream: Stream, payload: Payload, *, follows: bool) -> Payload | None:
        """Add a fragment. Return the payload after its last one; one beyond the limits ends the stream."""
        assembly = stream.assembly
        typed = payload.data_mime is not None or payload.metadata_mime is not None
        if assembly is None:
            stream.assembly = assembly = PartialPayload(payload.data_mime, payload.metadata_mime)
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
        if stream.granted > 0:
            stream.granted -= 1
        elif stream.ahead:
            self._surplus(stream)
            return
        else:
            stream.ahead = True
            self.events.append(PeerFault(f"stream {stream.id}: an item came before it was granted"))
        if stream.interaction is Interaction.REQUEST_RESPONSE:
            complete = True  # RS10-UNX-05
        self.events.append(ItemReceived(stream, payload, complete))
        if complete:
            self.close_receiving(stream)

    def _completed(self, stream: Stream) -> None:
        self.events.append(StreamCompleted(stream))
        self.close_receiving(stream)

    def close_receiving(self, stream: Stream) -> None:
        """Close the peer's half, which it has completed."""
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
        if stream.interaction is Interaction.FIRE_AND_FORGET:
            self.table.end(stream)
        else:
            self._outbound.abort(stream, INVALID, str(error))
        if known:
            self.events.append(StreamFailed(stream, error))

    def check_reassembly(self) -> None:
        """Raise ``RemoteProtocolError`` if all unfinished payloads together exceed their limit."""
        limit = self.limits.reassembly_size
        if self.table.reassembling > limit:
            raise RemoteProtocolError(f"more than {limit} bytes in unfinished payloads")
