"""One connection's rules: frames in, events out, whatever the dialect; no I/O, no clock, no tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any

from rsocket_trio.errors import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    DATA_LIMIT,
    SETUP_ERRORS,
    ConnectionClosed,
    ConnectionLost,
    InvalidSetup,
    RemoteProtocolError,
    RSocketError,
    SetupError,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, SessionEnded, TransportSilent
from rsocket_trio.rsocket.beginning import ClientBeginning, ServerBeginning
from rsocket_trio.rsocket.connection_frames import Control, EndedByPeer
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.rsocket.extensions.control import EntryControl
from rsocket_trio.rsocket.fast_path import patterns_of, take_plain
from rsocket_trio.rsocket.frames import CancelFrame, PayloadFrame, RequestFrame, RequestNFrame, SetupFrame
from rsocket_trio.rsocket.keepalive import Beat, KeepaliveTimer
from rsocket_trio.rsocket.resume_handshake import ResumeHandshake, outbox_for
from rsocket_trio.rsocket.setup import ClientTerms
from rsocket_trio.rsocket.standing import Standing, State
from rsocket_trio.rsocket.stream_receiver import StreamReceiver
from rsocket_trio.rsocket.stream_sender import StreamSender
from rsocket_trio.rsocket.stream_table import StreamTable
from rsocket_trio.terms import Lease, ResumeOptions

STREAM_HANDLERS: dict[type, Callable[[StreamReceiver, Any], None]] = {
    PayloadFrame: StreamReceiver.on_payload,
    RequestNFrame: StreamReceiver.on_request_n,
    RequestFrame: StreamReceiver.on_request,
    CancelFrame: StreamReceiver.on_cancel,
}


class Session(Standing):
    """The rules of one connection of the RSocket family.

    What is to be sent stands in ``outbox``; the connection writes it. ``commands`` are what can be sent on streams.
    Methods that depend on time take ``now``, in seconds. ``receive`` and ``expire`` return what happened; never call
    the session again before all of it was collected.
    """

    __slots__ = ()

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
        self.error = None
        self.table = StreamTable(dialect, client=client)
        self.outbox = outbox_for(resume, limits.outbox_size, self.table.forget, self)
        self.resume_handshake = ResumeHandshake(self, resume)
        self._suspended = False
        self.attention = False
        self.has_announced = False
        self.patterns = patterns_of(dialect.codec)
        self.commands = StreamSender(
            *(dialect, self.patterns, self.table, self.outbox), fragment_size, limits.frame_size
        )
        self.receiver = StreamReceiver(dialect, limits, self.table, self.commands, self.outbox)
        control = EntryControl if dialect.entries else Control
        self.control = control(dialect, self.receiver, self.outbox, extensions, client=client)
        self.keepalive = KeepaliveTimer(math.inf, math.inf, 0.0)
        self.beginning = None

    # What the connection says

    def start_client(
        self, terms: ClientTerms, now: float, *, grants: bool = True, said: tuple[SetupFrame, bytes] | None = None
    ) -> None:
        """Send SETUP, and with leases a first LEASE without bounds, unless ``grants`` is false.

        ``said`` is the SETUP of these terms, for those who have made it already to see whether it can be said.
        Raises ``LocalProtocolError`` for terms that the dialect can't say.
        """
        ClientBeginning(self, terms, grants=grants).start(now, said)

    def start_server(self, *, grants_leases: bool, own_size: bool = True) -> None:
        """Wait for SETUP. ``own_size`` says that the fragment size is the application's, whatever the client joins."""
        self.beginning = ServerBeginning(self, grants_leases=grants_leases, own_size=own_size)

    def accept(self, now: float, granted: tuple[Entry, ...] = ()) -> list[Event]:
        """The application takes the SETUP, and grants these entries of it; what was held for it happens now."""
        if self.state is not State.GATED or not isinstance(self.beginning, ServerBeginning):
            return []
        held = self.beginning.open(granted)
        return self._process(held, now) if held else []

    @property
    def held_size(self) -> int:
        """What waits for the application to let the client in, each frame with what holding it costs."""
        return self.beginning.held_size if isinstance(self.beginning, ServerBeginning) else 0

    def refuse(self, error: SetupError) -> list[Event]:
        """The application refuses the SETUP; held requests are dropped."""
        if self.state is State.GATED:
            self.end_with(error.code, error.data, error)
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

    def drain(self) -> None:
        """Refuse new requests from now on; what is open may finish."""
        self.receiver.draining = True
        self.attention = True

    def announce_close(self, *, last: bool) -> None:
        """Tell the peer that this connection ends (RS10-ERR-09): at once, or when all else has left."""
        if self.dialect.has_connection_close and self.state in (State.OPEN, State.GATED):
            put = self.outbox.put_final if last else self.outbox.put_reply
            put(self.error_frame(CONNECTION_CLOSE, b"closing"))
            self.has_announced = True
            self.attention = True

    def close(self, error: RSocketError | None = None) -> None:
        """The session is over on this side, or its transport is gone: all that comes is ignored from now on."""
        if self.error is None:
            self.error = error if error is not None else ConnectionClosed("the connection was closed by this side")
        self.state = State.OVER
        self.attention = True
        self.outbox.drop_held()
        self.resume_handshake.close()
        self.beginning = None

    def forget(self) -> None:
        """Nothing is written any more, and who keeps the connection keeps nothing that it sent."""
        self.outbox.clear()

    # What the peer and the clock say

    def receive(self, frames: Sequence[bytes], now: float) -> list[Event]:
        """Take whole frames, in order. Nothing that a peer can send raises."""
        if self.state is State.OVER:
            return []
        self.keepalive.heard(now)
        if not self.resume_handshake.offered:
            return self._process(frames, now)
        return self._receive_counted(frames, now)

    def _receive_counted(self, frames: Sequence[bytes], now: float) -> list[Event]:
        """The same where positions count: from the frame behind the SETUP on, which may come in one read with it."""
        events: list[Event] = []
        self.resume_handshake.heard = True
        while frames and self.state in (State.NEW, State.ASKING):
            events += self._process(frames[:1], now)
            frames = frames[1:]
        if self.resume_handshake.resumption is not None:
            try:
                self.resume_handshake.resumption.count(frames)
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
            self.end_with(refusal.code, refusal.data, refusal)
        elif self.state is not State.OVER:
            self._fail(error)
        return self._collected()

    def forgive_silence(self, now: float) -> None:
        """Nothing was read, and that was not the peer's doing: its silence counts from now on."""
        self.keepalive.heard(now)

    def excuse(self, now: float) -> None:
        """What is due now may have been due for long: nobody is to blame for what could not be asked of it."""
        self.keepalive.excuse(now)

    def expire(self, now: float) -> list[Event]:
        """What the clock asks for at this time: a beat, or the end of a silent connection."""
        if self.state is State.OVER or self._suspended:
            return []
        beat = self.keepalive.expire(now)
        if beat is Beat.SEND:
            self.control.ping(None)
        elif beat is Beat.DEAD:
            silence = f"no frame came for {self.keepalive.max_lifetime:g} s"
            lost = ConnectionLost(f"the peer is silent: {silence}")
            if self.can_resume:
                return [TransportSilent(lost)]
            if self.state is State.ASKING:
                self._end(lost)  # RSX-SETUP-03
            else:
                self.end_with(CONNECTION_ERROR, silence.encode(), lost)
        return self._collected()

    def _process(self, frames: Sequence[bytes], now: float) -> list[Event]:
        receiver, control = self.receiver, self.control
        receiver.now = now
        codec = self.dialect.codec
        decode, patterns = codec.decode, self.patterns
        index, count = 0, len(frames)
        is_open = self.state is State.OPEN and control.established
        try:
            while index < count:
                whole = frames[index]
                if is_open and patterns is not None:
                    taken = take_plain(receiver, patterns, frames, index)
                    if taken:
                        index += taken
                        continue
                index += 1
                data = whole if len(whole) <= DATA_LIMIT else codec.shortened(whole, DATA_LIMIT)
                if self.state is not State.OPEN and (self.beginning is None or not self.beginning.lets_through(data)):
                    continue
                try:
                    frame = decode(data)
                except RemoteProtocolError as error:
                    control.skip(data, error)
                    continue
                handler = STREAM_HANDLERS.get(type(frame))
                if handler is not None:
                    handler(receiver, frame)
                else:
                    control.receive(frame)
                    self.attention = self.attention or receiver.draining
                if not control.established:
                    control.established = control.shows_acceptance(frame)
                is_open = self.state is State.OPEN and control.established
        except RemoteProtocolError as error:
            self._fail(error)
        except EndedByPeer as end:
            # rsocket-java says CONNECTION_ERROR when an application disposes of a connection.
            is_connection_error = isinstance(end.error, ConnectionLost) and end.error.code == CONNECTION_ERROR
            self._end(end.error, ordinary=is_connection_error and not self._has_open)
        except SetupError as refusal:
            self.end_with(refusal.code, refusal.data, refusal)
        if (self.outbox.reply_size or self.state is not State.OPEN) and self.is_congested:
            self.attention = True
        return self._collected()

    def _collected(self) -> list[Event]:
        self.attention = True
        events, self.receiver.events = self.receiver.events, []
        return events

    # Going on over another transport

    def suspend(self) -> list[Event]:
        """The transport is gone. What is sent waits, and time does not count."""
        self._suspended = True
        self.attention = True
        return self.resume_handshake.suspend()

    def restart(self, now: float) -> None:
        """There is another transport: silence, signs of life and leases begin anew."""
        self._suspended = False
        self.attention = True
        self.keepalive.restart(now)
        self.control.restart(now)
        if self.has_announced:
            self.announce_close(last=False)  # it has no position, so it is said anew

    # Ends

    def error_frame(self, code: int, data: bytes) -> bytes:
        """ERROR on stream 0."""
        code = (self.dialect.setup_codes or {}).get(code, code)
        return self.dialect.codec.encode(self.commands.error_frame(0, code, data))

    def _fail(self, error: RemoteProtocolError) -> None:
        """The one place where a fault of the peer's becomes its answer on the wire and our own end."""
        lost = ConnectionLost(f"the peer broke the protocol: {error}", code=CONNECTION_ERROR)
        lost.__cause__ = error.with_traceback(None)  # which would keep the frames of our own that read it
        self.end_with(CONNECTION_ERROR, str(error).encode(), lost)

    def end_with(self, code: int, data: bytes, error: RSocketError) -> None:
        """Say why, then end."""
        if self.dialect.has_connection_error or code in SETUP_ERRORS:
            self.outbox.put_reply(self.error_frame(code, data))
        self._end(error)

    @property
    def _has_open(self) -> bool:
        """Whether any stream is open, or may be among what the gate holds."""
        return self.held_size > 0 or any(stream.open for stream in self.open_streams())

    def _end(self, error: RSocketError, *, ordinary: bool = False) -> None:
        self.outbox.discard_queues()
        self.close(error)
        self.receiver.events.append(SessionEnded(error, ordinary))
