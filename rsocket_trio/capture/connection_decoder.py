"""One captured transport connection and its session: counters, streams, and the rows of both and of each frame."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from rsocket_trio.capture.captured_stream import CapturedStream
from rsocket_trio.capture.rows import REMEMBERED, FrameCells, Row, WaitingRows, cells_of
from rsocket_trio.capture.schema import RTT_BUCKETS, Outcome
from rsocket_trio.metadata.mime import COMPOSITE_METADATA
from rsocket_trio.mux.recording import Facts
from rsocket_trio.mux.stream_state import BOTH
from rsocket_trio.rsocket.resume_protocol import is_tracked

MAX_OPEN_STREAMS = 1_000_000
"""Open streams of a session that are followed; beyond it the oldest end as ``unknown``."""
CapturedFrame: TypeAlias = bytes | tuple[bytes, int]
"""A frame as it was kept: whole, or everything before its data and how many bytes of data follow."""
LONGEST = 2**31 - 1
"""The largest value of an unsigned number on the wire that a column of 32 bits holds."""


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
        """Append the row of one frame."""
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
