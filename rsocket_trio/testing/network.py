"""A network in memory: clients connect, a server accepts, and faults are drawn from a seed."""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Literal, TypeAlias

import attrs
import trio
from attrs.validators import and_, ge, le, min_len

from rsocket_trio.testing.scheduling import FrameTrace

BytesLike: TypeAlias = bytes | bytearray | memoryview
Sizes: TypeAlias = tuple[int, int]
"""Bytes: the fewest and the most."""
Seconds: TypeAlias = tuple[float, float]
"""Seconds: the shortest and the longest."""
Side: TypeAlias = Literal["client", "server"]
End: TypeAlias = Literal["eof", "reset"]

SIDES: tuple[Side, ...] = ("client", "server")
ENDS: tuple[End, ...] = ("eof", "reset")


def _range(least: float) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], bounds: tuple[float, float] | None) -> None:
        if bounds is not None and not least <= bounds[0] <= bounds[1]:
            raise ValueError(f"Faults.{attribute.name} of {bounds}: a range (from, to) from {least} upwards")

    return check


CHANCE = and_(ge(0.0), le(1.0))


@attrs.frozen(kw_only=True)
class Faults:
    """The faults of a network. By default none: a write arrives at once, whole.

    Ranges are ``(from, to)``, both included; values are drawn from them with the network's seed. ``None`` is never.
    Sizes are drawn so that each order of magnitude is as likely as the next. Raise ``ValueError`` for an invalid range.
    """

    split: Sizes | None = attrs.field(default=None, validator=_range(1))
    """Bytes of the pieces that a write arrives in."""
    delay: Seconds | None = attrs.field(default=None, validator=_range(0))
    """Delay of each piece, and of each connect, in seconds."""
    stall: Seconds | None = attrs.field(default=None, validator=_range(0))
    """Delay of a stalled piece in seconds; all behind it wait."""
    stall_chance: float = attrs.field(default=0.02, validator=CHANCE)
    """Probability that a piece is stalled."""
    buffer: Sizes | None = attrs.field(default=None, validator=_range(1))
    """Bytes that may be under way in one direction; a writer waits beyond. Drawn for each direction."""
    vanish_after: Sizes | None = attrs.field(default=None, validator=_range(0))
    """Bytes in one direction after which all further ones vanish without an error: a half-open connection."""
    vanish_from: tuple[Side, ...] = attrs.field(default=SIDES, validator=min_len(1))
    """The sides whose bytes vanish: one of these is drawn."""
    cut_after: Sizes | None = attrs.field(default=None, validator=_range(0))
    """Bytes in one direction after which the connection is cut. The write that reaches it fails half-way."""
    cut_from: tuple[Side, ...] = attrs.field(default=SIDES, validator=min_len(1))
    """The sides whose bytes are counted: one of these is drawn."""
    cut_with: tuple[End, ...] = attrs.field(default=ENDS, validator=min_len(1))
    """The end that readers get then: the end of the stream, or ``BrokenResourceError``."""
    cut_delivers: tuple[bool, ...] = attrs.field(default=(True, False), validator=min_len(1))
    """True if readers first get the bytes that are still under way: one of these is drawn."""
    refuse: float = attrs.field(default=0.0, validator=CHANCE)
    """Probability that a connect raises ``OSError``."""
    duplicate: float = attrs.field(default=0.0, validator=CHANCE)
    """Probability that the server sees a connect twice, each with the same first bytes of the client."""
    duplicate_bytes: Sizes = attrs.field(default=(0, 64), validator=_range(0))
    """Bytes that the second one gets before it is cut."""
    quiet_after: Seconds | None = attrs.field(default=None, validator=_range(0))
    """Seconds from the first connect after which all faults end. A connection that is half-open then stays so."""


NO_FAULTS = Faults()


def drawn_size(chance: Random, sizes: Sizes) -> int:
    """Return a size within the range, each order of magnitude as likely as the next."""
    least, most = sizes
    if least == most:
        return least
    return min(most, int(math.exp(chance.uniform(math.log(least + 1), math.log(most + 2)))) - 1)


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
        if faults.vanish_after:
            self._pipes[chance.choice(faults.vanish_from)].vanish_at = drawn_size(chance, faults.vanish_after)
        if faults.cut_after:
            pipe = self._pipes[chance.choice(faults.cut_from)]
            pipe.cut_at = drawn_size(chance, faults.cut_after)
            reset, deliver = chance.choice(faults.cut_with) == "reset", chance.choice(faults.cut_delivers)
            pipe.on_cut = lambda: self.cut(reset=reset, deliver=deliver)

    @property
    def is_half_open(self) -> bool:
        return any(pipe.has_vanished for pipe in self._pipes.values())

    def cut(self, *, reset: bool, deliver: bool) -> None:
        if self.is_cut:
            return
        self.is_cut = True
        self._trace.note(self.name, "is cut", "with a reset" if reset else "with an end", "delivers" * deliver)
        for pipe in self._pipes.values():
            pipe.stop(deliver=deliver, reset=reset)

    def vanish(self) -> None:
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


class SimulatedListener(trio.abc.Listener[SimulatedStream]):
    """Accepts the server ends of the connections of a simulated network."""

    def __init__(self) -> None:
        self._is_closed = False
        self._arriving, self._arrived = trio.open_memory_channel[SimulatedStream](math.inf)

    def _arrive(self, stream: SimulatedStream) -> None:
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
