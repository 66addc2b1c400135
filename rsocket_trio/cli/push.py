"""The command ``push``: sends metadata that concerns the connection as a whole."""

from __future__ import annotations

from rsocket_trio import Connection
from rsocket_trio.cli.client_command import client_command
from rsocket_trio.cli.data import whole
from rsocket_trio.cli.interactions import Kind, Wish, hear_of_refusal
from rsocket_trio.cli.output import Output
from rsocket_trio.metadata import with_route


async def perform(connection: Connection, wish: Wish, output: Output) -> None:
    """Send the metadata. Raise ``ValueError`` if there is none, or data beside it."""
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
    await hear_of_refusal(connection)


command = client_command(
    Kind.PUSH,
    "Send metadata that concerns the connection as a whole.",
    examples=("push tcp://127.0.0.1:7878 --metadata reload",),
)
