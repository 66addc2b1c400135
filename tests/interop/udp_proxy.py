"""A proxy of UDP between the two ends of an Aeron connection: it loses, repeats and reorders, and writes a pcap."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from trio.socket import SocketType

LARGEST = 65536
ADDRESS = "127.0.0.1"
ENDPOINT = re.compile(rb"endpoint=127\.0\.0\.1:(\d{5})")
"""The channel in a SETUP, at which its client receives. All ports that a system gives out have five digits."""
RAW_IP = 101
"""The link type of packets that begin with their IP header."""
UDP = 17

Fate = Callable[[], int]
"""Return how many copies of the next datagram go on; -1 holds it back until the next one has gone."""


def unharmed() -> int:
    """Pass every datagram on."""
    return 1


def unlucky(every: int) -> Fate:
    """Return a fate that loses one of ``every`` datagrams, and on other turns repeats one and holds one back."""
    fates = {0: 0, every // 3: 2, 2 * every // 3: -1}

    def turns() -> Iterator[int]:
        turn = 0
        while True:
            turn += 1
            yield fates.get(turn % every, 1)

    passing = turns()
    return lambda: next(passing)


class Pcap:
    """A file of packets, as programs that look at networks read it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, LARGEST, RAW_IP))

    def write(self, source: int, target: int, data: bytes) -> None:
        """Add a datagram from one port to another."""
        size = len(data) + 28
        address = socket.inet_aton(ADDRESS)
        header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, UDP, 0, address, address)
        total = sum(struct.unpack(">10H", header))
        total = (total & 0xFFFF) + (total >> 16)
        header = header[:10] + struct.pack(">H", ~total & 0xFFFF) + header[12:]
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        self._file.write(struct.pack("<IIII", seconds, rest // 1000, size, size))
        self._file.write(header + struct.pack(">HHHH", source, target, size - 20, 0) + data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Passage:
    """One direction between two addresses. ``fate`` decides what becomes of each datagram."""

    def __init__(self, proxy: UdpProxy, through: SocketType, source: int, target: int) -> None:
        self._proxy = proxy
        self._through = through
        self._source = source
        self._target = target
        self._held: bytes | None = None

    async def take(self, data: bytes) -> None:
        """Pass a datagram on, lose it, repeat it, or hold it back until the next one has gone."""
        copies = self._proxy.fate()
        if self._proxy.pcap is not None:
            self._proxy.pcap.write(self._source, self._target, data)
        going = [data] * copies
        if copies < 0:
            self._held, data = data, self._held or b""
            going = [data] if data else []
        elif self._held is not None:
            going.append(self._held)
            self._held = None
        self._proxy.lost += copies == 0
        self._proxy.disturbed += copies != 1
        for each in going:
            try:
                await self._through.sendto(each, (ADDRESS, self._target))
            except ConnectionRefusedError:
                pass  # the one who was sent to is gone, and UDP tells it here


class UdpProxy:
    """Stands in front of a server, and in front of the client that connects through it.

    ``port`` is the one to connect to, ``lost`` and ``disturbed`` count datagrams.
    """

    def __init__(self, server: int, fate: Fate, pcap: Pcap | None, nursery: trio.Nursery) -> None:
        self.port = 0
        self.lost = self.disturbed = 0
        self.fate = fate
        self.pcap = pcap
        self._server = server
        self._nursery = nursery
        self._return_port = 0

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Relay to the server, and back to a client once it has named its address."""
        with await bound() as front:
            self.port = front.getsockname()[1]
            task_status.started()
            await self._relay(front, self._server)

    async def _relay(self, front: SocketType, target: int) -> None:
        """Relay what comes to one socket, through a socket for each source, to which answers come."""
        passages: dict[int, Passage] = {}
        sockets: list[SocketType] = []
        try:
            while True:
                data, (_, source) = await received(front)
                if source not in passages:
                    through = await bound()
                    sockets.append(through)
                    passages[source] = Passage(self, through, source, target)
                    self._nursery.start_soon(self._answer, through, Passage(self, front, target, source))
                await passages[source].take(await self._renamed(data))
        finally:
            for each in sockets:
                each.close()

    async def _answer(self, through: SocketType, passage: Passage) -> None:
        while True:
            data, _ = await received(through)
            await passage.take(data)

    async def _renamed(self, data: bytes) -> bytes:
        """Have a client's SETUP name this proxy as the place where it receives."""
        found = ENDPOINT.search(data)
        if found is None:
            return data
        if not self._return_port:
            way_back = await bound()
            self._return_port = way_back.getsockname()[1]
            self._nursery.start_soon(self._relay_back, way_back, int(found[1]))
        return data[: found.start(1)] + b"%d" % self._return_port + data[found.end(1) :]

    async def _relay_back(self, way_back: SocketType, client: int) -> None:
        with way_back:
            await self._relay(way_back, client)


async def bound() -> SocketType:
    """Return a socket with a free port."""
    made = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    await made.bind((ADDRESS, 0))
    return made


async def received(from_: SocketType) -> tuple[bytes, tuple[str, int]]:
    """Return the next datagram, and where it came from."""
    while True:
        try:
            data, address = await from_.recvfrom(LARGEST)
        except ConnectionRefusedError:
            continue  # about an earlier one that was sent
        return data, address


@asynccontextmanager
async def udp_proxy(server: int, fate: Fate = unharmed, path: Path | None = None) -> AsyncIterator[UdpProxy]:
    """Run a proxy in front of the server at a port, and write what passes to a pcap file."""
    pcap = None if path is None else Pcap(path)
    try:
        async with trio.open_nursery() as nursery:
            proxy = UdpProxy(server, fate, pcap, nursery)
            await nursery.start(proxy.run)
            yield proxy
            nursery.cancel_scope.cancel()
    finally:
        if pcap is not None:
            pcap.close()
