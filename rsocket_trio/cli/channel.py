"""The command ``channel``: sends items and shows those that come back, one a line."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import click
import trio

from rsocket_trio import Canceled, Channel, Connection, Payload
from rsocket_trio.cli.client_command import client_command, json_option
from rsocket_trio.cli.data import each
from rsocket_trio.cli.interactions import Kind, Wish, show
from rsocket_trio.cli.output import Output


async def perform(connection: Connection, wish: Wish, output: Output) -> None:
    """Open the channel, send the payloads of all sources, and write the items that come back."""
    async with aclosing(each(wish.sources)) as payloads:
        opening = await anext(payloads, b"") if wish.first_opens else b""
        async with (
            connection.request_channel(
                Payload(opening, wish.metadata), route=wish.route, initial_request_n=wish.credit, refill=wish.refill
            ) as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_send_all, channel, payloads)
            if await show(connection, channel, wish, output):
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


command = client_command(
    Kind.CHANNEL,
    "Send items and show those that come back, one a line.",
    json_option,
    click.option(
        "--first-opens/--empty-opening",
        "first_opens",
        default=None,
        help="Whether the first payload travels in the frame that opens the channel; by default that one is empty.",
    ),
    examples=(
        "channel tcp://127.0.0.1:7878 --route chat --data hello --data bye",
        "channel tcp://127.0.0.1:7878 --route chat --data - < lines.txt",
    ),
)
