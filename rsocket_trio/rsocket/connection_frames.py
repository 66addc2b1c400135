"""Connection-level frames, both ways: keepalives, leases, pushed metadata, errors and extensions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Any, TypeAlias

import attrs

from rsocket_trio.errors import (
    CONNECTION_CLOSE,
    DRAIN_SIGN,
    RemoteProtocolError,
    RSocketError,
    Unsupported,
    connection_error,
)
from rsocket_trio.mux.events import Event, ExtensionReceived, LeaseReceived, MetadataPushed, PeerDraining, Pong
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.stream_state import Interaction, StreamQueue
from rsocket_trio.rsocket.codec import BadMetadata
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtensionEntry,
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
from rsocket_trio.rsocket.leases_and_keepalive import Leases
from rsocket_trio.rsocket.resume_protocol import ResumeHandshake
from rsocket_trio.terms import Lease

NANOSECONDS = 1_000_000_000

Events: TypeAlias = tuple[Event, ...]
"""The events of a frame; empty for one that changes nothing outside of the session."""

ACCEPTANCE = frozenset({PayloadFrame, RequestNFrame, RequestFrame, CancelFrame, LeaseFrame})
"""Frames that show a client that the server accepted, beside a KEEPALIVE of its own and an ERROR on a stream."""


class EndedByPeer(Exception):
    """Raised when an ERROR of the peer ends the connection; no answer is sent."""

    def __init__(self, error: RSocketError) -> None:
        super().__init__(str(error))
        self.error = error


UnreadRequest: TypeAlias = tuple[int, Interaction | None, int, str]
"""The id and interaction of a request of which only the header was understood, the code and text that answer it."""


@attrs.define(eq=False, repr=False)
class ConnectionFrames:
    """The connection's own frames, both ways. The received ones become events.

    ``leases`` are those of both sides, ``None`` unless they were agreed; ``established`` says that the server's
    acceptance has shown, ``ignored`` counts frames without effect, ``positions`` are those of a resumable session.
    """

    _dialect: Dialect
    _outbox: Outbox
    _extensions: Container[int]
    _client: bool
    _pings: deque[object] | None = None
    _pushes: StreamQueue = attrs.Factory(StreamQueue)
    leases: Leases | None = None
    established: bool = False
    ignored: int = 0
    positions: ResumeHandshake | None = None

    # Sending

    def grant(self, lease: Lease, now: float) -> None:
        """Grant the peer a lease; do nothing if leases were not agreed."""
        if self.leases is not None:
            self.leases.grant(lease, now)
            frame = LeaseFrame(round(lease.time_to_live * NANOSECONDS), lease.number_of_requests)
            self._outbox.put_signal(self._dialect.codec.encode(self.lease(frame)))

    def ping(self, token: object) -> None:
        """Send a KEEPALIVE. Its answer becomes ``Pong`` with this token, in order; with ``None`` there is no event."""
        if not self._dialect.codec.writes(KeepaliveFrame):
            raise Unsupported(f"{self._dialect.name} has no ping")
        self._outbox.put_signal(self.make_asking_beat(token))

    def make_drain_sign(self) -> bytes:
        """Return the KEEPALIVE that says that this side drains; it asks for no answer."""
        return self._dialect.codec.encode(self.beat(KeepaliveFrame(False, self._position, DRAIN_SIGN)))

    def make_asking_beat(self, token: object = None) -> bytes:
        """Return a KEEPALIVE that asks for an answer, and queue its token."""
        if self._pings is None:
            self._pings = deque()
        self._pings.append(token)
        return self._dialect.codec.encode(self.beat(KeepaliveFrame(True, self._position)))

    def restart(self, now: float) -> None:
        """Start again on a new transport: repeat pings, reset permits, and grant the rest of the lease again."""
        tokens, self._pings = self._pings or (), None
        for token in tokens:
            if token is not None:
                self.ping(token)
        left = None if self.leases is None else self.leases.restart(now)
        if left is not None:
            self.grant(left, now)

    def report_position(self) -> None:
        """Report the received position, in dialects whose KEEPALIVE has no field for it."""

    @property
    def _position(self) -> int:
        """The received position in bytes, 0 without resumption."""
        return self.positions.received if self.positions is not None else 0

    def metadata_push(self, metadata: bytes, metadata_type: int = 0) -> None:
        """Send metadata for the connection, in a queue of its own."""
        self._outbox.put(self._pushes, self._dialect.codec.encode(MetadataPushFrame(metadata, 0, metadata_type)))

    def extension(self, ext_type: int, body: bytes, *, ignore: bool) -> None:
        """Send an EXT frame for the connection; ``ignore`` allows the peer to skip it."""
        self._outbox.put(self._pushes, self._dialect.codec.encode(ExtFrame(0, ext_type, body, ignore=ignore)))

    def beat(self, frame: KeepaliveFrame) -> Frame:
        """Return the frame that carries this KEEPALIVE in the dialect."""
        return frame

    def lease(self, frame: LeaseFrame) -> Frame:
        """Return the frame that carries this LEASE in the dialect."""
        return frame

    def entries(self, entries: tuple[ExtensionEntry, ...], *, ignore: bool) -> None:
        """Send extension entries for the connection."""
        raise Unsupported(f"{self._dialect.name} has no extension entries")

    # Receiving

    def is_for_session(self, data: bytes) -> bool:
        """Return whether an EXT frame concerns the session alone, not the application."""
        return False

    def unread_request(self, data: bytes, error: RemoteProtocolError) -> UnreadRequest | None:
        """Return the answer to a request that was understood in part, ``None`` for any other frame."""
        return None

    def skip(self, data: bytes, error: RemoteProtocolError) -> None:
        """Skip a frame that was not understood, or raise ``error`` again (ALL-RCT-02, -03, RS10-MD-02, RS02-MD-02)."""
        bad_metadata = isinstance(error, BadMetadata) and self._dialect.bad_metadata_ignored
        if not bad_metadata and not self._dialect.codec.ignorable(data):
            raise error
        self.ignored += 1

    def look_for_acceptance(self, frame: Frame) -> None:
        """Note the server's acceptance if a client may take this frame as it (RS10-CON-12)."""
        if type(frame) is KeepaliveFrame:
            # An answer is owed at once, also while the server's application considers the SETUP.
            self.established = frame.respond and self._dialect.keepalive_accepts
        else:
            self.established = type(frame) in ACCEPTANCE or (type(frame) is ErrorFrame and frame.stream_id > 0)

    def receive(self, frame: Frame, now: float) -> Events:
        """Take a frame that concerns no stream. Return its events.

        Raise ``RemoteProtocolError`` for a fault that ends the connection, ``EndedByPeer`` for an ERROR that does.
        """
        return HANDLERS[type(frame)](self, frame, now)

    def _ignore(self, frame: Frame, now: float) -> Events:
        self.ignored += 1
        return ()

    def _on_error(self, frame: ErrorFrame, now: float) -> Events:
        if self._dialect.misplaces(frame.stream_id, frame.code):
            return self._ignore(frame, now)  # ALL-RCT-07
        refusal = self._dialect.refusal(frame.code, frame.data)
        if refusal is not None:
            if self.established:
                return self._ignore(frame, now)  # RS10-UNX-15, -16
            raise EndedByPeer(refusal)
        if frame.code == CONNECTION_CLOSE and self._dialect.has_connection_close:
            return (PeerDraining(closing=True),)  # RS10-ERR-09
        # RS10-ERR-06: on stream 0 any unknown code counts as CONNECTION_ERROR.
        raise EndedByPeer(connection_error(frame.code, frame.data))

    def _on_keepalive(self, frame: KeepaliveFrame, now: float) -> Events:
        if frame.stream_id:
            return self._ignore(frame, now)
        if self.positions is not None:
            self.positions.confirmed(frame.last_received_position)
        if not frame.respond:
            return self._pong(frame.data)
        # RS10-KA-04, -08: the same data, our own position.
        self._outbox.put_reply(self._dialect.codec.encode(KeepaliveFrame(False, self._position, frame.data)))
        return ()

    def _pong(self, data: bytes) -> Events:
        if data == DRAIN_SIGN:
            return (PeerDraining(closing=False),)  # no answer: pings carry no data
        # Answers come in order; their data is not checked, since some peers echo nothing.
        token = self._pings.popleft() if self._pings else None
        return () if token is None else (Pong(token),)

    def _on_lease(self, frame: LeaseFrame, now: float) -> Events:
        if frame.stream_id or self.leases is None:
            return self._ignore(frame, now)  # RS10-LEASE-05
        self.leases.receive(frame.number_of_requests, frame.time_to_live_ns / NANOSECONDS, now)
        return (LeaseReceived(),)

    def _on_metadata_push(self, frame: MetadataPushFrame, now: float) -> Events:
        return (MetadataPushed(frame.metadata),)

    def _on_ext(self, frame: ExtFrame, now: float) -> Events:
        if frame.ext_type in self._extensions:
            return (ExtensionReceived(frame.ext_type, frame.stream_id, frame.body),)
        if frame.ignore:
            return self._ignore(frame, now)
        raise RemoteProtocolError(f"EXT of type 0x{frame.ext_type:X} is not known here")  # RS10-EXT-02

    def _on_resume(self, frame: ResumeFrame, now: float) -> Events:
        if self._client or frame.stream_id:
            return self._ignore(frame, now)  # RS10-UNX-18
        raise RemoteProtocolError("RESUME on a connection that is set up")  # RS10-RSM-20


HANDLERS: dict[type, Callable[[ConnectionFrames, Any, float], Events]] = {
    ErrorFrame: ConnectionFrames._on_error,
    KeepaliveFrame: ConnectionFrames._on_keepalive,
    LeaseFrame: ConnectionFrames._on_lease,
    MetadataPushFrame: ConnectionFrames._on_metadata_push,
    ExtFrame: ConnectionFrames._on_ext,
    SetupFrame: ConnectionFrames._ignore,  # RS10-UNX-14, RS10-UNX-17
    ResumeFrame: ConnectionFrames._on_resume,
    ResumeOkFrame: ConnectionFrames._ignore,  # RS10-UNX-18
    SetupOkFrame: ConnectionFrames._ignore,  # RSX-OK-03
}
