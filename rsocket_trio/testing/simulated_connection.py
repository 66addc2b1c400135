"""A simulated connection: a pipe for each direction, the faults of both, and the stream at either end."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from rsocket_trio.testing.network_faults import SIDES, Faults, Side, drawn_size

if TYPE_CHECKING:
    from rsocket_trio.testing.network import SimulatedNetwork

BytesLike = bytes | bytearray | memoryview


class SimulatedPipe:
    """One direction of a connection. Nothing runs here: a piece knows when it arrives, and its reader waits for that.

    ``on_cut`` is called when the byte is written that the connection is cut at.
    """

    def __init__(self, name: str, faults: Faults, network: SimulatedNetwork) -> None:
        self.name = name
        self.cut_at: float = math.inf
        self.vanish_at: float = math.inf
        self.on_cut: Callable[[], None] = lambda: None
        self.on_written: Callable[[bytes], None] = lambda piece: None
        self._faults = faults
        self._network = network
        self._chance = network.random
        self._trace = network.trace
        self._capacity = drawn_size(network.random, faults.buffer) if faults.buffer else math.inf
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._under_way = 0
        self._written = 0
        self._latest = -math.inf
        self._finished = self._reset = self._deaf = False
        self.has_vanished = False
        self._writer_gone = self._reader_gone = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

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
                # A write that is cancelled here is half done, as on a real connection.
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
        if self.has_vanished:
            self._trace.note(self.name, "vanishes", size)
        else:
            self._latest = max(self._latest, trio.current_time() + self._time_under_way())
            self._pieces.append((self._latest, piece))
            self._under_way += size
            self._trace.note(self.name, "writes", size)
            self._readers.unpark_all()
        self._reach(self._written + size)
        self.on_written(piece)
        if self._written >= self.cut_at and not self._network.is_quiet:
            self.on_cut()

    def vanish(self) -> None:
        """Let all further bytes vanish; waiting writers are woken, since nothing fills the pipe any more."""
        self.has_vanished = True
        self._writers.unpark_all()

    def finish(self) -> None:
        """Mark the end of the bytes; the reader gets it behind those that are under way."""
        if not self.has_vanished and not self._finished:
            self._trace.note(self.name, "finishes")
            self._finished = True
            self._readers.unpark_all()

    def close_writer(self) -> None:
        """Close the writer's end: further writes raise ``trio.ClosedResourceError``."""
        self.finish()
        self._writer_gone = True
        self._writers.unpark_all()

    def _reach(self, written: int) -> None:
        """Set the number of bytes written so far; beyond ``vanish_at`` they vanish."""
        self._written = written
        if written >= self.vanish_at and not self._network.is_quiet:
            self.has_vanished = True

    async def _has_room(self) -> bool:
        """Return whether there is room; otherwise wait for some first, since another task may take it."""
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
        if not self._network.is_quiet:
            if self._faults.split:
                limits.append(drawn_size(self._chance, self._faults.split))
            limits += [border - self._written for border in (self.cut_at, self.vanish_at) if border > self._written]
        return int(max(1, min(*limits, 2**31)))

    def _time_under_way(self) -> float:
        faults, chance = self._faults, self._chance
        if self._network.is_quiet:
            return 0.0
        if faults.stall and chance.random() < faults.stall_chance:
            return chance.uniform(*faults.stall)
        return chance.uniform(*faults.delay) if faults.delay else 0.0

    # The reader's end

    async def read(self, limit: int) -> bytes:
        """Return the next piece, or as much of it as was asked for; nothing at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._reader_gone:
                raise trio.ClosedResourceError("this stream was closed")
            if self._pieces:
                arrives = self._pieces[0][0]
                if arrives <= trio.current_time():
                    return self._take(limit)
                # Until it arrives, or until the pipe is stopped and the piece dropped.
                with trio.move_on_at(arrives):
                    await self._readers.park()
            elif self._reset:
                raise trio.BrokenResourceError("the connection was reset")
            elif self._finished:
                return b""
            else:
                await self._readers.park()

    def close_reader(self, *, is_seen: bool) -> None:
        """Close the reader's end, and drop the bytes under way.

        The writer fails if that ``is_seen`` at its end; else its bytes vanish from now on.
        """
        self._reader_gone = True
        if is_seen:
            self.stop(deliver=False)
        else:
            self._pieces.clear()
            self._readers.unpark_all()
            self.vanish()

    def stop(self, *, deliver: bool, reset: bool = False) -> None:
        """Fail all further writes. The reader gets the end, with ``deliver`` behind the bytes under way."""
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
        # Room for the writers: they are woken below, and each looks again whether some is left.
        self._under_way -= len(piece)
        self._trace.note(self.name, "reads", len(piece))
        self._writers.unpark_all()
        return piece


class SimulatedConnection:
    """Both directions of one connection, and its two ends. ``is_cut`` tells whether the network has cut it."""

    def __init__(self, name: str, faults: Faults, network: SimulatedNetwork) -> None:
        chance = network.random
        self.name = name
        self.is_cut = False
        self._trace = network.trace
        up, down = (SimulatedPipe(f"{name} {side}", faults, network) for side in SIDES)
        self._pipes: dict[Side, SimulatedPipe] = {"client": up, "server": down}
        self.client = SimulatedStream(up, down)
        self.server = SimulatedStream(down, up)
        if faults.vanish_after and chance.random() < faults.vanish_chance:
            self._pipes[chance.choice(faults.vanish_from)].vanish_at = drawn_size(chance, faults.vanish_after)
        if faults.cut_after and chance.random() < faults.cut_chance:
            pipe = self._pipes[chance.choice(faults.cut_from)]
            pipe.cut_at = drawn_size(chance, faults.cut_after)
            reset, deliver = chance.choice(faults.cut_with) == "reset", chance.choice(faults.cut_delivers)
            pipe.on_cut = lambda: self.cut(reset=reset, deliver=deliver)

    @property
    def is_half_open(self) -> bool:
        """Return whether bytes vanish in one of its directions."""
        return any(pipe.has_vanished for pipe in self._pipes.values())

    def cut(self, *, reset: bool, deliver: bool) -> None:
        """End it for both sides at once."""
        if self.is_cut:
            return
        self.is_cut = True
        self._trace.note(self.name, "is cut", "with a reset" if reset else "with an end", "delivers" * deliver)
        for pipe in self._pipes.values():
            pipe.stop(deliver=deliver, reset=reset)

    def vanish(self) -> None:
        """Let the bytes vanish that either side writes from now on."""
        for pipe in self._pipes.values():
            pipe.vanish()

    def copy_to(self, twin: SimulatedConnection, size: int) -> None:
        """Have another connection's server read the client's first bytes as well, and then be cut."""
        left = size

        def copy(piece: bytes) -> None:
            nonlocal left
            copied = piece[:left]
            left -= len(copied)
            if copied:
                twin._pipes["client"].put(copied)
            if not left:
                twin.cut(reset=False, deliver=True)

        self._pipes["client"].on_written = copy
        copy(b"")


class SimulatedStream(trio.abc.HalfCloseableStream):
    """One end of a simulated connection; ``SimulatedNetwork`` makes both."""

    def __init__(self, outgoing: SimulatedPipe, incoming: SimulatedPipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._busy: set[str] = set()
        self._is_finished = self._is_closed = False

    def __repr__(self) -> str:
        return f"<SimulatedStream {self._outgoing.name}>"

    async def send_all(self, data: BytesLike) -> None:
        """Write all of ``data``; wait while too many bytes are under way."""
        with _alone(self._busy, "sending"):
            if self._is_finished and not self._is_closed:
                raise trio.ClosedResourceError("send_eof was called on this stream")
            await self._outgoing.write(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a write may find room."""
        with _alone(self._busy, "sending"):
            await self._outgoing.wait_writable()

    async def send_eof(self) -> None:
        """End the outgoing direction."""
        with _alone(self._busy, "sending"):
            if self._is_closed:
                raise trio.ClosedResourceError("this stream was closed")
            self._is_finished = True
            self._outgoing.finish()
            await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next bytes, at most ``max_bytes``; ``b""`` at the end."""
        if max_bytes is not None and not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes is an int, not {type(max_bytes).__name__}")
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes of {max_bytes}: must be at least 1")
        with _alone(self._busy, "receiving"):
            return await self._incoming.read(2**31 if max_bytes is None else max_bytes)

    async def aclose(self) -> None:
        """Close both directions."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close both directions, without waiting."""
        if not self._is_closed:
            self._is_closed = self._is_finished = True
            is_seen = not self._outgoing.has_vanished
            self._outgoing.close_writer()
            self._incoming.close_reader(is_seen=is_seen)


@contextmanager
def _alone(busy: set[str], what: str) -> Iterator[None]:
    """Refuse a second task that does the same on a stream for as long as the block."""
    if what in busy:
        raise trio.BusyResourceError(f"another task is {what} on this stream")
    busy.add(what)
    try:
        yield
    finally:
        busy.discard(what)
