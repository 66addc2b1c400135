"""One Streamux connection's rules: bytes in, events out; no I/O, no clock, no tasks."""

from __future__ import annotations

import enum
import math
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from rsocket_trio.errors import (
    ConnectionClosed,
    ConnectionLost,
    NegotiationFailed,
    RemoteProtocolError,
    RSocketError,
    SetupError,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux import session
from rsocket_trio.mux.events import (
    Event,
    ItemReceived,
    ItemsReceived,
    RequestReceived,
    SessionEnded,
    SetupAccepted,
    SetupReceived,
)
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.streamux.chunks import ChunkReader, HeaderLayout
from rsocket_trio.streamux.negotiation import Negotiation, Terms
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.streamux.receiver import ChunkReceiver
from rsocket_trio.streamux.request_table import Exchange, RequestTable
from rsocket_trio.streamux.sender import ChunkSender
from rsocket_trio.streamux_magic import NAME, SIZE
from rsocket_trio.terms import Setup


class State(enum.Enum):
    """The state of a connection, from before the negotiation to the end."""

    NEGOTIATING = enum.auto()
    """The peer's initialize message is not here; without a quick init no request is sent before it is."""
    GATED = enum.auto()
    """A server whose application has not accepted the client yet."""
    OPEN = enum.auto()
    """Messages flow. A client with a quick init begins here."""
    OVER = enum.auto()


@cache
def capabilities(message_budget: int | None) -> session.Capabilities:
    """Return the capabilities of Streamux with this budget in bytes."""
    return session.Capabilities(
        name=NAME,
        first_message="initialize message",
        keeps_credit=False,
        message_budget=message_budget,
        routes=False,
    )


class RequestGate:
    """Holds a client's requests until the server's application accepts the client."""

    __slots__ = ("_count", "_held", "_limits", "_size")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: list[Event] = []
        self._count = 0
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Return whether enough is held for reading to pause."""
        return self._count >= self._limits.held_frames or self._size >= self._limits.held_size

    def passed(self, events: list[Event]) -> list[Event]:
        """Return the events that concern no request of the client's; hold the others."""
        told: list[Event] = []
        for event in events:
            stream = getattr(event, "stream", None)
            if stream is None or stream.requester:
                told.append(event)
                continue
            self._held.append(event)
            self._count += 1
            if isinstance(event, RequestReceived | ItemReceived):
                self._size += event.payload.size
            elif isinstance(event, ItemsReceived):
                self._count += len(event.payloads) - 1
                self._size += sum(payload.size for payload in event.payloads)
        return told

    def open(self) -> list[Event]:
        """Return the held events, in order."""
        return self._held


class Session(session.Session):
    """The rules of one connection.

    Chunks to send stand in ``outbox``; the connection writes it. ``commands`` send on requests.
    ``whole`` and ``chunks`` say for which kinds of requests the application has a handler. ``terms`` are what was
    negotiated, ``None`` until then. ``randbelow`` draws the first request id.
    """

    commands: ChunkSender
    receiver: ChunkReceiver

    def __init__(
        self,
        options: StreamuxOptions,
        *,
        client: bool,
        limits: Limits,
        fragment_size: int,
        whole: bool = False,
        chunks: bool = False,
        randbelow: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self.client = client
        self.limits = limits
        self.options = options
        self.dialect = capabilities(options.message_budget)
        self.state = State.NEGOTIATING
        self.error: RSocketError | None = None
        self.terms: Terms | None = None
        self.table = RequestTable()
        self.outbox = Outbox(limits.outbox_size, self.table.forget)
        self.commands = ChunkSender(self.table, self.outbox, fragment_size, options.encode_error)
        self.receiver = ChunkReceiver(
            *(limits, self.table, self.commands, self.outbox),
            whole=whole and (options.requests != "chunks" or not chunks),
            chunks=chunks and (options.requests != "whole" or not whole),
            lenient=options.spurious == "report",
        )
        self._fragment_size = fragment_size
        self._randbelow = randbelow
        self._negotiation: Negotiation | None = Negotiation(options._initialize(), self.outbox)
        self.attention = False
        self._gate: RequestGate | None = None
        self._reader: ChunkReader | None = None

    # Commands of the connection

    def start(self, now: float) -> None:
        """Send the initialize message. A client that asks for a quick init is ready to make requests at once."""
        assert self._negotiation is not None
        terms = self._negotiation.start(now, client=self.client, timeout=self.limits.setup_timeout)
        if terms is not None:
            self.state = State.OPEN
            self.commands.before_first = self._negotiation.send
            self._agree(terms)

    def accept(self, now: float, granted: tuple[Any, ...] = ()) -> list[Event]:
        """Open a server's session to its client. Return the events that were held meanwhile."""
        if self._gate is None:
            return []
        self.state = State.OPEN
        held, self._gate = self._gate.open(), None
        return held

    def refuse(self, error: SetupError) -> list[Event]:
        """End the session with a client that the application refuses. The client sees the connection close."""
        if self.state is State.GATED:
            self._end(error)
        return self._collected()

    def ping(self, token: object) -> None:
        """Send a ping, whose answer is ``Pong`` with this token."""
        self.commands.ping(token)

    def drain(self) -> None:
        """Refuse new requests from now on; open ones may finish."""
        self.table.draining = True
        self.attention = True

    def close(self, error: RSocketError | None = None) -> None:
        """End the session on this side: bytes that come are ignored from now on."""
        if self.error is None:
            self.error = error if error is not None else ConnectionClosed("the connection was closed by this side")
        self.state = State.OVER
        self.outbox.drop_held()
        self._gate = None

    # The state, for the connection

    @property
    def draining(self) -> bool:
        """Return whether neither side may make new requests."""
        return self.table.draining

    @property
    def awaits_setup(self) -> bool:
        """Return whether this is a server that no initialize message has reached."""
        return not self.client and self.state is State.NEGOTIATING

    @property
    def awaits_admission(self) -> bool:
        """Return whether this is a server that has not let its client in yet."""
        return not self.client and self.state in (State.NEGOTIATING, State.GATED)

    @property
    def awaits_answer(self) -> bool:
        """Return whether this is a client that may say nothing before the server's initialize message (SMX-INI-02)."""
        return self.client and self.state is State.NEGOTIATING

    @property
    def is_quiet(self) -> bool:
        """Return whether no request is open, and the last chunk of each response has left."""
        return self.table.is_quiet

    @property
    def opens_at_once(self) -> bool:
        """Return whether a new request need not wait for an id, and is not refused."""
        return not (self.table.draining or self.table.is_full)

    @property
    def is_mid_frame(self) -> bool:
        """Return whether a part of a chunk, or of the initialize message, is here and the rest is not."""
        if self._negotiation is not None:
            return bool(self._negotiation.received)
        return self._reader is not None and bool(self._reader.partial)

    @property
    def deadline(self) -> float:
        """The time of the next call of ``expire``; infinite once both initialize messages were exchanged."""
        return (
            self._negotiation.deadline if self._negotiation is not None and self.state is not State.OVER else math.inf
        )

    @property
    def patience_until(self) -> float:
        """The time at which ``expire`` gives up a silent server; infinite once its initialize message is here."""
        if self._negotiation is None or self.state is State.OVER:
            return math.inf
        return self._negotiation.overdue_at

    @property
    def is_congested(self) -> bool:
        """Return whether reading must pause: acks wait for a peer that does not read, or requests for handlers."""
        outbox, limits = self.outbox, self.limits
        return (
            outbox.reply_size >= limits.reply_size
            or outbox.reply_frames >= limits.reply_frames
            or self.table.buffered > limits.reassembly_size
            or (self._gate is not None and self._gate.is_full)
        )

    def open_streams(self) -> list[Exchange]:
        """Return all requests of both sides, as they are now."""
        return self.table.live

    @property
    def requests_in_flight(self) -> int:
        return len(self.table.mine)

    # Bytes of the peer, and the clock

    def receive(self, frames: Sequence[bytes], now: float) -> list[Event]:
        """Take bytes as they come, and return the events. No bytes of a peer make this raise."""
        if self.state is State.OVER:
            return []
        try:
            for data in frames:
                rest = data if self._negotiation is None else self._negotiate(self._negotiation, data)
                if rest and self._reader is not None:
                    self._reader.feed(rest)
        except RemoteProtocolError as error:
            self._fail(error)
        except NegotiationFailed as error:
            self._end(error)
        if self._gate is not None:
            self.attention = True
            return self._collected()
        if self.outbox.reply_size or self.table.buffered > self.limits.reassembly_size:
            self.attention = True  # reading may have to pause
        events, self.receiver.events = self.receiver.events, []
        return events

    def broken(self, error: RemoteProtocolError) -> list[Event]:
        """End the session, because the transport could not go on."""
        if self.state is not State.OVER:
            self._fail(error)
        return self._collected()

    def cut_off(self, lost: ConnectionLost) -> RSocketError:
        """Return the error of a transport that ended, which names the chunk that it cut, if any (SMX-SPU-05)."""
        if self._negotiation is not None and self._negotiation.received:
            error: RSocketError = NegotiationFailed(
                f"{lost.text} after {len(self._negotiation.received)} of the {SIZE} bytes of its initialize message"
            )
        elif self._reader is not None and self._reader.partial:
            error = ConnectionLost(f"{lost.text} {self._reader.partial}")
        else:
            return lost
        error.__cause__ = lost.__cause__
        return error

    def expire(self, now: float) -> list[Event]:
        """Send the initialize message of a quick init alone, or end the session if the server's is overdue."""
        if self.state is not State.OVER and self._negotiation is not None and self._negotiation.expire(now):
            self._end(ConnectionLost(f"no initialize message came for {self.limits.setup_timeout:g} s"))
        return self._collected()

    # The negotiation

    def _negotiate(self, negotiation: Negotiation, data: bytes) -> bytes:
        """Take bytes of the peer's initialize message. Return those behind it. Raise ``NegotiationFailed``."""
        rest, terms = negotiation.take(data)
        if terms is None:
            return rest
        self._negotiation = self.commands.before_first = None
        self.attention = True  # the deadline moved
        if self.state is not State.OPEN:
            self._agree(terms)
            if self.client:
                self.state = State.OPEN
                self.receiver.events.append(SetupAccepted(()))
            else:
                self.state = State.GATED
                self._gate = RequestGate(self.limits)
                self.receiver.events.append(SetupReceived(Setup(dialect=NAME)))
        return rest

    def _agree(self, terms: Terms) -> None:
        self.terms = terms
        layout = HeaderLayout(terms)
        self.receiver.full = min(terms.length_cap, self._fragment_size)
        self.table.agree(terms.id_cap, self.options.in_flight, self._randbelow)
        self.commands.agree(terms, layout)
        self._reader = ChunkReader(layout, self.limits.frame_size, self.receiver, self.receiver.on_run)

    # Ends

    def _collected(self) -> list[Event]:
        events, self.receiver.events = self.receiver.events, []
        return events if self._gate is None else self._gate.passed(events)

    def _fail(self, error: RemoteProtocolError) -> None:
        """End the session for a fault of the peer's, which the protocol has no frame to report."""
        lost = ConnectionLost(f"the peer broke the protocol: {error}")
        lost.__cause__ = error.with_traceback(None)  # which would keep the frames of our own that read it
        self._end(lost)

    def _end(self, error: RSocketError) -> None:
        self.outbox.discard_queues()
        self.close(error)
        self.receiver.events.append(SessionEnded(error))
