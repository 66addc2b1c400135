"""One task's part of a load, without Spark, on a server in the same loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import trio

from rsocket_trio import ApplicationError, Channel, Payload, Responder, serve
from rsocket_trio.loadgen.load_task import Part, perform
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.spark_load import Address, wait_for_stop
from rsocket_trio.loadgen.summary import Row, Summary, summarize
from tests.serving import running_server

URI = "memory://load"


def plan(**terms: Any) -> Plan:
    """A plan of ten requests a second, at equal distances, for two seconds."""
    return Plan(**{"uri": URI, "rate": 10.0, "seconds": 2.0, "arrivals": "constant", "probe": False, **terms})


async def alone(problem: str) -> tuple[str, float]:
    """Return the problem and the start where there is one task."""
    await trio.lowlevel.checkpoint()
    return problem, trio.current_time()


async def rows_of(wanted: Plan, address: Address | None = None) -> list[Row]:
    """The rows of the only task of a plan."""
    stopped = partial(wait_for_stop, address) if address is not None else None
    return await perform(Part(plan=wanted, task=0, seed=1), alone, stopped)


def summary_of(wanted: Plan, rows: list[Row]) -> Summary:
    """Return what they add up to."""
    return summarize(wanted, rows, seed=1)


async def load(**terms: Any) -> Summary:
    """Make a load, and say what came of it."""
    wanted = plan(**terms)
    return summary_of(wanted, await rows_of(wanted))


def served(responder: Responder) -> AbstractAsyncContextManager[str]:
    """A server for as long as the block."""
    return running_server(responder, URI, grace=0)


def usual() -> Responder:
    """Handlers that do what their names say."""
    responder = Responder()

    @responder.request_response("echo")
    def echo(request: Payload) -> Payload:
        return request

    @responder.request_response("never")
    async def never(request: Payload) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    @responder.request_response("full")
    def full(request: Payload) -> bytes:
        raise ApplicationError("full", code=0x333)

    @responder.request_stream("count")
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(10):
            await trio.sleep(0.1)
            yield b"%d" % number

    @responder.request_stream("broken")
    async def broken(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        raise ApplicationError("broken")

    @responder.request_channel("echo")
    async def echo_all(channel: Channel) -> None:
        await channel.send(channel.request)
        async for item in channel:
            await channel.send(item)

    return responder


async def main() -> None:
    """Serve until killed, and print the URI."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, usual(), ["tcp://127.0.0.1:0"])
        print(uri, flush=True)


if __name__ == "__main__":
    trio.run(main)
