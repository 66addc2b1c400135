"""``python -m qa.restarts [process | workers] [--restarts N] [--callers N]``: planned restarts under load, unnoticed.

``process`` ends a server by SIGTERM and starts the next one as soon as it stops listening; ``workers`` sends SIGHUP to
a server of two workers. Clients of ``connect_forever`` send requests and open streams of a second all the while, and
one stream that never ends by itself. The bar: no caller sees an error, but the reader of that stream at each restart.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from qa.processes import end_of, serve_command
from rsocket_trio import Canceled, Payload, Responder, connect_forever
from rsocket_trio.client.reconnecting import ReconnectingClient
from rsocket_trio.errors import GRACE_IS_OVER

GRACE: Final = 2.0
"""Seconds that open streams get at a restart."""
CALLERS: Final = 200
STREAM_CALLERS: Final = 20
CLIENTS: Final = 4
RESTARTS: Final = 10
ITEMS: Final = 10
"""Items of a stream of a second."""
MOVE_TIMEOUT: Final = 60.0
"""Seconds within which each caller has to have an answer of the new processes."""

# The served program

responder = Responder()


@responder.request_response("answer")
async def answer(request: Payload) -> bytes:
    """Answer with the number of the process, after a while."""
    await trio.sleep(0.1)
    return b"%d %s" % (os.getpid(), request.data)


@responder.request_stream("second")
async def second(request: Payload) -> AsyncIterator[bytes]:
    """Send items for a second."""
    for _ in range(ITEMS):
        yield b"%d" % os.getpid()
        await trio.sleep(1 / ITEMS)


@responder.request_stream("endless")
async def endless(request: Payload) -> AsyncIterator[bytes]:
    """Send one item, and go on for ever."""
    yield b"%d" % os.getpid()
    await trio.sleep_forever()


slow = Responder()


@slow.request_response("answer")
async def answer_slowly(request: Payload) -> bytes:
    """Answer at a tenth of the speed."""
    await trio.sleep(0.9)
    return await answer(request)


# The server's processes


@attrs.define(eq=False)
class Server:
    """One server process, or one with workers, on a port that stays the same."""

    workers: int = 0
    uri: str = "tcp://127.0.0.1:0"
    responder: str = "responder"
    process: trio.Process | None = None

    async def start(self) -> None:
        """Start a process, and wait until it listens."""
        options = ["--workers", str(self.workers)] if self.workers else []
        served = serve_command(f"qa.restarts:{self.responder}", self.uri, "--grace", f"{GRACE:g}", *options)
        self.process, self.uri = await served

    async def stop_listening(self) -> trio.Process:
        """Send SIGTERM, and wait until the port is free. Return the process, which drains."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        host, _, port = self.uri.removeprefix("tcp://").rpartition(":")
        while True:
            try:
                probe = await trio.open_tcp_stream(host, int(port))
            except OSError:
                return self.process
            await probe.aclose()
            await trio.sleep(0.005)

    def hang_up(self) -> None:
        """Have all workers replaced."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)


@asynccontextmanager
async def serving(
    workers: int, listen: str = "tcp://127.0.0.1:0", responder: str = "responder"
) -> AsyncIterator[tuple[Server, trio.Nursery]]:
    """Run a server for as long as the block; processes that it replaced end in the nursery."""
    server = Server(workers, listen, responder)
    try:
        async with trio.open_nursery() as nursery:
            await server.start()
            yield server, nursery
    finally:
        if server.process is not None:
            with trio.CancelScope(shield=True):
                server.process.kill() if not workers else server.process.terminate()
                await end_of(server.process)


# The callers


@attrs.define(eq=False)
class Callers:
    """The record of all callers: the process that answered each of them last, and every error."""

    answered_by: dict[str, int] = attrs.field(factory=dict)
    answers: int = 0
    streams: int = 0
    endless_ends: int = 0
    errors: list[str] = attrs.field(factory=list)
    _changed: trio.Event = attrs.field(factory=trio.Event)

    async def request(self, name: str, client: ReconnectingClient) -> None:
        """Send requests, one after another."""
        number = 0
        while True:
            number += 1
            request = b"%s %d" % (name.encode(), number)
            try:
                reply = await client.request_response(request, route="answer")
            except Exception as error:
                self.errors.append(f"{name}: {error!r}")
                await trio.sleep(0.1)
                continue
            pid, _, echoed = reply.data.partition(b" ")
            if echoed != request:
                self.errors.append(f"{name}: {request!r} was answered by {reply.data!r}")
            self._note(name, int(pid))
            self.answers += 1

    async def stream(self, name: str, client: ReconnectingClient) -> None:
        """Read streams of a second, one after another."""
        while True:
            pids: list[int] = []
            try:
                async with client.request_stream(route="second") as items:
                    async for item in items:
                        pids.append(int(item.data))
            except Exception as error:
                self.errors.append(f"{name}: {error!r} after {len(pids)} items")
                await trio.sleep(0.1)
                continue
            if len(pids) != ITEMS or len(set(pids)) != 1:
                self.errors.append(f"{name}: {len(pids)} items of {len(set(pids))} processes")
            self._note(name, pids[-1])
            self.streams += 1

    async def read_endless(self, name: str, client: ReconnectingClient) -> None:
        """Read the stream that never ends by itself, anew each time that the grace period ends it."""
        while True:
            try:
                async with client.request_stream(route="endless") as items:
                    async for item in items:
                        self._note(name, int(item.data))
                self.errors.append(f"{name}: completed")
            except Canceled as error:
                if error.text != GRACE_IS_OVER:
                    self.errors.append(f"{name}: {error!r}")
                self.endless_ends += 1
            except Exception as error:
                self.errors.append(f"{name}: {error!r}")
                await trio.sleep(0.1)

    async def moved(self, former: set[int]) -> bool:
        """Wait until no caller's last answer is of a former process. Return ``False`` if that takes too long."""
        with trio.move_on_after(MOVE_TIMEOUT) as timeout:
            while any(pid in former for pid in self.answered_by.values()):
                await self._changed.wait()
        return not timeout.cancelled_caught

    async def answered(self, callers: int) -> None:
        """Wait until so many callers have an answer."""
        while len(self.answered_by) < callers:
            await self._changed.wait()

    def _note(self, name: str, pid: int) -> None:
        if self.answered_by.get(name) != pid:
            self.answered_by[name] = pid
            self._changed.set()
            self._changed = trio.Event()


@asynccontextmanager
async def calling(uri: str, *, callers: int, stream_callers: int, clients: int) -> AsyncIterator[Callers]:
    """Have so many callers call, spread over the clients, for as long as the block."""
    seen = Callers()
    async with AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(connect_forever(uri)) for _ in range(clients)]
        nursery = await stack.enter_async_context(trio.open_nursery())
        for number in range(callers):
            nursery.start_soon(seen.request, f"request {number}", connected[number % clients])
        for number in range(stream_callers):
            nursery.start_soon(seen.stream, f"stream {number}", connected[number % clients])
        nursery.start_soon(seen.read_endless, "endless", connected[0])
        await seen.answered(callers + stream_callers + 1)
        yield seen
        nursery.cancel_scope.cancel()


async def restart_process(server: Server, nursery: trio.Nursery) -> None:
    """End the process by SIGTERM, and start the next one as soon as it stops listening."""
    nursery.start_soon(end_of, await server.stop_listening())
    await server.start()


async def replace_workers(server: Server, nursery: trio.Nursery) -> None:
    """Have all workers replaced by SIGHUP."""
    server.hang_up()


KINDS: Final[dict[str, tuple[int, Callable[[Server, trio.Nursery], Awaitable[None]]]]] = {
    "process": (0, restart_process),
    "workers": (2, replace_workers),
}
"""The number of workers, 0 for none, and the restart of each kind."""


async def restarted(
    kind: str, *, restarts: int, callers: int, stream_callers: int = STREAM_CALLERS, clients: int = CLIENTS
) -> Callers:
    """Restart a server so often under so many callers. Return what they saw, with callers left behind as errors."""
    workers, restart = KINDS[kind]
    async with (
        serving(workers) as (server, nursery),
        calling(server.uri, callers=callers, stream_callers=stream_callers, clients=clients) as seen,
    ):
        for number in range(restarts):
            former = set(seen.answered_by.values())
            await restart(server, nursery)
            if not await seen.moved(former):
                left = [name for name, pid in seen.answered_by.items() if pid in former]
                seen.errors.append(f"restart {number}: {len(left)} callers were left behind, {left[0]} among them")
    return seen


def main(arguments: list[str]) -> int:
    """Restart, and print what the callers saw. Return 1 if any of them saw an error."""
    parser = argparse.ArgumentParser(prog="python -m qa.restarts")
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, "all"], default="all", help="all by default")
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    parser.add_argument("--callers", type=int, default=CALLERS)
    options = parser.parse_args(arguments)
    failed = False
    for kind in KINDS if "all" in options.kinds else options.kinds:
        seen = trio.run(partial(restarted, kind, restarts=options.restarts, callers=options.callers))
        print(
            f"{kind}: {options.restarts} restarts, {options.callers} callers: {seen.answers} answers, {seen.streams} "
            f"streams, {seen.endless_ends} ends of the endless stream, {len(seen.errors)} errors",
            flush=True,
        )
        for error in seen.errors[:20]:
            print(f"  {error}", flush=True)
        failed = failed or bool(seen.errors) or seen.endless_ends < options.restarts
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
