"""``python -m qa.soak [--minutes M] [--connections N] [--channels N]``: everything at once, for long.

A server that resumes, in a process of its own. Half of the clients resume, over a proxy that cuts them again and again;
the others come and go. Each has channels with items of all sizes both ways, every one of which is checked, and some
leave in the middle. Prints what it cost, and exits 1 if an item was wrong, or anything failed, grew or was left.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
from collections.abc import Iterator, Sequence
from functools import partial

import attrs
import trio

from qa.attacks.crowd import CREDIT, NUMBER, differing
from qa.attacks.harness import Victim
from qa.items import ASKING, item
from qa.processes import MIB, descriptors, resident
from qa.resume.proxy import FIN, RST, Cut, cutting_proxy
from qa.resume.recorder import CLIENT, SERVER
from rsocket_trio import Channel, Connection, Keepalive, ResumeOptions, RSocketError, open_connection

DIALECTS = ("rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft")
KEEPALIVE = Keepalive(interval=5, max_lifetime=60)
RESUME = {"store_bytes": 512 * 1024, "first_delay": 0.02, "longest_delay": 1.0}
NEAREST = 20_000
"""Bytes of one side before which no connection is cut: its SETUP has been answered by then."""
MOST_ITEMS = 16
LEAVING = 0.2
"""Share of the channels that are left in the middle."""
PATIENCE = 60.0
"""Seconds that a connect may take: times are not judged here."""
STAY = 60.0
"""Seconds that a connection stays, on average."""
ENDING = 60.0
"""Seconds in which both processes must be as they were before: a session that was cut last waits for its client."""
FLAT, SLOPE = 0.05, 0.5
"""Share by which memory may grow after the first tenth, and MiB a minute."""
JUDGED = 240.0
"""Seconds of a run from which on its memory is judged: before, connections are still young."""


@attrs.frozen(kw_only=True)
class Size:
    """The size of a soak."""

    seconds: float = 1800.0
    connections: int = 500
    channels: int = 20
    """In flight on each connection."""
    pause: float = 20.0
    """Seconds from one item to the next, at most."""
    farthest: int = 200_000
    """Bytes of one side after which a connection is cut at the latest."""
    waits: float = 30.0
    """Seconds that a session waits for its client."""
    seed: int = 1

    @property
    def resume(self) -> dict[str, float]:
        """The options of resumption, of both sides."""
        return {**RESUME, "session_seconds": self.waits}


@attrs.frozen
class Sample:
    """Figures of server and client at one moment: bytes of memory, tasks, and descriptors."""

    at: float
    server: tuple[int, int, int]
    client: tuple[int, int, int]


@attrs.define
class Outcome:
    """The result of a soak: counts, samples, and what is to be said against it."""

    channels: int = 0
    items: int = 0
    left: int = 0
    cuts: int = 0
    samples: list[Sample] = attrs.field(factory=list)
    complaints: list[str] = attrs.field(factory=list)


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return a line for each process whose memory grew while it ran."""
    end = samples[-1].at
    complaints: list[str] = []
    for side in ("server", "client"):
        points = [(sample.at, getattr(sample, side)[0]) for sample in samples if sample.at >= end / 10]
        first = statistics.fmean(memory for at, memory in points if at <= end / 5)
        last = statistics.fmean(memory for at, memory in points if at >= end * 0.9)
        slope = statistics.linear_regression(*zip(*points, strict=True)).slope * 60 / MIB
        if last > first * (1 + FLAT):
            complaints.append(f"{side}: memory grew by {last / first - 1:.1%} after the first tenth")
        if slope > SLOPE:
            complaints.append(f"{side}: memory grew by {slope:.2f} MiB a minute")
    return complaints


def remaining(before: Sample, after: Sample) -> list[str]:
    """Return a line for each kind of resource that is there at the end and was not at the start."""
    return [
        f"{side}: {now} {kind} at the end, and {was} at the start"
        for side in ("server", "client")
        for kind, was, now in zip(
            ("tasks", "descriptors"), getattr(before, side)[1:], getattr(after, side)[1:], strict=True
        )
        if now > was
    ]


def cuts(size: Size) -> Iterator[Cut]:
    """Generate cuts without end, of both sides and in either manner."""
    chance = random.Random(size.seed)
    while True:
        at = chance.randint(NEAREST, size.farthest)
        yield Cut(chance.choice((CLIENT, SERVER)), at, chance.choice((FIN, RST)), chance.random() < 0.5)


class Clients:
    """All connections, until ``stopping`` is set."""

    def __init__(self, size: Size, outcome: Outcome) -> None:
        self.stopping = trio.Event()
        self._size = size
        self._outcome = outcome
        self._chance = random.Random(size.seed)

    async def keep(self, uri: str, number: int, *, resumes: bool) -> None:
        """Open one connection after another."""
        options = ResumeOptions(**self._size.resume) if resumes else None  # type: ignore[arg-type]
        name = f"connection {number}{', resuming' if resumes else ''}"
        while not await self._stops_within(self._chance.uniform(0, min(5.0, self._size.seconds / 10))):
            try:
                async with (
                    open_connection(
                        uri,
                        dialect=DIALECTS[number % len(DIALECTS)],
                        keepalive=KEEPALIVE,
                        resume=options,
                        connect_timeout=PATIENCE,
                    ) as connection,
                    trio.open_nursery() as nursery,
                ):
                    for _ in range(self._size.channels):
                        nursery.start_soon(self._talk, connection)
                    await self._stops_within(self._chance.expovariate(1 / STAY))
                    nursery.cancel_scope.cancel()
            except* (RSocketError, OSError) as group:
                self._outcome.complaints += [f"{name}: {error!r}" for error in group.exceptions]

    async def _talk(self, connection: Connection) -> None:
        """Have one channel after another."""
        while True:
            self._outcome.channels += 1
            number, count = self._outcome.channels % 2**32, self._chance.randint(1, MOST_ITEMS)
            leaves = self._chance.random() < LEAVING
            with trio.move_on_after(
                self._chance.uniform(0, count * self._size.pause) if leaves else float("inf")
            ) as leaving:
                request = NUMBER.pack(number, count)
                opening = connection.request_channel(request, route="ledger", initial_request_n=CREDIT)
                async with opening as channel, trio.open_nursery() as nursery:
                    nursery.start_soon(self._send, channel, number, count)
                    if wrong := await differing(channel, number, count):
                        self._outcome.complaints.append(f"channel {number}: {wrong} wrong items")
                    self._outcome.items += count
            self._outcome.left += leaving.cancelled_caught

    async def _send(self, channel: Channel, number: int, count: int) -> None:
        for index in range(count):
            await channel.send(item(number, ASKING, index))
            await trio.sleep(self._chance.uniform(0, self._size.pause))
        await channel.send_eof()

    async def _stops_within(self, seconds: float) -> bool:
        """Sleep. Return whether it is time to stop."""
        with trio.move_on_after(seconds):
            await self.stopping.wait()
        return self.stopping.is_set()


async def soak(size: Size) -> Outcome:
    """Do one run."""
    outcome = Outcome()
    with Victim({"resume": size.resume, "level": "CRITICAL"}) as victim:
        port, began = victim.ports["tcp"], trio.current_time()

        async def look() -> Sample:
            counts = await trio.to_thread.run_sync(partial(victim.alive, objects=False))
            ours = trio.lowlevel.current_statistics().tasks_living
            server = (victim.resident(), counts["tasks"], counts["descriptors"])
            return Sample(trio.current_time() - began, server, (resident(), ours, descriptors(os.getpid())))

        before = await look()
        clients = Clients(size, outcome)
        async with (
            cutting_proxy(port, cuts(size)) as proxy,
            trio.open_nursery() as nursery,
        ):
            for number in range(size.connections):
                uri = proxy.uri if number % 2 else f"tcp://127.0.0.1:{port}"
                nursery.start_soon(partial(clients.keep, uri, number, resumes=bool(number % 2)))
            while trio.current_time() - began < size.seconds:
                outcome.samples.append(await look())
                await trio.sleep(min(1.0, size.seconds / 20))
            clients.stopping.set()
        until = trio.current_time() + ENDING
        while (complaints := remaining(before, await look())) and trio.current_time() < until:  # noqa: ASYNC110
            await trio.sleep(0.1)
        work = await trio.to_thread.run_sync(victim.order, "work")
    outcome.cuts = proxy.made
    outcome.complaints += complaints
    if work["wrong"]:
        outcome.complaints.append(f"{work['wrong']} items were wrong at the server")
    if size.seconds >= JUDGED:
        outcome.complaints += grown(outcome.samples)
    return outcome


def main() -> int:
    """Run, and print the outcome. Return 1 if anything is to be said against it."""
    parser = argparse.ArgumentParser(prog="python -m qa.soak", description="everything at once, for long")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (30)")
    parser.add_argument("--connections", type=int, default=500, help="half of them resume (500)")
    parser.add_argument("--channels", type=int, default=20, help="in flight on each connection (20)")
    parser.add_argument("--seed", type=int, default=1, help="what chance begins with (1)")
    options = parser.parse_args()
    logging.getLogger("rsocket_trio").setLevel(logging.CRITICAL)
    size = Size(
        seconds=options.minutes * 60, connections=options.connections, channels=options.channels, seed=options.seed
    )
    outcome = trio.run(soak, size)
    memory = ", ".join(
        f"{side} {getattr(outcome.samples[-1], side)[0] / MIB:.1f} MiB at the end" for side in ("server", "client")
    )
    print(
        f"{outcome.channels:,} channels, {outcome.left:,} of them left, {outcome.items:,} items each way as they "
        f"should be; {outcome.cuts:,} cuts; {memory}",
        *outcome.complaints[:20],
        f"soak: {f'FAIL, {len(outcome.complaints)}' if outcome.complaints else 'pass'}",
        sep="\n  ",
    )
    return int(bool(outcome.complaints))


if __name__ == "__main__":
    raise SystemExit(main())
