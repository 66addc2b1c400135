"""Steps in the notation of the conformance cases, played against a server or a client of ours over memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing

from rsocket_trio import Connection, Responder, open_connection_over, serve_stream
from rsocket_trio.conformance.catalogue import Case, Level, read_chapter, steps_of
from rsocket_trio.conformance.play import Player, unconnected
from rsocket_trio.conformance.wire import WireEnd
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.memory import memory_pair
from tests.conformance.peers import responder

PATIENCE = 5.0
"""Seconds, on a clock that jumps, for what a step expects."""
OPAQUE = "application/octet-stream"


class Script:
    """The tester's end of one connection, in a dialect."""

    def __init__(self, dialect: str, role: str, transport: Transport) -> None:
        self._notation = read_chapter(dialect).notation
        case = Case("made-up", dialect, role, "steps of a test", (), Level.MUST, (), ())
        self._player = Player(case, WireEnd(transport, self._notation), PATIENCE, unconnected, as_sent=True)

    async def play(self, steps: str) -> None:
        """Play these steps. Raise ``Failure`` for a peer that does something else."""
        for step in steps_of(steps, {}):
            await self._player.play(step)
        await trio.testing.wait_all_tasks_blocked()


def _pair(*, messages: bool) -> tuple[Transport, Any]:
    """The tester's end over memory, and the other one: of messages, or of byte streams."""
    if messages:
        return memory_pair()
    near, far = trio.testing.memory_stream_pair()
    return ByteStreamTransport(near), far


@asynccontextmanager
async def at_server(
    dialect: str, served: Responder | None = None, *, messages: bool = False, **options: Any
) -> AsyncIterator[Script]:
    """Serve over memory, a byte stream or messages, for as long as the block. Yield the client's end."""
    near, far = _pair(messages=messages)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, served or responder(), far, **{"dialects": [dialect], **options}))
        yield Script(dialect, "server", near)
        nursery.cancel_scope.cancel()
    near.cut()


@asynccontextmanager
async def at_client(
    dialect: str, served: Responder | None = None, *, messages: bool = False, **options: Any
) -> AsyncIterator[tuple[Connection, Script]]:
    """Connect over memory, a byte stream or messages, for as long as the block. Yield both ends."""
    near, far = _pair(messages=messages)
    options = {"metadata_mime": OPAQUE, "responder": served, **options}
    try:
        async with open_connection_over(far, dialect=dialect, **options) as connection:
            yield connection, Script(dialect, "client", near)
    finally:
        near.cut()
