"""One direction of a simulated connection, and what happens to the bytes on it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from random import Random

import trio

from rsocket_trio.testing.faults import Faults, drawn_size
from rsocket_trio.testing.trace import Trace

BytesLike = bytes | bytearray | memoryview


class Wire:
    """One direction of a connection. Nothing runs here: a piece knows when it arrives, and its reader waits for that.

    ``on_cut`` is called when the byte is written that the connection is cut at.
    """

    def __init__(self, name: str, faults: Faults, chance: Random, trace: Trace, quiet: Callable[[], bool]) -> None:
        self.name = name
        self.cut_at: float = math.inf
        self.vanish_at: float = math.inf
        self.on_cut: Callable[[], None] = lambda: None
        self.on_written: Callable[[bytes], None] = lambda piece: None
        self._faults = faults
        self._chance = chance
        self._trace = trace
        self._quiet = quiet
        self._capacity = drawn_size(chance, faults.buffer) if faults.buffer else math.inf
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._under_way = 0
        self._written = 0
        self._latest = -math.inf
        self._finished = self._reset = self._deaf = self._vanishes = False
        self._writer_gone = self._reader_gone = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def has_vanished(self) -> bool:
        """Whether what is written goes nowhere."""
        return self._vanishes

    # The writer's end

    async def write(self, data: BytesLike) -> None:
        """Put all bytes under way, in pieces, waiting for room."""
        left = bytes(data)
        await trio.lowlevel.checkpoint()
        self._check_writable()
        while left:
            if not await self._has_room():
                continue
            size = min(len(left), self._piece_size())
            piece, left = left[:size], left[size:]
            self.put(piece)
            if left:
                # Whoever cancels a write may find it half done.
                await trio.lowlevel.checkpoint()
                self._check_writable()

    async def wait_writable(self) -> None:
        """Wait until a write might not have to wait."""
        await trio.lowlevel.checkpoint()
        self._check_writable()
        while not await self._has_room():
            pass

    def put(self, piece: bytes) -> None:
        """Put one piece under way, whether there is room or not."""
        if self._deaf:
            return
        self._reach(self._written)
        size = len(piece)
        if self._vanishes:
            self._trace.note(self.name, "vanishes", size)
        else:
            self._latest = max(self._latest, trio.current_time() + self._time_under_way())
            self._pieces.append((self._latest, piece))
            self._under_way += size
            self._trace.note(self.name, "writes", size)
            self._readers.unpark_all()
        self._reach(self._written + size)
        self.on_written(piece)
        if self._written >= self.cut_at and not self._quiet():
            self.on_cut()

    def vanish(self) -> None:
        """What is written from now on goes nowhere."""
        self._vanishes = True
        self._writers.unpark_all()

    def finish(self) -> None:
        """The writer says that nothing more comes; the reader hears of it behind what is under way."""
        if not self.has_vanished and not self._finished:
            self._trace.note(self.name, "finishes")
            self._finished = True
            self._readers.unpark_all()

    def close_writer(self) -> None:
        """The writer is gone."""
        self.finish()
        self._writer_gone = True
        self._writers.unpark_all()

    def _reach(self, written: int) -> None:
        """So many bytes were written: here they may begin to vanish."""
        self._written = written
        if written >= self.vanish_at and not self._quiet():
            self._vanishes = True

    async def _has_room(self) -> bool:
        """Whether there is room now; it was waited for otherwise, and somebody else may be first."""
        if self._under_way < self._capacity or self.has_vanished:
            return True
        await self._writers.park()
        self._check_writable()
        return False

    def _check_writable(self) -> None:
        if self._writer_gone:
            raise trio.ClosedResourceError("this stream was closed")
        if self._deaf:
            raise trio.BrokenResourceError("nobody reads at the other end of the connection")

    def _piece_size(self) -> int:
        limits = [self._capacity - self._under_way]
        if not self._quiet():
            if self._faults.split:
                limits.append(drawn_size(self._chance, self._faults.split))
            limits += [border - self._written for border in (self.cut_at, self.vanish_at) if border > self._written]
        return int(max(1, min(*limits, 2**31)))

    def _time_under_way(self) -> float:
        faults, chance = self._faults, self._chance
        if self._quiet():
            return 0.0
        if faults.stall and chance.random() < faults.stall_chance:
            return chance.uniform(*faults.stall)
        return chance.uniform(*faults.delay) if faults.delay else 0.0

    # The reader's end

    async def read(self, limit: int) -> bytes:
        """The next piece, or as much of it as was asked for; nothing at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._reader_gone:
                raise trio.ClosedResourceError("this stream was closed")
            if self._pieces:
                arrives = self._pieces[0][0]
                if arrives <= trio.current_time():
                    return self._take(limit)
                with trio.move_on_at(arrives):
                    await self._readers.park()
            elif self._reset:
                raise trio.BrokenResourceError("the connection was reset")
            elif self._finished:
                return b""
            else:
                await self._readers.park()

    def close_reader(self) -> None:
        """The reader is gone: what is under way is dropped, and the writer fails."""
        self._reader_gone = True
        self.stop(deliver=False)

    def abandon(self) -> None:
        """The reader is gone, and nobody will know: what is written from now on vanishes."""
        self._reader_gone = True
        self._pieces.clear()
        self._readers.unpark_all()
        self.vanish()

    def stop(self, *, deliver: bool, reset: bool = False) -> None:
        """Nothing more can be written. The reader gets what is under way, or does not, and then the end."""
        if not deliver:
            self._pieces.clear()
            self._under_way = 0
        self._deaf = self._finished = True
        self._reset = self._reset or reset
        self._readers.unpark_all()
        self._writers.unpark_all()

    def _take(self, limit: int) -> bytes:
        arrived, piece = self._pieces.popleft()
        if len(piece) > limit:
            self._pieces.appendleft((arrived, piece[limit:]))
            piece = piece[:limit]
        self._under_way -= len(piece)
        self._trace.note(self.name, "reads", len(piece))
        self._writers.unpark_all()
        return piece
