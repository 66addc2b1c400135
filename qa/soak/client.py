"""The client of a soak: connections that come and go and are cut, with streams that end in every way."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterable
from typing import Any

import attrs
import trio

from qa.items import ASKED, ASKING, Wrong, check, item
from qa.resume.proxy import reset
from qa.soak.server import BREAK, COMPLETE, FAIL, INTERNAL, ORDER, PLANNED
from rsocket_trio import (
    Channel,
    Connection,
    ConnectionLost,
    Keepalive,
    Payload,
    ResumeOptions,
    RSocketError,
    open_connection,
)
from rsocket_trio.errors import StreamError
from rsocket_trio.transports.socket_stream import SocketStream

DIALECTS = ("rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft")
KEEPALIVE = Keepalive(interval=5, max_lifetime=60)
RESUME = {"store_bytes": 512 * 1024, "session_seconds": 20.0, "first_delay": 0.02, "longest_delay": 1.0}
CREDIT = 4
MOST_ITEMS = 16
PATIENCE = 60.0
"""Seconds beyond the expected ones after which something hangs."""
DEAFNESS = 0.5
"""Seconds at most in which everything is lost before a connection is cut."""
LONGEST_PAUSE = 10.0
"""Seconds in which a session must go on."""


class Deaf(trio.abc.Stream):
    """In place of a stream whose network is gone: what is written is lost, and nothing is read until the end."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._gone = trio.Event()

    async def send_all(self, data: object) -> None:
        """Lose it."""
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """There is always room."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Nothing comes, and then the end."""
        await self._gone.wait()
        raise trio.BrokenResourceError("cut")

    async def aclose(self) -> None:
        """Close the socket."""
        self._gone.set()
        await self.stream.aclose()

    def end(self, *, rudely: bool) -> None:
        """Take the socket away, with a reset or with the ends of both directions."""
        self._gone.set()
        try:
            if rudely:
                reset(self.stream)
            else:
                self.stream.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was lost already


class Line:
    """One connection, and whether it was cut here."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.is_cut = False
        self.resumed = 0
        connection.on_state(self._on_state)

    def _on_state(self, status: str) -> None:
        self.resumed += status == "open"

    async def cut(self, *, seconds: float, rudely: bool) -> None:
        """Have the network lose everything for so long, and then be gone."""
        self.is_cut = True
        link: Any = self.connection._engine.link
        transport = link._transport
        deaf = transport._stream = Deaf(transport._stream)
        transport._socket = transport._prompt = None  # every way to write
        await trio.sleep(seconds)
        deaf.end(rudely=rudely)


@attrs.frozen(kw_only=True)
class Size:
    """The size of a soak."""

    seconds: float = 1800.0
    connections: int = 500
    streams: int = 10_000
    """In flight, in sum."""
    rate: float = 1_000.0
    """Items a second, in sum, about."""
    fate: float = 60.0
    """Seconds after which something befalls a connection, on average."""
    seed: int = 1

    @property
    def pause(self) -> float:
        """Seconds between two items of one stream."""
        return self.streams / self.rate


@attrs.define
class Tally:
    """Counts of the events so far."""

    items: int = 0
    ends: Counter[str] = attrs.field(factory=Counter)
    """Ends of streams by kind."""
    fates: Counter[str] = attrs.field(factory=Counter)
    """Ends of connections by kind."""
    longest_pause: float = 0.0
    failures: list[str] = attrs.field(factory=list)


class Client:
    """All connections, until ``stopping`` is set."""

    def __init__(self, uri: str, size: Size) -> None:
        self.tally = Tally()
        self.stopping = trio.Event()
        self._uri = uri
        self._size = size
        self._chance = random.Random(size.seed)
        self._requests = 0
        self._began = time.monotonic()

    async def run(self) -> None:
        """Everything; returns when all connections are closed."""
        async with trio.open_nursery() as nursery:
            for number in range(self._size.connections):
                nursery.start_soon(self._keep, number)

    async def _keep(self, number: int) -> None:
        """One connection after another. Every other one resumes."""
        await self._wait(self._chance.uniform(0, min(5.0, self._size.seconds / 10)))
        options = ResumeOptions(**RESUME) if number % 2 else None  # type: ignore[arg-type]
        dialect = DIALECTS[number // 2 % len(DIALECTS)]
        while not self.stopping.is_set():
            line: Line | None = None
            name = f"connection {number}, {dialect}{', resuming' if options else ''}"
            try:
                async with open_connection(
                    self._uri, dialect=dialect, keepalive=KEEPALIVE, resume=options
                ) as connection:
                    await connection.ping()  # what was never begun can't go on
                    line = Line(connection, name)
                    await self._live(line, resumes=options is not None)
            except (RSocketError, Wrong, OSError, trio.TooSlowError, ExceptionGroup) as error:
                if line is None or not self._is_due(error, line):
                    self._fail(f"{name}: {error!r}")
                    await self._wait(1.0)

    async def _live(self, line: Line, *, resumes: bool) -> None:
        """Streams on one connection until its end."""
        share = round(self._size.streams / self._size.connections)
        async with trio.open_nursery() as nursery:
            for _ in range(share):
                nursery.start_soon(self._stream_after_stream, line, resumes)
            while not await self._wait(self._chance.expovariate(1 / self._size.fate)):
                if self._chance.random() < 0.3:
                    self.tally.fates["left"] += 1
                    break
                if not resumes:
                    await self._cut(line)
                    self.tally.fates["cut"] += 1
                    with trio.fail_after(PATIENCE):
                        while line.connection.status != "closed":  # noqa: ASYNC110
                            await trio.sleep(0.02)
                    await trio.sleep(0.1)  # its calls raise now
                    break
                await self._resume(line)
            nursery.cancel_scope.cancel()

    async def _resume(self, line: Line) -> None:
        """Cut it, and wait until it goes on."""
        before = line.resumed
        await self._cut(line)
        began = time.monotonic()
        with trio.fail_after(LONGEST_PAUSE):
            while line.resumed == before:
                if line.connection.status == "closed":
                    raise Wrong("a session did not go on")
                await trio.sleep(0.01)
        self.tally.longest_pause = max(self.tally.longest_pause, time.monotonic() - began)
        self.tally.fates["resumed"] += 1

    async def _cut(self, line: Line) -> None:
        await line.cut(seconds=self._chance.uniform(0, DEAFNESS), rudely=self._chance.random() < 0.5)

    async def _stream_after_stream(self, line: Line, resumes: bool) -> None:
        while line.connection.status != "closed":
            self._requests += 1
            number, items = self._requests % 2**32, self._chance.randint(1, MOST_ITEMS)
            end = self._chance.choices((COMPLETE, FAIL, BREAK), (8, 1, 1))[0]
            order = ORDER.pack(number, items, self._size.pause, end)
            try:
                with trio.fail_after(PATIENCE + 3 * items * self._size.pause):
                    how = await self._chance.choice((self._request, self._stream, self._channel))(
                        line.connection, number, items, order
                    )
                if how != "cancelled" and end != COMPLETE:
                    raise Wrong(f"stream {number} should have failed, and did not")
            except StreamError as error:
                said = error.text
                if (end, said) not in {(FAIL, PLANNED), (BREAK, INTERNAL)}:
                    self._fail(f"stream {number}: {error!r}")
                how = "failed as planned"
            except (RSocketError, Wrong, trio.TooSlowError) as error:
                if resumes or not self._is_due(error, line):
                    self._fail(f"stream {number} over {line.name}: {error!r}, {error.__cause__!r}")
                    await trio.sleep(0.1)
                how = "lost with their connection"
            self.tally.ends[how] += 1

    async def _request(self, connection: Connection, number: int, items: int, order: bytes) -> str:
        leaves = self._chance.random() < 0.2
        seconds = self._chance.uniform(0, items * self._size.pause) if leaves else float("inf")
        with trio.move_on_after(seconds):
            check(await connection.request_response(order, route="soak"), number, ASKED, 0)
            self.tally.items += 1
            return "completed"
        return "cancelled"

    async def _stream(self, connection: Connection, number: int, items: int, order: bytes) -> str:
        async with connection.request_stream(order, route="soak", initial_request_n=CREDIT) as came:
            return await self._receive(came, number, items)

    async def _channel(self, connection: Connection, number: int, items: int, order: bytes) -> str:
        async with connection.request_channel(order, route="soak", initial_request_n=CREDIT) as channel:
            how = ""
            errors: list[RSocketError | Wrong] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, channel, number, items)
                try:
                    how = await self._receive(channel, number, items)
                except (RSocketError, Wrong) as error:
                    errors.append(error)
                if errors or how == "cancelled":
                    nursery.cancel_scope.cancel()
            if errors:
                try:
                    raise errors[0]
                finally:
                    errors.clear()  # its traceback refers to this frame
            return how

    async def _receive(self, came: AsyncIterable[Payload], number: int, items: int) -> str:
        stop = self._chance.randrange(items) if self._chance.random() < 0.2 else items + 1
        count = 0
        async for one in came:
            check(one, number, ASKED, count)
            self.tally.items += 1
            count += 1
            if count > stop:
                return "cancelled"
        if count != items:
            raise Wrong(f"it ended after {count} items of {items}")
        return "completed"

    async def _send(self, channel: Channel, number: int, items: int) -> None:
        try:
            for one in range(items):
                await channel.send(item(number, ASKING, one))
                await trio.sleep(self._chance.uniform(0, self._size.pause))
            await channel.send_eof()
        except RSocketError:
            pass  # whoever receives is told as well

    async def _wait(self, seconds: float) -> bool:
        """Sleep. Return whether it is time to stop."""
        with trio.move_on_after(seconds):
            await self.stopping.wait()
        return self.stopping.is_set()

    def _is_due(self, error: Exception, line: Line) -> bool:
        return isinstance(error, ConnectionLost) and line.is_cut

    def _fail(self, text: str) -> None:
        self.tally.failures.append(f"after {time.monotonic() - self._began:.0f} s: {text[:500]}")
