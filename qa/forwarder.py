"""``python -m qa.forwarder [--scheme S] [--items N]``: a stream through the process of ``rsocket-trio forward``.

The server is never granted more than its client has granted, whatever the credit; and a client that is killed in the
middle of a stream has the server's handler cancelled at once. Server and judge share a process, so that they agree on
the order of what happens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from rsocket_trio import Outgoing, Payload, Responder, open_connection
from tests.serving import running_program, running_server

CREDITS = (1, 8, 256)
ITEMS = 100_000
KILLS = 10
MAX_SECONDS = 0.05
"""From the kill of a client to the cancellation of the handler."""
COMMAND = (sys.executable, "-c", "from rsocket_trio.cli.entry import main; main()")


@attrs.define(eq=False)
class Source:
    """The server behind the forwarder, and what it was asked for."""

    granted: int = 0
    """The items that the client of the stream has granted."""
    ahead: int = 0
    """The most items that the server was granted beyond that."""
    sent: trio.Event = attrs.field(factory=trio.Event)
    cancelled: trio.Event = attrs.field(factory=trio.Event)
    cancelled_at: float = 0.0

    @property
    def responder(self) -> Responder:
        """Return what serves ``items``, as many as the request says."""
        responder = Responder()

        @responder.request_stream("items")
        async def items(request: Payload, out: Outgoing) -> None:
            try:
                for number in range(int(request.text)):
                    room = await out.wait_room()
                    self.ahead = max(self.ahead, number + room - self.granted)
                    await out.send(b"%d" % number)
                    self.sent.set()
            except trio.Cancelled:
                self.cancelled_at = trio.current_time()
                self.cancelled.set()
                raise

        return responder


@asynccontextmanager
async def forwarded(source: Source, scheme: str) -> AsyncIterator[str]:
    """Provide the URI of a forwarder to a source; all speak ``scheme``."""
    address = f"{scheme}://127.0.0.1:0"
    command = (*COMMAND, "forward", "--listen", address, "--log", "error", "--to")
    async with running_server(source.responder, address, grace=0) as uri, running_program(*command, uri) as (_, line):
        yield line.removeprefix("listening ").strip()


async def most_ahead(credit: int, items: int, scheme: str) -> int:
    """Return how many items the server was granted beyond what its client had granted: none, or fewer than that."""
    source = Source(ahead=-items)
    async with forwarded(source, scheme) as uri, open_connection(uri) as client:
        source.granted = credit
        opening = client.request_stream(str(items), route="items", initial_request_n=credit, refill=False)
        async with opening as received:
            for number in range(items):
                if number and number % credit == 0:
                    source.granted += credit
                    received.request_n(credit)
                assert (await anext(received)).text == str(number)
    return source.ahead


async def seconds_to_cancel(scheme: str) -> float:
    """Return the time from the kill of a client in the middle of a stream to the cancellation of the handler."""
    source = Source()
    async with forwarded(source, scheme) as uri, trio.open_nursery() as nursery:
        command = [*COMMAND, "stream", uri, "--data", str(2**31 - 1), "--route", "items"]
        run = partial(trio.run_process, command, stdout=subprocess.DEVNULL, check=False)
        client = await nursery.start(run)
        await source.sent.wait()
        assert not source.cancelled.is_set()
        killed_at = trio.current_time()
        client.kill()
        await source.cancelled.wait()
        return source.cancelled_at - killed_at


def main(arguments: list[str]) -> int:
    """Measure both, and print it. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m qa.forwarder", description=__doc__)
    parser.add_argument("--scheme", default="tcp")
    parser.add_argument("--items", type=int, default=ITEMS)
    options = parser.parse_args(arguments)
    for credit in CREDITS:
        ahead = trio.run(most_ahead, credit, options.items, options.scheme)
        print(f"{options.scheme}: {options.items} items with credit {credit}: ahead by {ahead}")
        assert ahead <= 0, "the server was granted more than its client had granted"
    longest = max(trio.run(seconds_to_cancel, options.scheme) for _ in range(KILLS))
    print(f"{options.scheme}: {KILLS} clients killed: the handler was cancelled within {longest * 1000:.1f} ms")
    assert longest <= MAX_SECONDS, "a killed client's handler ran on"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
