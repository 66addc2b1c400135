"""One call of an interaction, for tests of what holds for calls of each, and a server in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rsocket_trio import Responder
from tests.connection.pairs import settle
from tests.serving import running_server

INTERACTIONS = ("request_response", "fire_and_forget", "request_stream", "request_channel")
every_interaction = pytest.mark.parametrize("interaction", INTERACTIONS)


def served(responder: Responder) -> AbstractAsyncContextManager[str]:
    """Serve in memory while the block runs, at the URI that it gets."""
    return running_server(responder, "memory://services")


async def ask(
    connection: Any, interaction: str, data: object = b"1", more: Sequence[bytes] = (), **options: Any
) -> list[str]:
    """Make one call of this interaction, to its end or to the third item; return the texts that came.

    On a channel send what is ``more`` and complete.
    """
    if interaction == "request_response":
        return [(await connection.request_response(data, **options)).text]
    if interaction == "fire_and_forget":
        await connection.fire_and_forget(data, **options)
        await settle()
        return []
    if interaction == "request_stream":
        async with connection.request_stream(data, **options) as items:
            return [item.text async for item in items]
    if interaction == "request_subscription":
        async with connection.request_subscription(data, **options) as items:
            return [(await anext(items)).text for _ in range(3)]
    async with connection.request_channel(data, **options) as channel:
        if more:
            await channel.send_many(more)
            await channel.send_eof()
        return [item.text async for item in channel]
