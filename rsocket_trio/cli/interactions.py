"""Runs the one interaction of a client command on an open connection and writes its items to the output."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import attrs
import trio

from rsocket_trio import Canceled, Channel, Connection, ConnectionClosed, ConnectionLost, Incoming, Payload, Unsupported
from rsocket_trio.cli.data import Source, each, whole
from rsocket_trio.cli.output import Output
from rsocket_trio.metadata import with_route

DEFAULT_CREDIT = 256
PATIENCE = 1.0
"""Seconds that a peer gets to answer a keepalive."""


class Kind(enum.Enum):
    """The interactions, by the names of the commands."""

    REQUEST = "request"
    STREAM = "stream"
    CHANNEL = "channel"
    FNF = "fnf"
    PUSH = "push"


@attrs.frozen(kw_only=True)
class Wish:
    """One interaction: the payloads to send, and the number of items to take.

    With ``first_opens`` a channel's first payload travels in the frame that opens it; else that frame is empty.
    """

    kind: Kind
    route: str | None = None
    metadata: bytes | None = None
    sources: tuple[Source, ...] = ()
    take: int | None = None
    limit_rate: int | None = None
    delay: float = 0.0
    first_opens: bool = False

    @property
    def credit(self) -> int:
        """The initial credit, at most ``take``."""
        credit = self.limit_rate or DEFAULT_CREDIT
        return credit if self.take is None else min(credit, self.take)

    @property
    def refill(self) -> bool:
        """Whether the interaction may take more items than the initial credit."""
        return self.take is None or self.take > self.credit


async def perform(connection: Connection, wish: Wish, output: Output) -> None:
    """Perform the interaction, and return when it is over."""
    await PERFORMERS[wish.kind](connection, wish, output)


async def _request(connection: Connection, wish: Wish, output: Output) -> None:
    payload = Payload(await whole(wish.sources), wish.metadata)
    reply = await connection.request_response(payload, route=wish.route)
    await trio.sleep(wish.delay)
    await output.write_line(reply.data)


async def _stream(connection: Connection, wish: Wish, output: Output) -> None:
    payload = Payload(await whole(wish.sources), wish.metadata)
    async with connection.request_stream(
        payload, route=wish.route, initial_request_n=wish.credit, refill=wish.refill
    ) as items:
        await _show(items, wish, output)


async def _channel(connection: Connection, wish: Wish, output: Output) -> None:
    async with aclosing(each(wish.sources)) as payloads:
        opening = await anext(payloads, b"") if wish.first_opens else b""
        async with (
            connection.request_channel(
                Payload(opening, wish.metadata), route=wish.route, initial_request_n=wish.credit, refill=wish.refill
            ) as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_send_all, channel, payloads)
            if await _show(channel, wish, output):
                nursery.cancel_scope.cancel()


async def _send_all(channel: Channel, payloads: AsyncGenerator[bytes, None]) -> None:
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def stop_when_nobody_listens() -> None:
            # The next line may never come.
            await channel.wait_send_closed()
            nursery.cancel_scope.cancel()

        try:
            async for payload in payloads:
                await channel.send(payload)
            await channel.send_eof()
        except Canceled:
            # The peer cancelled our half; its own half goes on.
            return


async def _fnf(connection: Connection, wish: Wish, output: Output) -> None:
    await connection.fire_and_forget(Payload(await whole(wish.sources), wish.metadata), route=wish.route)
    await _hear_of_refusal(connection)


async def _push(connection: Connection, wish: Wish, output: Output) -> None:
    metadata = wish.metadata
    if wish.sources:
        if metadata is not None or wish.route is not None:
            raise ValueError("a push is metadata and nothing else: data cannot go with it")
        metadata = await whole(wish.sources)
    if wish.route is not None:
        metadata = with_route(wish.route, metadata, connection.setup.metadata_mime)
    if metadata is None:
        raise ValueError("a push needs metadata")
    await connection.metadata_push(metadata)
    await _hear_of_refusal(connection)


async def _hear_of_refusal(connection: Connection) -> None:
    """Wait for keepalive answers, so that a refused SETUP is noticed where the peer answers nothing else."""
    # Keepalives overtake queued frames: the send task takes those first, in between.
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    with trio.move_on_after(PATIENCE):
        try:
            # A server whose application still considers the SETUP answers the first ping; by the second the application
            # has decided, unless it is slow.
            await connection.ping()
            await connection.ping()
        except (ConnectionLost, ConnectionClosed, Unsupported):
            # The interaction is done: the way in which the connection ends does not matter.
            return


async def _show(items: Incoming, wish: Wish, output: Output) -> bool:
    """Write items as they come. Return whether it stopped because enough items came."""
    left = wish.take
    async for item in items:
        if wish.delay:
            await trio.sleep(wish.delay)
        await output.write_line(item.data)
        if left is not None:
            left -= 1
            if not left:
                return True
    return False


PERFORMERS: dict[Kind, Callable[[Connection, Wish, Output], Awaitable[None]]] = {
    Kind.REQUEST: _request,
    Kind.STREAM: _stream,
    Kind.CHANNEL: _channel,
    Kind.FNF: _fnf,
    Kind.PUSH: _push,
}
