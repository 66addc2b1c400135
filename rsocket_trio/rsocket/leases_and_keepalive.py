"""Leases and keepalives: rules that time has a part in. Each gets ``now``."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from rsocket_trio.mux.stream_state import Permits
from rsocket_trio.terms import MAX_SECONDS, Lease

CROSSING = 1.0
"""Seconds that requests may be on their way while a lease is renewed."""


class Leases:
    """The leases of a connection that agreed on them.

    ``permits`` are those of the peer's last lease, ``granted`` those of this side's; ``None`` where none is needed:
    with an implicit lease the SETUP itself allows the server's requests, until a LEASE of the client's restricts them.
    """

    __slots__ = ("granted", "permits")

    def __init__(self, *, client: bool, implicit: bool) -> None:
        self.permits = Permits() if client or not implicit else None
        self.granted = Permits(CROSSING) if not client or not implicit else None

    def take(self, now: float, cost: int) -> bool:
        """Use ``cost`` permits of this side's lease for a request of the peer. Return ``False`` if fewer are left."""
        return self.granted is None or self.granted.take(now, cost)

    def grant(self, lease: Lease, now: float) -> None:
        """Replace this side's lease."""
        if self.granted is None:
            self.granted = Permits(CROSSING)
        self.granted.grant(lease.number_of_requests, lease.time_to_live, now)

    def receive(self, number_of_requests: int, time_to_live: float, now: float) -> None:
        """Replace the peer's lease."""
        if self.permits is None:
            self.permits = Permits()
        self.permits.grant(number_of_requests, time_to_live, now)

    def restart(self, now: float) -> Lease | None:
        """Forget the peer's permits on a new transport. Return what is left of this side's lease (RS10-RSM-21)."""
        if self.permits is not None:
            self.permits = Permits()
        granted = self.granted
        if granted is None or not granted.remaining(now):
            return None
        return Lease(granted.remaining(now), min(granted.expires_in(now), MAX_SECONDS))


Beat: TypeAlias = Literal["send", "dead"]
"""The action that is due."""


class KeepaliveTimer:
    """One beat every ``interval`` seconds, death after ``max_lifetime`` seconds without any frame.

    Whole frames are life, bytes are not (RS10-KA-07). A server's interval is infinite: only the client initiates
    (RS10-KA-02). ``last_heard`` is the time of the last frame, which the session sets with each read.
    """

    __slots__ = ("_next_beat", "interval", "last_heard", "max_lifetime")

    def __init__(self, interval: float, max_lifetime: float, now: float) -> None:
        self.interval = interval
        self.max_lifetime = max_lifetime
        self.last_heard = now
        self._next_beat = now + interval

    def restart(self, now: float) -> None:
        """Start anew on another transport: silence and beats count from ``now``."""
        self.last_heard = now
        self._next_beat = now + self.interval

    def excuse(self, now: float) -> None:
        """Give a server its full time to answer if a late clock delayed the KEEPALIVE that asks it.

        A server sends nothing unless asked, so its silence before the first beat is no sign of death.
        """
        asked_last = self._next_beat - self.interval
        if asked_last <= self.last_heard and self._next_beat < min(now, self.death):
            self.last_heard = max(self.last_heard, now - self.interval)

    @property
    def deadline(self) -> float:
        """The time of the next result of ``expire``, as far as is known now."""
        return min(self._next_beat, self.death)

    @property
    def death(self) -> float:
        """The time at which the peer counts as dead unless another frame is received."""
        return self.last_heard + self.max_lifetime

    def expire(self, now: float) -> Beat | None:
        """Return the action that is due. After a pause of the clock one beat is enough: missed ones are skipped."""
        if now >= self.death:
            return "dead"
        if now >= self._next_beat:
            missed = math.floor((now - self._next_beat) / self.interval) if math.isfinite(self.interval) else 0
            self._next_beat += self.interval * (missed + 1)
            return "send"
        return None
