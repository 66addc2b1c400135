"""How many requests a lease still allows: the requester's count, and the responder's own of what it granted."""

from __future__ import annotations

from rsocket_trio.errors import RemoteProtocolError


class Permits:
    """What the last LEASE allows. The last one replaces all former ones; an expired or absent one allows nought.

    Time to live counts from reception, or from sending at the side that granted (RS10-LEASE-04).
    """

    __slots__ = ("_expires", "_left")

    def __init__(self) -> None:
        self._left = 0
        self._expires = 0.0

    def grant(self, number_of_requests: int, time_to_live: float, now: float) -> None:
        """A LEASE came, or went out."""
        self._left = number_of_requests
        self._expires = now + time_to_live

    def remaining(self, now: float) -> int:
        """Requests that may still be sent."""
        return self._left if now < self._expires else 0

    def expires_in(self, now: float) -> float:
        """Seconds until the lease ends; 0 when it has."""
        return max(0.0, self._expires - now)

    def take(self, now: float) -> bool:
        """Use one permit, if there is one."""
        if now >= self._expires or self._left <= 0:
            return False
        self._left -= 1
        return True


class CancelBudget:
    """How many requests a peer may cancel before they were answered: a burst, and so many a second.

    What is opened and cancelled at once costs this side work and the peer nothing, so its rate is bounded.
    """

    __slots__ = ("_burst", "_rate", "_since", "_tokens")

    def __init__(self, burst: int, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = float(burst)
        self._since = 0.0

    def spend(self, now: float) -> None:
        """One more. Raises ``RemoteProtocolError`` when the budget is used up."""
        self._tokens = min(self._burst, self._tokens + (now - self._since) * self._rate)
        self._since = now
        if self._tokens < 1:
            raise RemoteProtocolError(
                f"more than {self._burst} requests cancelled unanswered, with {self._rate:g} a second forgiven"
            )
        self._tokens -= 1
