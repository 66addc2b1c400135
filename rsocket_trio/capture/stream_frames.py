"""Applies stream frames to captured streams: requests, payloads, credit and ends, in all RSocket dialects."""

from __future__ import annotations

from rsocket_trio.capture.connections import Track
from rsocket_trio.capture.rows import Origin, Rows, Seen, readable_route, trace_of
from rsocket_trio.capture.schema import CANCEL, COMPLETE, ERROR, ERROR_TEXT, LEASE_DENIED, REJECTED, as_int32
from rsocket_trio.capture.streams import LONGEST_METADATA, REQUESTER, RESPONDER, StreamTrack
from rsocket_trio.errors import Rejected
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, mime_name
from rsocket_trio.mux.recording import Facts
from rsocket_trio.mux.stream_state import BOTH, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialects import dialect_named
from rsocket_trio.rsocket.extensions.terms import cost_of
from rsocket_trio.rsocket.frames import CancelFrame, ErrorFrame, PayloadFrame, RequestFrame, RequestNFrame


class Size:
    """The size of a frame: ``all`` its bytes, the bytes ``beyond`` the kept part, and whether it was sent before."""

    __slots__ = ("all", "beyond", "repeated")

    def __init__(self, size: int, beyond: int, repeated: bool) -> None:
        self.all = size
        self.beyond = beyond
        self.repeated = repeated


class StreamReader(Track):
    """The part of a connection's track that handles stream frames."""

    def __init__(self, origin: Origin, rows: Rows, facts: Facts, conn_id: str, now: int) -> None:
        super().__init__(origin, rows, facts, conn_id, now)
        self.dialect = self._dialect = dialect_named(facts.dialect)
        self._metadata_mime: str | int = COMPOSITE_METADATA
        self._leased = False
        self._token: str | None = None
        """The id of a session that may be resumed."""

    def _read_request(
        self, now: int, inward: bool, frame: RequestFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        ours = not inward
        dialect = self._dialect
        seen.interaction = frame.interaction.value
        measure(seen, frame.payload, size.beyond)
        if size.repeated:
            return
        if stream is not None and stream.ours == ours and stream.interaction is frame.interaction:
            goes_on = stream.asked.pieces and (dialect.request_repeats or dialect.request_continues)
            if goes_on or (dialect.channel_items_are_requests and frame.interaction is Interaction.REQUEST_CHANNEL):
                ends = frame.complete and not size.beyond and not stream.asked.pieces
                item = not (ends and dialect.only_completes(frame.payload, frame.initial_n))
                self._payload(now, inward, stream, frame.payload, seen, size.all, frame.follows, item, frame.complete)
                return
        seen.request_n = frame.initial_n
        stream = StreamTrack(frame.stream_id, frame.interaction, now, self.conn_id, self.session.drops, ours)
        stream.start_credit(frame.initial_n, now)
        seen.credit_after = stream.responses.credit
        self._streams += 1
        if self._leased:
            lease = self._leases[inward]
            for _ in range(cost_of(frame.extensions) if dialect.entries else 1):
                lease.use(now)
        if self._token is not None:
            self.session.mark(dialect, frame.stream_id, frame.extensions)
        self.session.begin(stream, now)
        self._payload(now, inward, stream, frame.payload, seen, size.all, frame.follows, True, frame.complete)

    def _read_payload(
        self, now: int, inward: bool, frame: PayloadFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        measure(seen, frame.payload, size.beyond)
        if stream is not None and not size.repeated:
            carries = bool(seen.data_bytes) or seen.metadata_bytes is not None
            is_item = frame.next or (self._dialect.bare_payload_is_item and carries)
            self._payload(*(now, inward, stream, frame.payload, seen, size.all, frame.follows, is_item, frame.complete))

    def _read_request_n(
        self, now: int, inward: bool, frame: RequestNFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.request_n = frame.request_n
        seen.metadata_bytes = None if frame.metadata is None else len(frame.metadata)
        if stream is not None and not size.repeated:
            by_requester = stream.ours != inward
            stream.half(by_requester).size += size.all
            seen.credit_after = stream.grant(frame.request_n, now, by_requester=by_requester)

    def _read_cancel(
        self, now: int, inward: bool, frame: CancelFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.metadata_bytes = None if frame.metadata is None else len(frame.metadata)
        if stream is None or size.repeated:
            return
        by_requester = stream.ours != inward
        stream.half(by_requester).size += size.all
        seen.route_id = stream.route_id
        if not by_requester and self._dialect.halves:
            self._close(now, stream, REQUESTER)
        else:
            self.session.end(stream, now, CANCEL)

    def _read_error(
        self, now: int, inward: bool, frame: ErrorFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        code = as_int32(frame.code)
        seen.error_code = code
        seen.error_text = frame.data[: 4 * ERROR_TEXT].decode("utf-8", "replace")[:ERROR_TEXT]
        seen.data_bytes = len(frame.data) + size.beyond
        seen.metadata_bytes = None if frame.metadata is None else len(frame.metadata)
        if stream is None or size.repeated:
            return
        stream.half(stream.ours != inward).size += size.all
        seen.route_id = stream.route_id
        outcome = ERROR
        if frame.code == Rejected.default_code:
            outcome = LEASE_DENIED if self._leased and "lease" in seen.error_text.lower() else REJECTED
        self.session.end(stream, now, outcome, code)

    def _payload(
        self,
        now: int,
        inward: bool,
        stream: StreamTrack,
        payload: Payload,
        seen: Seen,
        size: int,
        follows: bool,
        is_item: bool,
        completes: bool,
    ) -> None:
        """Handle a payload of a stream, or a fragment of one."""
        by_requester = stream.ours != inward
        half = stream.half(by_requester)
        half.size += size
        half.pieces += 1
        half.has_item |= is_item
        opening = by_requester and not half.payloads
        if opening:
            self._gather(stream, payload)
        if follows:
            seen.fragments = 0
            seen.route_id = stream.route_id
            return
        seen.fragments = min(half.pieces, 2**15 - 1)
        if opening:
            self._name_route(stream, payload, seen)
        if half.has_item:
            left = stream.item(now, by_requester=by_requester, opening=opening)
            if not opening:
                seen.credit_after = left
        ends = half.has_item and not by_requester and stream.interaction is Interaction.REQUEST_RESPONSE
        half.pieces, half.has_item = 0, False
        seen.route_id = stream.route_id
        if stream.interaction is Interaction.FIRE_AND_FORGET or ends:
            self.session.end(stream, now, COMPLETE)
        elif completes:
            if by_requester:
                self._close(now, stream, REQUESTER)
            else:
                is_half = self._dialect.halves and stream.interaction is Interaction.REQUEST_CHANNEL
                self._close(now, stream, RESPONDER if is_half else BOTH)

    def _close(self, now: int, stream: StreamTrack, halves: int) -> None:
        stream.close(now, halves)
        if stream.is_over:
            self.session.end(stream, now, COMPLETE)

    def _gather(self, stream: StreamTrack, payload: Payload) -> None:
        """Append the metadata of a fragment, up to ``LONGEST_METADATA``."""
        if payload.metadata is not None and len(stream.metadata or b"") < LONGEST_METADATA:
            stream.metadata = (stream.metadata or b"") + payload.metadata

    def _name_route(self, stream: StreamTrack, payload: Payload, seen: Seen) -> None:
        metadata, stream.metadata = stream.metadata, None
        if not metadata:
            return
        mime = mime_name(payload.metadata_mime) or self._metadata_mime
        stream.name_route(readable_route(metadata, mime))
        seen.route = stream.route
        seen.trace_id = trace_of(metadata, mime)


def measure(seen: Seen, payload: Payload, beyond: int) -> None:
    """Set the sizes of data and metadata of a frame."""
    seen.data_bytes = len(payload.data) + beyond
    seen.metadata_bytes = None if payload.metadata is None else len(payload.metadata)
