"""This side of the interop tests: our library serves what the peers serve, and does what they can be told to do.

README.md lists both, so that one test can be played with either side as its server. ``our_responder`` makes the
server's half; ``OurClient`` is to a ``Connection`` what ``PeerClient`` is to a process.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

import attrs
import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    Incoming,
    Outgoing,
    Payload,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    current_connection,
)
from rsocket_trio.errors import StreamError
from tests.interop.peers import Result, as_command, pattern, with_bytes

F = TypeVar("F", bound=Callable[..., Any])

LARGE_REQUEST = 271_828
LARGE_REPLY = 314_159
LAST_HOLD = 100
"""Milliseconds in which an item beyond the credit would be noticed."""


# ---- what a responder saw


@attrs.define(eq=False)
class Seen:
    """What one responder saw, on all its connections."""

    cancels: int = 0
    fnf: list[str] = attrs.field(factory=list)
    push: list[str] = attrs.field(factory=list)
    credits: list[int] = attrs.field(factory=list)
    setups: list[Setup] = attrs.field(factory=list)

    @contextmanager
    def cancel(self) -> Iterator[None]:
        """Count the handler that runs in this block if it is cancelled."""
        try:
            yield
        except trio.Cancelled:
            self.cancels += 1
            raise


@attrs.define(eq=False)
class Meter:
    """Tells the grants of credit from how the room to send changes; they must not come faster than it looks."""

    side: Outgoing | Channel
    grants: list[int] = attrs.field(factory=list)
    room: int = 0

    def look(self) -> None:
        granted = self.side.room - self.room
        self.room = self.side.room
        if granted > 0:
            self.grants.append(granted)

    async def send(self, payload: Payload | str) -> None:
        self.look()
        await self.side.send(payload)
        self.room -= 1
        self.look()


# ---- the responder


def our_responder(seen: Seen | None = None) -> Responder:
    """A responder with the fixed set of behaviours."""
    responder = Responder()
    seen = seen if seen is not None else Seen()
    add_responses(responder, seen)
    add_streams(responder, seen)
    add_channels(responder, seen)

    @responder.setup
    def let_in(setup: Setup, connection: Connection) -> None:
        seen.setups.append(setup)
        if setup.payload.data == b"refuse":
            raise RejectedSetup("refused as asked")

    @responder.metadata_push
    def pushed(metadata: bytes) -> None:
        seen.push.append(metadata.hex())

    def forget(request: Payload) -> None:
        seen.fnf.append(request.data.hex())

    for route in (None, "echo"):
        responder.fire_and_forget(route)(forget)
    return responder


def add_responses(responder: Responder, seen: Seen) -> None:
    def echo(request: Payload) -> Payload:
        return request

    responder.request_response()(echo)
    responder.request_response("echo")(echo)

    @responder.request_response("error")
    def error(request: Payload) -> Payload:
        raise ApplicationError(request.data)

    @responder.request_response("large")
    async def large(request: Payload) -> bytes:
        if request.data != pattern(LARGE_REQUEST):
            raise ApplicationError(f"{len(request.data)} bytes, and not the right ones")
        return pattern(LARGE_REPLY)

    @responder.request_response("check")
    def check(request: Payload) -> str:
        length = len(request.data)
        return json.dumps({"size": length, "same": request.data == pattern(length)})

    @responder.request_response("sleep")
    async def sleep(request: Payload) -> str:
        with seen.cancel():
            await trio.sleep(int(request.text) / 1000)
        return "slept"

    @responder.request_response("cancels")
    def cancels(request: Payload) -> str:
        return str(seen.cancels)

    @responder.request_response("credits")
    def credits_(request: Payload) -> str:
        return json.dumps(drained(seen.credits))

    @responder.request_response("received")
    def received(request: Payload) -> str:
        return json.dumps({"fnf": drained(seen.fnf), "push": drained(seen.push)})

    @responder.request_response("setup")
    def setup(request: Payload) -> str:
        said = current_connection().setup
        metadata = said.payload.metadata
        return json.dumps(
            {
                "metadata_mime": said.metadata_mime,
                "data_mime": said.data_mime,
                "keepalive": round(said.keepalive_interval * 1000),
                "lifetime": round(said.max_lifetime * 1000),
                "data": said.payload.data.hex(),
                "metadata": None if metadata is None else metadata.hex(),
            }
        )

    @responder.request_response("call")
    async def call(request: Payload) -> str:
        return json.dumps(await carry_out(current_connection(), json.loads(request.text)))


def add_streams(responder: Responder, seen: Seen) -> None:
    @responder.request_stream("count")
    async def count(request: Payload, out: Outgoing) -> None:
        meter = metered(out)
        for number in range(int(request.text)):
            await meter.send(str(number))

    @responder.request_stream("infinite")
    async def infinite(request: Payload, out: Outgoing) -> None:
        meter = metered(out)
        number = 0
        with seen.cancel():
            while True:
                await meter.send(str(number))
                number += 1
                if number % 16 == 0:
                    await trio.sleep(0.001)

    @responder.request_stream("silent")
    async def silent(request: Payload, out: Outgoing) -> None:
        with seen.cancel():
            await trio.sleep_forever()

    @responder.request_stream("sizes")
    async def sizes(request: Payload) -> AsyncIterator[bytes]:
        for size in request.text.split(","):
            yield pattern(int(size))

    @responder.request_stream("fail")
    async def fail(request: Payload) -> AsyncIterator[str]:
        for number in range(int(request.text)):
            yield str(number)
        raise ApplicationError(f"failed after {request.text}")

    def metered(out: Outgoing) -> Meter:
        seen.credits.clear()
        return Meter(out, seen.credits)


def add_channels(responder: Responder, seen: Seen) -> None:
    def channel_handler(route: str | None = None) -> Callable[[F], F]:
        # What the README says of grants: four messages, then more as they come.
        return responder.request_channel(route, initial_request_n=4)

    async def echo(channel: Channel) -> None:
        meter = metered(channel)
        with seen.cancel():
            async with aclosing(messages(channel)) as received:
                async for message in received:
                    await meter.send(message)

    channel_handler()(echo)
    channel_handler("echo")(echo)

    @channel_handler("pingpong")
    async def pingpong(channel: Channel) -> None:
        async with aclosing(messages(channel)) as received:
            async for message in received:
                size, _, _ = message.data.partition(b"\0")
                await channel.send(pattern(int(size)))

    @channel_handler("sum")
    async def sum_(channel: Channel) -> None:
        total = 0
        async with aclosing(messages(channel)) as received:
            async for message in received:
                total += len(message.data)
        await channel.send(str(total))

    @channel_handler("fail")
    async def fail(channel: Channel) -> None:
        async with aclosing(messages(channel)) as received:
            async for message in received:
                raise ApplicationError(message.data)

    @channel_handler("half")
    async def half(channel: Channel) -> None:
        await channel.send_eof()
        async with aclosing(messages(channel)) as received:
            async for message in received:
                seen.fnf.append(message.data.hex())

    @channel_handler("stop")
    async def stop(channel: Channel) -> None:
        async with aclosing(messages(channel)) as received:
            async for _ in received:
                break
        await channel.send("stopped")  # returning completes our half and cancels theirs

    def metered(channel: Channel) -> Meter:
        seen.credits.clear()
        return Meter(channel, seen.credits)


async def messages(channel: Channel) -> AsyncGenerator[Payload, None]:
    """The messages of a channel, the payload that opened it counting as one where it has data."""
    if channel.request.data:
        yield channel.request
    async for message in channel:
        yield message


def drained(items: list[Any]) -> list[Any]:
    taken = items[:]
    items.clear()
    return taken


# ---- the requester


class OurClient:
    """Carries out the commands of README.md by our own API."""

    def __init__(self, connection: Connection) -> None:
        # Weak, so that a test that fails, whose traceback refers to this, does not seem to leave a connection behind.
        self._connection = weakref.ref(connection)

    async def do(self, what: str, *, data: bytes | None = None, metadata: bytes | None = None, **fields: Any) -> Result:
        """Do something, and give what came of it, in the form of ``PeerClient.do``."""
        connection = self._connection()
        assert connection is not None
        return with_bytes(await carry_out(connection, as_command(what, data=data, metadata=metadata, **fields)))


async def carry_out(connection: Connection, command: Result) -> Result:
    """Carry out one command, given and answered as JSON would have it."""
    try:
        return {"ok": True} | await COMMANDS[command["do"]](connection, command)
    except StreamError as error:
        return failed(error)


def failed(error: StreamError) -> Result:
    return {"ok": False, "code": error.code, "error": error.text}


def payload_of(command: Result) -> Payload:
    data = pattern(command["size"]) if "size" in command else bytes.fromhex(command.get("data", ""))
    metadata = command.get("metadata")
    return Payload(data, None if metadata is None else bytes.fromhex(metadata))


def patience_of(command: Result) -> float:
    """Seconds, from milliseconds, until a command cancels; infinite where it does not."""
    return float(command.get("cancel_after", math.inf)) / 1000


async def request_response(connection: Connection, command: Result) -> Result:
    with trio.move_on_after(patience_of(command)):
        reply = await connection.request_response(payload_of(command), route=command.get("route"))
        return {"data": reply.data.hex(), "metadata": hexed(reply.metadata)}
    return {"cancelled": True}


async def request_stream(connection: Connection, command: Result) -> Result:
    taker = Taker(command)
    async with connection.request_stream(payload_of(command), **taker.terms()) as items:
        await taker.take(items)
    return taker.result


async def request_channel(connection: Connection, command: Result) -> Result:
    taker = Taker(command)
    async with connection.request_channel(payload_of(command), **taker.terms()) as channel:
        half = Half(channel, command, taker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(half.send_all)
            await taker.take(channel)
            if taker.result.get("completed") and command.get("complete", True):
                await half.over.wait()  # a responder that is done may still be listening
            nursery.cancel_scope.cancel()
    half.meter.look()
    stopped = half.stopped and taker.result.get("ok", True)  # an error ends both halves, which is no cancel
    return taker.result | {"granted": sum(half.meter.grants), "sent": half.sent, "stopped": stopped}


async def fire_and_forget(connection: Connection, command: Result) -> Result:
    await connection.fire_and_forget(payload_of(command), route=command.get("route"))
    return {}


async def metadata_push(connection: Connection, command: Result) -> Result:
    await connection.metadata_push(bytes.fromhex(command["metadata"]))
    return {}


async def many(connection: Connection, command: Result) -> Result:
    replies: list[Result] = []

    async def one() -> None:
        replies.append(await carry_out(connection, command | {"do": "request_response"}))

    async with trio.open_nursery() as nursery:
        for _ in range(command["count"]):
            nursery.start_soon(one)
    errors = [reply for reply in replies if not reply["ok"]]
    answers = [reply["data"] for reply in replies if reply["ok"]]
    return {"ok": not errors, "answers": len(answers), "different": sorted(set(answers)), "errors": errors}


COMMANDS: dict[str, Callable[[Connection, Result], Awaitable[Result]]] = {
    "request_response": request_response,
    "request_stream": request_stream,
    "request_channel": request_channel,
    "fire_and_forget": fire_and_forget,
    "metadata_push": metadata_push,
    "many": many,
}


class Taker:
    """Takes items with the credit that a command asks for, and tells what came."""

    def __init__(self, command: Result) -> None:
        self.command = command
        self.grants: list[int] = list(command.get("later", ()))
        self.credit: float = command.get("initial_n", math.inf)
        self.came = trio.Event()
        self.items: list[str] = []
        self.metadata: list[str | None] = []
        self.result: Result = {
            "completed": False,
            "cancelled": False,
            "items": self.items,
            "metadata": self.metadata,
            "surplus": 0,
        }

    def terms(self) -> Result:
        """Return how the stream is opened: without a word on credit the library sees to it."""
        route = {"route": self.command.get("route")}
        if "initial_n" not in self.command:
            return route
        return route | {"initial_request_n": self.command["initial_n"], "refill": False}

    async def take(self, incoming: Incoming) -> None:
        with trio.move_on_after(patience_of(self.command)) as patience:
            try:
                await self._take(incoming)
            except StreamError as error:
                self.result |= failed(error)
        if patience.cancelled_caught:
            self.result["cancelled"] = True

    async def _take(self, incoming: Incoming) -> None:
        while True:
            with trio.move_on_after(self._hold()) as hold:
                try:
                    self._on_item(await anext(incoming))
                except StopAsyncIteration:
                    self.result["completed"] = True
                    return
            if len(self.items) == self.command.get("take"):
                break
            if hold.cancelled_caught:
                if not self.grants:
                    break
                request_n = self.grants.pop(0)
                self.credit += request_n
                incoming.request_n(request_n)
        self.result["cancelled"] = True

    def _hold(self) -> float:
        """Seconds to wait for an item: those that are beyond the credit may not come at all."""
        if self.credit > 0:
            return math.inf
        return float(self.command.get("hold", 0 if self.grants else LAST_HOLD)) / 1000

    def _on_item(self, item: Payload) -> None:
        self.items.append(item.data.hex())
        self.metadata.append(hexed(item.metadata))
        self.credit -= 1
        self.result["surplus"] += self.credit < 0
        self.came.set()


class Half:
    """Sends the messages of a channel: as fast as it may, or each only after an answer to the one before."""

    def __init__(self, channel: Channel, command: Result, taker: Taker) -> None:
        self.channel = channel
        self.command = command
        self.taker = taker
        self.meter = Meter(channel)
        self.sent = 0
        self.stopped = False
        self.over = trio.Event()

    async def send_all(self) -> None:
        items = self.command.get("items", ())
        try:
            for item in items:
                await self.meter.send(payload_of({"data": item} if isinstance(item, str) else item))
                self.sent += 1
                if self.command.get("pingpong"):
                    await self.taker.came.wait()
                    self.taker.came = trio.Event()
            if self.command.get("complete", True):
                await self.channel.send_eof()
        except Canceled:
            self.stopped = True
        except RSocketError:
            pass  # the reader hears of it too
        self.over.set()


def hexed(data: bytes | None) -> str | None:
    return None if data is None else data.hex()
