"""Credit that this side grants: how much is outstanding, and when to top it up."""

from __future__ import annotations

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


def checked_request_n(request_n: int) -> int:
    """Return ``request_n``. Raise ``TypeError`` or ``ValueError``, which name it, if the wire can't carry it."""
    if type(request_n) is not int:
        raise TypeError(f"request_n is an int, not {type(request_n).__name__}")
    if not 1 <= request_n <= MAX_REQUEST_N:
        raise ValueError(f"request_n of {request_n}: must be between 1 and {MAX_REQUEST_N}")
    return request_n
