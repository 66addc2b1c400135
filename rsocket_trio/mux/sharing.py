"""The bytes that several sessions keep together for peers who are connected, and which of them wait for less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

LEFT: Final = 8
"""How many times of what is left of the limit one session may keep: who keeps most waits first, however many they are,
and who comes later still finds room."""
GRACE: Final = 16 * 1024
"""Bytes that a session may keep whatever the others do: about what a connection costs by itself."""
PART: Final = 1024
"""The part of a small limit that this is at most."""
SPARE: Final = 8
"""The part of the limit by which large items may exceed it, so that there is room for those of who keeps little."""


class Sharer(Protocol):
    """A session among those that share a limit."""

    @property
    def live_bytes(self) -> int:
        """What is known of what it keeps."""
        ...

    def ask(self) -> None:
        """Its peer should say what it has, for a sender waits until less is kept."""
        ...

    def on_room(self) -> None:
        """Its senders may go on."""
        ...


class Shared:
    """What sessions keep together: at most ``limit`` bytes, beyond which those wait that keep most.

    A large item waits until it fits in ``most``, whoever sends it; one above the limit would do so for ever, and goes.
    ``soon`` has ``look`` called once whoever is at work is done, however often it was called meanwhile.
    """

    __slots__ = ("_soon", "_waiting", "grace", "limit", "most", "total")

    def __init__(self, limit: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self.limit = limit
        self.most = limit + limit // SPARE
        self.grace = max(1, min(GRACE, limit // PART))
        self.total = 0
        self._soon = soon
        self._waiting: dict[Sharer, None] = {}

    @property
    def waiting(self) -> int:
        """Sessions whose senders wait."""
        return len(self._waiting)

    def lets(self, kept: int) -> bool:
        """Whether a session that keeps so much may keep more."""
        return kept < self.grace or kept < LEFT * (self.limit - self.total)

    def wait(self, sharer: Sharer) -> None:
        """Somebody has to wait until less is kept."""
        self._waiting[sharer] = None
        sharer.ask()

    def changed(self, by: int) -> None:
        """So many bytes more are kept, or less."""
        self.total += by
        if by < 0 and self._waiting:
            self._soon(self.look)

    def forget(self, sharer: Sharer) -> bool:
        """This session waits no more. Whether it did."""
        return self._waiting.pop(sharer, self) is None

    def look(self) -> None:
        """Let those go on who may; of the others the peers should say what they have."""
        for sharer in list(self._waiting):
            if self.lets(sharer.live_bytes):
                del self._waiting[sharer]
                sharer.on_room()
            else:
                sharer.ask()
