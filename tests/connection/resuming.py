"""A client that resumes and its server, over links that break when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio
import trio.testing

from rsocket_trio import (
    ApplicationError,
    Connection,
    Payload,
    Responder,
    ResumeOptions,
    current_connection,
    open_connection_over,
    serve,
)
from tests.each_row import each_row

DIALECTS = ["rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft"]
each = each_row("dialect", DIALECTS)
OPTIONS = ResumeOptions(jitter=0)


class Link:
    """One stream between two ends. It breaks when told to, or after so many bytes of either end's."""

    def __init__(self, lifetime: int | None) -> None:
        self._left = lifetime
        self._one_ways = [trio.testing.memory_stream_one_way_pair() for _ in range(2)]
        for send, _ in self._one_ways:
            send.send_all_hook = self._move
        (to_server, from_client), (to_client, from_server) = self._one_ways
        self.client = trio.StapledStream(to_server, from_server)
        self.server = trio.StapledStream(to_client, from_client)
        self.deaf: set[int] = set()

    async def _move(self) -> None:
        for number, (send, receive) in enumerate(self._one_ways):
            if number in self.deaf or self._left == 0:
                continue
            try:
                data = send.get_data_nowait(self._left)
            except trio.WouldBlock:
                continue
            receive.put_data(data)
            if self._left is not None:
                self._left -= len(data)
                if not self._left:
                    self.cut()

    async def hear(self, number: int) -> None:
        """What was swallowed arrives."""
        self.deaf.discard(number)
        await self._move()

    def cut(self) -> None:
        """Both ends find it broken."""
        for send, receive in self._one_ways:
            send.close()
            receive.close()


CLIENTS, SERVERS = 0, 1
"""Whose bytes do not arrive."""


class Network(trio.abc.Listener[trio.abc.Stream]):
    """Opens links to one server, unless it is down. ``lifetimes`` are the bytes after which the next links break."""

    def __init__(self, lifetimes: Iterable[int] = ()) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](1000)
        self.links: list[Link] = []
        self.lifetimes = list(lifetimes)
        self.down = False

    async def connect(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise OSError("the network is down")
        link = Link(self.lifetimes.pop(0) if self.lifetimes else None)
        self.links.append(link)
        self._send.send_nowait(link.server)
        return link.client

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()

    @property
    def link(self) -> Link:
        return self.links[-1]

    async def cut(self, *, down: bool = False) -> None:
        """The link breaks, and with ``down`` there is no other."""
        self.down = down
        self.link.cut()
        await settle()


class Pair(NamedTuple):
    client: Connection
    server: Connection
    network: Network
    client_states: list[str]
    server_states: list[str]
    stop_serving: Callable[[], None]


@asynccontextmanager
async def pair(
    responder: Responder | None = None,
    dialect: str = "rsocket/1.0",
    *,
    client_responder: Responder | None = None,
    options: ResumeOptions = OPTIONS,
    server_options: ResumeOptions | None = None,
    network: Network | None = None,
    fragment_size: int = 65536,
    grace: float = 10,
    **more: Any,
) -> AsyncIterator[Pair]:
    """A client that resumes and its server, with the connections of both."""
    network = network or Network()
    responder = responder or Responder()
    accepted: list[Connection] = []
    client_states: list[str] = []
    server_states: list[str] = []

    @responder.setup
    def meet(terms: Any, connection: Connection) -> None:
        accepted.append(connection)
        connection.on_state(server_states.append)

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[list[str]]) -> None:
            with scope:
                await serve(
                    *(responder, [network]),
                    dialects=[dialect],
                    resume=server_options or options,
                    fragment_size=fragment_size,
                    grace=grace,
                    task_status=task_status,
                )

        await nursery.start(run)
        async with open_connection_over(
            network.connect,
            dialect=dialect,
            resume=options,
            responder=client_responder,
            fragment_size=fragment_size,
            **more,
        ) as client:
            client.on_state(client_states.append)
            await settle()
            yield Pair(client, accepted[0], network, client_states, server_states, scope.cancel)
        scope.cancel()
    accepted.clear()
    responder.__dict__.clear()  # it refers to this frame, and so to the connections


async def settle() -> None:
    """Let everybody do what can be done without time passing."""
    await trio.testing.wait_all_tasks_blocked()


class Book:
    """A responder, and what its handlers saw."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.go_on = trio.Event()
        self.responder = responder = Responder()

        @responder.request_response
        async def answer(request: Payload) -> Payload:
            self.seen.append(request.data)
            try:
                if request.data == b"wait":
                    await self.go_on.wait()
                if request.data == b"call back":
                    return await current_connection().request_response(b"who are you?")
                if request.data == b"fail":
                    raise ApplicationError("no")
            except BaseException as error:
                self.seen.append(type(error).__name__)
                raise
            return request

        @responder.request_stream
        async def count(request: Payload) -> AsyncIterator[bytes]:
            for number in range(int(request.data)):
                yield b"%d" % number

        @responder.request_channel
        async def echo(channel: Any) -> None:
            async for item in channel:
                await channel.send(item)

        @responder.fire_and_forget
        async def note(request: Payload) -> None:
            self.seen.append(request.data)


def numbers(end: int) -> list[bytes]:
    return [b"%d" % number for number in range(end)]
