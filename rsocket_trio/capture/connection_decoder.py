"""One captured transport connection and its session: counters, streams, and the rows of both and of each frame."""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from rsocket_trio.capture.rows import REMEMBERED, CaptureOrigin, FrameCells, Row, WaitingRows, cells_of
from rsocket_trio.capture.schema import RTT_BUCKETS, Outcome
from rsocket_trio.metadata.mime import COMPOSITE_METADATA
from rsocket_trio.mux.framing import Facts
from rsocket_trio.mux.stream_state import BOTH, RECEIVING, SENDING, Interaction
from rsocket_trio.rsocket.resume_protocol import is_tracked

MAX_OPEN_STREAMS = 1_000_000
"""Open streams of a session that are followed; beyond it the oldest end as ``unknown``."""
CapturedFrame: TypeAlias = bytes | tuple[bytes, int]
"""A frame as it was kept: whole, or everything before its data and how many bytes of data follow."""
LONGEST = 2**31 - 1
"""The largest value of an unsigned number on the wire that a column of 32 bits holds."""


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


class CapturedSession:
    """The streams of one session, over one or several transports.

    ``founder`` is the connection on which it began, ``current`` its present connection, ``drops`` the number of its
    frames that were dropped so far, ``resumes`` the number of its resumptions. ``sent`` is its position in bytes, as
    resumption counts it.
    """

    def __init__(self, rows: WaitingRows, founder: ConnectionDecoder) -> None:
        self.id = founder.conn_id
        self.founder = founder
        self.current = founder
        self.side = founder.facts.side
        self.streams: dict[int, CapturedStream] = {}
        self.drops = 0
        self.resumes = 0
        self.sent = 0
        self.to_repeat = 0
        self.is_over = False
        self.ended: dict[int, int] = {}
        """The route ids of streams that have ended, by stream id, for late frames."""
        self._rows = rows

    def begin(self, stream: CapturedStream, now: int) -> None:
        """Add a stream. An open stream with the same id ends as ``unknown``: its end was not seen."""
        former = self.streams.get(stream.id)
        if former is not None:
            self.end(former, now, "unknown")
        elif len(self.streams) >= MAX_OPEN_STREAMS:
            self.end(next(iter(self.streams.values())), now, "unknown")
        self.ended.pop(stream.id, None)
        self.streams[stream.id] = stream

    def end(self, stream: CapturedStream, now: int, outcome: Outcome, code: int | None = None) -> None:
        """End a stream and append its row."""
        stream.close(now, BOTH)
        self.streams.pop(stream.id, None)
        if stream.route_id is not None:
            if len(self.ended) >= REMEMBERED:
                del self.ended[next(iter(self.ended))]
            self.ended[stream.id] = stream.route_id
        row = stream.row(self._rows.origin, self.id, self.side, now, outcome, code)
        self._rows.tables["interactions"].append(row)

    def go_on(self, decoder: ConnectionDecoder, position: int | None, now: int) -> None:
        """Continue on another transport; frames from ``position`` on, which the peer lacks, are sent again."""
        self.current = decoder
        self.resumes += 1
        self.to_repeat = max(0, self.sent - position) if position is not None and not self.drops else 0

    def repeats(self, data: bytes, size: int) -> bool:
        """Count a sent frame. Return whether it was sent before, on a transport that was lost."""
        if not is_tracked(data):
            return False
        if self.to_repeat > 0:
            self.to_repeat -= size
            return True
        self.sent += size
        return False

    def finish(self, now: int) -> None:
        """End the session: open streams end as ``conn_lost``, or as ``unknown`` if frames were dropped meanwhile."""
        self.is_over = True
        for stream in list(self.streams.values()):
            self.end(stream, now, "unknown" if self.drops > stream.drops else "conn_lost")


Sessions: TypeAlias = dict[tuple[str, str], CapturedSession]
"""Sessions that may be resumed, by side and id: one capture may see both ends of a session."""


@attrs.define(eq=False)
class LeaseCounter:
    """Counts the requests that the leases of one direction granted, and those used and expired."""

    grants: int = 0
    granted: int = 0
    used: int = 0
    expired: int = 0
    left: int = 0
    expires: int = 0

    def grant(self, number: int, ttl_ns: int, now: int) -> None:
        """Handle a LEASE, which replaces the former one."""
        self.expired += self.left
        self.grants += 1
        self.granted += number
        self.left, self.expires = number, now + ttl_ns

    def use(self, now: int) -> None:
        """Count a request against the lease."""
        self.expire(now)
        if self.left:
            self.left -= 1
            self.used += 1

    def expire(self, now: int) -> None:
        """Count unused requests as expired once the lease has run out."""
        if now >= self.expires:
            self.expired += self.left
            self.left = 0


class ConnectionDecoder:
    """The state of one captured transport connection. It knows the sizes of frames; a subclass reads those of RSocket.

    Of Streamux received frames are the reads: only its session can cut them into chunks.
    """

    def __init__(self, rows: WaitingRows, facts: Facts, conn_id: str, now: int) -> None:
        self.facts = facts
        self.conn_id = conn_id
        self.session = CapturedSession(rows, self)
        self.is_resuming = False
        """True if it began with a request to resume a session."""
        self.is_orphan = False
        """True if it resumes a session whose start was not captured, so that no other connection reports its end."""
        self.resumes = 0
        """The number of resumptions of its session, this one included."""
        self.drops = 0
        self._rows = rows
        self._since = now
        self._until = now
        self.reason: str | None = None
        """The reason why its transport ended, once it has."""
        self._written = False
        self._seq = 0
        self._unreported_drops = 0
        self._counts = {True: [0, 0], False: [0, 0]}
        self._streams = 0
        self._rtt = [0] * RTT_BUCKETS
        self._leases = {True: LeaseCounter(), False: LeaseCounter()}
        self._setup: Row = (None,) * 6
        """Cells of the SETUP."""
        self._metadata_mime: str | int = COMPOSITE_METADATA
        self._leased = False

    def drop(self, dropped: int) -> None:
        """Count frames that were not kept."""
        if dropped:
            self.drops += dropped
            self._unreported_drops += dropped
            self.session.drops += dropped

    def closed(self, now: int, reason: str) -> None:
        """Handle the end of the transport; write the row now if no later event can belong to this connection."""
        if self.reason is None:
            self._until, self.reason = now, reason
        if self.is_resuming or self.is_orphan:
            self.session.finish(now)
        if self.session.current is not self or self.session.is_over:
            self.write_row()

    def over(self, now: int, reason: str) -> None:
        """Handle the end of the session that began on this connection."""
        session = self.session
        if session.founder is not self:
            return
        last = session.current
        session.finish(now)
        for decoder in {self, last}:
            if decoder.reason is None:
                decoder._until, decoder.reason = now, reason
            elif decoder is last:
                decoder.reason = reason
            decoder.write_row()

    def give_up(self, now: int, reason: str) -> None:
        """Write the row of a connection that outlives the capture."""
        if not self.session.is_over:
            self.session.finish(now)
        if self.reason is None:
            self._until, self.reason = now, reason
        self.write_row()

    @property
    def is_done(self) -> bool:
        """Return whether its row is written, and its recorder has no end of a session left to report."""
        return self._written and (self.session.founder is not self or self.session.is_over)

    def take(self, now: int, inward: bool, frame: CapturedFrame) -> None:
        """Handle a frame that passed at this time."""
        size = len(frame) if isinstance(frame, bytes) else len(frame[0]) + frame[1]
        self._count(inward, size)
        self._row(FrameCells(now, inward, size))

    def _count(self, inward: bool, size: int) -> None:
        counts = self._counts[inward]
        counts[0] += 1
        counts[1] += size

    def _row(self, seen: FrameCells) -> None:
        origin, facts = self._rows.origin, self.facts
        seq, dropped = self._seq, self._unreported_drops
        self._seq += 1
        self._unreported_drops = 0
        self._rows.tables["frames"].append(
            (
                *(origin.capture_id, origin.host, self.conn_id, self.session.id),
                *(seq, origin.micros(seen.now), seen.now),
                *(facts.side, "in" if seen.inward else "out", facts.transport, facts.peer_address),
                *cells_of(seen),
                dropped,
            )
        )

    def write_row(self) -> None:
        """Write the connection's row, once."""
        if self._written:
            return
        self._written = True
        origin, facts = self._rows.origin, self.facts
        leases = tuple(self._leases.values())
        for lease in leases:
            lease.expire(self._until)
        (frames_in, bytes_in), (frames_out, bytes_out) = self._counts[True], self._counts[False]
        self._rows.tables["connections"].append(
            (
                *(origin.capture_id, origin.host, self.conn_id, self.session.id, facts.side, facts.dialect),
                *(facts.transport, facts.peer_address, origin.micros(self._since), origin.micros(self._until)),
                *self._setup,
                self.resumes,
                *(frames_in, frames_out, bytes_in, bytes_out, self._streams, self._rtt),
                *(sum(lease.grants for lease in leases), sum(lease.granted for lease in leases)),
                *(sum(lease.used for lease in leases), sum(lease.expired for lease in leases)),
                *(self.drops, self.reason),
            )
        )
