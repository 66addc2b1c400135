"""A TCP proxy that cuts: at a chosen byte of either direction, politely or not, or by saying nothing any more."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import attrs
import trio

from qa.resume.recorder import CLIENT, SERVER, Recorder, other
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.byte_stream import cut_prompt
from rsocket_trio.transports.socket_stream import SocketStream

HOST = "127.0.0.1"
CHUNK = 65536
RESET = struct.pack("ii", 1, 0)
PATIENCE = 0.5
"""Seconds that both ends get to read what was delivered before a closed connection goes."""

FIN, RST, SILENCE = "fin", "rst", "silence"
Tamper = Callable[[int, str, bytes], list[bytes]]
"""A function of connection, side and frame, prefix included, that returns the frames to pass on in its place."""


@attrs.frozen
class Cut:
    """The end of one connection: after ``at`` bytes of what ``side`` sends.

    With ``deliver`` everything up to there arrives; otherwise the chunk in which the byte is gets lost as well.
    ``silence`` keeps both sockets and passes nothing on. So many connections after it are turned away as ``refuse``
    says.
    """

    side: str
    at: int
    how: str = FIN
    deliver: bool = True
    refuse: int = 0


def random_cuts(chance: random.Random, *, farthest: int = 400_000, silent: float = 0.03) -> Iterator[Cut]:
    """Cuts without end: some in the first bytes, most among the items, a few half-open.

    The first one comes after the SETUP: a session that has not begun can't go on.
    """
    yield Cut(SERVER, 2_000, RST)
    while True:
        near = chance.random() < 0.1
        at = chance.randint(1, 120) if near else int(farthest ** chance.uniform(0.4, 1.0))
        how = SILENCE if chance.random() < silent else chance.choice((FIN, RST))
        refuse = chance.randint(1, 3) if chance.random() < 0.05 else 0
        yield Cut(chance.choice((CLIENT, SERVER)), at, how, chance.random() < 0.5, refuse)


class Proxy:
    """Passes on what comes to ``port``, connection by connection, each with the next of the ``cuts``.

    ``made`` counts the cuts that happened. ``refusing`` is how many of the next connections are turned away.
    """

    def __init__(
        self, target: int, cuts: Iterator[Cut | None], recorder: Recorder | None, tamper: Tamper | None
    ) -> None:
        self.target = target
        self.port = 0
        self.made = 0
        self.connections = 0
        self.refused = 0
        self.refusing = 0
        self.limit: int | None = None
        """Number of cuts; connections that come after the last one live on."""
        self._cuts = cuts
        self._recorder = recorder
        self._tamper = tamper

    @property
    def uri(self) -> str:
        """Return the address at which clients connect."""
        return f"tcp://{HOST}:{self.port}"

    @property
    def is_done(self) -> bool:
        """Return whether no more cuts are to come."""
        return self.limit is not None and self.made >= self.limit

    async def handle(self, client: trio.SocketStream) -> None:
        """One connection, from its beginning to its cut."""
        if self.refusing:
            self.refusing -= 1
            self.refused += 1
            reset(client)
            return
        number = self.connections
        self.connections += 1
        cut = None if self.is_done else next(self._cuts, None)
        try:
            server = await trio.open_tcp_stream(HOST, self.target)
        except OSError:
            reset(client)
            return
        async with client, server:
            pair = _Pair(self, number, {CLIENT: client, SERVER: server}, cut, self._recorder, self._tamper)
            await pair.run()

    def count_cut(self) -> bool:
        """One more cut, if there may be one."""
        if self.is_done:
            return False
        self.made += 1
        return True


class _Pair:
    """Two sockets, and what goes between them."""

    def __init__(
        self,
        proxy: Proxy,
        number: int,
        streams: dict[str, trio.SocketStream],
        cut: Cut | None,
        recorder: Recorder | None,
        tamper: Tamper | None,
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._streams = streams
        self._cut = cut
        self._recorder = recorder
        self._tamper = tamper
        self._buffers = {CLIENT: bytearray(), SERVER: bytearray()}
        self._counts = {CLIENT: 0, SERVER: 0}
        self._is_cut = False

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for side in self._streams:
                nursery.start_soon(self._pump, side, nursery.cancel_scope)
        if self._is_cut and self._cut is not None:
            await self._finish(self._cut)

    async def _pump(self, side: str, scope: trio.CancelScope) -> None:
        source, sink = self._streams[side], self._streams[other(side)]
        try:
            while True:
                data = bytes(await source.receive_some(CHUNK))
                if not data:
                    break
                if self._recorder is not None:
                    self._recorder.saw(self._number, side, data)
                data = self._tampered(side, data)
                kept = self._until_cut(side, data)
                if kept:
                    if self._recorder is not None:
                        self._recorder.passed(self._number, side, len(kept))
                    await sink.send_all(kept)
                if self._is_cut:
                    scope.cancel()
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        # One side ended: so does the other.
        try:
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    def _until_cut(self, side: str, data: bytes) -> bytes:
        cut, before = self._cut, self._counts[side]
        self._counts[side] += len(data)
        if cut is None or cut.side != side or before + len(data) < cut.at or not self._proxy.count_cut():
            return data
        self._is_cut = True
        self._proxy.refusing += cut.refuse
        return data[: cut.at - before] if cut.deliver else b""

    def _tampered(self, side: str, data: bytes) -> bytes:
        if self._tamper is None:
            return data
        buffer = self._buffers[side]
        buffer += data
        out: list[bytes] = []
        while len(buffer) >= 3 and len(buffer) >= (size := 3 + int.from_bytes(buffer[:3], "big")):
            frame = bytes(buffer[:size])
            del buffer[:size]
            out += self._tamper(self._number, side, frame)
        return b"".join(out)

    async def _finish(self, cut: Cut) -> None:
        streams = list(self._streams.values())
        if cut.how == SILENCE:
            await trio.sleep_forever()
        if cut.how == RST:
            for stream in streams:
                reset(stream)
            return
        # A socket that is closed with something unread says RST, which may cost what was delivered.
        with trio.move_on_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for stream in streams:
                    nursery.start_soon(_end, stream)


async def _end(stream: trio.SocketStream) -> None:
    try:
        await stream.send_eof()
        while await stream.receive_some(CHUNK):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


def reset(stream: trio.SocketStream | SocketStream) -> None:
    """Close at once, with RST."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    cut_prompt(stream)


@asynccontextmanager
async def cutting_proxy(
    target: int,
    cuts: Iterator[Cut | None],
    *,
    recorder: Recorder | None = None,
    tamper: Tamper | None = None,
) -> AsyncIterator[Proxy]:
    """A proxy before a port of this machine, for as long as the block, whose own error leaves alone."""
    proxy = Proxy(target, cuts, recorder, tamper)
    [listener] = await trio.open_tcp_listeners(0, host=HOST)
    proxy.port = listener.socket.getsockname()[1]
    async with nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery:
        nursery.start_soon(trio.serve_listeners, proxy.handle, [listener])
        yield proxy
