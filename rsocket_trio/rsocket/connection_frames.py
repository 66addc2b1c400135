"""Connection-level frames, both ways: keepalives, leases, pushed metadata, errors and extensions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Any

from rsocket_trio.errors import (
    CONNECTION_CLOSE,
    RemoteProtocolError,
    RSocketError,
    Unsupported,
    connection_error,
)
from rsocket_trio.mux.events import ExtensionReceived, LeaseReceived, MetadataPushed, PeerDraining, Pong
from rsocket_trio.mux.outbox import Outbox, StreamQueue
from rsocket_trio.rsocket.codec import BadMetadata
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extensions.blocks import Entry
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
from rsocket_trio.rsocket.lease import Permits
from rsocket_trio.rsocket.resume_positions import ResumePositions
from rsocket_trio.rsocket.stream_receiver import StreamReceiver
from rsocket_trio.terms import MAX_SECONDS, Lease

NANOSECONDS = 1_000_000_000
CROSSING = 1.0
"""Seconds that requests may be on their way while a lease is renewed."""

ACCEPTANCE = frozenset({PayloadFrame, RequestNFrame, RequestFrame, CancelFrame, LeaseFrame})
"""Frames that show a client that the server accepted, beside a KEEPALIVE of its own and an ERROR on a stream."""


class EndedByPeer(Exception):
    """Raised when an ERROR of the peer ends the connection; no answer is sent."""

    def __init__(self, error: RSocketError) -> None:
        super().__init__(str(error))
        self.error = error


class Control:
    """The connection's own frames, both ways. Events go to those of ``receiver``.

    ``permits`` is what the peer's last lease allows, ``None`` without leases; ``established`` whether the server's
    acceptance has shown.
    """

    __slots__ = (
        "_client",
        "_dialect",
        "_encode",
        "_extensions",
        "_leases_agreed",
        "_outbox",
        "_pings",
        "_pushes",
        "_receiver",
        "established",
        "permits",
        "resumption",
    )

    def __init__(
        self, dialect: Dialect, receiver: StreamReceiver, outbox: Outbox, extensions: Container[int], *, client: bool
    ) -> None:
        self._encode = dialect.codec.encode
        self._dialect = dialect
        self._receiver = receiver
        self._outbox = outbox
        self._extensions = extensions
        self._client = client
        self._pings: deque[object] | None = None
        self._pushes = StreamQueue()
        self._leases_agreed = False
        self.permits: Permits | None = None
        self.established = False
        self.resumption: ResumePositions | None = None

    # What is sent

    def agree_leases(self) -> None:
        """Require permits of both sides from now on, of the client alone if SETUP implies a lease for the server."""
        self._leases_agreed = True
        implicit = self._dialect.implicit_lease
        if self._client or not implicit:
            self.permits = Permits()
        if not self._client or not implicit:
            self._receiver.granted = Permits(CROSSING)

    def grant(self, lease: Lease, now: float) -> None:
        """Grant the peer a lease; do nothing if leases were not agreed."""
        if self._leases_agreed:
            if self._receiver.granted is None:
                self._receiver.granted = Permits(CROSSING)
            self._receiver.granted.grant(lease.number_of_requests, lease.time_to_live, now)
            frame = LeaseFrame(round(lease.time_to_live * NANOSECONDS), lease.number_of_requests)
            self._outbox.put_signal(self._encode(self.lease(frame)))

    def ping(self, token: object) -> None:
        """Send a KEEPALIVE. Its answer becomes ``Pong`` with this token, in order; with ``None`` there is no event."""
        if not self._dialect.codec.writes(KeepaliveFrame):
            raise Unsupported(f"{self._dialect.name} has no ping")
        self._outbox.put_signal(self.asked_beat(token))

    def asked_beat(self, token: object = None) -> bytes:
        """Return a KEEPALIVE that asks for an answer, and queue its token."""
        if self._pings is None:
            self._pings = deque()
        self._pings.append(token)
        return self._encode(self.beat(KeepaliveFrame(True, self._position)))

    def restart(self, now: float) -> None:
        """Start again on a new transport: repeat pings, reset permits, and grant the rest of the lease again."""
        tokens, self._pings = self._pings or (), None
        for token in tokens:
            if token is not None:
                self.ping(token)
        granted = self._receiver.granted
        if self.permits is not None:
            self.permits = Permits()
        if granted is not None and granted.remaining(now):
            # RS10-RSM-21: what was granted and not used.
            self.grant(Lease(granted.remaining(now), min(granted.expires_in(now), MAX_SECONDS)), now)

    def report_position(self) -> None:
        """Report the received position, in dialects whose KEEPALIVE has no field for it."""

    @property
    def _position(self) -> int:
        """The received position in bytes, 0 without resumption."""
        return self.resumption.received if self.resumption is not None else 0

    def metadata_push(self, metadata: bytes, metadata_type: int = 0) -> None:
        """Send metadata for the connection, in a queue of its own."""
        self._outbox.put(self._pushes, self._encode(MetadataPushFrame(metadata, 0, metadata_type)))

    def extension(self, ext_type: int, body: bytes, *, ignore: bool) -> None:
        """Send an EXT frame for the connection; ``ignore`` allows the peer to skip it."""
        self._outbox.put(self._pushes, self._encode(ExtFrame(0, ext_type, body, ignore=ignore)))

    def beat(self, frame: KeepaliveFrame) -> Frame:
        """Return the frame that carries this KEEPALIVE in the dialect."""
        return frame

    def lease(self, frame: LeaseFrame) -> Frame:
        """Return the frame that carries this LEASE in the dialect."""
        return frame

    def entries(self, entries: tuple[Entry, ...], *, ignore: bool) -> None:
        """Send extension entries for the connection."""
        raise Unsupported(f"{self._dialect.name} has no extension entries")

    # What is received

    def is_for_session(self, data: bytes) -> bool:
        """Return whether an EXT frame concerns the session alone, not the application."""
        return False

    def refuse_unread(self, data: bytes, error: RemoteProtocolError) -> bool:
        """Answer a request that was understood in part. Return ``False`` if the frame is no such request."""
        return False

    def skip(self, data: bytes, error: RemoteProtocolError) -> None:
        """Skip a frame that was not understood, if its clause allows (ALL-RCT-02, -03, RS10-MD-02, RS02-MD-02)."""
        if self.refuse_unread(data, error):
            return
        bad_metadata = isinstance(error, BadMetadata) and self._dialect.bad_metadata_ignored
        if not bad_metadata and not self._dialect.codec.ignorable(data):
            raise error
        self._receiver.ignored += 1

    def shows_acceptance(self, frame: Frame) -> bool:
        """Return whether a client may take this frame as the server's acceptance (RS10-CON-12)."""
        if type(frame) is KeepaliveFrame:
            # An answer is owed at once, also while the server's application considers the SETUP.
            return frame.respond and self._dialect.keepalive_accepts
        return type(frame) in ACCEPTANCE or (type(frame) is ErrorFrame and frame.stream_id > 0)

    def receive(self, frame: Frame) -> None:
        """Take a frame of any type that is not for streams alone.

        Raises ``RemoteProtocolError`` for a fault that ends the connection, ``EndedByPeer`` for an ERROR that does.
        """
        HANDLERS[type(frame)](self, frame)

    def _ignore(self, frame: Frame) -> None:
        self._receiver.ignored += 1

    def _on_error(self, frame: ErrorFrame) -> None:
        if self._dialect.misplaces(frame.stream_id, frame.code):
            self._receiver.ignored += 1  # ALL-RCT-07
        elif frame.stream_id:
            self._receiver.on_error(frame)
        elif (refusal := self._dialect.refusal(frame.code, frame.data)) is not None:
            if self.established:
                self._receiver.ignored += 1  # RS10-UNX-15, -16
            else:
                raise EndedByPeer(refusal)
        elif frame.code == CONNECTION_CLOSE and self._dialect.has_connection_close:
            self._receiver.draining = True  # RS10-ERR-09
            self._receiver.events.append(PeerDraining())
        else:
            # RS10-ERR-06: on stream 0 any unknown code counts as CONNECTION_ERROR.
            raise EndedByPeer(connection_error(frame.code, frame.data))

    def _on_keepalive(self, frame: KeepaliveFrame) -> None:
        if frame.stream_id:
            self._receiver.ignored += 1
            return
        if self.resumption is not None:
            self.resumption.confirmed(frame.last_received_position)
        if frame.respond:
            # RS10-KA-04, -08: the same data, our own position.
            self._outbox.put_reply(self._encode(KeepaliveFrame(False, self._position, frame.data)))
        else:
            self._pong()

    def _pong(self) -> None:
        if self._pings:
            # Answers come in order; their data is not checked, since some peers echo nothing.
            token = self._pings.popleft()
            if token is not None:
                self._receiver.events.append(Pong(token))

    def _on_lease(self, frame: LeaseFrame) -> None:
        if frame.stream_id or not self._leases_agreed:
            self._receiver.ignored += 1  # RS10-LEASE-05
            return
        if self.permits is None:
            self.permits = Permits()
        self.permits.grant(frame.number_of_requests, frame.time_to_live_ns / NANOSECONDS, self._receiver.now)
        self._receiver.events.append(LeaseReceived())

    def _on_metadata_push(self, frame: MetadataPushFrame) -> None:
        if frame.stream_id and not self._dialect.any_push_id:
            self._receiver.on_metadata_push(frame)
        else:
            self._receiver.events.append(MetadataPushed(frame.metadata))

    def _on_ext(self, frame: ExtFrame) -> None:
        if frame.ext_type in self._extensions:
            self._receiver.events.append(ExtensionReceived(frame.ext_type, frame.stream_id, frame.body))
        elif frame.ignore:
            self._receiver.ignored += 1
        else:
            raise RemoteProtocolError(f"EXT of type 0x{frame.ext_type:X} is not known here")  # RS10-EXT-02

    def _on_resume(self, frame: ResumeFrame) -> None:
        if self._client or frame.stream_id:
            self._receiver.ignored += 1  # RS10-UNX-18
        else:
            raise RemoteProtocolError("RESUME on a connection that is set up")  # RS10-RSM-20


HANDLERS: dict[type, Callable[[Control, Any], None]] = {
    ErrorFrame: Control._on_error,
    KeepaliveFrame: Control._on_keepalive,
    LeaseFrame: Control._on_lease,
    MetadataPushFrame: Control._on_metadata_push,
    ExtFrame: Control._on_ext,
    SetupFrame: Control._ignore,  # RS10-UNX-14, RS10-UNX-17
    ResumeFrame: Control._on_resume,
    ResumeOkFrame: Control._ignore,  # RS10-UNX-18
    SetupOkFrame: Control._ignore,  # RSX-OK-03
}
