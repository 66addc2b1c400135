"""A service that can be cut off and started again, and every call that a client may make of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from rsocket_trio import (
    Backoff,
    Channel,
    Connection,
    Payload,
    ReconnectingClient,
    Responder,
    ResumeOptions,
    StreamuxOptions,
)
from rsocket_trio.client.options import FRAGMENT_SIZE, LIMITS
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.server.accept import Server
from rsocket_trio.server.serve import serve_options
from rsocket_trio.transports.memory import MemoryTransport, listen_memory

URI = "memory://service"
EXACT = Backoff(jitter=0.0)
DELAYS = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


class Service:
    """A server that can be cut off, stopped and started again."""

    def __init__(self, nursery: trio.Nursery, responder: Responder) -> None:
        self.responder = responder
        self.transports: list[MemoryTransport] = []
        self.served = 0
        self._nursery = nursery
        self._scope = trio.CancelScope()

    async def start(self, *, resume: ResumeOptions | None = None) -> None:
        """Listen, and know nothing of what was before."""
        self.server = Server(
            self.responder,
            serve_options(
                dialects=ALL,
                limits=LIMITS,
                fragment_size=FRAGMENT_SIZE,
                resume=resume,
                streamux=StreamuxOptions(qa=True),
            ),
        )
        await self._nursery.start(self._run)

    def cut(self) -> None:
        """Every connection breaks."""
        for transport in self.transports:
            transport.cut()
        self.transports.clear()

    def crash(self) -> None:
        """Every connection breaks, and nobody listens or remembers any more."""
        self.cut()
        for connection in list(self.server.connections):
            connection._leave()
        self._scope.cancel()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listener = listen_memory("service")
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    while True:
                        transport = await listener.accept()
                        self.transports.append(transport)
                        self.served += 1
                        nursery.start_soon(self.server.serve_one, transport, trio.Event())
        finally:
            with trio.CancelScope(shield=True):
                await listener.aclose()


@asynccontextmanager
async def service(responder: Responder | None = None, *, resume: ResumeOptions | None = None) -> AsyncIterator[Service]:
    """A service that listens, and is gone at the end."""
    async with trio.open_nursery() as nursery:
        running = Service(nursery, responder or busy_responder([]))
        await running.start(resume=resume)
        yield running
        running.crash()


class Told:
    """What a client said of its state, and when."""

    def __init__(self) -> None:
        self.started = trio.current_time()
        self.states: list[str] = []
        self.tries: list[float] = []

    def __call__(self, state: str) -> None:
        self.states.append(state)
        if state == "connecting":
            self.tries.append(round(trio.current_time() - self.started, 6))

    @property
    def pauses(self) -> list[float]:
        """The seconds between one try and the next."""
        return [round(later - sooner, 6) for sooner, later in zip(self.tries, self.tries[1:], strict=False)]


def busy_responder(asked: list[bytes]) -> Responder:
    """It writes down what it was asked, then works on some of it for ever."""
    responder = Responder()

    @responder.request_response
    async def work(request: Payload) -> bytes:
        asked.append(request.data)
        if request.data == b"long":
            await trio.sleep_forever()
        return b"done " + request.data

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        asked.append(request.data)
        yield b"1"
        yield b"2"
        await trio.sleep_forever()

    @responder.request_subscription
    async def follow(request: Payload) -> AsyncIterator[bytes]:
        asked.append(request.data)
        yield b"1"
        await trio.sleep_forever()

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        asked.append(channel.request.data)
        async for message in channel:
            await channel.send(message)

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        asked.append(request.data)

    @responder.metadata_push
    def push(metadata: bytes) -> None:
        asked.append(metadata)

    return responder


async def request(client: ReconnectingClient | Connection) -> None:
    await client.request_response(b"long")


async def next_item(client: ReconnectingClient | Connection) -> None:
    async with client.request_stream(b"stream") as items:
        async for _ in items:
            pass


async def _channel(client: ReconnectingClient | Connection) -> None:
    async with client.request_channel(b"channel") as channel:
        await anext(channel)


async def _ping(client: ReconnectingClient | Connection) -> None:
    await client.ping()


async def _forget(client: ReconnectingClient | Connection) -> None:
    await client.fire_and_forget(b"note")


async def _push(client: ReconnectingClient | Connection) -> None:
    await client.metadata_push(b"push")


async def _subscription(client: ReconnectingClient | Connection) -> None:
    async with client.request_subscription(b"subscription"):
        pass


CALLS: dict[str, Callable[[ReconnectingClient | Connection], Awaitable[None]]] = {
    "request": request,
    "stream": next_item,
    "channel": _channel,
    "ping": _ping,
    "forget": _forget,
    "push": _push,
    "subscription": _subscription,
}
