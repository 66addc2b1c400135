"""One test, played with either kind of peer, over each of its transports, and with either side asking the other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import attrs
import trio

from rsocket_trio import Responder, open_connection
from tests.interop.ours import OurClient, our_responder
from tests.interop.peers import Kind, Result, TransportName, client_peer, server_peer
from tests.serving import running_server

FRAGMENT_SIZE = 65_536
PATIENCE = 60.0
"""Seconds in which what has to happen on the other side has happened, unless there is a fault."""


@attrs.frozen
class Setting:
    """Who talks to whom, and how."""

    kind: Kind
    transport: TransportName
    we_ask: bool

    def __str__(self) -> str:
        return f"{self.kind}-{self.transport}-{'we_ask' if self.we_ask else 'they_ask'}"

    @property
    def row(self) -> tuple[Kind, TransportName, bool]:
        """Return its values, as a row of a matrix has them."""
        return self.kind, self.transport, self.we_ask


class Asker(Protocol):
    """Whoever asks: our connection, or a peer's process."""

    async def do(
        self, what: str, *, data: bytes | None = None, metadata: bytes | None = None, **fields: Any
    ) -> Result: ...


@asynccontextmanager
async def asking(setting: Setting, *, fragment: int | None = None) -> AsyncIterator[Asker]:
    """The side that asks, connected to the other. Both send fragments of this size if one is given."""
    fragment_size = fragment or FRAGMENT_SIZE
    options: dict[str, Any] = {} if fragment is None else {"fragment": fragment}
    if setting.we_ask:
        uri = await server_peer(setting.kind, setting.transport, **options)
        async with open_connection(uri, responder=our_responder(), fragment_size=fragment_size) as connection:
            yield OurClient(connection)
    else:
        async with (
            serving(setting.transport, fragment_size=fragment_size) as uri,
            client_peer(setting.kind, uri, **options) as client,
        ):
            yield client


def serving(
    transport: TransportName, responder: Responder | None = None, *, fragment_size: int = FRAGMENT_SIZE, **options: Any
) -> AbstractAsyncContextManager[str]:
    """Our own server, for as long as the block: its URI. It speaks every dialect, as servers do by default."""
    responder = responder if responder is not None else our_responder()
    return running_server(responder, f"{transport}://127.0.0.1:0", fragment_size=fragment_size, grace=1, **options)


async def told(asker: Asker, route: str, data: bytes = b"") -> Any:
    """Return what the responder answers about itself."""
    reply = await asker.do("request_response", route=route, data=data)
    assert reply["ok"], reply
    return json.loads(reply["data"])


async def eventually(look: Callable[[], Awaitable[bool]]) -> bool:
    """Return whether something becomes true in time."""
    with trio.move_on_after(PATIENCE):
        while not await look():  # noqa: ASYNC110  # it is another process that has to do something
            await trio.sleep(0.01)
        return True
    return False


@asynccontextmanager
async def one_handler_stops(asker: Asker) -> AsyncIterator[None]:
    """What is done in the block cancels a handler of the other side, and that really ends."""
    before = await told(asker, "cancels")
    yield

    async def stopped() -> bool:
        return bool(await told(asker, "cancels") > before)

    assert await eventually(stopped), "the handler still runs"
