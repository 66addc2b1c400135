"""Runs one Spark task of a load: connects, waits for the others, makes its part and returns its counts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import attrs
import trio

from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen import recording
from rsocket_trio.loadgen.arrivals import arrivals
from rsocket_trio.loadgen.driving import Driver
from rsocket_trio.loadgen.lines import open_lines
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.recording import Recorder, Row
from rsocket_trio.loadgen.requests import Payloads
from rsocket_trio.loadgen.stopping import Address, wait_for_stop

COLUMNS = (
    "task INT NOT NULL, second INT NOT NULL, measure STRING NOT NULL, name STRING NOT NULL, bucket INT, "
    "count BIGINT NOT NULL"
)
"""The columns of a load's rows, as a schema of Spark."""
FORESEEN = (RSocketError, trio.TooSlowError, ValueError)
"""Errors that prevent a load and that the user can fix."""

Meet = Callable[[str], Awaitable[list[str]]]
"""Sends a text to all tasks and returns the texts of all of them, once each has sent its own."""


@attrs.frozen(kw_only=True)
class Part:
    """The part of one task in a load."""

    plan: Plan
    task: int
    seed: int


def work(part: Part, address: Address | None) -> Iterator[tuple[int, int, str, str, int | None, int]]:
    """Make a part of the load in a barrier stage, and yield its rows."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()

    async def meet(said: str) -> list[str]:
        # In a thread: connections must send keepalives while other tasks are not ready yet.
        return await trio.to_thread.run_sync(context.allGather, said)

    for row in trio.run(perform, part, meet, address):
        yield part.task, *row


async def perform(part: Part, meet: Meet, address: Address | None = None) -> list[Row]:
    """Make a part of the load and return its rows. If one task can't, none does, and each returns a row saying so."""
    plan, recorder = part.plan, Recorder(part.plan.warm_up)
    async with trio.open_nursery() as nursery:
        driver: Driver | None = None
        problem = ""
        try:
            driver = await prepared(part, recorder, nursery)
        except FORESEEN as error:
            problem = described(error)
        problems = [said for said in await meet(problem) if said]
        if driver is None or problems:
            nursery.cancel_scope.cancel()
            return [(0, recording.FAILED, problems[0], None, 1)]
        if address is not None:
            nursery.start_soon(partial(stop_when_told, driver, address))
        recorder.fact(recording.BEGAN, time.time_ns())
        await driver.run(arrivals(plan, part.task, part.seed))
        nursery.cancel_scope.cancel()
    return list(recorder.rows())


async def prepared(part: Part, recorder: Recorder, nursery: trio.Nursery) -> Driver:
    """Open the connections and check them with a probe. Raise the error of one that does not work."""
    lines = await open_lines(part.plan, nursery)
    driver = Driver(part.plan, lines, Payloads(part.plan, f"{part.seed}/{part.task}"), recorder)
    if part.plan.probe:
        await driver.probe()
    return driver


async def stop_when_told(driver: Driver, address: Address) -> None:
    """End the load when the driver of Spark asks for it."""
    await wait_for_stop(address)
    driver.stop()


def described(error: Exception) -> str:
    """Return an error as a line, with the name of its class unless it is a ``ValueError``."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
