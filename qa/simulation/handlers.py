"""The handlers of a simulated run, which both sides serve: they answer as planned, and keep the books."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from functools import partial
from typing import TypeVar

import trio

from qa.simulation.books import Books
from qa.simulation.callers import Callers
from qa.simulation.items import HEAD, Items
from qa.simulation.plans import STREAMUX, Call
from rsocket_trio import ApplicationError, Channel, Lease, Outgoing, Payload, Responder, Setup, current_connection

T = TypeVar("T")


class Handlers:
    """The handlers of either side; the first call has the server ask, too."""

    def __init__(self, books: Books, callers: Callers) -> None:
        self.books = books
        self.callers = callers

    def responder(self) -> Responder:
        """Return the responder of both sides."""
        responder = Responder()
        if self.books.plan.dialect == STREAMUX:
            if self.books.plan.whole:
                responder.request_response(self.answer)
            else:
                responder.request_channel(self.converse_in_chunks)
            return responder
        responder.request_response(self.answer)
        responder.request_stream(self.produce)
        responder.request_stream("push")(self.push)
        responder.request_subscription(self.produce)
        responder.request_channel(initial_request_n=self.books.plan.channel_credit)(self.converse)
        responder.fire_and_forget(self.note)
        responder.metadata_push(self.note_metadata)
        if self.books.plan.leases is not None:
            responder.lease(partial(grant, *self.books.plan.leases))
        return responder

    async def answer(self, request: Payload) -> bytes:
        call, item = self.books.called(request.data)
        with self.books.checker.handler(call.name):
            self.books.checker.received(call.name, "up", item)
            self.books.checker.completed(call.name, "up")
            return await self.answered(call)

    async def answered(self, call: Call) -> bytes:
        if call.number == 0:
            await self.callers.call_all(current_connection(), "server")
        await trio.sleep(call.pace)
        await end(call)
        return self.books.checker.offer(call.name, "down", call.down[0])

    async def produce(self, request: Payload) -> AsyncIterator[Payload]:
        call, item = self.books.called(request.data)
        with self.books.checker.handler(call.name):
            self.books.checker.received(call.name, "up", item)
            for size in call.down:
                await trio.sleep(call.pace)
                with self.books.offered(call, "down", size) as sent:
                    yield self.books.wrapped(call, sent)
            await end(call)

    async def push(self, request: Payload, out: Outgoing) -> None:
        call, item = self.books.called(request.data)
        with self.books.checker.handler(call.name):
            self.books.checker.received(call.name, "up", item)
            await self.books.send_all(out, call, "down", call.down)
            await end(call)

    async def converse(self, channel: Channel) -> None:
        call, item = self.books.called(channel.request.data)
        with self.books.checker.handler(call.name):
            self.books.checker.received(call.name, "up", item)
            await self.send_and_hear(channel, call, channel, lambda payload: self.books.receive(call, "up", payload))

    async def send_and_hear(
        self, channel: Channel, call: Call, items: AsyncIterable[T], hear: Callable[[T], None], count: int = 0
    ) -> None:
        """Send what is planned, and hear items until the end, or until so many came that the handler returns."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.books.send_all, channel, call, "down", call.down)
            async for item in items:
                hear(item)
                await trio.sleep(call.reading)
                count += 1
                if count > 0 and count == call.returns:
                    nursery.cancel_scope.cancel()
                    break
            else:
                self.books.checker.completed(call.name, "up")
        await end(call)

    async def converse_in_chunks(self, channel: Channel) -> None:
        data = b""
        async for chunk in channel:
            data += chunk.data
            if len(data) >= HEAD:
                break
        call, rest = self.books.called(data)
        with self.books.checker.handler(call.name):
            if call.kind == "response":
                async for chunk in channel:
                    rest += chunk.data
                self.books.checker.received(call.name, "up", rest)
                self.books.checker.completed(call.name, "up")
                answer = await self.answered(call)
                if answer:  # an empty chunk is no answer, an empty answer is no chunk
                    await channel.send(answer)
                return
            # The first item stands with the number of the call, and is none that the handler waits for.
            received = partial(self.books.checker.received, call.name, "up")
            await self.send_and_hear(channel, call, Items(channel, rest), received, count=-1)

    async def note(self, request: Payload) -> None:
        call, item = self.books.called(request.data)
        with self.books.checker.handler(call.name):
            self.books.checker.received(call.name, "up", item)
            await trio.sleep(call.pace)

    async def note_metadata(self, metadata: bytes) -> None:
        await self.note(Payload(metadata))


async def grant(number_of_requests: int, seconds: float, setup: Setup) -> AsyncIterator[Lease]:
    while True:
        yield Lease(number_of_requests, 2 * seconds)
        await trio.sleep(seconds)


async def end(call: Call) -> None:
    """Play the end of a handler: it fails, or never ends, or may return."""
    if call.endless:
        await trio.sleep_forever()
    if call.fails == "error":
        raise ApplicationError(f"planned {call.number}")
    if call.fails == "bug":
        raise ZeroDivisionError(f"planned {call.number}")
