"""The keepalive timer: it says when a KEEPALIVE is due and when the peer counts as dead."""

from __future__ import annotations

import enum
import math


class Beat(enum.Enum):
    """The action that is due."""

    SEND = enum.auto()
    DEAD = enum.auto()


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
            return Beat.DEAD
        if now >= self._next_beat:
            missed = math.floor((now - self._next_beat) / self.interval) if math.isfinite(self.interval) else 0
            self._next_beat += self.interval * (missed + 1)
            return Beat.SEND
        return None
