"""Decodes a captured RSocket connection: reads its frames with the codec of its dialect and fills their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rsocket_trio.capture.buffer import CLOSED, OPENED, OVER, RECEIVED, BufferEntry, Recorded
from rsocket_trio.capture.connection_decoder import (
    LONGEST,
    MAX_METADATA_BYTES,
    REQUESTER,
    RESPONDER,
    CapturedFrame,
    CapturedStream,
    ConnectionDecoder,
    Sessions,
)
from rsocket_trio.capture.rows import (
    CaptureOrigin,
    FrameCells,
    Row,
    WaitingRows,
    readable_route,
    route_id,
    session_id,
    trace_of,
)
from rsocket_trio.capture.schema import ERROR_TEXT, RTT_BUCKETS, Outcome, signed
from rsocket_trio.errors import DRAIN_SIGN, Rejected, RemoteProtocolError
from rsocket_trio.metadata.mime import mime_name
from rsocket_trio.mux.framing import Facts
from rsocket_trio.mux.stream_state import BOTH, NEITHER, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import DIALECTS, dialect_named
from rsocket_trio.rsocket.extensions.entries import AT_EXT, AT_OK, Beat, Permits, ResumeGrant, ResumePosition
from rsocket_trio.rsocket.extensions.terms import content_at
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtFrame,
    Frame,
    KeepaliveFrame,
    LeaseFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.handshake import stated
from rsocket_trio.rsocket.resume_protocol import resume_request

NS_PER_MS = 1_000_000
MAX_AWAITED_PINGS = 1024
"""Keepalives that await an answer; older ones have no round-trip time."""


class RSocketDecoder(ConnectionDecoder):
    """A captured connection of one of the five dialects."""

    def __init__(self, rows: WaitingRows, facts: Facts, conn_id: str, now: int, sessions: Sessions) -> None:
        super().__init__(rows, facts, conn_id, now)
        self._dialect = dialect_named(facts.dialect)
        self._token: str | None = None
        """The id of a session that may be resumed."""
        self._sessions = sessions
        self._pings: dict[bool, deque[int]] = {
            True: deque(maxlen=MAX_AWAITED_PINGS),
            False: deque(maxlen=MAX_AWAITED_PINGS),
        }
        self._position: int | None = None
        """The position up to which the peer has received, as its resume request states."""

    def take(self, now: int, inward: bool, frame: CapturedFrame) -> None:
        data, beyond = (frame, 0) if isinstance(frame, bytes) else frame
        seen = FrameCells(now, inward, len(data) + beyond, beyond)
        self._count(inward, seen.frame_bytes)
        codec = self._dialect.codec
        header = codec.header(data)
        if header is not None:
            seen.frame_type, seen.flags = signed(header.number, 8), signed(header.flags, 16)
            seen.stream_id = header.stream_id & LONGEST
        try:
            decoded = codec.decode(data)
        except RemoteProtocolError:
            self._row(seen)
            return
        seen.stream_id = decoded.stream_id & LONGEST
        self._look_at_begin(decoded, data, inward)
        seen.is_repeated = self._token is not None and not inward and self.session.repeats(data, seen.frame_bytes)
        stream = self.session.streams.get(decoded.stream_id)
        if stream is not None:
            seen.by_requester = stream.ours != inward
            if seen.is_repeated:
                stream.retries += 1
            else:
                seen.stream = stream
                if not isinstance(decoded, RequestFrame):
                    stream.half(seen.by_requester).size += seen.frame_bytes
        seen.measure(decoded)
        read = READERS.get(type(decoded))
        if read is not None:
            read(self, decoded, seen)
        stream = seen.stream or stream
        if seen.route_id is None and decoded.stream_id:
            seen.route_id = stream.route_id if stream is not None else self.session.ended.get(decoded.stream_id)
        self._row(seen)

    def _look_at_begin(self, frame: Frame, data: bytes, inward: bool) -> None:
        """Read the session id from the first frame of a new or a resumed session."""
        kind = type(frame)
        if self._seq or (kind is not SetupFrame and kind is not ResumeFrame):
            return
        request = resume_request(self._dialect, data)
        if request is not None:
            self.is_resuming = True
            self._token = self.session.id = session_id(request.token)
            if inward:
                self._position = request.last_received_server_position
        elif isinstance(frame, SetupFrame):
            token = stated(self._dialect, frame).resume_token
            if token is not None:
                self._token = self.session.id = session_id(token)
                self._sessions[self.facts.side, self._token] = self.session

    def _go_on(self, now: int, position: int | None) -> None:
        """Attach the connection to its session: the server has accepted the resumption."""
        if not self.is_resuming or self._token is None:
            return
        former = self._sessions.get((self.facts.side, self._token))
        if former is None or former.is_over:
            # The start of the session was not captured, or is forgotten.
            self._sessions[self.facts.side, self._token] = self.session
            self.session.resumes += 1
            self.is_orphan = True
            self.resumes = 1
        else:
            self._metadata_mime, self._leased = former.founder._metadata_mime, former.founder._leased
            replaced, self.session = former.current, former
            former.drops += self.drops
            former.go_on(self, position if self.facts.side == "client" else self._position, now)
            self.resumes = former.resumes
            if replaced.reason is not None:
                replaced.write_row()
        self.is_resuming = False

    def _read_setup(self, frame: SetupFrame, seen: FrameCells) -> None:
        frame = stated(self._dialect, frame)
        self._metadata_mime = mime_name(frame.metadata_mime)
        self._leased = frame.lease
        self._setup = (
            *(str(self._metadata_mime), str(mime_name(frame.data_mime))),
            *(round(frame.keepalive_interval * 1000), round(frame.max_lifetime * 1000)),
            *(frame.lease, frame.resume_token is not None),
        )

    def _read_setup_ok(self, frame: SetupOkFrame, seen: FrameCells) -> None:
        grant = content_at(AT_OK, frame.extensions, ResumeGrant)
        if isinstance(grant, ResumeGrant):
            seen.resume_pos = grant.last_received_client_position
            self._go_on(seen.now, grant.last_received_client_position)

    def _read_resume(self, frame: ResumeFrame, seen: FrameCells) -> None:
        seen.resume_pos = frame.last_received_server_position

    def _read_resume_ok(self, frame: ResumeOkFrame, seen: FrameCells) -> None:
        seen.resume_pos = frame.last_received_client_position
        self._go_on(seen.now, frame.last_received_client_position)

    def _read_keepalive(self, frame: KeepaliveFrame, seen: FrameCells) -> None:
        seen.keepalive_pos = frame.last_received_position
        self._beat(frame, seen)

    def _beat(self, beat: KeepaliveFrame | Beat, seen: FrameCells) -> None:
        """Handle a keepalive request or its answer."""
        if beat.respond:
            self._pings[seen.inward].append(seen.now)
        elif beat.data != DRAIN_SIGN and self._pings[not seen.inward]:  # which answers nothing
            micros = (seen.now - self._pings[not seen.inward].popleft()) // 1000
            self._rtt[min(micros.bit_length(), RTT_BUCKETS - 1)] += 1

    def _read_lease(self, frame: LeaseFrame, seen: FrameCells) -> None:
        self._grant(frame.number_of_requests, frame.time_to_live_ns, seen)

    def _read_ext(self, frame: ExtFrame, seen: FrameCells) -> None:
        for entry in frame.extensions:
            content = AT_EXT.read(entry)
            if isinstance(content, Beat):
                self._beat(content, seen)
            elif isinstance(content, ResumePosition):
                seen.keepalive_pos = content.last_received_position
            elif isinstance(content, Permits):
                self._grant(content.number, content.time_to_live_ns, seen)

    def _grant(self, number: int, ttl_ns: int, seen: FrameCells) -> None:
        seen.lease_n = min(number, LONGEST)
        seen.lease_ttl_ms = min(ttl_ns // NS_PER_MS, LONGEST)
        # A received lease is for requests sent.
        self._leases[not seen.inward].grant(number, ttl_ns, seen.now)

    def _read_request(self, frame: RequestFrame, seen: FrameCells) -> None:
        now, ours, stream, dialect = seen.now, not seen.inward, seen.stream, self._dialect
        seen.interaction = frame.interaction.value
        if seen.is_repeated:
            return
        if stream is not None and stream.ours == ours and stream.interaction is frame.interaction:
            goes_on = stream.asked.pieces and (dialect.request_repeats or dialect.request_continues)
            if goes_on or (dialect.channel_items_are_requests and frame.interaction is Interaction.REQUEST_CHANNEL):
                ends = frame.complete and not seen.beyond and not stream.asked.pieces
                is_item = not (ends and dialect.only_completes(frame.payload, frame.initial_n))
                stream.asked.size += seen.frame_bytes
                self._payload(stream, frame, seen, is_item=is_item)
                return
        seen.request_n = frame.initial_n
        stream = CapturedStream(frame.stream_id, frame.interaction, now, self.conn_id, self.session.drops, ours)
        stream.start_credit(frame.initial_n, now)
        seen.credit_after = stream.responses.credit
        self._streams += 1
        if self._leased:
            lease = self._leases[seen.inward]
            for _ in range(dialect.extensions.cost_of(frame.extensions) if dialect.entries else 1):
                lease.use(now)
        self.session.begin(stream, now)
        seen.stream, seen.by_requester = stream, True
        stream.asked.size += seen.frame_bytes
        self._payload(stream, frame, seen, is_item=True)

    def _read_payload(self, frame: PayloadFrame, seen: FrameCells) -> None:
        if seen.stream is not None:
            carries = bool(seen.data_bytes) or seen.metadata_bytes is not None
            is_item = frame.next or (self._dialect.bare_payload_is_item and carries)
            self._payload(seen.stream, frame, seen, is_item=is_item)

    def _read_request_n(self, frame: RequestNFrame, seen: FrameCells) -> None:
        seen.request_n = frame.request_n
        if seen.stream is not None:
            seen.credit_after = seen.stream.grant(frame.request_n, seen.now, by_requester=seen.by_requester)

    def _read_cancel(self, frame: CancelFrame, seen: FrameCells) -> None:
        if seen.stream is None:
            return
        if not seen.by_requester and self._dialect.half_close:
            self._close(seen.now, seen.stream, REQUESTER)
        else:
            self.session.end(seen.stream, seen.now, "cancel")

    def _read_error(self, frame: ErrorFrame, seen: FrameCells) -> None:
        code = signed(frame.code, 32)
        seen.error_code = code
        seen.error_text = frame.data[: 4 * ERROR_TEXT].decode("utf-8", "replace")[:ERROR_TEXT]
        if seen.stream is None:
            return
        outcome: Outcome = "error"
        if frame.code == Rejected.default_code:
            outcome = "lease_denied" if self._leased and "lease" in seen.error_text.lower() else "rejected"
        self.session.end(seen.stream, seen.now, outcome, code)

    def _payload(
        self, stream: CapturedStream, frame: RequestFrame | PayloadFrame, seen: FrameCells, *, is_item: bool
    ) -> None:
        """Handle a payload of a stream, or a fragment of one."""
        now, payload, by_requester = seen.now, frame.payload, seen.by_requester
        half = stream.half(by_requester)
        half.pieces += 1
        half.has_item |= is_item
        opening = by_requester and not half.payloads
        if opening and payload.metadata is not None and len(stream.metadata or b"") < MAX_METADATA_BYTES:
            stream.metadata = (stream.metadata or b"") + payload.metadata
        if frame.follows:
            seen.fragments = 0
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
        if stream.interaction is Interaction.FIRE_AND_FORGET or ends:
            self.session.end(stream, now, "complete")
        elif frame.complete:
            if by_requester:
                self._close(now, stream, REQUESTER)
            else:
                is_half = self._dialect.half_close and stream.interaction is Interaction.REQUEST_CHANNEL
                self._close(now, stream, RESPONDER if is_half else BOTH)

    def _close(self, now: int, stream: CapturedStream, halves: int) -> None:
        stream.close(now, halves)
        if stream.open == NEITHER:
            self.session.end(stream, now, "complete")

    def _name_route(self, stream: CapturedStream, payload: Payload, seen: FrameCells) -> None:
        metadata, stream.metadata = stream.metadata, None
        if not metadata:
            return
        mime = mime_name(payload.metadata_mime) or self._metadata_mime
        stream.route = seen.route = readable_route(metadata, mime)
        stream.route_id = None if stream.route is None else route_id(stream.route)
        seen.trace_id = trace_of(metadata, mime)


READERS: Final[dict[type, Callable[..., None]]] = {
    SetupFrame: RSocketDecoder._read_setup,
    SetupOkFrame: RSocketDecoder._read_setup_ok,
    ResumeFrame: RSocketDecoder._read_resume,
    ResumeOkFrame: RSocketDecoder._read_resume_ok,
    KeepaliveFrame: RSocketDecoder._read_keepalive,
    LeaseFrame: RSocketDecoder._read_lease,
    ExtFrame: RSocketDecoder._read_ext,
    RequestFrame: RSocketDecoder._read_request,
    PayloadFrame: RSocketDecoder._read_payload,
    RequestNFrame: RSocketDecoder._read_request_n,
    CancelFrame: RSocketDecoder._read_cancel,
    ErrorFrame: RSocketDecoder._read_error,
}


class ConnectionTracker:
    """Turns the entries of all connections into rows of the three tables, without a clock, thread or file.

    ``new_id`` names connections.
    """

    def __init__(self, origin: CaptureOrigin, new_id: Callable[[], str]) -> None:
        self._rows = WaitingRows(origin)
        self._new_id = new_id
        self._decoders: dict[Recorded, ConnectionDecoder] = {}
        self._sessions: Sessions = {}

    def __len__(self) -> int:
        """Return the number of connections that are tracked."""
        return len(self._decoders)

    def take(self) -> dict[str, list[Row]]:
        """Remove and return the rows so far, by table."""
        return self._rows.take()

    @property
    def waiting(self) -> int:
        """Return the number of frame rows that have not been taken."""
        return len(self._rows.tables["frames"])

    def see(self, entry: BufferEntry) -> None:
        """Handle one entry of the buffer."""
        source, kind, now, frames, _, dropped, text = entry
        if kind == OPENED:
            rows, facts, conn_id = self._rows, source.facts, self._new_id()
            self._decoders[source] = (
                RSocketDecoder(rows, facts, conn_id, now, self._sessions)
                if facts.dialect in DIALECTS
                else ConnectionDecoder(rows, facts, conn_id, now)
            )
            return
        decoder = self._decoders.get(source)
        if decoder is None:
            return
        decoder.drop(dropped)
        if kind == CLOSED:
            decoder.closed(now, text)
        elif kind == OVER:
            self._over(decoder, now, text)
        else:
            for frame in frames:
                decoder.take(now, kind == RECEIVED, frame)
            return
        if decoder.is_done:
            self._decoders.pop(source, None)

    def finish(self, now: int, reason: str) -> None:
        """End the capture: end all connections and sessions that it tracks."""
        for source, decoder in self._decoders.items():
            decoder.drop(source.dropped)
            decoder.give_up(now, reason)
        self._decoders.clear()
        self._sessions.clear()

    def _over(self, decoder: ConnectionDecoder, now: int, reason: str) -> None:
        decoder.over(now, reason)
        session = decoder.session
        name = session.side, session.id
        if self._sessions.get(name) is session and session.is_over:
            del self._sessions[name]
        if session.resumes:
            done = [source for source, other in self._decoders.items() if other.session is session and other.is_done]
            for source in done:
                del self._decoders[source]
