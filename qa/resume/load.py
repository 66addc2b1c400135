"""Streams and channels in both directions at once, over connections that are cut."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

import attrs
import trio

from qa.items import ASKED, ASKING
from qa.resume.ledger import Ledger, Verdict
from qa.resume.proxy import Cut, Tamper, cutting_proxy, random_cuts
from qa.resume.recorder import Recorder
from qa.resume.replays import Eavesdropper
from rsocket_trio import (
    Channel,
    Connection,
    Keepalive,
    Payload,
    Responder,
    ResumeOptions,
    Setup,
    open_connection,
    serve,
)
from rsocket_trio.rsocket.dialect import dialect_named

DIALECTS = ("rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft")
STREAMS = 4
"""Streams, and as many channels, that each side asks for."""
SETTLING = 1.0
"""Seconds in which the last frames must have come."""
CREDIT = 16
FRAGMENT = 16_384
KEEPALIVE = Keepalive(interval=0.1, max_lifetime=0.6)
OPTIONS = ResumeOptions(
    store_bytes=256 * 1024, session_seconds=20, answer_seconds=0.6, first_delay=0.002, longest_delay=0.05
)


@attrs.frozen
class Outcome:
    """The result of one run."""

    verdict: Verdict
    cuts: int
    resumed: int
    again: int
    longest_pause: float
    seconds: float
    complaints: list[str]
    replays: tuple[int, int] = (0, 0)
    """Those that were refused, and those that were taken."""

    @property
    def is_clean(self) -> bool:
        """Return whether nothing at all is to be said against it."""
        return self.verdict.is_clean and not self.complaints and self.longest_pause <= 1.0


class Load:
    """The work of one session: both sides ask for streams and channels, and send items until ``stopping``."""

    def __init__(self, ledger: Ledger, credit: int = CREDIT) -> None:
        self.ledger = ledger
        self.credit = credit
        self.stopping = False
        self.servers: list[Connection] = []
        self._connected = trio.Event()

    def responder(self) -> Responder:
        """Answers for one side; the same for both."""
        responder = Responder()

        @responder.request_stream
        async def stream(request: Payload) -> AsyncIterator[Payload]:
            number = int(request.data)
            self.ledger.start(number)
            for item in self._items(number, ASKED):
                yield item

        @responder.request_channel
        async def channel(channel: Channel) -> None:
            number = int(channel.request.data)
            self.ledger.start(number)
            await self._both_ways(channel, number, ASKED)

        return responder

    def server(self) -> Responder:
        """Answers for the server, which asks its client as well."""
        responder = self.responder()

        @responder.setup
        async def accept(setup: Setup, connection: Connection) -> None:
            self.servers.append(connection)
            self._connected.set()

        return responder

    async def run(self, client: Connection) -> None:
        """Everything of one session; returns when all of it is finished."""
        async with trio.open_nursery() as nursery:
            self._ask(nursery, client, 0)
            with trio.fail_after(OPTIONS.session_seconds):
                await self._connected.wait()
            self._ask(nursery, self.servers[0], 2 * STREAMS)

    def _ask(self, nursery: trio.Nursery, connection: Connection, first: int) -> None:
        for number in range(first, first + STREAMS):
            nursery.start_soon(self._stream, connection, number)
            nursery.start_soon(self._channel, connection, number + STREAMS)

    async def _stream(self, connection: Connection, number: int) -> None:
        async with connection.request_stream(b"%d" % number, initial_request_n=self.credit) as items:
            async for item in items:
                self.ledger.receive(item)

    async def _channel(self, connection: Connection, number: int) -> None:
        async with connection.request_channel(b"%d" % number, initial_request_n=self.credit) as channel:
            await self._both_ways(channel, number, ASKING)

    async def _both_ways(self, channel: Channel, number: int, direction: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, channel, number, direction)
            async for item in channel:
                self.ledger.receive(item)

    async def _send(self, channel: Channel, number: int, direction: int) -> None:
        for item in self._items(number, direction):
            await channel.send(item)
        if direction == ASKING:
            # Who was asked ends by returning, behind the other: 0.2 has no halves.
            await channel.send_eof()

    def _items(self, number: int, direction: int) -> Iterator[Payload]:
        while not self.stopping:
            yield self.ledger.offer(number, direction)


class Pauses:
    """The longest time in seconds that a connection was without a transport."""

    def __init__(self, connection: Connection) -> None:
        self.longest = 0.0
        self.ended = 0
        """The number of times the connection was suspended and resumed."""
        self._since: float | None = None
        connection.on_state(self._on_state)

    def _on_state(self, status: str) -> None:
        now = time.monotonic()
        if status == "suspended":
            self._since = now
        elif self._since is not None:
            self.longest = max(self.longest, now - self._since)
            self.ended += status == "open"
            self._since = None


async def run_load(
    dialect: str,
    cuts: int,
    seed: int,
    *,
    plan: Iterator[Cut | None] | None = None,
    tamper: Tamper | None = None,
    items: int = 0,
    credit: int = CREDIT,
    options: ResumeOptions = OPTIONS,
    patience: float = 60.0,
    overheard: bool = False,
    scheme: str = "tcp",
) -> Outcome:
    """The load over a connection that is cut so many times, then left alone until everything is finished.

    There are at least so many ``items``. With ``overheard`` somebody records how the
    client comes back, and says it again behind every cut. Over another ``scheme`` than ``tcp`` the frames on their way
    are not looked at.
    """
    chance = random.Random(seed)
    ledger, recorder = Ledger(), Recorder(dialect_named(dialect))
    looking = recorder if scheme == "tcp" else None
    load = Load(ledger, credit)
    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        serving = partial(serve, resume=options, fragment_size=FRAGMENT, grace=0)
        [uri] = await nursery.start(serving, load.server(), f"{scheme}://127.0.0.1:0")
        port = int(uri.rpartition(":")[2])
        async with cutting_proxy(port, plan or random_cuts(chance), recorder=looking, tamper=tamper) as proxy:
            proxy.limit = cuts
            eavesdropper = Eavesdropper(proxy, recorder, random.Random(seed))
            if overheard:
                nursery.start_soon(eavesdropper.run)
            async with open_connection(
                proxy.uri.replace("tcp", scheme),
                dialect=dialect,
                responder=load.responder(),
                keepalive=KEEPALIVE,
                resume=options,
                fragment_size=FRAGMENT,
            ) as client:
                pauses = Pauses(client)
                with trio.move_on_after(patience) as waiting:
                    async with trio.open_nursery() as work:
                        work.start_soon(load.run, client)

                        def is_enough() -> bool:
                            # Nobody may end before the last cut has been noticed.
                            is_back = client.status == "open" and (pauses.ended > 0 or not cuts)
                            return proxy.is_done and is_back and ledger.offered >= items

                        while not is_enough():  # noqa: ASYNC110
                            await trio.sleep(0.005)
                        load.stopping = True
                if waiting.cancelled_caught:
                    recorder.complaints.append(f"not finished within {patience:g} s")
                await settle(client, load.servers[0], recorder)
        nursery.cancel_scope.cancel()
    return Outcome(
        verdict=ledger.verdict(),
        cuts=proxy.made,
        resumed=recorder.resumed if looking is not None else pauses.ended,
        again=recorder.again,
        longest_pause=pauses.longest,
        seconds=time.monotonic() - began,
        complaints=recorder.complaints,
        replays=(eavesdropper.refused, eavesdropper.taken),
    )


def positions(connection: Connection) -> tuple[int, int]:
    """Return the positions of a side: sent and received."""
    session = connection._engine.session
    resumption = session.resume_handshake  # type: ignore[attr-defined]
    return resumption.store.position, resumption.received


async def settle(client: Connection, server: Connection, recorder: Recorder) -> None:
    """Wait until all that was sent has come, and compare the positions of both sides."""
    with trio.move_on_after(SETTLING):
        while positions(client) != positions(server)[::-1]:  # noqa: ASYNC110
            await trio.sleep(0.01)
        return
    recorder.complaints.append(f"sent and received: client {positions(client)}, server {positions(server)}")
