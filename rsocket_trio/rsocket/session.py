"""One connection's rules: frames in, events out, whatever the dialect; no I/O, no clock, no tasks."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

from rsocket_trio.errors import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    SETUP_ERRORS,
    ConnectionClosed,
    ConnectionLost,
    InvalidSetup,
    RemoteProtocolError,
    RSocketError,
    SetupError,
    Unsupported,
    UnsupportedSetup,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, SessionEnded, SetupAccepted, SetupReceived, TransportSilent
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import BadMetadata
from rsocket_trio.rsocket.continuity import Continuity, outbox_for
from rsocket_trio.rsocket.control import Control, EndedByPeer
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.entry_control import EntryControl
from rsocket_trio.rsocket.extension_terms import check_grants, cost_of, grants
from rsocket_trio.rsocket.extensions import Entry
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    KeepaliveFrame,
    LeaseFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.gate import Gate
from rsocket_trio.rsocket.inbound import Inbound
from rsocket_trio.rsocket.keepalive import Beat, KeepaliveTimer
from rsocket_trio.rsocket.lease import Permits
from rsocket_trio.rsocket.outbound import Outbound
from rsocket_trio.rsocket.setup import ClientTerms, admit, described, setup_frame
from rsocket_trio.rsocket.streams import Stream, StreamTable
from rsocket_trio.terms import MAX_REQUESTS, MAX_SECONDS, Lease, ResumeOptions

UNLIMITED_LEASE = Lease(MAX_REQUESTS, MAX_SECONDS)
"""What a client grants a server's requests where its application has no policy of its own."""

STREAM_HANDLERS: dict[type, Callable[[Inbound, Any], None]] = {
    PayloadFrame: Inbound.on_payload,
    RequestNFrame: Inbound.on_request_n,
    RequestFrame: Inbound.on_request,
    CancelFrame: Inbound.on_cancel,
}

ACCEPTANCE = frozenset({*STREAM_HANDLERS, KeepaliveFrame, LeaseFrame})
"""Frames that show a client that the server accepted (RS10-CON-12), beside an ERROR on a stream."""


class State(enum.Enum):
    """Where a connection stands."""

    NEW = enum.auto()
    """A server that waits for SETUP, a client that has not sent it."""
    ASKING = enum.auto()
    """A client whose SETUP waits for the answer that it asked for."""
    GATED = enum.auto()
    """A server whose application considers the SETUP."""
    OPEN = enum.auto()
    OVER = enum.auto()


STALLED = 16
"""How many times the replies that usually pause reading may wait while the store for resumption is full."""
TICKING = frozenset({State.OPEN, State.GATED, State.ASKING})
"""Where silence counts."""


class Session:
    """The rules of one connection of the RSocket family.

    What is to be sent stands in ``outbox``; the connection writes it. ``commands`` are what can be sent on streams.
    Methods that depend on time take ``now``, in seconds. ``receive`` and ``expire`` return what happened; never call
    the session again before all of it was collected.
    """

    is_full = False
    is_mid_frame = False
    has_credit = True
    message_budget: int | None = None

    def __init__(
        self,
        dialect: Dialect,
        *,
        client: bool,
        limits: Limits,
        fragment_size: int,
        extensions: frozenset[int] = frozenset(),
        resume: ResumeOptions | None = None,
    ) -> None:
        self.dialect = dialect
        self.client = client
        self.limits = limits
        self.state = State.NEW
        self.error: RSocketError | None = None
        self.table = StreamTable(dialect, client=client)
        self.outbox = outbox_for(resume, limits.outbox_size, self.table.forget, self)
        self.continuity = Continuity(self, resume)
        self._suspended = False
        self._announced = False
        self.commands = Outbound(dialect, self.table, self.outbox, fragment_size, limits.frame_size)
        self.inbound = Inbound(dialect, limits, self.table, self.commands, self.outbox)
        control = EntryControl if dialect.entries else Control
        self.control: Control = control(dialect, self.inbound, self.outbox, extensions, client=client)
        self._grants_leases = False
        self._keepalive = KeepaliveTimer(math.inf, math.inf, 0.0)
        self._acceptance = ACCEPTANCE if dialect.keepalive_accepts else ACCEPTANCE - {KeepaliveFrame}
        self._asked: tuple[ClientTerms, bool] | None = None
        self._grants: tuple[Entry, ...] | None = None
        self._gate = Gate(dialect, limits, self.table, self.control)

    # What the connection says

    def start_client(self, terms: ClientTerms, now: float, *, own_policy: bool = False) -> None:
        """Send SETUP, and with leases our own first LEASE, unless the application has a policy for that.

        Raises ``LocalProtocolError`` for terms that the dialect can't say.
        """
        frame = setup_frame(self.dialect, terms)
        self.outbox.put_signal(self.dialect.codec.encode(frame))
        if terms.resume_token is not None and not self.dialect.entries:
            self.continuity.begin_client(terms.resume_token, terms)
        if frame.ack:
            # RSX-SETUP-03: nothing is sent until the answer, but silence counts.
            self.state = State.ASKING
            self._asked = terms, own_policy
            self._keepalive = KeepaliveTimer(math.inf, terms.keepalive.max_lifetime, now)
        else:
            self._begin_client(terms, now, own_policy=own_policy)

    def _begin_client(self, terms: ClientTerms, now: float, *, own_policy: bool) -> None:
        if self.dialect.codec.writes(KeepaliveFrame):
            self._keepalive = KeepaliveTimer(terms.keepalive.interval, terms.keepalive.max_lifetime, now)
        self.state = State.OPEN
        if terms.lease:
            self.control.agree_leases()
            if not own_policy and not self.dialect.implicit_lease:
                self.grant(UNLIMITED_LEASE, now)  # RS10-CON-11

    def start_server(self, *, grants_leases: bool) -> None:
        """Wait for SETUP."""
        self._grants_leases = grants_leases

    def accept(self, now: float, granted: tuple[Entry, ...] = ()) -> list[Event]:
        """The application takes the SETUP, and grants these entries of it; what was held for it happens now."""
        if self.state is not State.GATED:
            return []
        self.state = State.OPEN
        if self._grants is not None:
            # RSX-OK-01: before anything else.
            self.outbox.release(self.dialect.codec.encode(SetupOkFrame(Payload(), (*self._grants, *granted))))
        held = self._gate.open()
        return self._process(held, now) if held else []

    def refuse(self, error: SetupError) -> list[Event]:
        """The application refuses the SETUP; held requests are dropped."""
        if self.state is State.GATED:
            self._end_with(error.code, error.data, error)
        return self._collected()

    def grant(self, lease: Lease, now: float) -> None:
        """Allow the peer so many requests for so long; does nothing where leases were not agreed."""
        if self.state is not State.OVER:
            self.control.grant(lease, now)

    def ping(self, token: object) -> None:
        """Ask for a sign of life; ``Pong`` with this token is its answer, in order.

        Raises ``Unsupported`` where the dialect has none.
        """
        self.control.ping(token)

    def metadata_push(self, metadata: bytes, metadata_type: int = 0) -> None:
        """Send metadata for the connection; its type is said where the dialect has one."""
        self.control.metadata_push(metadata, metadata_type)

    def extension(self, ext_type: int, body: bytes, *, ignore: bool) -> None:
        """Send an EXT frame for the connection; ``ignore`` allows the peer to skip it."""
        self.control.extension(ext_type, body, ignore=ignore)

    def entries(self, entries: tuple[Entry, ...], *, ignore: bool) -> None:
        """Send extension entries for the connection; ``ignore`` allows the peer to skip the whole frame."""
        self.control.entries(entries, ignore=ignore)

    def cost(self, entries: tuple[Entry, ...]) -> int:
        """Permits that a request with these entries costs. Raises ``Unsupported`` where the dialect has none."""
        if not self.dialect.entries:
            raise Unsupported(f"{self.dialect.name} has no extension entries")
        return cost_of(entries)

    def drain(self) -> None:
        """Refuse new requests from now on; what is open may finish."""
        self.inbound.draining = True

    def announce_close(self, *, last: bool) -> None:
        """Tell the peer that this connection ends (RS10-ERR-09): at once, or when all else has left."""
        if self.dialect.has_connection_close and self.state in (State.OPEN, State.GATED):
            put = self.outbox.put_last if last else self.outbox.put_reply
            put(self.error_frame(CONNECTION_CLOSE, b"closing"))
            self._announced = True

    def close(self, error: RSocketError | None = None) -> None:
        """The session is over on this side, or its transport is gone: all that comes is ignored from now on."""
        if self.error is None:
            self.error = error if error is not None else ConnectionClosed("the connection was closed by this side")
        self.state = State.OVER
        self.outbox.drop_held()
        self._gate.open()

    # What the connection asks

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self.dialect.name

    @property
    def permits(self) -> Permits | None:
        """What the peer's last lease allows, ``None`` without leases."""
        return self.control.permits

    @property
    def draining(self) -> bool:
        """Whether nothing new is taken or asked."""
        return self.inbound.draining

    @property
    def awaits_setup(self) -> bool:
        """Whether this is a server that no SETUP has reached."""
        return self.state is State.NEW

    @property
    def awaits_answer(self) -> bool:
        """Whether this is a client whose SETUP has still to be answered before anything is asked."""
        return self.state is State.ASKING

    @property
    def has_mime_fields(self) -> bool:
        """Whether payloads may name MIME types of their own."""
        return self.dialect.mime_fields

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

    @property
    def deadline(self) -> float:
        """When ``expire`` has something to say, as far as is known now; infinite when nothing is due."""
        return self._keepalive.deadline if self.state in TICKING and not self._suspended else math.inf

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause: replies wait for a peer that does not read, or the gate holds enough."""
        outbox, limits = self.outbox, self.limits
        # What lets a stalled store go on stands behind whatever the peer sent before: reading goes on for longer.
        patience = STALLED if outbox.is_stalled else 1
        return (
            outbox.reply_size >= patience * limits.reply_size
            or outbox.reply_frames >= patience * limits.reply_frames
            or self._gate.is_full
        )

    def open_streams(self) -> list[Stream]:
        """All streams of both sides, as they are now."""
        return [*self.table.mine.values(), *self.table.theirs.values()]

    def check_request(self, interaction: Interaction, payload: Payload) -> None:
        """Raise ``Unsupported`` where the dialect lacks the interaction."""
        if interaction not in self.dialect.interactions:
            raise Unsupported(f"{self.dialect.name} has no {interaction.value}")

    def check_route(self) -> None:
        """Every dialect has routes, in its metadata."""

    def cut_off(self, lost: ConnectionLost) -> RSocketError:
        """The transport ended: nothing more is to be said of it."""
        return lost

    # What the peer and the clock say

    def receive(self, frames: Sequence[bytes], now: float) -> list[Event]:
        """Take whole frames, in order. Nothing that a peer can send raises."""
        if self.state is State.OVER:
            return []
        self._keepalive.heard(now)
        if not self.continuity.offered:
            return self._process(frames, now)
        return self._receive_counted(frames, now)

    def _receive_counted(self, frames: Sequence[bytes], now: float) -> list[Event]:
        """The same where positions count: from the frame behind the SETUP on, which may come in one read with it."""
        events: list[Event] = []
        while frames and self.state in (State.NEW, State.ASKING):
            events += self._process(frames[:1], now)
            frames = frames[1:]
        if self.continuity.resumption is not None:
            try:
                self.continuity.resumption.count(frames)
            except RemoteProtocolError as error:
                self._fail(error)
                return events + self._collected()
        if self.state is not State.OVER:
            events += self._process(frames, now)
            self.control.report_position()
        return events

    def broken(self, error: RemoteProtocolError) -> list[Event]:
        """The transport could not find the next frame: there is no way on (ALL-RCT-05)."""
        if self.state is State.NEW and not self.client:
            refusal = InvalidSetup(str(error))
            self._end_with(refusal.code, refusal.data, refusal)
        elif self.state is not State.OVER:
            self._fail(error)
        return self._collected()

    def expire(self, now: float) -> list[Event]:
        """What the clock asks for at this time: a beat, or the end of a silent connection."""
        if self.state is State.OVER or self._suspended:
            return []
        beat = self._keepalive.expire(now)
        if beat is Beat.SEND:
            self.control.ping(None)
        elif beat is Beat.DEAD:
            silence = f"no frame came for {self._keepalive.max_lifetime:g} s"
            lost = ConnectionLost(f"the peer is silent: {silence}")
            if self.can_resume:
                return [TransportSilent(lost)]
            if self.state is State.ASKING:
                self._end(lost)  # RSX-SETUP-03
            else:
                self._end_with(CONNECTION_ERROR, silence.encode(), lost)
        return self._collected()

    def _process(self, frames: Sequence[bytes], now: float) -> list[Event]:
        inbound, control = self.inbound, self.control
        inbound.now = now
        decode = self.dialect.codec.decode
        try:
            for data in frames:
                if self.state is not State.OPEN and not self._pass_gate(data):
                    continue
                try:
                    frame = decode(data)
                except RemoteProtocolError as error:
                    self._skip(data, error)
                    continue
                handler = STREAM_HANDLERS.get(type(frame))
                if handler is not None:
                    handler(inbound, frame)
                else:
                    control.receive(frame)
                if not control.established:
                    control.established = type(frame) in self._acceptance or (
                        type(frame) is ErrorFrame and frame.stream_id > 0
                    )
        except RemoteProtocolError as error:
            self._fail(error)
        except EndedByPeer as end:
            self._end(end.error)
        except SetupError as refusal:
            self._end_with(refusal.code, refusal.data, refusal)
        return self._collected()

    def _collected(self) -> list[Event]:
        events, self.inbound.events = self.inbound.events, []
        return events

    def _pass_gate(self, data: bytes) -> bool:
        """Whether this frame is to be looked at now, in a state that is not the usual one."""
        if self.state is State.NEW:
            self._on_first_frame(data)
        elif self.state is State.GATED:
            return self._gate.lets_through(data)
        elif self.state is State.ASKING:
            return self._on_answer(data)
        return False

    def _on_first_frame(self, data: bytes) -> None:
        """Let the SETUP in, up to the application's gate. Raises the ``SetupError`` that refuses it."""
        frame = admit(
            self.dialect,
            data,
            self.limits.setup_size,
            grants_leases=self._grants_leases,
            resumes=self.continuity.offered,
        )
        self.state = State.GATED
        self.control.established = True
        # Without a lifetime silence alone kills nothing.
        self._keepalive = KeepaliveTimer(math.inf, frame.max_lifetime or math.inf, self.inbound.now)
        self.continuity.begin_server(frame)
        if frame.lease:
            self.control.agree_leases()
        if frame.ack:
            self._grants = grants(frame, grants_leases=self._grants_leases, resumes=self.continuity.offered)
            self._gate.owes_answer = True
            self.outbox.hold()
        self.inbound.events.append(SetupReceived(described(self.dialect, frame)))

    def _on_answer(self, data: bytes) -> bool:
        """Take the SETUP_OK that this client waits for; whether the frame is any other that may come now."""
        asked, now = self._asked, self.inbound.now
        assert asked is not None
        try:
            frame = self.dialect.codec.decode(data)
        except RemoteProtocolError:
            return True  # It will be skipped, if it may be.
        if isinstance(frame, ErrorFrame) and not frame.stream_id:
            return True
        if not isinstance(frame, SetupOkFrame):
            raise RemoteProtocolError(f"{self.dialect.codec.name_of(frame)} before SETUP_OK")  # RSX-OK-01
        if frame.stream_id:
            self.inbound.ignored += 1  # ALL-RCT-07
            return False
        terms, own_policy = asked
        try:
            check_grants(setup_frame(self.dialect, terms).extensions, frame.extensions)
        except UnsupportedSetup as error:
            self._end_with(CONNECTION_ERROR, error.data, error)  # RSX-OK-02
            return False
        self.control.established = True
        if terms.resume_token is not None:
            self.continuity.begin_client(terms.resume_token, terms)
        self._begin_client(terms, now, own_policy=own_policy)
        self.inbound.events.append(SetupAccepted(frame.extensions))
        return False

    def _skip(self, data: bytes, error: RemoteProtocolError) -> None:
        """Ignore a frame that was not understood, if its clause allows: ALL-RCT-02, -03, RS10-MD-02, RS02-MD-02."""
        if self.control.refuse_unread(data, error):
            return
        bad_metadata = isinstance(error, BadMetadata) and self.dialect.bad_metadata_ignored
        if not bad_metadata and not self.dialect.codec.ignorable(data):
            raise error
        self.inbound.ignored += 1

    # Going on over another transport

    @property
    def is_open(self) -> bool:
        """Whether both sides may ask: the application has let its peer in."""
        return self.state is State.OPEN

    @property
    def can_resume(self) -> bool:
        """Whether the loss of the transport is not the end."""
        continuity = self.continuity
        agreed = continuity.resumption is not None and not continuity.gave_up
        return agreed and self.state in (State.OPEN, State.GATED)

    @property
    def gave_up_resuming(self) -> bool:
        """Whether resumption was agreed, and is not promised any more."""
        return self.continuity.gave_up

    def suspend(self) -> list[Event]:
        """The transport is gone. What is sent waits, and time does not count."""
        self._suspended = True
        return self.continuity.suspend()

    def restart(self, now: float) -> None:
        """There is another transport: silence, signs of life and leases begin anew."""
        self._suspended = False
        self._keepalive.restart(now)
        self.control.restart(now)
        if self._announced:
            self.announce_close(last=False)  # it has no position, so it is said anew

    def granted_again(self, entry: Entry) -> tuple[Entry, ...]:
        """What a server grants to a client that came back: this, and what it granted it at first."""
        return (entry, *(grant for grant in self._grants or () if grant.ext != entry.ext))

    # Ends

    def error_frame(self, code: int, data: bytes) -> bytes:
        """ERROR on stream 0."""
        code = (self.dialect.setup_codes or {}).get(code, code)
        return self.dialect.codec.encode(self.commands.error_frame(0, code, data))

    def _fail(self, error: RemoteProtocolError) -> None:
        """The one place where a fault of the peer's becomes its answer on the wire and our own end."""
        lost = ConnectionLost(f"the peer broke the protocol: {error}", code=CONNECTION_ERROR)
        lost.__cause__ = error
        self._end_with(CONNECTION_ERROR, str(error).encode(), lost)

    def _end_with(self, code: int, data: bytes, error: RSocketError) -> None:
        """Say why, then end."""
        if self.dialect.has_connection_error or code in SETUP_ERRORS:
            self.outbox.put_reply(self.error_frame(code, data))
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
