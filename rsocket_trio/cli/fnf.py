"""The command ``fnf``: sends a request that is never answered."""

from __future__ import annotations

from rsocket_trio import Connection, Payload
from rsocket_trio.cli.client_command import client_command
from rsocket_trio.cli.data import whole
from rsocket_trio.cli.interactions import Kind, Wish, hear_of_refusal
from rsocket_trio.cli.output import Output


async def perform(connection: Connection, wish: Wish, output: Output) -> None:
    """Send the request, and wait until a refused SETUP would have been noticed."""
    await connection.fire_and_forget(Payload(await whole(wish.sources), wish.metadata), route=wish.route)
    await hear_of_refusal(connection)


command = client_command(
    Kind.FNF,
    "Send a request that is never answered.",
    examples=("fnf tcp://127.0.0.1:7878 --route log --data 'it works'",),
)
