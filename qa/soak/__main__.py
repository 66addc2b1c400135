"""``python -m qa.soak [--minutes M] [--connections N] [--streams N]``: everything at once, for long.

A server that resumes and a client in two processes; connections are cut and leave, streams are cancelled and fail, and
every item is looked at. Prints what both cost, and exits 1 if anything failed, grew or was left.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
from collections.abc import Callable

import attrs
import trio

from qa.attacks.harness import Victim
from qa.processes import MIB
from qa.soak.client import RESUME, Client, Size, Tally
from qa.soak.watch import Sample, left, looked_at, misses, trend

EVERY = 1.0
"""Seconds between two samples."""
LONGER = 60.0
"""Seconds that a run may go on until enough has happened, on a machine that has much else to do."""
ENDING = 20.0
"""Seconds in which both processes must be as they were before."""


@attrs.frozen
class Outcome:
    """The result of a soak."""

    tally: Tally
    samples: list[Sample]
    received: int
    """Items that the server checked."""
    complaints: list[str]


async def soak(size: Size, enough: Callable[[Tally], bool] = lambda tally: True) -> Outcome:
    """Do one run: the seconds of its size, and on until enough has happened, a minute more at most."""
    # It is asked for thousands of broken handlers.
    with Victim({"resume": RESUME, "level": "CRITICAL"}) as victim:
        client = Client(f"tcp://127.0.0.1:{victim.ports['tcp']}", size)
        tally, samples = client.tally, list[Sample]()
        began = trio.current_time()

        async def look() -> Sample:
            tasks = (await trio.to_thread.run_sync(victim.order, "glance"))["tasks"]
            ours = trio.lowlevel.current_statistics().tasks_living
            return Sample(
                trio.current_time() - began, looked_at(victim.process.pid, tasks), looked_at(os.getpid(), ours)
            )

        async def watch() -> None:
            while not client.stopping.is_set():
                samples.append(await look())
                with trio.move_on_after(min(EVERY, size.seconds / 20)):
                    await client.stopping.wait()

        before = await look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            nursery.start_soon(watch)
            await trio.sleep(size.seconds)
            with trio.move_on_after(LONGER):
                while not enough(tally):  # noqa: ASYNC110  # nothing else has use for an event of it
                    await trio.sleep(0.05)
            client.stopping.set()
        until = trio.current_time() + ENDING
        while left(before, after := await look()) and trio.current_time() < until:  # noqa: ASYNC110
            await trio.sleep(0.1)
        work = await trio.to_thread.run_sync(victim.order, "work")
    complaints = [*tally.failures, *work["faults"], *misses(samples, size.connections), *left(before, after)]
    return Outcome(tally, samples, work["received"], complaints)


def report(outcome: Outcome) -> bool:
    """Print what came of it. Return whether it is good."""
    tally = outcome.tally
    ends = ", ".join(f"{count:,} {how}" for how, count in sorted(tally.ends.items()))
    print(f"items: {tally.items:,} received by the client, {outcome.received:,} by the server, all looked at")
    print(f"streams: {ends}")
    print(
        f"connections: {tally.fates['resumed']:,} cut and resumed, {tally.fates['cut']:,} cut and opened anew, "
        f"{tally.fates['left']:,} left; longest pause {tally.longest_pause:.2f} s"
    )
    for side in ("server", "client"):
        went = trend(outcome.samples, side, "memory")
        print(
            f"{side}: {went.first / MIB:.1f} MiB after the first tenth, {went.last / MIB:.1f} MiB in the last one "
            f"({went.grown:+.1%}), {went.slope * 60 / MIB:+.2f} MiB a minute"
        )
    for complaint in outcome.complaints[:20]:
        print(f"  {complaint}")
    print(f"soak: {'FAIL, ' + str(len(outcome.complaints)) if outcome.complaints else 'pass'}", flush=True)
    return not outcome.complaints


def main() -> int:
    """1 if anything is to be said against it."""
    parser = argparse.ArgumentParser(prog="python -m qa.soak", description="everything at once, for long")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (30)")
    parser.add_argument("--connections", type=int, default=500, help="half of them resume (500)")
    parser.add_argument("--streams", type=int, default=10_000, help="in flight at once, in sum (10,000)")
    parser.add_argument("--rate", type=float, default=1_000.0, help="items a second, in sum, about (1,000)")
    parser.add_argument("--seed", type=int, default=1, help="what chance begins with (1)")
    asked = parser.parse_args()
    logging.getLogger("rsocket_trio").setLevel(logging.CRITICAL)
    size = Size(
        seconds=asked.minutes * 60,
        connections=asked.connections,
        streams=asked.streams,
        rate=asked.rate,
        fate=min(60.0, asked.minutes * 60 / 5),
        seed=asked.seed,
    )
    return 0 if report(trio.run(functools.partial(soak, size))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
