"""The interactions of the client commands, the terms of one, and the steps that several commands share."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TypeAlias

import attrs
import trio

from rsocket_trio import Connection, ConnectionClosed, ConnectionLost, Incoming, Payload, Unsupported
from rsocket_trio.cli.data import Source
from rsocket_trio.cli.output import Output

DEFAULT_CREDIT = 256
ANSWER_TIMEOUT = 1.0
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
    metadata: bytes | None = attrs.field(default=None, repr=False)
    sources: tuple[Source, ...] = ()
    take: int | None = None
    limit_rate: int | None = None
    delay: float = 0.0
    first_opens: bool = False
    as_json: bool = False
    """True if each item is shown as a JSON object with its metadata, instead of its data alone."""

    @property
    def credit(self) -> int:
        """The initial credit, at most ``take``."""
        credit = self.limit_rate or DEFAULT_CREDIT
        return credit if self.take is None else min(credit, self.take)

    @property
    def refill(self) -> bool:
        """Return whether the interaction may take more items than the initial credit."""
        return self.take is None or self.take > self.credit


Performer: TypeAlias = Callable[[Connection, Wish, Output], Awaitable[None]]


def performer(kind: Kind) -> Performer:
    """Return ``perform`` of the interaction's command, the module of its name: it returns when the request is over."""
    perform: Performer = import_module(f"{__package__}.{kind.value}").perform
    return perform


async def hear_of_refusal(connection: Connection) -> None:
    """Wait for keepalive answers, so that a refused SETUP is noticed where the peer answers nothing else."""
    # Keepalives overtake queued frames: the send task takes those first, in between.
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    with trio.move_on_after(ANSWER_TIMEOUT):
        try:
            # A server whose application still considers the SETUP answers the first ping; by the second the application
            # has decided, unless it is slow.
            await connection.ping()
            await connection.ping()
        except (ConnectionLost, ConnectionClosed, Unsupported):
            # The interaction is done: the way in which the connection ends does not matter.
            return


async def write_item(connection: Connection, item: Payload, wish: Wish, output: Output) -> None:
    """Write one item on a line, after the delay that is asked for."""
    if wish.delay:
        await trio.sleep(wish.delay)
    if wish.as_json:
        from rsocket_trio.cli.item_json import item_json

        await output.write_line(item_json(item, connection.setup))
    else:
        await output.write_line(item.data)


async def show(connection: Connection, items: Incoming, wish: Wish, output: Output) -> bool:
    """Write items as they come. Return whether it stopped because enough items came."""
    left = wish.take
    async for item in items:
        await write_item(connection, item, wish, output)
        if left is not None:
            left -= 1
            if not left:
                return True
    return False
