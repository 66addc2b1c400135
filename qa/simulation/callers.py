"""The callers of a simulated run, one for each kind of call: they ask as planned, and keep the books."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import trio

from qa.simulation.books import Books, expected_text
from qa.simulation.items import Items, framed, head
from qa.simulation.plans import STREAMUX, Call
from rsocket_trio import ApplicationError, Channel, Connection, Incoming, RSocketError

FAILED = b"failed"


class Callers:
    """The calls of either side."""

    def __init__(self, books: Books) -> None:
        self.books = books

    async def call_all(self, connection: Connection, caller: Literal["client", "server"]) -> None:
        async with trio.open_nursery() as nursery:
            for call in list(self.books.to_come):
                if call.caller == caller:
                    nursery.start_soon(self.call, connection, call)

    async def call(self, connection: Connection, call: Call) -> None:
        await trio.sleep(call.begins)
        if connection.status != "open":
            return
        self.books.to_come.remove(call)
        outcome = "result"
        try:
            with self.books.checker.call(call.name), trio.fail_after(trio_deadline(call)):
                await CALLERS[call.kind](self, connection, call)
        except (RSocketError, trio.TooSlowError) as error:
            outcome = self.books.judged(call, error)
        except BaseExceptionGroup as group:
            told, rest = group.split((RSocketError, trio.TooSlowError))
            if told is not None:
                outcome = " and ".join(sorted({self.books.judged(call, leaf) for leaf in leaves_of(told)}))
            if rest is not None:
                raise rest from None  # the handler that asks is cancelled
        self.books.outcomes[call.name] = outcome

    async def ask(self, connection: Connection, call: Call) -> None:
        up = self.books.checker.offer(call.name, "up", call.up[0])
        reply = await connection.request_response(head(call) + up)
        if self.books.plan.streamux and call.fails and reply.data == FAILED:
            return
        self.books.expect_no_failure(call)
        self.books.receive(call, "down", reply)
        self.books.checker.completed(call.name, "down")

    async def ask_stream(self, connection: Connection, call: Call) -> None:
        up = head(call) + self.books.checker.offer(call.name, "up", call.up[0])
        ask = connection.request_subscription if call.kind == "subscription" else connection.request_stream
        route = "push" if call.kind == "push" else None
        async with ask(up, route=route, initial_request_n=call.credit, refill=not call.by_hand) as items:
            await self.read_down(items, call)

    async def ask_channel(self, connection: Connection, call: Call) -> None:
        up = head(call) + self.books.checker.offer(call.name, "up", call.up[0])
        opening = connection.request_channel(up, initial_request_n=call.credit, refill=not call.by_hand)
        async with opening as channel, trio.open_nursery() as nursery:
            nursery.start_soon(self.send_up, channel, call)
            await self.read_down(channel, call)
            if call.leaves is not None:
                nursery.cancel_scope.cancel()

    async def ask_chunks(self, connection: Connection, call: Call) -> None:
        if self.books.plan.dialect != STREAMUX:
            await self.ask_channel(connection, call)
            return
        first = head(call) + framed(self.books.checker.offer(call.name, "up", call.up[0]))
        async with connection.request_channel(first) as channel, trio.open_nursery() as nursery:
            nursery.start_soon(self.send_up, channel, call)
            count = 0
            async for item in Items(channel):
                self.books.checker.received(call.name, "down", item)
                await trio.sleep(call.reading)
                count += 1
                if count == call.leaves:
                    break
            else:
                self.books.checker.completed(call.name, "down")
            if call.leaves is not None:
                nursery.cancel_scope.cancel()

    async def tell(self, connection: Connection, call: Call) -> None:
        say = connection.fire_and_forget if call.kind == "forget" else connection.metadata_push
        with self.books.offered(call, "up", call.up[0]) as up:
            await say(head(call) + up)

    async def ping(self, connection: Connection, call: Call) -> None:
        await connection.ping()

    async def read_down(self, items: Incoming, call: Call) -> None:
        """Read until the end, or until the reader has had enough; a planned error comes behind all items."""
        count = 0
        if call.leaves == 0:
            return
        try:
            async for item in items:
                self.books.receive(call, "down", item)
                await trio.sleep(call.reading)
                if call.by_hand:
                    items.request_n(1)
                count += 1
                if count == call.leaves:
                    return
        except ApplicationError as error:
            if error.text == expected_text(call):
                self.books.checker.completed(call.name, "down")
            raise
        self.books.expect_no_failure(call)
        self.books.checker.completed(call.name, "down")

    async def send_up(self, channel: Channel, call: Call) -> None:
        if await self.books.send_all(channel, call, "up", call.up[1:]):
            await channel.send_eof()


CALLERS = {
    "response": Callers.ask,
    "stream": Callers.ask_stream,
    "push": Callers.ask_stream,
    "subscription": Callers.ask_stream,
    "channel": Callers.ask_chunks,
    "forget": Callers.tell,
    "metadata": Callers.tell,
    "ping": Callers.ping,
}


def trio_deadline(call: Call) -> float:
    return float("inf") if call.deadline is None else call.deadline


def leaves_of(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from leaves_of(one)
        else:
            yield one
