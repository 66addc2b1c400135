"""The leases of both sides: the permits left in each, and a budget for cancelled requests."""

from __future__ import annotations

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.terms import MAX_SECONDS, Lease

CROSSING = 1.0
"""Seconds that requests may be on their way while a lease is renewed."""


@attrs.define(eq=False, repr=False)
class Permits:
    """The permits of the last LEASE, which replaces all former ones; an expired or absent lease has none.

    Time to live counts from reception, or from sending at the side that granted (RS10-LEASE-04). The side that granted
    has to reckon with requests that were on their way when it renewed: they used the former lease. ``crossing`` is
    for how many seconds what was left of that is honoured beside a new lease, unless that stops all requests.
    """

    _crossing: float = 0.0
    _left: int = 0
    _expires: float = 0.0
    _former: int = 0
    _former_expires: float = 0.0

    def grant(self, number_of_requests: int, time_to_live: float, now: float) -> None:
        """Replace the lease by one that was received or sent."""
        if self._crossing and number_of_requests:
            self._former = self.remaining(now)
            self._former_expires = min(self._expires, now + self._crossing)
        else:
            self._former = 0
        self._left = number_of_requests
        self._expires = now + time_to_live

    def remaining(self, now: float) -> int:
        """Return the number of requests that may still be sent."""
        return self._left if now < self._expires else 0

    def expires_in(self, now: float) -> float:
        """Return the seconds until the lease expires, 0 once it has."""
        return max(0.0, self._expires - now)

    def take(self, now: float, cost: int = 1) -> bool:
        """Use ``cost`` permits. Return ``False`` if fewer are left."""
        if self._former >= cost and now < self._former_expires:
            self._former -= cost
            return True
        if now >= self._expires or self._left < cost:
            return False
        self._left -= cost
        return True


class CancelBudget:
    """A budget for requests that a peer cancels unanswered: a burst, refilled at a rate per second.

    A request cancelled at once costs this side work and the peer nothing, so the rate is bounded.
    """

    __slots__ = ("_burst", "_rate", "_since", "_tokens")

    def __init__(self, burst: int, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = float(burst)
        self._since = 0.0

    def spend(self, now: float) -> None:
        """Count one cancelled request. Raise ``RemoteProtocolError`` if the budget is used up."""
        self._tokens = min(self._burst, self._tokens + (now - self._since) * self._rate)
        self._since = now
        if self._tokens < 1:
            raise RemoteProtocolError(
                f"more than {self._burst} requests cancelled unanswered, with {self._rate:g} a second forgiven"
            )
        self._tokens -= 1


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
