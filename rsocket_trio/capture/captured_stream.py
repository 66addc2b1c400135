"""One captured stream: its payloads, credit and stalls, and at its end its row of ``interactions``."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.capture.rows import CaptureOrigin, Row
from rsocket_trio.capture.schema import Outcome
from rsocket_trio.mux.stream_state import BOTH, RECEIVING, SENDING, Interaction

REQUESTER: Final = SENDING
RESPONDER: Final = RECEIVING
"""The halves of a stream, named from the side of the requester, on either capturing side."""
MAX_METADATA_BYTES: Final = 65536
"""Bytes of a request's metadata that are gathered from its fragments, to find the route."""
HAS_CREDIT: Final = frozenset(
    {Interaction.REQUEST_STREAM, Interaction.REQUEST_SUBSCRIPTION, Interaction.REQUEST_CHANNEL}
)


@attrs.define(eq=False)
class Half:
    """One direction of a stream."""

    credit: int | None = None
    """Items that its sender may still send, ``None`` without flow control."""
    payloads: int = 0
    pieces: int = 0
    has_item: bool = False
    size: int = 0


@attrs.define(eq=False)
class CapturedStream:
    """The state of one stream from its first frame on. Times are readings of the capture's clock, in ns."""

    id: int
    interaction: Interaction
    since: int
    conn_id: str
    drops: int
    """Frames of the session that had been dropped when the stream began."""
    ours: bool
    """True if the side that captures is its requester."""
    open: int = BOTH
    asked: Half = attrs.field(factory=Half)
    responses: Half = attrs.field(factory=Half)
    metadata: bytes | None = None
    route: str | None = None
    route_id: int | None = None
    requested: int | None = None
    first: int | None = None
    last_item: int | None = None
    max_gap: int | None = None
    stalled: int | None = None
    stall_ns: int = 0
    stalls: int = 0
    retries: int = 0

    def half(self, by_requester: bool) -> Half:
        """Return the direction in which the requester or the responder sends."""
        return self.asked if by_requester else self.responses

    def start_credit(self, amount: int | None, now: int) -> None:
        """Set the credit that the request grants the responder."""
        if self.interaction not in HAS_CREDIT:
            return
        if self.interaction is Interaction.REQUEST_CHANNEL:
            self.asked.credit = 0
        self.responses.credit = 0
        self.grant(amount or 0, now, by_requester=True)
        if not amount:
            self.stalled = now

    def grant(self, amount: int, now: int, *, by_requester: bool) -> int | None:
        """Add the credit of a REQUEST_N. Return the credit of the other side, or ``None`` without flow control."""
        half = self.half(not by_requester)
        if half.credit is None:
            return None
        half.credit += amount
        if by_requester:
            self.requested = (self.requested or 0) + amount
            if amount:
                self._end_stall(now)
        return half.credit

    def item(self, now: int, *, by_requester: bool, opening: bool = False) -> int | None:
        """Count a whole payload. Return its sender's remaining credit; the payload of the request costs nothing."""
        half = self.half(by_requester)
        half.payloads += 1
        if not by_requester:
            if self.first is None:
                self.first = now
            elif self.last_item is not None:
                gap = now - self.last_item
                self.max_gap = gap if self.max_gap is None else max(self.max_gap, gap)
            self.last_item = now
        if half.credit is not None and not opening:
            half.credit = max(0, half.credit - 1)
            if not half.credit and not by_requester:
                self.stalled = now
        return half.credit

    def close(self, now: int, halves: int) -> None:
        """Close one or both directions."""
        self.open &= ~halves
        if not self.open & RESPONDER:
            self._end_stall(now)

    def row(
        self, origin: CaptureOrigin, session_id: str, side: str, now: int, outcome: Outcome, code: int | None
    ) -> Row:
        """Return the row of ``interactions`` of the stream, which ends now."""
        self._end_stall(now)
        sent, received = (self.asked, self.responses) if self.ours else (self.responses, self.asked)
        return (
            *(origin.capture_id, origin.host, self.conn_id, session_id, self.id & 0x7FFFFFFF, side),
            "requester" if self.ours else "responder",
            *(self.route, self.route_id, self.interaction.value, origin.micros(self.since)),
            None if self.first is None else origin.micros(self.first),
            origin.micros(now),
            None if self.first is None else (self.first - self.since) // 1000,
            (now - self.since) // 1000,
            *(received.payloads, sent.payloads, received.size, sent.size, self.requested),
            *(self.stall_ns // 1000, self.stalls),
            None if self.max_gap is None else self.max_gap // 1000,
            *(outcome, code, self.retries),
        )

    def _end_stall(self, now: int) -> None:
        # A stream that ends at the time of its last credit did not wait.
        if self.stalled is not None and now > self.stalled:
            self.stalls += 1
            self.stall_ns += now - self.stalled
        self.stalled = None
