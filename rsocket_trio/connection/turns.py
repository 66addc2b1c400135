"""The turns in which all connections of one run act on what they read."""

from __future__ import annotations

import trio

from rsocket_trio.tools.parking_lot import ParkingLot

FRAMES_IN_TURN = 512
"""Frames that the connections of one run act on before other tasks run: what these begin fits into a cache."""
FEW = 4
"""Connections that let no other tasks run first when they have filled a turn."""


class Turns:
    """The turns in which the connections of one run act on what they read, about ``FRAMES_IN_TURN`` frames in each.

    Without them a thousand connections that become readable together would all begin what their frames ask for before
    any of it is finished: each further step finds its memory in no cache, and the garbage collector finds it alive.
    Where ``FEW`` connections or fewer read all that much, none waits.
    """

    __slots__ = ("_goes_on", "_lot", "left", "takers")

    def __init__(self) -> None:
        self.left = FRAMES_IN_TURN
        """Frames that may still be acted on in this turn: each connection takes off what it acts on."""
        self.takers: set[int] = set()
        """The connections that acted in this turn, by their ``id()``."""
        self._lot = ParkingLot()
        self._goes_on = False

    def begin_at_once(self) -> bool:
        """Begin the next turn now, once nothing is left of this one. Return False if ``wait`` has to come first."""
        if self._goes_on or len(self.takers) > FEW:
            return False
        self.left = FRAMES_IN_TURN
        self.takers.clear()
        return True

    async def wait(self, frames: int) -> None:
        """Wait for a turn to act on so many frames, behind the connections that wait already."""
        if not self._goes_on:
            # Other tasks run first, then this one begins the next turn, also if it is cancelled: others may wait by
            # then.
            self._goes_on = True
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._begin()
            self.left -= frames
        elif await self._lot.park(frames):
            self._begin()

    def _begin(self) -> None:
        """Wake the connections of the next turn. If they fill it, the last of them begins the one after it."""
        lot, left = self._lot, FRAMES_IN_TURN
        while left > 0 and lot.first is not None:
            left -= lot.first.size
            # It gets the value for certain: no cancel comes between.
            lot.wake_one(left <= 0)
        self.left = left
        self._goes_on = left <= 0
        self.takers.clear()


def turns_of_run() -> Turns:
    """Return the turns that all connections of this run share."""
    try:
        return _TURNS.get()
    except LookupError:
        _TURNS.set(turns := Turns())
        return turns


_TURNS: trio.lowlevel.RunVar[Turns] = trio.lowlevel.RunVar("rsocket_trio.turns")
