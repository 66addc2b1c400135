"""A live server of all dialects on one port, and many connections of mutated traffic over loopback.

Afterwards nothing is left of them; meanwhile a client that behaves gets the right answers; nothing that a peer says
makes a traceback or a flood of log lines.
"""

from __future__ import annotations

import gc
import logging
import socket
import statistics
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Final

import attrs
import trio
import trio.lowlevel

from qa.fuzz.mutation import mutate
from qa.fuzz.spoken import NAMES, STREAMUX, TEMPERS, some_frame, some_setup
from qa.processes import MIB, descriptors, resident
from rsocket_trio import Channel, Limits, Payload, Responder, open_connection
from rsocket_trio.mux.framing import Framing24, Framing32
from rsocket_trio.mux.stream_state import StreamState
from rsocket_trio.rsocket.stream_table import Stream
from rsocket_trio.streamux.chunks import HeaderLayout
from rsocket_trio.streamux.negotiation import Initialize, Terms
from rsocket_trio.streamux.request_table import Exchange
from tests.serving import running_server
from tests.streamux.pairs import ChunkHeader

WIDTH: Final = 8
"""Connections at one time."""
FRAMES_EACH: Final = 10
CLOSE_TIMEOUT: Final = 2.0
"""Seconds after the last connection until nothing may be left of any."""
LOOKS: Final = 40
WORST_BUSY: Final = 0.2
"""Seconds of processor time until an answer, that of the attackers included: they share the process."""
WORST: Final = 5.0
"""Seconds until an answer, however busy the machine is."""
LINGER: Final = struct.pack("ii", 1, 0)
NOISE: Final = "noise"
SPEAKERS: Final = (*NAMES, STREAMUX, NOISE)
TERMS: Final = Terms(8, 10)
OFFER: Final = Initialize(min_id=8, max_id=8, rec_id=8, min_len=10, max_len=10, rec_len=10)


@attrs.define
class Siege:
    """Observations of the server while it was fuzzed, and the objects that were left."""

    connections: int = 0
    frames: int = 0
    seconds: float = 0.0
    answers: list[float] = attrs.field(factory=list)
    """Seconds that each answer to the client that behaves took."""
    busy: list[float] = attrs.field(factory=list)
    """Seconds of processor time in which all others were served meanwhile."""
    wrong: list[str] = attrs.field(factory=list)
    left: list[str] = attrs.field(factory=list)
    lines: int = 0
    """Number of lines that the log got."""
    tracebacks: list[str] = attrs.field(factory=list)
    """Lines of the log that a peer must not be able to cause."""
    growth: int = 0
    """Bytes of resident memory."""

    def __str__(self) -> str:
        probe = sorted(self.answers)
        middle, worst = (statistics.median(probe) * 1000, probe[-1] * 1000) if probe else (0, 0)
        return (
            f"server {self.connections:,} connections, {self.frames:,} frames  {self.seconds:.1f} s  "
            f"{len(probe):,} answers, median {middle:.1f} ms, worst {worst:.1f} ms "
            f"({max(self.busy, default=0.0) * 1000:.1f} ms busy), {len(self.wrong)} wrong  "
            f"{self.lines} log lines, {len(self.tracebacks)} tracebacks  left {self.left or 'nothing'}  "
            f"memory {self.growth / MIB:+.1f} MiB"
        )


def patient() -> Responder:
    """An application whose handlers never fail by themselves."""
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return Payload(request.data)

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"tick"

    @responder.request_subscription
    async def prices(request: Payload) -> AsyncIterator[bytes]:
        while True:
            yield b"price"

    @responder.request_channel
    async def chat(channel: Channel) -> None:
        async for item in channel:
            await channel.send(Payload(item.data or b"empty"))

    @responder.fire_and_forget
    async def note(request: Payload) -> None:
        await trio.lowlevel.checkpoint()

    @responder.metadata_push
    def pushed(metadata: bytes) -> None:
        """Taken."""

    return responder


async def lay_siege(siege: Siege, uri: str, connections: int, seed: str) -> None:
    """So many connections, a few at a time, beside a client that behaves."""
    start = time.perf_counter()
    numbers = iter(range(connections))

    async def attack_on() -> None:
        for number in numbers:
            speaker = SPEAKERS[number % len(SPEAKERS)]
            await attack(uri, speaker, Random(f"{seed} {number}"))
            siege.connections += 1
            siege.frames += FRAMES_EACH

    async with trio.open_nursery() as nursery:
        nursery.start_soon(behave, uri, siege)
        async with trio.open_nursery() as attackers:
            for _ in range(WIDTH):
                attackers.start_soon(attack_on)
        nursery.cancel_scope.cancel()
    siege.seconds += time.perf_counter() - start


async def attack(uri: str, speaker: str, random: Random) -> None:
    """Say all of one connection's bytes, hear what comes at once, and go in one way or another."""
    host, _, port = uri.removeprefix("tcp://").partition(":")
    data = traffic(speaker, FRAMES_EACH, random)
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        try:
            cut = random.randrange(len(data)) if data else 0
            for piece in (data[:cut], data[cut:]):
                await stream.send_all(piece)
                await trio.lowlevel.checkpoint()
            with trio.move_on_after(random.choice((0, 0.001, 0.01))):
                while await stream.receive_some():
                    pass
            if random.random() < 0.3:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            elif random.random() < 0.5:
                await stream.send_eof()
        except trio.BrokenResourceError:
            return


async def behave(uri: str, siege: Siege) -> None:
    """Ask again and again, and look at each answer."""
    async with open_connection(uri) as connection:
        number = 0
        while True:
            number += 1
            asked, worked = time.perf_counter(), time.process_time()
            answer = await connection.request_response(b"%d" % number)
            siege.answers.append(time.perf_counter() - asked)
            siege.busy.append(time.process_time() - worked)
            if answer.data != b"%d" % number:
                siege.wrong.append(f"{number}: {answer.data[:40]!r}")
            await trio.sleep(0.005)


# What a connection says: its first frame as it should be, and mutated ones behind that


def traffic(speaker: str, frames: int, random: Random) -> bytes:
    """All that a client says on one connection: so many frames behind its first."""
    temper = random.choice(TEMPERS)
    if speaker == NOISE:
        return random.randbytes(random.randrange(1, 20 * frames))
    if speaker == STREAMUX:
        data = OFFER.encode() + b"".join(chunk(random) for _ in range(frames))
    else:
        dialect = NAMES[speaker]
        said = [
            some_setup(dialect),
            *(some_frame(dialect, temper, random, lambda kind: random.randrange(12)) for _ in range(frames)),
        ]
        data = (Framing24() if dialect.framing is Framing24 else Framing32(2**24, 8)).join(said)
    # The lengths themselves are mutated too, on some connections.
    return mutate(random, (data,)) if random.random() < temper else data


def chunk(random: Random) -> bytes:
    """A chunk of one of a few requests."""
    payload = bytes(random.choice((0, 0, 1, 30, 200)))
    header = ChunkHeader(random.randrange(4), len(payload), random.random() < 0.02, random.random() < 0.5)
    return header.encode(HeaderLayout(TERMS)) + payload


# What is there, before and after


class Notes(logging.Handler):
    """Counts log records, and keeps the text of those that should not be: whole records would look like a leak."""

    def __init__(self, siege: Siege) -> None:
        super().__init__(logging.WARNING)
        self.siege = siege

    def emit(self, record: logging.LogRecord) -> None:
        self.siege.lines += 1
        if record.exc_info or record.levelno >= logging.ERROR:
            self.siege.tracebacks.append(f"{record.getMessage()} {record.exc_info}")


def holdings() -> dict[str, int]:
    """Return the resources of a connection that must be given back."""
    gc.collect()
    kinds: tuple[type[StreamState], ...] = (Stream, Exchange)
    return {
        "descriptors": descriptors(),
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "streams": sum(type(one) in kinds for one in gc.get_objects()),
    }


async def left_since(before: dict[str, int]) -> list[str]:
    """Return the resources that are there and were not, after as long as they may take to go."""
    now = holdings()
    for _ in range(LOOKS):
        if now == before:
            return []
        await trio.sleep(CLOSE_TIMEOUT / LOOKS)
        now = holdings()
    return [f"{now[kind] - count:+} {kind}" for kind, count in before.items() if now[kind] != count]


def fortress() -> AbstractAsyncContextManager[str]:
    """A server, and its URI."""
    return running_server(patient(), limits=Limits(setup_timeout=1.0), grace=0.1)


async def rounds(connections: int, seed: str, count: int) -> list[Siege]:
    """So many sieges of one server, each of the same connections, and what each of them left."""
    sieges: list[Siege] = []
    logger, notes = logging.getLogger("rsocket_trio"), Notes(Siege())
    logger.addHandler(notes)
    try:
        async with fortress() as uri:
            # What is made once, by the first of its kind, is made now.
            await lay_siege(notes.siege, uri, 2 * len(SPEAKERS), f"{seed} first")
            await trio.sleep(CLOSE_TIMEOUT / 2)
            for _ in range(count):
                siege = notes.siege = Siege()
                before, memory = holdings(), resident()
                await lay_siege(siege, uri, connections, seed)
                siege.left = await left_since(before)
                siege.growth = resident() - memory
                sieges.append(siege)
    finally:
        logger.removeHandler(notes)
    return sieges


def is_clean(siege: Siege) -> bool:
    """Return whether all bars were met: right answers in time, at most a line of log for each, nothing left."""
    in_time = bool(siege.answers) and max(siege.answers) <= WORST and max(siege.busy, default=0.0) <= WORST_BUSY
    return in_time and siege.lines <= siege.connections and not (siege.wrong or siege.left or siege.tracebacks)


def besiege(frames: int, seed: int) -> bool:
    """The long run, in two equal halves. Return whether all that must hold did."""
    sieges = trio.run(rounds, frames // FRAMES_EACH // 2, str(seed), 2)
    for siege in sieges:
        print(siege, flush=True)
        for text in siege.tracebacks[:5]:
            print(f"    {text}", flush=True)
    first, second = sieges
    return is_clean(first) and is_clean(second) and second.growth <= max(first.growth // 10, 2 * MIB)
