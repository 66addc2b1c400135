"""The command ``request``: asks for one answer and shows it."""

from __future__ import annotations

from rsocket_trio import Connection, Payload
from rsocket_trio.cli.client_command import client_command, json_option
from rsocket_trio.cli.data import whole
from rsocket_trio.cli.interactions import Kind, Wish, write_item
from rsocket_trio.cli.output import Output


async def perform(connection: Connection, wish: Wish, output: Output) -> None:
    """Make the request, and write its answer."""
    payload = Payload(await whole(wish.sources), wish.metadata)
    reply = await connection.request_response(payload, route=wish.route)
    await write_item(connection, reply, wish, output)


command = client_command(
    Kind.REQUEST,
    "Ask for one answer, and show it.",
    json_option,
    examples=(
        "request tcp://127.0.0.1:7878 --route greet --data Ada",
        "request tcp://127.0.0.1:7878 --route whoami --auth-bearer TOKEN --json",
    ),
)
