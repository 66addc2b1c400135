"""The exchange of Streamux initialize messages, and the gate that holds requests until a server accepts."""

from __future__ import annotations

import math

from rsocket_trio.errors import NegotiationFailed
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, ItemReceived, ItemsReceived, RequestReceived
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.streamux.negotiation import SIZE, Initialize, Terms, negotiate, quick_terms

COMPANY = 0.01
"""Seconds that the initialize message of a quick init waits for a first request, so that one write sends both."""


class Beginning:
    """The two initialize messages; ``heard`` is the part of the peer's that came. Of no use once that is whole."""

    __slots__ = ("_alone_until", "_initialize", "_outbox", "heard", "patience_until")

    def __init__(self, initialize: Initialize, outbox: Outbox) -> None:
        self._initialize = initialize
        self._outbox = outbox
        self._alone_until = math.inf
        self.patience_until = math.inf
        self.heard = b""

    @property
    def deadline(self) -> float:
        """The time at which ``expire`` has something to do."""
        return min(self._alone_until, self.patience_until)

    def start(self, now: float, *, client: bool, patience: float) -> Terms | None:
        """Send this side's message. Return the terms of a quick init.

        A client gives the server ``patience`` seconds for its own message.
        """
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
        """Release the initialize message of a quick init, before all chunks that were put behind it."""
        if self._alone_until != math.inf:
            self._alone_until = math.inf
            self._outbox.release(self._initialize.encode())

    def expire(self, now: float) -> bool:
        """Send the message of a quick init alone if that is due. Return whether the peer's message is overdue."""
        if now >= self._alone_until:
            self.go()
        return now >= self.patience_until

    def take(self, data: bytes) -> tuple[bytes, Terms | None]:
        """Take bytes of the peer's message. Return the bytes behind it, and the terms once it is whole.

        Raise ``NegotiationFailed`` if the peer's message is invalid or the two do not agree.
        """
        missing = SIZE - len(self.heard)
        self.heard += data[:missing]
        if len(self.heard) < SIZE:
            return b"", None
        self.go()  # even if it fails, the peer has to get this side's offer (SMX-INI-01)
        theirs = Initialize.decode(self.heard)
        try:
            theirs.check()
        except NegotiationFailed as error:
            raise NegotiationFailed(f"the peer's {error}") from None
        return data[missing:], negotiate(self._initialize, theirs).terms


class Gate:
    """Holds a client's requests until the server's application accepts the client."""

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
