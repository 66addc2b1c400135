"""One connection's rules: frames in, events out, whatever the dialect; no I/O, no clock, no tasks."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rsocket_trio.errors import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    SETUP_ERRORS,
    ConnectionClosed,
    ConnectionLost,
    InvalidSetup,
    RejectedResume,
    RemoteProtocolError,
    RSocketError,
    SetupError,
    Unsupported,
    connection_error,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    Event,
    ExtensionReceived,
    LeaseReceived,
    MetadataPushed,
    PeerDraining,
    Pong,
    SessionEnded,
    SetupReceived,
)
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.mux.outbox import Lane, Outbox
from rsocket_trio.rsocket import setup
from rsocket_trio.rsocket.codec import BadMetadata
from rsocket_trio.rsocket.dialects import Dialect
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
)
from rsocket_trio.rsocket.inbound import Inbound
from rsocket_trio.rsocket.keepalive import Beat, KeepaliveTimer
from rsocket_trio.rsocket.lease import Permits
from rsocket_trio.rsocket.outbound import Outbound
from rsocket_trio.rsocket.streams import Stream, StreamTable
from rsocket_trio.terms import MAX_REQUESTS, Lease

NANOSECONDS = 1_000_000_000
UNLIMITED_LEASE = Lease(MAX_REQUESTS, MAX_REQUESTS / 1000)
"""What a client grants a server's requests where its application has no policy of its own."""


class State(enum.Enum):
    """Where a connection stands."""

    NEW = enum.auto()
    """A server that waits for SETUP, a client that has not sent it."""
    GATED = enum.auto()
    """A server whose application considers the SETUP."""
    OPEN = enum.auto()
    OVER = enum.auto()


class Session:
    """The rules of one connection of the RSocket family.

    What is to be sent stands in ``outbox``; the connection writes it. ``commands`` are what can be sent on streams.
    Methods that depend on time take ``now``, in seconds. ``receive`` and ``expire`` return what happened; never call
    the session again before all of it was collected.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        client: bool,
        limits: Limits,
        fragment_size: int,
        extensions: frozenset[int] = frozenset(),
    ) -> None:
        self.dialect = dialect
        self.client = client
        self.limits = limits
        self.state = State.NEW
        self.draining = False
        self.established = False
        self.error: RSocketError | None = None
        self.table = StreamTable(dialect, client=client)
        self.outbox = Outbox(limits.outbox_size, self.table.forget)
        self.commands = Outbound(dialect, self.table, self.outbox, fragment_size)
        self.inbound = Inbound(dialect, limits, self.table, self.commands, self.outbox)
        self.permits: Permits | None = None
        self._extensions = extensions
        self._grants_leases = False
        self._keepalive = KeepaliveTimer(math.inf, math.inf, 0.0)
        self._pings: deque[object] = deque()
        self._pushes = Lane()
        self._held: list[bytes] = []
        self._held_size = 0
        self._stream_handlers: dict[type, Callable[[Any], None]] = {
            PayloadFrame: self.inbound.on_payload,
            RequestNFrame: self.inbound.on_request_n,
            RequestFrame: self.inbound.on_request,
            CancelFrame: self.inbound.on_cancel,
        }
        self._connection_handlers: dict[type, Callable[[Any], None]] = {
            ErrorFrame: self._on_error,
            KeepaliveFrame: self._on_keepalive,
            LeaseFrame: self._on_lease,
            MetadataPushFrame: self._on_metadata_push,
            ExtFrame: self._on_ext,
            SetupFrame: self._ignore,  # RS10-UNX-14, RS10-UNX-17
            ResumeFrame: self._on_resume,
            ResumeOkFrame: self._ignore,  # RS10-UNX-18
        }

    # What the connection says

    def start_client(self, terms: setup.ClientTerms, now: float, *, own_policy: bool = False) -> None:
        """Send SETUP, and with leases our own first LEASE, unless the application has a policy for that.

        Raises ``LocalProtocolError`` for terms that the dialect can't say.
        """
        self.outbox.put_urgent(self.dialect.codec.encode(setup.setup_frame(self.dialect, terms)))
        self._keepalive = KeepaliveTimer(terms.keepalive.interval, terms.keepalive.max_lifetime, now)
        self.state = State.OPEN
        if terms.lease:
            self.permits = Permits()
            self.inbound.granted = Permits()
            if not own_policy:
                self.grant(UNLIMITED_LEASE, now)  # RS10-CON-11

    def start_server(self, *, grants_leases: bool) -> None:
        """Wait for SETUP."""
        self._grants_leases = grants_leases

    def accept(self, now: float) -> list[Event]:
        """The application takes the SETUP; what was held for it happens now."""
        if self.state is not State.GATED:
            return []
        self.state = State.OPEN
        held, self._held, self._held_size = self._held, [], 0
        return self._process(held, now) if held else []

    def refuse(self, error: SetupError) -> list[Event]:
        """The application refuses the SETUP; held requests are dropped."""
        if self.state is State.GATED:
            self._end_with(error.code, error.data, error)
        return self._collected()

    def grant(self, lease: Lease, now: float) -> None:
        """Allow the peer so many requests for so long; does nothing where leases were not agreed."""
        if self.inbound.granted is None or self.state is State.OVER:
            return
        self.inbound.granted.grant(lease.number_of_requests, lease.time_to_live, now)
        frame = LeaseFrame(round(lease.time_to_live * NANOSECONDS), lease.number_of_requests)
        self.outbox.put_urgent(self.dialect.codec.encode(frame))

    def ping(self, token: object) -> None:
        """Ask for a sign of life; ``Pong`` with this token is its answer, in order.

        Raises ``Unsupported`` where the dialect has none.
        """
        if KeepaliveFrame not in {row.frame for row in self.dialect.codec.rows}:
            raise Unsupported(f"{self.dialect.name} has no ping")
        self._send_keepalive(token)

    def metadata_push(self, metadata: bytes) -> None:
        """Send metadata for the connection, in a lane of its own."""
        self.outbox.put(self._pushes, self.dialect.codec.encode(MetadataPushFrame(metadata)))

    def extension(self, ext_type: int, body: bytes, *, ignore: bool) -> None:
        """Send an EXT frame for the connection; ``ignore`` allows the peer to skip it."""
        self.outbox.put_reply(self.dialect.codec.encode(ExtFrame(0, ext_type, body, ignore=ignore)))

    def drain(self) -> None:
        """Refuse new requests from now on; what is open may finish."""
        self.draining = True
        self.inbound.draining = True

    def announce_close(self) -> None:
        """Tell the peer that this connection ends (RS10-ERR-09)."""
        if self.state in (State.OPEN, State.GATED):
            self.outbox.put_reply(self._error(CONNECTION_CLOSE, b"closing"))

    def close(self, error: RSocketError | None = None) -> None:
        """The session is over on this side, or its transport is gone: all that comes is ignored from now on."""
        if self.error is None:
            self.error = error if error is not None else ConnectionClosed("the connection was closed by this side")
        self.state = State.OVER
        self._held.clear()

    # What the connection asks

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self.dialect.name

    @property
    def awaits_setup(self) -> bool:
        """Whether this is a server that no SETUP has reached."""
        return self.state is State.NEW

    @property
    def is_quiet(self) -> bool:
        """Whether no stream is open, and the last frame of each has left."""
        return not self.table

    @property
    def lingering(self) -> int:
        """Handlers that still run although their streams are over: they count as streams of the peer's."""
        return self.inbound.lingering

    @lingering.setter
    def lingering(self, number: int) -> None:
        self.inbound.lingering = number

    def open_streams(self) -> list[Stream]:
        """All streams of both sides, as they are now."""
        return [*self.table.mine.values(), *self.table.theirs.values()]

    def supports(self, interaction: Interaction) -> bool:
        """Whether the dialect has this interaction."""
        return interaction in self.dialect.interactions

    @property
    def deadline(self) -> float:
        """When ``expire`` has something to say, as far as is known now; infinite when nothing is due."""
        return self._keepalive.deadline if self.state in (State.OPEN, State.GATED) else math.inf

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause: replies wait for a peer that does not read, or the gate holds enough."""
        outbox, limits = self.outbox, self.limits
        return (
            outbox.reply_size >= limits.reply_size
            or outbox.reply_frames >= limits.reply_frames
            or len(self._held) >= limits.held_frames
            or self._held_size >= limits.held_size
        )

    # What the peer and the clock say

    def receive(self, frames: Sequence[bytes], now: float) -> list[Event]:
        """Take whole frames, in order. Nothing that a peer can send raises."""
        if self.state is State.OVER:
            return []
        self._keepalive.heard(now)
        return self._process(frames, now)

    def broken(self, error: RemoteProtocolError) -> list[Event]:
        """The transport could not find the next frame: there is no way on (ALL-RCT-05)."""
        if self.state is State.NEW and not self.client:
            self._end_with(InvalidSetup.default_code, str(error).encode(), error)
        elif self.state is not State.OVER:
            self._fail(error)
        return self._collected()

    def expire(self, now: float) -> list[Event]:
        """What the clock asks for at this time: a beat, or the end of a silent connection."""
        if self.state is State.OVER:
            return []
        beat = self._keepalive.expire(now)
        if beat is Beat.SEND:
            self._send_keepalive(None)
        elif beat is Beat.DEAD:
            silence = f"no frame came for {self._keepalive.max_lifetime:g} s"
            self._end_with(CONNECTION_ERROR, silence.encode(), ConnectionLost(f"the peer is silent: {silence}"))
        return self._collected()

    def _process(self, frames: Sequence[bytes], now: float) -> list[Event]:
        inbound = self.inbound
        inbound.now = now
        decode = self.dialect.codec.decode
        handlers = self._stream_handlers
        try:
            for data in frames:
                if self.state is not State.OPEN and not self._pass_gate(data):
                    continue
                try:
                    frame = decode(data)
                except RemoteProtocolError as error:
                    self._not_decoded(data, error)
                    continue
                handler = handlers.get(type(frame))
                if handler is not None:
                    handler(frame)
                else:
                    self._connection_handlers[type(frame)](frame)
                if self.client and not self.established:
                    self._establish(frame)
        except RemoteProtocolError as error:
            self._fail(error)
        return self._collected()

    def _collected(self) -> list[Event]:
        events, self.inbound.events = self.inbound.events, []
        return events

    def _pass_gate(self, data: bytes) -> bool:
        """Whether this frame is to be looked at now, in a state that is not the usual one."""
        if self.state is State.OVER:
            return False
        if self.state is State.NEW:
            self._first_frame(data)
            return False
        header = self.dialect.codec.header(data)
        if header is not None and header.stream_id and self.table.find(header.stream_id) is None:
            # A request, or something for a request that is held already. Connection frames and answers go on.
            self._held.append(data)
            self._held_size += len(data)
            return False
        return True

    def _first_frame(self, data: bytes) -> None:
        try:
            frame = self.dialect.codec.decode(data)
        except RemoteProtocolError as error:
            # ALL-RCT-04: whatever its ignore flag says.
            self._refuse_setup(InvalidSetup(str(error)))
            return
        if isinstance(frame, ResumeFrame) and not frame.stream_id:
            self._refuse_setup(RejectedResume("resumption is not offered here"))  # RS10-RSM-17
            return
        if not isinstance(frame, SetupFrame) or frame.stream_id:
            name = self.dialect.codec.name_of(frame)
            self._refuse_setup(InvalidSetup(f"the first frame must be SETUP on stream 0, not {name}"))  # RS10-CON-02
            return
        size = len(data) - len(frame.resume_token or b"")
        if size > self.limits.setup_size:
            self._refuse_setup(InvalidSetup(f"SETUP of {size} bytes, limit {self.limits.setup_size}"))
            return
        refusal = setup.refusal(self.dialect, frame, grants_leases=self._grants_leases)
        if refusal is not None:
            self._refuse_setup(refusal)
            return
        self.state = State.GATED
        self.established = True
        self._keepalive = KeepaliveTimer(math.inf, frame.max_lifetime, self.inbound.now)
        if frame.lease:
            self.permits = Permits()
            self.inbound.granted = Permits()
        self.inbound.events.append(SetupReceived(setup.described(self.dialect, frame)))

    def _not_decoded(self, data: bytes, error: RemoteProtocolError) -> None:
        """ALL-RCT-02, -03, RS10-MD-02, RS02-MD-02."""
        bad_metadata = isinstance(error, BadMetadata)
        if self.dialect.codec.ignorable(data) or (bad_metadata and self.dialect.bad_metadata_ignored):
            self.inbound.ignored += 1
        else:
            self._fail(error)

    def _establish(self, frame: Frame) -> None:
        """RS10-CON-12: a response, a LEASE, a request or a KEEPALIVE of the server shows that it accepted."""
        self.established = not (isinstance(frame, ErrorFrame) and frame.stream_id == 0)

    # Frames for the connection

    def _ignore(self, frame: Frame) -> None:
        self.inbound.ignored += 1

    def _on_error(self, frame: ErrorFrame) -> None:
        if frame.stream_id:
            self.inbound.on_error(frame)
        elif frame.code in SETUP_ERRORS:
            if self.established:
                self.inbound.ignored += 1  # RS10-UNX-15, -16
            else:
                self._end(SETUP_ERRORS[frame.code].received(frame.code, frame.data))
        elif frame.code == CONNECTION_CLOSE:
            self.drain()  # RS10-ERR-09
            self.inbound.events.append(PeerDraining())
        else:
            # RS10-ERR-06: on stream 0 any unknown code counts as CONNECTION_ERROR.
            self._end(connection_error(frame.code, frame.data))

    def _on_keepalive(self, frame: KeepaliveFrame) -> None:
        if frame.stream_id:
            self.inbound.ignored += 1
        elif frame.respond:
            # RS10-KA-04, -08: the same data, our own position, which is 0 without resumption.
            self.outbox.put_reply(self.dialect.codec.encode(KeepaliveFrame(False, 0, frame.data)))
        elif self._pings:
            # Answers come in order; their data is not checked, since some peers echo nothing.
            token = self._pings.popleft()
            if token is not None:
                self.inbound.events.append(Pong(token))

    def _on_lease(self, frame: LeaseFrame) -> None:
        if frame.stream_id or self.permits is None:
            self.inbound.ignored += 1  # RS10-LEASE-05
            return
        self.permits.grant(frame.number_of_requests, frame.time_to_live_ns / NANOSECONDS, self.inbound.now)
        self.inbound.events.append(LeaseReceived())

    def _on_metadata_push(self, frame: MetadataPushFrame) -> None:
        if frame.stream_id:
            self.inbound.ignored += 1  # RS10-UNX-13
        else:
            self.inbound.events.append(MetadataPushed(frame.metadata))

    def _on_ext(self, frame: ExtFrame) -> None:
        if frame.ext_type in self._extensions:
            self.inbound.events.append(ExtensionReceived(frame.ext_type, frame.stream_id, frame.body))
        elif frame.ignore:
            self.inbound.ignored += 1
        else:
            raise RemoteProtocolError(f"EXT of type 0x{frame.ext_type:X} is not known here")  # RS10-EXT-02

    def _on_resume(self, frame: ResumeFrame) -> None:
        if self.client or frame.stream_id:
            self.inbound.ignored += 1  # RS10-UNX-18
        else:
            raise RemoteProtocolError("RESUME on a connection that is set up")  # RS10-RSM-20

    # Ends

    def _send_keepalive(self, token: object) -> None:
        self._pings.append(token)
        self.outbox.put_urgent(self.dialect.codec.encode(KeepaliveFrame(True)))

    def _error(self, code: int, data: bytes) -> bytes:
        return self.dialect.codec.encode(self.commands.error_frame(0, code, data))

    def _refuse_setup(self, error: SetupError) -> None:
        self._end_with(error.code, error.data, error)

    def _fail(self, error: RemoteProtocolError) -> None:
        """The one place where a fault of the peer's becomes its answer on the wire and our own end."""
        lost = ConnectionLost(f"the peer broke the protocol: {error}", code=CONNECTION_ERROR)
        lost.__cause__ = error
        self._end_with(CONNECTION_ERROR, str(error).encode(), lost)

    def _end_with(self, code: int, data: bytes, error: RSocketError) -> None:
        """Say why, then end."""
        if self.dialect.has_connection_error or code in SETUP_ERRORS:
            self.outbox.put_reply(self._error(code, data))
        self._end(error)

    def _end(self, error: RSocketError) -> None:
        self.outbox.discard_lanes()
        self.close(error)
        self.inbound.events.append(SessionEnded(error))


def checked_fragment_size(size: int, limit: int) -> int:
    """An outbound fragment size that every payload can be cut to. Raises ``ValueError`` naming the bounds."""
    if not 64 <= size <= limit:
        raise ValueError(f"fragment_size of {size} bytes: must be between 64 and {limit}")
    return size
