"""One application and everything that can carry it: a server of all dialects, and a client of each."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    Invalid,
    Lease,
    Outgoing,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    Setup,
    current_connection,
    open_connection,
    open_connection_over,
    serve,
)
from rsocket_trio.mux.framing import EncodedFrame, Framing, whole
from rsocket_trio.rsocket.dialects import DIALECTS
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.connect import open_transport

PATIENCE = 15.0
"""Seconds of real time in which everything has to happen: many more than it takes."""

# What each document does not have. Whoever adds a dialect says it here.
SUBSCRIPTION, CHANNEL, PING, STRICT, CODES, CLOSE = "subscription", "channel", "ping", "strict", "codes", "close"
STREAM_PUSH, ENTRIES, TYPED_METADATA = "metadata push on streams", "extension entries", "typed metadata"
_ONLY_0_0: Final = frozenset({STREAM_PUSH, TYPED_METADATA})
LACKS: Final[dict[str, frozenset[str]]] = {
    "rsocket/1.0": _ONLY_0_0 | {SUBSCRIPTION, STRICT, ENTRIES},
    "rsocket/2.0-draft": _ONLY_0_0 | {SUBSCRIPTION, STRICT},
    "reactivesocket/0.2": _ONLY_0_0 | {SUBSCRIPTION, ENTRIES},
    "reactivesocket/0.1": _ONLY_0_0 | {CLOSE, ENTRIES},
    "reactivesocket/0.0": frozenset({CHANNEL, PING, STRICT, CODES, CLOSE, ENTRIES}),
}
SCHEMES: Final = ("memory", "tcp", "ws", "unix", "tls")


@attrs.frozen
class World:
    """A dialect on a transport."""

    dialect: str
    scheme: str
    folder: Path
    contexts: tuple[ssl.SSLContext, ssl.SSLContext]

    def lacks(self, what: str) -> bool:
        """Return whether the dialect's document has no such thing."""
        return what in LACKS[self.dialect]

    @property
    def address(self) -> str:
        """Return where to listen."""
        return {
            "memory": "memory://application",
            "tcp": "tcp://127.0.0.1:0",
            "tls": "tls://127.0.0.1:0",
            "ws": "ws://127.0.0.1:0/rsocket",
            "unix": f"unix://{self.folder}/s",
        }[self.scheme]

    @property
    def trust(self) -> dict[str, Any]:
        """Return what a client needs to dial."""
        return {"ssl_context": self.contexts[1]} if self.scheme == "tls" else {}

    @asynccontextmanager
    async def served(self, responder: Responder, **options: Any) -> AsyncIterator[str]:
        """A server of all dialects, and its URI."""
        context: dict[str, Any] = {"ssl_context": self.contexts[0]} if self.scheme == "tls" else {}
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                [uri] = await nursery.start(partial(serve, responder, [self.address], **context, **options))
                yield uri
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def stoppable(self, responder: Responder) -> AsyncIterator[tuple[str, trio.CancelScope]]:
        """The same, and what cancels the server; it has as long as the block to finish."""
        context: dict[str, Any] = {"ssl_context": self.contexts[0]} if self.scheme == "tls" else {}
        stop = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[list[str]]) -> None:
            with stop:
                await serve(responder, [self.address], task_status=task_status, **context)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                [uri] = await nursery.start(run)
                yield uri, stop
                stop.cancel()

    @asynccontextmanager
    async def connected(
        self,
        served: Responder,
        responder: Responder | None = None,
        *,
        server: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Connection]:
        """A client's connection to a server of its own; ``server`` are that one's options."""
        async with (
            self.served(served, **(server or {})) as uri,
            open_connection(uri, dialect=self.dialect, responder=responder, **self.trust, **options) as connection,
        ):
            yield connection

    @asynccontextmanager
    async def overheard(self, served: Responder, **options: Any) -> AsyncIterator[tuple[Connection, Overheard]]:
        """The same, and what the client writes."""
        async with self.served(served) as uri, open_transport(uri, **self.trust) as transport:
            wire = Overheard(transport)
            async with open_connection_over(wire, dialect=self.dialect, **options) as connection:
                yield connection, wire


class Overheard(Transport):
    """A transport that remembers the frames that it was told to write."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.handshake: Handshake = transport.handshake
        self.frames: list[bytes] = []
        self._heard = trio.Event()

    async def wait_for(self, count: int) -> None:
        """Wait until so many frames were written."""
        while len(self.frames) < count:
            self._heard = trio.Event()
            await self._heard.wait()

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        self.frames += [whole(frame) for frame in frames]
        self._heard.set()
        await self._transport.send(frames)

    @property
    def is_message_based(self) -> bool:
        return self._transport.is_message_based

    def use_framing(self, framing: Framing) -> None:
        self._transport.use_framing(framing)

    async def peek(self) -> tuple[bytes, bool]:
        return await self._transport.peek()

    async def receive(self) -> Sequence[bytes]:
        return await self._transport.receive()

    @property
    def mid_frame(self) -> bool:
        return self._transport.mid_frame

    async def finish(self, code: int = 1000) -> None:
        await self._transport.finish(code)

    def cut(self) -> bool:
        return self._transport.cut()

    async def aclose(self) -> None:
        await self._transport.aclose()


def worlds(*, lacking: str | None = None, having: str | None = None) -> pytest.MarkDecorator:
    """Run a test in every world, or in those whose dialect lacks, or has, a thing."""
    chosen = [
        (name, scheme)
        for name in DIALECTS
        for scheme in SCHEMES
        if (lacking is None or lacking in LACKS[name]) and (having is None or having not in LACKS[name])
    ]
    return pytest.mark.parametrize("world", chosen, indirect=True, ids=lambda pair: f"{pair[0]} over {pair[1]}")


class Seen:
    """What an application's handlers saw, and what a test tells them."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.pushes: list[bytes] = []
        self.sent = 0
        self.go = trio.Event()
        self._happened = trio.Event()

    def happened(self, *events: object) -> None:
        """Note what happened, and wake whoever waits for it."""
        self.events += events
        self._happened.set()

    async def wait_for(self, *events: object) -> None:
        """Wait until all of these happened."""
        while not set(events) <= set(self.events):
            self._happened = trio.Event()
            await self._happened.wait()


def application(seen: Seen, *, leases: Iterable[Lease] = ()) -> Responder:
    """Return what the server and, where a test calls back, the client serve."""
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    @responder.request_response("greet")
    async def greet(request: Payload) -> str:
        return f"hello, {request.text}"

    @responder.request_response("hang")
    async def hang(request: Payload) -> bytes:
        seen.happened("hanging")
        try:
            await trio.sleep_forever()
        finally:
            seen.happened("hang ended")

    @responder.request_response("finish")
    async def finish(request: Payload) -> bytes:
        seen.happened("waiting")
        await seen.go.wait()
        return b"finished"

    @responder.request_response("fail")
    async def fail(request: Payload) -> bytes:
        raise FAILURES[request.text]()

    @responder.request_response("ask back")
    async def ask_back(request: Payload) -> Payload:
        return await current_connection().request_response(request.data, route="greet")

    @responder.request_response("watch back")
    async def watch_back(request: Payload) -> bytes:
        async with current_connection().request_stream(request.data, route="count") as items:
            return b" ".join([item.data async for item in items])

    @responder.request_response("leave back")
    async def leave_back(request: Payload) -> bytes:
        async with current_connection().request_stream(route="endless") as items:
            return (await anext(items)).data

    @responder.request_stream("count")
    async def count(request: Payload) -> AsyncIterator[str]:
        for number in range(int(request.data)):
            yield str(number)
            seen.sent += 1

    @responder.request_stream("push")
    async def push(request: Payload, out: Outgoing) -> None:
        for letter in request.text:
            await out.send(Payload(letter, b"meta " + letter.encode()))

    @responder.request_stream("big")
    async def big(request: Payload) -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number]) * int(request.data)

    @responder.request_stream("news between")
    async def news_between(request: Payload, out: Outgoing) -> None:
        await out.send(b"one")
        await out.metadata_push(b"news", metadata_type=7)
        await out.send(b"two")

    @responder.request_stream("endless")
    async def endless(request: Payload) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"more"
        finally:
            seen.happened("endless ended")

    @responder.request_stream("two and fail")
    async def two_and_fail(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        raise FAILURES[request.text]()

    @responder.request_subscription("prices")
    async def prices(request: Payload) -> AsyncIterator[str]:
        try:
            for price in range(int(request.data or b"1000000")):
                yield str(price)
        finally:
            seen.happened("prices ended")

    @responder.request_channel("shout")
    async def shout(channel: Channel) -> None:
        await channel.send(channel.request.data.upper())
        async for item in channel:
            await channel.send(item.data.upper())
        seen.happened("shout ended")

    @responder.request_channel("three", initial_request_n=1)
    async def three(channel: Channel) -> None:
        for _ in range(3):
            await channel.send(await anext(channel))

    @responder.request_channel("listen")
    async def listen(channel: Channel) -> None:
        try:
            async for _ in channel:
                seen.happened("heard")
        finally:
            seen.happened("listen ended")

    @responder.fire_and_forget("note")
    async def note(request: Payload) -> None:
        seen.happened(("note", request.data))

    @responder.metadata_push
    def pushed(metadata: bytes) -> None:
        seen.pushes.append(metadata)
        seen.happened("pushed")

    granted = list(leases)
    if granted:

        @responder.lease
        async def policy(setup: Setup) -> AsyncIterator[Lease]:
            for lease in granted:
                yield lease
                await seen.go.wait()

    return responder


def gated(seen: Seen) -> Responder:
    """The same application, which lets in whoever says the word."""
    responder = application(seen)

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        seen.happened((setup.dialect, setup.payload.data, setup.data_mime, setup.metadata_mime))
        if setup.payload.data != b"friend":
            raise RejectedSetup("say friend and enter")

    return responder


FAILURES: Final[dict[str, Callable[[], Exception]]] = {
    "application": lambda: ApplicationError("no such person"),
    "own code": lambda: ApplicationError("out of stock", code=0x301),
    "rejected": lambda: Rejected("not now"),
    "canceled": lambda: Canceled("gave up"),
    "invalid": lambda: Invalid("what?"),
}
"""What a handler raises that is asked to."""
