"""Tracks one captured transport connection: its counters, its row, and the row of each of its frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from rsocket_trio.capture.rows import Origin, Rows, Seen
from rsocket_trio.capture.schema import RTT_BUCKETS
from rsocket_trio.capture.sessions import SessionTrack
from rsocket_trio.mux.recording import Facts
from rsocket_trio.rsocket.dialect import Dialect

Kept: TypeAlias = bytes | tuple[bytes, int]
"""A frame as it was kept: whole, or everything before its data and how many bytes of data follow."""
MOST_PINGS = 1024
"""Keepalives that await an answer; older ones have no round-trip time."""
LONGEST = 2**31 - 1


class LeaseTrack:
    """Counts the requests that the leases of one direction granted, and those used and expired."""

    __slots__ = ("expired", "expires", "granted", "grants", "left", "used")

    def __init__(self) -> None:
        self.grants = self.granted = self.used = self.expired = self.left = self.expires = 0

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


class Track:
    """The state of one captured transport connection. Subclasses read the frames of their protocol."""

    dialect: Dialect | None = None

    def __init__(self, origin: Origin, rows: Rows, facts: Facts, conn_id: str, now: int) -> None:
        self.facts = facts
        self.conn_id = conn_id
        self.session = SessionTrack(origin, rows, self)
        self.is_resuming = False
        """Whether it began with a request to resume a session."""
        self.is_orphan = False
        """Whether it resumes a session whose start was not captured, so that no other connection reports its end."""
        self.resumes = 0
        """How often its session had been resumed, this time included."""
        self.drops = 0
        self._origin = origin
        self._rows = rows
        self._since = now
        self._until = now
        self._reason: str | None = None
        self._told = False
        self._seq = 0
        self._untold_drops = 0
        self._counts = {True: [0, 0], False: [0, 0]}
        self._streams = 0
        self._pings: dict[bool, deque[int]] = {True: deque(maxlen=MOST_PINGS), False: deque(maxlen=MOST_PINGS)}
        self._rtt = [0] * RTT_BUCKETS
        self._leases = {True: LeaseTrack(), False: LeaseTrack()}
        self._setup: tuple[str | None, str | None, int | None, int | None, bool | None, bool | None]
        self._setup = (None, None, None, None, None, None)

    def frames(self, now: int, inward: bool, frames: list[Kept], dropped: int) -> None:
        """Handle frames that passed at this time; ``dropped`` counts the frames not kept since the last call."""
        self.drop(dropped)
        take = self._take
        for frame in frames:
            take(now, inward, frame)

    def drop(self, dropped: int) -> None:
        """Count frames that were not kept."""
        if dropped:
            self.drops += dropped
            self._untold_drops += dropped
            self.session.drops += dropped
            self._after_drop()

    def closed(self, now: int, reason: str) -> None:
        """Handle the end of the transport; write the row now if no later event can belong to this connection."""
        if self._reason is None:
            self._until, self._reason = now, reason
        if self.is_resuming or self.is_orphan:
            self.session.finish(now)
        if self.session.current is not self or self.session.is_over:
            self.tell()

    def over(self, now: int, reason: str) -> None:
        """Handle the end of the session that began on this connection."""
        session = self.session
        if session.founder is not self:
            return
        last = session.current
        session.finish(now)
        for track in {self, last}:
            if track._reason is None:
                track._until, track._reason = now, reason
            elif track is last:
                track._reason = reason
            track.tell()

    def give_up(self, now: int, reason: str) -> None:
        """Write the row of a connection that outlives the capture."""
        if not self.session.is_over:
            self.session.finish(now)
        if self._reason is None:
            self._until, self._reason = now, reason
        self.tell()

    @property
    def is_done(self) -> bool:
        """Return whether its row is written and its recorder has no session end left to report for another
        connection."""
        return self._told and (self.session.founder is not self or self.session.is_over)

    @property
    def is_closed(self) -> bool:
        """Return whether its transport has ended."""
        return self._reason is not None

    # For subclasses

    def _take(self, now: int, inward: bool, frame: Kept) -> None:
        raise AssertionError("a subclass reads the frames")

    def _after_drop(self) -> None:
        """Handle a gap: some frames before the next one are missing."""

    def _count(self, inward: bool, size: int) -> None:
        counts = self._counts[inward]
        counts[0] += 1
        counts[1] += size

    def _row(self, now: int, inward: bool, size: int, seen: Seen) -> None:
        """Append the row of one frame."""
        origin, facts = self._origin, self.facts
        seq, dropped = self._seq, self._untold_drops
        self._seq += 1
        self._untold_drops = 0
        self._rows.frames.append(
            (
                *(origin.capture_id, origin.host, self.conn_id, self.session.id, seq, origin.micros(now), now),
                *(facts.side, "in" if inward else "out", facts.transport, facts.peer),
                *seen.cells(size),
                dropped,
            )
        )

    def _beat(self, now: int, inward: bool, *, asks: bool) -> None:
        """Handle a keepalive request or its answer."""
        if asks:
            self._pings[inward].append(now)
        elif self._pings[not inward]:
            micros = (now - self._pings[not inward].popleft()) // 1000
            self._rtt[min(micros.bit_length(), RTT_BUCKETS - 1)] += 1

    def tell(self) -> None:
        """Write the connection's row, once."""
        if self._told:
            return
        self._told = True
        origin, facts = self._origin, self.facts
        leases = tuple(self._leases.values())
        for lease in leases:
            lease.expire(self._until)
        (frames_in, bytes_in), (frames_out, bytes_out) = self._counts[True], self._counts[False]
        self._rows.connections.append(
            (
                *(origin.capture_id, origin.host, self.conn_id, self.session.id, facts.side, facts.dialect),
                *(facts.transport, facts.peer, origin.micros(self._since), origin.micros(self._until)),
                *self._setup,
                self.resumes,
                *(frames_in, frames_out, bytes_in, bytes_out, self._streams, self._rtt),
                *(sum(lease.grants for lease in leases), sum(lease.granted for lease in leases)),
                *(sum(lease.used for lease in leases), sum(lease.expired for lease in leases)),
                *(self.drops, self._reason),
            )
        )


TrackClass: TypeAlias = Callable[[Origin, Rows, Facts, str, int], Track]
