"""Credit that is granted: for items, and when to top it up, and for requests, as the permits of a lease."""

from __future__ import annotations

import attrs

MAX_REQUEST_N = 2**31 - 1
"""The largest number that one REQUEST_N or initial request-n can say."""

UNBOUNDED = 1 << 62
"""A credit that no peer uses up, for one that pays no heed to credit at all."""


class Window:
    """Tops credit up when half of it was used, so that the peer never waits for a reader that keeps up.

    ``size`` is the credit that a stream starts with, in items; ``used`` is how many were read since the last time, and
    ``half`` when that is enough.
    """

    __slots__ = ("half", "used")

    def __init__(self, size: int) -> None:
        self.half = max(1, size // 2)
        self.used = 0

    def use(self, items: int = 1) -> bool:
        """Count items that their reader took. Return whether it is time to top up."""
        self.used += items
        return self.used >= self.half

    def refill(self) -> int:
        """Return the credit to grant now: one for each item used since the last time, possibly 0."""
        used, self.used = self.used, 0
        return used


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


def checked_request_n(request_n: int) -> int:
    """Return ``request_n``. Raise ``TypeError`` or ``ValueError``, which name it, if the wire can't carry it."""
    if type(request_n) is not int:
        raise TypeError(f"request_n is an int, not {type(request_n).__name__}")
    if not 1 <= request_n <= MAX_REQUEST_N:
        raise ValueError(f"request_n of {request_n}: must be between 1 and {MAX_REQUEST_N}")
    return request_n
