"""A network in memory: clients connect, a server accepts, and faults are drawn from a seed."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import trio

from rsocket_trio.testing.network_faults import NO_FAULTS, Faults, drawn_size
from rsocket_trio.testing.scheduling import FrameTrace
from rsocket_trio.testing.simulated_connection import SimulatedConnection, SimulatedStream


class SimulatedNetwork:
    """A network in memory between clients and one server, with faults drawn from a seed.

    Time is Trio's: under a ``MockClock`` that jumps, hours of delay take no time. The same seed has the same effects on
    the same program, if tasks run in the same order: see ``simulate``.

    ``seed`` is a number, or the ``random.Random`` from which all faults are drawn. ``faults`` are those of every
    connection, or a sequence: those of the first connection, of the second and so on; the last are those of all further
    ones, and the first set the time at which all faults end. ``trace`` holds everything that happened, ``random`` the
    generator. Raise ``ValueError`` for an empty sequence.
    """

    def __init__(self, seed: int | Random = 0, faults: Faults | Sequence[Faults] = NO_FAULTS) -> None:
        self.random = seed if isinstance(seed, Random) else Random(seed)
        self.trace = FrameTrace()
        self._faults = (faults,) if isinstance(faults, Faults) else tuple(faults)
        if not self._faults:
            raise ValueError("no faults at all: Faults() are those of a network that has none")
        self._connections: list[SimulatedConnection] = []
        self._twins: list[SimulatedConnection] = []
        self._attempts = 0
        self._quiet_from = math.inf
        self._listener = SimulatedListener()

    @property
    def is_quiet(self) -> bool:
        """Return whether the time of faults is over."""
        return trio.current_time() >= self._quiet_from

    @property
    def cuts(self) -> int:
        """Return how many connections were cut, or lost one of their directions, so far."""
        return sum(connection.is_cut or connection.is_half_open for connection in self._connections)

    async def connect(self) -> SimulatedStream:
        """Return the client end of a new connection.

        Raise ``OSError`` if it is refused, or if the listener was closed.
        """
        faults = self._faults[min(self._attempts, len(self._faults) - 1)]
        if not self._attempts and (quiet := self._faults[0].quiet_after) is not None:
            self._quiet_from = trio.current_time() + self.random.uniform(*quiet)
        number = self._attempts
        self._attempts += 1
        chance = self.random
        if faults.delay and not self.is_quiet:
            await trio.sleep(chance.uniform(*faults.delay))
        else:
            await trio.lowlevel.checkpoint()
        if not self.is_quiet and chance.random() < faults.refuse:
            self.trace.note(number, "is refused")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the simulated network refuses")
        if self._listener._is_closed:
            self.trace.note(number, "finds nobody")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens on the simulated network")
        connection = self._connected(str(number), NO_FAULTS if self.is_quiet else faults)
        self._connections.append(connection)
        arriving = [connection.server]
        if not self.is_quiet and chance.random() < faults.duplicate:
            twin = self._connected(f"{number}'", NO_FAULTS)
            self._twins.append(twin)
            connection.copy_to(twin, drawn_size(chance, faults.duplicate_bytes))
            arriving.insert(chance.randrange(2), twin.server)
        for stream in arriving:
            self._listener._arrive(stream)
        return connection.client

    def listener(self) -> SimulatedListener:
        """Return the listener at which the server ends arrive: the same one until it is closed, then a new one."""
        if self._listener._is_closed:
            self._listener = SimulatedListener()
        return self._listener

    def cut(self, *, reset: bool = True, deliver: bool = False) -> None:
        """Cut all connections now.

        Readers get ``BrokenResourceError`` or, without ``reset``, the end of the stream; with ``deliver`` they first
        get the bytes that are under way.
        """
        for connection in (*self._connections, *self._twins):
            connection.cut(reset=reset, deliver=deliver)

    def vanish(self) -> None:
        """Make all connections half-open now: bytes that either side writes are dropped, and neither side is told."""
        for connection in (*self._connections, *self._twins):
            connection.vanish()

    def _connected(self, name: str, faults: Faults) -> SimulatedConnection:
        connection = SimulatedConnection(name, faults, self)
        self.trace.note(name, "connects")
        return connection


class SimulatedListener(trio.abc.Listener[SimulatedStream]):
    """Accepts the server ends of the connections of a simulated network."""

    def __init__(self) -> None:
        self._is_closed = False
        self._arriving, self._arrived = trio.open_memory_channel[SimulatedStream](math.inf)

    def _arrive(self, stream: SimulatedStream) -> None:
        """Add ``stream`` to the connections that wait to be accepted."""
        self._arriving.send_nowait(stream)

    async def accept(self) -> SimulatedStream:
        """Wait for the next connection and return it."""
        try:
            return await self._arrived.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError("this listener was closed") from None

    async def aclose(self) -> None:
        """Stop accepting: connections that were not accepted are closed, and connects are refused."""
        self._is_closed = True
        self._arriving.close()
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                self._arrived.receive_nowait().close()
        await trio.lowlevel.checkpoint()
