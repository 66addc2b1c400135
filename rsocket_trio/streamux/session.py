"""One Streamux connection's rules: bytes in, events out; no I/O, no clock, no tasks."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from itertools import compress
from typing import Any

from rsocket_trio.errors import ConnectionLost, NegotiationFailed, RemoteProtocolError, RSocketError, SetupError
from rsocket_trio.limits import Limits
from rsocket_trio.mux import session
from rsocket_trio.mux.events import Event, ItemsReceived, SetupAccepted, SetupReceived
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.session import State
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.chunks import ChunkReader, HeaderLayout
from rsocket_trio.streamux.negotiation import Negotiation, StreamuxOptions, Terms
from rsocket_trio.streamux.receiver import EMPTY, ChunkReceiver
from rsocket_trio.streamux.request_table import Exchange, RequestTable
from rsocket_trio.streamux.sender import ChunkSender
from rsocket_trio.streamux_magic import NAME, SIZE
from rsocket_trio.terms import Setup


@cache
def capabilities(message_budget: int | None) -> session.Capabilities:
    """Return the capabilities of Streamux with this budget in bytes."""
    return session.Capabilities(
        name=NAME, first_message="initialize message", keeps_credit=False, message_budget=message_budget, routes=False
    )


class RequestGate:
    """Holds a client's requests until the server's application accepts the client."""

    __slots__ = ("_limits", "held")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held: list[Event] = []

    @property
    def is_full(self) -> bool:
        """Return whether enough is held for reading to pause."""
        payloads: list[Payload] = []
        for event in self.held:
            payloads += event.payloads if isinstance(event, ItemsReceived) else [getattr(event, "payload", EMPTY)]
        size = sum(payload.size for payload in payloads)
        return len(payloads) >= self._limits.held_frames or size >= self._limits.held_size

    def passed(self, events: list[Event]) -> list[Event]:
        """Return the events that concern no request of the client's; hold the others."""
        streams = [getattr(event, "stream", None) for event in events]
        is_held = [stream is not None and not stream.requester for stream in streams]
        self.held += compress(events, is_held)
        return [event for event, is_one in zip(events, is_held, strict=True) if not is_one]


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
        # SMX-INI-02: without a quick init no request is sent before the server's initialize message is here.
        self.state = State.ASKING if client else State.NEW
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
        if self._gate is None:
            return []
        self.state = State.OPEN
        held, self._gate = self._gate.held, None
        return held

    def refuse(self, error: SetupError) -> list[Event]:
        if self.state is State.GATED:
            self._end(error)
        return self._collected()

    def ping(self, token: object) -> None:
        self.commands.ping(token)

    def drain(self) -> None:
        self.table.draining = True
        self.attention = True

    def close(self, error: RSocketError | None = None) -> None:
        super().close(error)
        self._gate = None

    # The state, for the connection

    @property
    def draining(self) -> bool:
        return self.table.draining

    @property
    def is_quiet(self) -> bool:
        return self.table.is_quiet

    @property
    def opens_at_once(self) -> bool:
        return not (self.table.draining or self.table.is_full)

    @property
    def is_mid_frame(self) -> bool:
        if self._negotiation is not None:
            return bool(self._negotiation.received)
        return self._reader is not None and bool(self._reader.partial)

    @property
    def deadline(self) -> float:
        return (
            self._negotiation.deadline if self._negotiation is not None and self.state is not State.OVER else math.inf
        )

    @property
    def patience_until(self) -> float:
        if self._negotiation is None or self.state is State.OVER:
            return math.inf
        return self._negotiation.overdue_at

    @property
    def is_congested(self) -> bool:
        return (
            self._has_many_replies
            or self.table.buffered > self.limits.reassembly_size
            or (self._gate is not None and self._gate.is_full)
        )

    def open_streams(self) -> list[Exchange]:
        return self.table.live

    @property
    def requests_in_flight(self) -> int:
        return len(self.table.mine)

    # Bytes of the peer, and the clock

    def receive(self, frames: Sequence[bytes], now: float) -> list[Event]:
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
        if self._gate is not None or self.outbox.reply_size or self.table.buffered > self.limits.reassembly_size:
            self.attention = True  # reading may have to pause
        return self._collected()

    def broken(self, error: RemoteProtocolError) -> list[Event]:
        if self.state is not State.OVER:
            self._fail(error)
        return self._collected()

    def cut_off(self, lost: ConnectionLost) -> RSocketError:
        # SMX-SPU-05: it names the chunk that was cut.
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
        self._reader = ChunkReader(layout, self.limits.frame_size, self.receiver)

    # Ends

    def _collected(self) -> list[Event]:
        events = super()._collected()
        return events if self._gate is None else self._gate.passed(events)

    def _fail(self, error: RemoteProtocolError) -> None:
        """End the session for a fault of the peer's, which the protocol has no frame to report."""
        self._end(self._broken_by(error))
