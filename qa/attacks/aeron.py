"""Attacks on the media driver of a server: datagrams that announce publications which never send anything."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import trio

from qa.attacks.harness import Scene, Size, attack, expect
from qa.processes import MIB
from rsocket_trio import ConnectionLost, open_connection
from rsocket_trio.transports.aeron.media_driver import PREFIX, base

SETUP_FRAME = struct.Struct("<iBBHiiiiiiii")
"""A SETUP of Aeron: its length, version, flags, type 5, term offset, session, stream, initial and active term, bytes of
a term and of a datagram, hops."""
SESSIONS = count(1)
EVERY = 8
"""Datagrams between two pauses of a flood."""
MOST_FILES = 4096 * MIB
"""Bytes that the files of a driver may seem to have: of half a thousand publications with the smallest terms, or of one
with the largest, which is just being refused."""
CLOSED_IN = 5.0
"""Seconds in which a driver lets go of what a connection had."""


def setup_frames(number: int, term_length: int, stream: int = -1) -> Iterator[bytes]:
    """Generate SETUPs of publications to the stream on which a server receives handshakes, each of another session."""
    for _ in range(number):
        yield SETUP_FRAME.pack(40, 0, 0, 5, 0, next(SESSIONS), stream, 7, 7, term_length, 1408, 0)


def files_of(pid: int) -> int:
    """Return the bytes that the files of the driver within a process seem to have."""
    total = 0
    for path in base().glob(f"{PREFIX}{pid}-*/**/*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def announced_publications(scene: Scene, term_length: int) -> str:
    """SETUPs of Aeron with new sessions, at 6,250 a second: their files are few, and honest clients connect soon."""
    process = scene.victim.process.pid
    most = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        flood.connect(("127.0.0.1", scene.victim.ports["aeron"]))
        for number, frame in enumerate(setup_frames(scene.count, term_length)):
            flood.send(frame)
            if number % EVERY == EVERY - 1:
                time.sleep(EVERY / 6250)
            if number % 500 == 499:
                most = max(most, files_of(process))
    most = max(most, files_of(process))
    expect(most < MOST_FILES, f"the files of the driver seem to have {most / MIB:.0f} MiB")
    waited = trio.run(connect, f"aeron:udp?endpoint=127.0.0.1:{scene.victim.ports['aeron']}", scene.patience(30))
    expect(waited is not None, "no honest client can connect")
    assert waited is not None
    scene.expect_in_time(waited < scene.size.bar, f"an honest client connected after {waited:.1f} s")
    _wait_for_sockets(scene)
    return f"an honest client connects after {waited:.1f} s, files of {most / MIB:.0f} MiB"


@attack("A15", Size(2_000, growth=24), Size(12_500, growth=24, seconds=14, cpu=5, bar=5), scheme="aeron", more_log=20)
def aeron_small_terms(scene: Scene) -> str:
    """SETUPs of Aeron with the smallest terms: as many are taken as may be at a time, and honest clients connect."""
    return announced_publications(scene, 64 * 1024)


@attack("A15", Size(2_000, growth=24), Size(12_500, growth=24, seconds=14, cpu=5, bar=5), scheme="aeron", more_log=20)
def aeron_large_terms(scene: Scene) -> str:
    """SETUPs of Aeron with the largest terms, three of which are a file of 3 GiB: none is taken."""
    return announced_publications(scene, 1024 * MIB)


async def connect(uri: str, seconds: float) -> float | None:
    """Connect and ask, again and again. Return the seconds until there was an answer; ``None`` if there was none."""
    began = trio.current_time()
    while trio.current_time() - began < seconds:
        try:
            async with open_connection(uri) as connection:
                await connection.request_response(b"?")
                return trio.current_time() - began
        except ConnectionLost:
            continue
    return None


def _wait_for_sockets(scene: Scene) -> None:
    """Wait until the server's driver has closed the socket of a connection, in which it answers for a while."""
    folder = Path(f"/proc/{scene.victim.process.pid}/fd")
    until = time.monotonic() + scene.patience(CLOSED_IN)
    count = len(list(folder.iterdir()))
    while len(list(folder.iterdir())) >= count and time.monotonic() < until:
        time.sleep(0.1)
