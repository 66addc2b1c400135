"""The session of the RSocket family: one connection's state machine, frames in and events out, without I/O or clock.

The handshakes return outcomes, the frames of the connection return
events, and the two sides of the streams keep the streams' state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any

from rsocket_trio.errors import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    DATA_LIMIT,
    SETUP_ERRORS,
    ConnectionLost,
    InvalidSetup,
    RemoteProtocolError,
    RSocketError,
    SetupError,
    Unsupported,
    UnsupportedSetup,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux import session
from rsocket_trio.mux.events import Event, LeaseReceived, PeerDraining, SetupAccepted, SetupReceived, TransportSilent
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.retransmission import RetainingOutbox
from rsocket_trio.mux.session import State
from rsocket_trio.mux.stream_state import Permits
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.connection_frames import ConnectionFrames, EndedByPeer
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.fast_path import patterns_of, take_short
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtensionEntry,
    Frame,
    KeepaliveFrame,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.handshake import (
    UNLIMITED_LEASE,
    ClientTerms,
    ServerHandshake,
    described,
    setup_answer,
    setup_frame,
)
from rsocket_trio.rsocket.leases_and_keepalive import KeepaliveTimer, Leases
from rsocket_trio.rsocket.resume_protocol import ResumeHandshake
from rsocket_trio.rsocket.stream_receiver import StreamReceiver
from rsocket_trio.rsocket.stream_sender import UNCUT, StreamSender
from rsocket_trio.rsocket.stream_table import Stream, StreamTable
from rsocket_trio.terms import Lease, ResumeOptions

TICKING = frozenset({State.OPEN, State.GATED, State.ASKING})
"""The states in which the keepalive timer runs."""

STREAM_HANDLERS: dict[type, Callable[[StreamReceiver, Any], None]] = {
    PayloadFrame: StreamReceiver.on_payload,
    RequestNFrame: StreamReceiver.on_request_n,
    RequestFrame: StreamReceiver.on_request,
    CancelFrame: StreamReceiver.on_cancel,
}
"""The frames that concern a stream with any stream id."""
SHARED_HANDLERS: dict[type, Callable[[StreamReceiver, Any], None]] = {
    ErrorFrame: StreamReceiver.on_error,
    MetadataPushFrame: StreamReceiver.on_metadata_push,
}
"""The frames that concern a stream unless their stream id is 0."""


class Session(session.Session):
    """The rules of one connection of the RSocket family.

    Frames to send stand in ``outbox``; the connection writes it. ``commands`` send on streams.
    Methods that depend on time take ``now``, in seconds. ``receive`` and ``expire`` return what happened; never call
    the session again before all of it was collected.

    ``receiver`` takes the frames of streams, ``control`` those of the connection. ``patterns`` are those of the fast
    path, ``None`` to take every frame the long way. ``opens_at_once`` says that a new request needs no permit, and is
    not refused. ``_asking`` are the terms of a client that waits for the answer to its SETUP, ``_handshake`` is that of
    a server, ``None`` once the connection is open or over.
    """

    __slots__ = (
        "_asking",
        "_grants",
        "_handshake",
        "_has_announced_drain",
        "_resume",
        "_suspended",
        "control",
        "has_announced",
        "keepalive",
        "opens_at_once",
        "patterns",
        "table",
    )

    commands: StreamSender
    dialect: Dialect
    opens_at_once: bool
    receiver: StreamReceiver

    def __init__(
        self,
        dialect: Dialect,
        *,
        client: bool,
        limits: Limits,
        fragment_size: int,
        extensions: Container[int] = (),
        resume: ResumeOptions | None = None,
    ) -> None:
        self.dialect = dialect
        self.client = client
        self.limits = limits
        self.state = State.NEW
        self.error: RSocketError | None = None
        self.attention = False
        self.has_announced = False
        self._has_announced_drain = False
        self.opens_at_once = True
        self._suspended = False
        self._asking: ClientTerms | None = None
        self._grants = True
        self._handshake: ServerHandshake | None = None
        self.table = StreamTable(dialect, client=client)
        self._resume: ResumeHandshake | None = None
        self.outbox = self._retaining_outbox(resume) if resume else Outbox(limits.outbox_size, self.table.forget)
        self.patterns = patterns_of(dialect.codec)
        self.commands = StreamSender(
            *(dialect, self.patterns, self.table, self.outbox), fragment_size, limits.frame_size
        )
        self.receiver = StreamReceiver(dialect, limits, self.table, self.commands, self.outbox)
        frames_class: type[ConnectionFrames] = ConnectionFrames
        if dialect.entries:
            from rsocket_trio.rsocket.extensions.control import EntryFrames

            frames_class = EntryFrames
        self.control = frames_class(dialect, self.outbox, extensions, client=client)
        self.keepalive = KeepaliveTimer(math.inf, math.inf, 0.0)

    def _retaining_outbox(self, options: ResumeOptions) -> Outbox:
        limit, drained = self.limits.outbox_size, self.table.forget
        outbox = RetainingOutbox(limit, drained, half_full=self._ask_position)
        self._resume = ResumeHandshake(
            *(self.dialect, options, self.table, outbox), resumed=self.restart, encode_error=self.error_frame
        )
        return outbox

    # Questions of the connection

    @property
    def permits(self) -> Permits | None:
        leases = self.control.leases
        return None if leases is None else leases.permits

    @property
    def draining(self) -> bool:
        return self.receiver.draining or self.receiver.peer_draining

    @property
    def resume_handshake(self) -> ResumeHandshake:
        """The resumption of a session that offers it."""
        assert self._resume is not None
        return self._resume

    @property
    def can_resume(self) -> bool:
        return self.control.positions is not None and self.state in (State.OPEN, State.GATED)

    @property
    def is_quiet(self) -> bool:
        return not self.table and not self.held_size

    @property
    def held_size(self) -> int:
        """The charged size in bytes of the frames that wait for the application to let the client in."""
        return self._handshake.size if self._handshake is not None else 0

    @property
    def deadline(self) -> float:
        return self.keepalive.deadline if self.state in TICKING and not self._suspended else math.inf

    @property
    def patience_until(self) -> float:
        return self.keepalive.death if self.state in TICKING and not self._suspended else math.inf

    @property
    def is_congested(self) -> bool:
        return self._has_many_replies or (self._handshake is not None and self._handshake.is_full)

    def open_streams(self) -> list[Stream]:
        return self.table.all()

    @property
    def requests_in_flight(self) -> int:
        return len(self.table.mine)

    def cost(self, entries: tuple[ExtensionEntry, ...]) -> int:
        if not self.dialect.entries:
            raise Unsupported(f"{self.dialect.name} has no extension entries")
        return self.dialect.extensions.cost_of(entries)

    # The handshake of a client

    def start_client(
        self,
        terms: ClientTerms,
        now: float,
        *,
        grants: bool = True,
        encoded_setup: tuple[SetupFrame, bytes] | None = None,
    ) -> None:
        """Send SETUP, and with leases a first LEASE without bounds, unless ``grants`` is false.

        ``encoded_setup`` is the SETUP of these terms as a frame and as bytes, if the caller has made it already. Raise
        ``LocalProtocolError`` for terms that the dialect can't say.
        """
        if encoded_setup is None:
            frame = setup_frame(self.dialect, terms)
            encoded = self.dialect.codec.encode(frame)
        else:
            frame, encoded = encoded_setup
        self.outbox.put_signal(encoded)
        if terms.resume_token is not None and not self.dialect.entries:
            self.resume_handshake.agree_as_client(terms)
            self._count_positions()
        self._grants = grants
        if not frame.ack:
            self._open_client(terms, now)
            return
        # RSX-SETUP-03: nothing is sent until the answer, but silence counts.
        self.state = State.ASKING
        self._asking = terms
        self.keepalive = KeepaliveTimer(math.inf, terms.keepalive.max_lifetime, now)
        self.attention = True

    def _open_client(self, terms: ClientTerms, now: float) -> None:
        if self.dialect.codec.writes(KeepaliveFrame):
            self.keepalive = KeepaliveTimer(terms.keepalive.interval, terms.keepalive.max_lifetime, now)
        self.state = State.OPEN
        self._asking = None
        self.attention = True
        if terms.lease:
            self._agree_leases()
            if self._grants and not self.dialect.implicit_lease:
                self.grant(UNLIMITED_LEASE, now)  # RS10-CON-11

    def _take_answer(self, terms: ClientTerms, data: bytes) -> bool:
        """Take the server's answer to the SETUP. Return ``False`` for another frame, which may come before it."""
        frame, dialect = setup_answer(self.dialect, data), self.dialect
        if frame is None:
            return False
        if frame.stream_id:
            self.control.ignored += 1  # ALL-RCT-07
            return True
        try:
            dialect.extensions.check_grants(setup_frame(dialect, terms).extensions, frame.extensions)
        except UnsupportedSetup as error:
            self.end_with(CONNECTION_ERROR, error.data, error)  # RSX-OK-02
            return True
        self.control.established = True
        if terms.resume_token is not None:
            self.resume_handshake.agree_as_client(terms)
            self._count_positions()
        self._open_client(terms, self.receiver.now)
        self.receiver.events.append(SetupAccepted(frame.extensions))
        return True

    # The handshake of a server

    def start_server(self, *, grants_leases: bool, own_size: bool = True) -> None:
        """Wait for SETUP. ``own_size`` keeps the application's fragment size for clients that join no fragments."""
        self._handshake = ServerHandshake(
            *(self.dialect, self.limits, self.table, self.control.is_for_session),
            grants_leases=grants_leases,
            own_size=own_size,
            offers_resume=self._resume is not None,
        )

    def _take_setup(self, handshake: ServerHandshake, data: bytes) -> None:
        """Take the SETUP, and hold what follows until the application accepts it.

        Raise the ``SetupError`` that refuses the client.
        """
        frame = handshake.admit(data)
        self.state = State.GATED
        self.attention = True
        self.control.established = True
        # Without a lifetime silence alone kills nothing.
        self.keepalive = KeepaliveTimer(math.inf, frame.max_lifetime or math.inf, self.receiver.now)
        if not handshake.joins_fragments(frame):
            self.commands.cut_above(UNCUT)
        if self._resume is not None and self._resume.agree_as_server(frame, len(data)):
            self._count_positions()
        if frame.lease:
            self._agree_leases()
        if handshake.owes_answer:
            if self._resume is not None:
                self._resume.grants = handshake.granted
            self.outbox.hold()
        self.receiver.events.append(SetupReceived(described(self.dialect, frame)))

    def accept(self, now: float, granted: tuple[ExtensionEntry, ...] = ()) -> list[Event]:
        handshake = self._handshake
        if self.state is not State.GATED or handshake is None:
            return []
        self.state = State.OPEN
        self._handshake = None
        if handshake.owes_answer:
            # RSX-OK-01: before anything else.
            answer = SetupOkFrame(Payload(), (*handshake.granted, *granted))
            self.outbox.release(self.dialect.codec.encode(answer))
        held = handshake.release()
        return self._process(held, now) if held else []

    def refuse(self, error: SetupError) -> list[Event]:
        if self.state is State.GATED:
            self.end_with(error.code, error.data, error)
        return self._collected()

    def _take_early(self, data: bytes) -> bool:
        """Take or hold a frame that came before the session is open. Return whether it is still to be processed."""
        if self._asking is not None:
            return not self._take_answer(self._asking, data)
        handshake = self._handshake
        if handshake is None:
            return False  # it is over, or was never started
        if self.state is State.NEW:
            self._take_setup(handshake, data)
            return False
        if handshake.admits(data):
            return True
        handshake.hold(data)
        return False

    # Sending for the connection

    def grant(self, lease: Lease, now: float) -> None:
        if self.state is not State.OVER:
            self.control.grant(lease, now)

    def _agree_leases(self) -> None:
        leases = Leases(client=self.client, implicit=self.dialect.implicit_lease)
        self.control.leases = self.receiver.leases = leases
        self.opens_at_once = self.opens_at_once and leases.permits is None

    def ping(self, token: object) -> None:
        self.control.ping(token)

    def entries(self, entries: tuple[ExtensionEntry, ...], *, ignore: bool) -> None:
        self.control.entries(entries, ignore=ignore)

    def metadata_push(self, metadata: bytes, metadata_type: int = 0) -> None:
        self.control.metadata_push(metadata, metadata_type)

    def extension(self, ext_type: int, body: bytes, *, ignore: bool) -> None:
        self.control.extension(ext_type, body, ignore=ignore)

    def heard(self, now: float) -> None:
        self.keepalive.last_heard = now

    def excuse(self, now: float) -> None:
        self.keepalive.excuse(now)

    def drain(self) -> None:
        self.receiver.draining = True
        self._stop_requests()

    def _stop_requests(self) -> None:
        """Send no more requests. Those of a peer that gave the sign are taken: it may have overtaken them."""
        self.opens_at_once = False
        self.attention = True

    def announce_drain(self) -> None:
        if not self.dialect.has_connection_close:
            self.announce_close(last=False)  # there is one announcement only
        elif self.state in (State.OPEN, State.GATED):
            self.outbox.put_signal(self.control.make_drain_sign())
            self._has_announced_drain = True

    def announce_close(self, *, last: bool) -> None:
        if self.dialect.announces_drain and self.state in (State.OPEN, State.GATED):
            # RS10-ERR-09
            put = self.outbox.put_final if last else self.outbox.put_reply
            close = self.dialect.has_connection_close
            put(self.error_frame(CONNECTION_CLOSE, b"closing") if close else self.control.make_drain_sign())
            self.has_announced = True
            self.attention = True

    # Frames of the peer, and time

    def receive(self, frames: Sequence[bytes], now: float) -> list[Event]:
        if self.state is State.OVER:
            return []
        self.keepalive.last_heard = now
        return self._process(frames, now) if self._resume is None else self._receive_counted(self._resume, frames, now)

    def _receive_counted(self, resume: ResumeHandshake, frames: Sequence[bytes], now: float) -> list[Event]:
        """The same where positions count: from the frame behind the SETUP on, which may come in one read with it."""
        events: list[Event] = []
        resume.heard = True
        while frames and self.state in (State.NEW, State.ASKING):
            events += self._process(frames[:1], now)
            frames = frames[1:]
        if self.control.positions is not None:
            try:
                resume.count(frames)
            except RemoteProtocolError as error:
                self._fail(error)
                return events + self._collected()
        if self.state is not State.OVER:
            events += self._process(frames, now)
            self.control.report_position()
        return events

    def _process(self, frames: Sequence[bytes], now: float) -> list[Event]:
        receiver, control = self.receiver, self.control
        receiver.now = now
        patterns = self.patterns
        index, count = 0, len(frames)
        is_open = self.state is State.OPEN and control.established
        try:
            while index < count:
                if is_open and patterns is not None:
                    taken = take_short(receiver, patterns, frames, index)
                    if taken:
                        index += taken
                        continue
                self._take(frames[index], now)
                index += 1
                is_open = self.state is State.OPEN and control.established
        except RemoteProtocolError as error:
            self._fail(error)
        except EndedByPeer as end:
            # rsocket-java says CONNECTION_ERROR when an application disposes of a connection.
            is_connection_error = isinstance(end.error, ConnectionLost) and end.error.code == CONNECTION_ERROR
            has_open = self.held_size > 0 or any(stream.open for stream in self.open_streams())
            self._end(end.error, ordinary=is_connection_error and not has_open)
        except SetupError as refusal:
            self.end_with(refusal.code, refusal.data, refusal)
        if (self.outbox.reply_size or self.state is not State.OPEN) and self.is_congested:
            self.attention = True
        events, receiver.events = receiver.events, []
        return events

    def _take(self, data: bytes, now: float) -> None:
        codec, receiver, control = self.dialect.codec, self.receiver, self.control
        if len(data) > DATA_LIMIT:
            data = codec.shortened(data, DATA_LIMIT)
        if self.state is not State.OPEN and not self._take_early(data):
            return
        try:
            frame = codec.decode(data)
        except RemoteProtocolError as error:
            self._skip(data, error)
            return
        kind = type(frame)
        handler = STREAM_HANDLERS.get(kind) or (SHARED_HANDLERS.get(kind) if frame.stream_id else None)
        if handler is not None:
            handler(receiver, frame)
            if kind is ErrorFrame and receiver.peer_draining:
                self._stop_requests()  # the error may have been the peer's sign
        else:
            self._take_connection_frame(frame, now)
        if not control.established:
            control.look_for_acceptance(frame)

    def _take_connection_frame(self, frame: Frame, now: float) -> None:
        for event in self.control.receive(frame, now):
            if isinstance(event, PeerDraining):
                if not event.closing:
                    self.receiver.on_drain_sign()
                    self._stop_requests()
                    continue
                self.drain()
            elif isinstance(event, LeaseReceived):
                self.opens_at_once = False
            self.receiver.events.append(event)

    def _skip(self, data: bytes, error: RemoteProtocolError) -> None:
        """Skip a frame that was not understood, answer it if it is a request, or raise ``error`` again."""
        request = self.control.unread_request(data, error)
        if request is None:
            self.control.skip(data, error)
        else:
            self.receiver.refuse_unread(*request)

    def broken(self, error: RemoteProtocolError) -> list[Event]:
        # ALL-RCT-05
        if self.state is State.NEW and not self.client:
            refusal = InvalidSetup(str(error))
            self.end_with(refusal.code, refusal.data, refusal)
        elif self.state is not State.OVER:
            self._fail(error)
        return self._collected()

    def expire(self, now: float) -> list[Event]:
        if self.state is State.OVER or self._suspended:
            return []
        beat = self.keepalive.expire(now)
        if beat == "send":
            self.control.ping(None)
        elif beat == "dead":
            silence = f"no frame came for {self.keepalive.max_lifetime:g} s"
            lost = ConnectionLost(f"the peer is silent: {silence}")
            if self.can_resume:
                return [TransportSilent(lost)]
            if self.state is State.ASKING:
                self._end(lost)  # RSX-SETUP-03
            else:
                self.end_with(CONNECTION_ERROR, silence.encode(), lost)
        return self._collected()

    # Going on over another transport

    def suspend(self) -> list[Event]:
        self._suspended = True
        self.attention = True
        return self.resume_handshake.suspend()

    def restart(self, now: float) -> None:
        """There is another transport: silence, signs of life and leases begin anew."""
        self._suspended = False
        self.attention = True
        self.keepalive.restart(now)
        self.control.restart(now)
        # What has no position is said anew.
        if self.has_announced:
            self.announce_close(last=False)
        elif self._has_announced_drain:
            self.announce_drain()

    def _count_positions(self) -> None:
        """Count the bytes of streams from now on."""
        self.control.positions = self.commands.positions = self.resume_handshake

    def _ask_position(self) -> bytes:
        return self.control.make_asking_beat()

    # Ends

    def error_frame(self, code: int, data: bytes) -> bytes:
        """Return an encoded ERROR on stream 0."""
        code = (self.dialect.setup_codes or {}).get(code, code)
        return self.dialect.codec.encode(self.commands.error_frame(0, code, data))

    def _fail(self, error: RemoteProtocolError) -> None:
        """Turn a fault of the peer into its answer on the wire and our own end."""
        self.end_with(CONNECTION_ERROR, str(error).encode(), self._broken_by(error, CONNECTION_ERROR))

    def end_with(self, code: int, data: bytes, error: RSocketError) -> None:
        """Send the reason, then end."""
        is_sent = self.dialect.has_connection_error or code in SETUP_ERRORS
        if is_sent:
            self.outbox.put_reply(self.error_frame(code, data))
        self._end(error, refuses=is_sent and not self.client and isinstance(error, SetupError))

    def close(self, error: RSocketError | None = None) -> None:
        super().close(error)
        if self._resume is not None:
            self._resume.close()
        self._handshake = self._asking = None
