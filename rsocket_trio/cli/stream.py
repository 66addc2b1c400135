"""The command ``stream``: asks for a stream and shows its items, one a line."""

from __future__ import annotations

from rsocket_trio import Connection, Payload
from rsocket_trio.cli.client_command import client_command, json_option
from rsocket_trio.cli.data import whole
from rsocket_trio.cli.interactions import Kind, Wish, show
from rsocket_trio.cli.output import Output


async def perform(connection: Connection, wish: Wish, output: Output) -> None:
    """Make the request, and write the items of its stream."""
    payload = Payload(await whole(wish.sources), wish.metadata)
    async with connection.request_stream(
        payload, route=wish.route, initial_request_n=wish.credit, refill=wish.refill
    ) as items:
        await show(connection, items, wish, output)


command = client_command(
    Kind.STREAM,
    "Ask for a stream, and show its items, one a line.",
    json_option,
    examples=(
        "stream tcp://127.0.0.1:7878 --route prices --data ACME --take 10",
        "stream tcp://127.0.0.1:7878 --route prices --json --limit-rate 16",
    ),
)
