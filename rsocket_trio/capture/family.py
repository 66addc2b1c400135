"""Tracks a captured RSocket connection: decodes its frames with the codec of its dialect and fills their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rsocket_trio.capture.connections import LONGEST, Kept, Track
from rsocket_trio.capture.rows import Origin, Rows, Seen, session_id
from rsocket_trio.capture.schema import (
    as_int8,
    as_int16,
)
from rsocket_trio.capture.sessions import Sessions
from rsocket_trio.capture.stream_frames import Size, StreamReader, measure
from rsocket_trio.capture.streams import StreamTrack
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.mime import mime_name
from rsocket_trio.mux.recording import Facts
from rsocket_trio.rsocket.extensions.payloads import AT_EXT, AT_OK, Beat, Permits, ResumeGrant, ResumePosition
from rsocket_trio.rsocket.extensions.terms import content_at
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtFrame,
    Frame,
    KeepaliveFrame,
    LeaseFrame,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.resume_positions import resume_request
from rsocket_trio.rsocket.setup import stated

NS_PER_MS = 1_000_000


class FamilyTrack(StreamReader):
    """A captured connection of one of the five dialects."""

    def __init__(self, origin: Origin, rows: Rows, facts: Facts, conn_id: str, now: int, sessions: Sessions) -> None:
        super().__init__(origin, rows, facts, conn_id, now)
        self._sessions = sessions
        self._position: int | None = None
        """The position up to which the peer has received, as its resume request states."""

    def _take(self, now: int, inward: bool, frame: Kept) -> None:
        data, beyond = (frame, 0) if isinstance(frame, bytes) else frame
        size = len(data) + beyond
        self._count(inward, size)
        seen = Seen()
        codec = self._dialect.codec
        header = codec.header(data)
        if header is not None:
            seen.frame_type, seen.flags = as_int8(header.number), as_int16(header.flags)
            seen.stream_id = header.stream_id & LONGEST
        try:
            decoded = codec.decode(data)
        except RemoteProtocolError:
            self._row(now, inward, size, seen)
            return
        seen.stream_id = decoded.stream_id & LONGEST
        self._look_at_begin(decoded, data, inward)
        repeated = self._token is not None and not inward and self.session.repeats(data, size)
        stream = self.session.streams.get(decoded.stream_id)
        if repeated and stream is not None:
            stream.retries += 1
        read = READERS.get(type(decoded))
        if read is not None:
            read(self, now, inward, decoded, seen, stream, Size(size, beyond, repeated))
        if seen.route_id is None and decoded.stream_id:
            seen.route_id = stream.route_id if stream is not None else self.session.late_route(decoded.stream_id)
        self._row(now, inward, size, seen)

    def _look_at_begin(self, frame: Frame, data: bytes, inward: bool) -> None:
        """Read the session id from the first frame, of a new or of a resumed session."""
        kind = type(frame)
        if self._seq or (kind is not SetupFrame and kind is not ResumeFrame):
            return
        back = resume_request(self._dialect, data)
        if back is not None:
            self.is_resuming = True
            self._token = self.session.id = session_id(back.token)
            if inward:
                self._position = back.last_received_server_position
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
            self._metadata_mime, self._leased = _terms_of(former.founder)
            replaced, self.session = former.current, former
            former.drops += self.drops
            former.go_on(self, position if self.facts.side == "client" else self._position, now)
            self.resumes = former.resumes
            if replaced.is_closed:
                replaced.tell()
        self.is_resuming = False

    # One method for each kind of frame

    def _read_setup(
        self, now: int, inward: bool, frame: SetupFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        measure(seen, frame.payload, size.beyond)
        frame = stated(self._dialect, frame)
        self._metadata_mime = mime_name(frame.metadata_mime)
        self._leased = frame.lease
        self._setup = (
            *(str(self._metadata_mime), str(mime_name(frame.data_mime))),
            *(round(frame.keepalive_interval * 1000), round(frame.max_lifetime * 1000)),
            *(frame.lease, frame.resume_token is not None),
        )

    def _read_setup_ok(
        self, now: int, inward: bool, frame: SetupOkFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        measure(seen, frame.payload, size.beyond)
        grant = content_at(AT_OK, frame.extensions, ResumeGrant)
        if isinstance(grant, ResumeGrant):
            seen.resume_pos = grant.last_received_client_position
            self._go_on(now, grant.last_received_client_position)

    def _read_resume(
        self, now: int, inward: bool, frame: ResumeFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.resume_pos = frame.last_received_server_position

    def _read_resume_ok(
        self, now: int, inward: bool, frame: ResumeOkFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.resume_pos = frame.last_received_client_position
        self._go_on(now, frame.last_received_client_position)

    def _read_keepalive(
        self, now: int, inward: bool, frame: KeepaliveFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.data_bytes = len(frame.data) + size.beyond
        seen.keepalive_pos = frame.last_received_position
        self._beat(now, inward, asks=frame.respond)

    def _read_lease(
        self, now: int, inward: bool, frame: LeaseFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.metadata_bytes = None if frame.metadata is None else len(frame.metadata)
        self._grant(now, inward, frame.number_of_requests, frame.time_to_live_ns, seen)

    def _read_ext(
        self, now: int, inward: bool, frame: ExtFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.data_bytes = len(frame.body) + size.beyond
        for entry in frame.extensions:
            content = AT_EXT.read(entry)
            if isinstance(content, Beat):
                self._beat(now, inward, asks=content.respond)
            elif isinstance(content, ResumePosition):
                seen.keepalive_pos = content.last_received_position
            elif isinstance(content, Permits):
                self._grant(now, inward, content.number, content.time_to_live_ns, seen)

    def _read_push(
        self, now: int, inward: bool, frame: MetadataPushFrame, seen: Seen, stream: StreamTrack | None, size: Size
    ) -> None:
        seen.metadata_bytes = len(frame.metadata) + size.beyond

    def _grant(self, now: int, inward: bool, number: int, ttl_ns: int, seen: Seen) -> None:
        seen.lease_n = min(number, LONGEST)
        seen.lease_ttl_ms = min(ttl_ns // NS_PER_MS, LONGEST)
        # A received lease is for requests sent.
        self._leases[not inward].grant(number, ttl_ns, now)


def _terms_of(founder: Track) -> tuple[str | int, bool]:
    assert isinstance(founder, FamilyTrack)
    return founder._metadata_mime, founder._leased


READERS: Final[dict[type, Callable[..., None]]] = {
    SetupFrame: FamilyTrack._read_setup,
    SetupOkFrame: FamilyTrack._read_setup_ok,
    ResumeFrame: FamilyTrack._read_resume,
    ResumeOkFrame: FamilyTrack._read_resume_ok,
    KeepaliveFrame: FamilyTrack._read_keepalive,
    LeaseFrame: FamilyTrack._read_lease,
    ExtFrame: FamilyTrack._read_ext,
    MetadataPushFrame: FamilyTrack._read_push,
    RequestFrame: StreamReader._read_request,
    PayloadFrame: StreamReader._read_payload,
    RequestNFrame: StreamReader._read_request_n,
    CancelFrame: StreamReader._read_cancel,
    ErrorFrame: StreamReader._read_error,
}
