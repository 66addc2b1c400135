"""How does a Streamux connection begin? Both sides say what they offer, and a server asks its application."""

from __future__ import annotations

import math

from rsocket_trio.errors import NegotiationFailed
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, ItemReceived, ItemsReceived, RequestReceived
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.streamux.negotiation import SIZE, Initialize, Terms, negotiate, quick_terms

COMPANY = 0.01
"""Seconds that the initialize message of a quick init waits for a first request, to travel with it in one write."""


class Beginning:
    """The two initialize messages; ``heard`` is what has come of the peer's. Of no use once it is whole."""

    __slots__ = ("_alone_until", "_initialize", "_outbox", "heard", "patience_until")

    def __init__(self, initialize: Initialize, outbox: Outbox) -> None:
        self._initialize = initialize
        self._outbox = outbox
        self._alone_until = math.inf
        self.patience_until = math.inf
        self.heard = b""

    @property
    def deadline(self) -> float:
        """When ``expire`` has something to do."""
        return min(self._alone_until, self.patience_until)

    def start(self, now: float, *, client: bool, patience: float) -> Terms | None:
        """Send ours; a client gives the server so many seconds for its own. Returns the terms of a quick init."""
        message = self._initialize.encode()
        if client:
            self.patience_until = now + patience
        if client and self._initialize.qr:
            self._outbox.hold()
            self._alone_until = now + COMPANY
            return quick_terms(self._initialize)
        self._outbox.put_urgent(message)
        return None

    def go(self) -> None:
        """Let the initialize message of a quick init go, before all that was put behind it."""
        if self._alone_until != math.inf:
            self._alone_until = math.inf
            self._outbox.release(self._initialize.encode())

    def expire(self, now: float) -> bool:
        """The message of a quick init goes alone, if that is due; whether the peer's is overdue."""
        if now >= self._alone_until:
            self.go()
        return now >= self.patience_until

    def take(self, data: bytes) -> tuple[bytes, Terms | None]:
        """What came behind the peer's message, and the terms once that is whole. Raises ``NegotiationFailed``."""
        missing = SIZE - len(self.heard)
        self.heard += data[:missing]
        if len(self.heard) < SIZE:
            return b"", None
        self.go()  # whatever comes of it, the peer has to hear what this side offered (SMX-INI-01)
        theirs = Initialize.decode(self.heard)
        try:
            theirs.check()
        except NegotiationFailed as error:
            raise NegotiationFailed(f"the peer's {error}") from None
        return data[missing:], negotiate(self._initialize, theirs).terms


class Gate:
    """What is held until a server's application lets its client in."""

    __slots__ = ("_count", "_held", "_limits", "_size")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: list[Event] = []
        self._count = 0
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether enough is held for reading to pause."""
        return self._count >= self._limits.held_frames or self._size >= self._limits.held_size

    def passed(self, events: list[Event]) -> list[Event]:
        """Those that concern no request of the client's; the others are held."""
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
        """What was held, in order."""
        return self._held
