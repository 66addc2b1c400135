"""Connections that share an HTTP/2 connection with a stranger: node's http2, with rsocket-js on its streams."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import open_connection, open_shared
from tests.interop.both_ways import Asker, serving
from tests.interop.ours import OurClient, Seen, our_responder
from tests.interop.peers import Kind, client_peer, pattern, server_peer

CONNECTIONS = 8
LARGE = 300_000

pytestmark = pytest.mark.parametrize("kind", ["js"])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def ask_for_all(asker: Asker, **which: Any) -> None:
    """Ask for one of each, all at once."""
    took: dict[str, Any] = {}

    async def ask(what: str, **terms: Any) -> None:
        took[what] = await asker.do(what, **terms, **which)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(ask, "request_response", route="echo", data=pattern(LARGE)))
        nursery.start_soon(partial(ask, "request_stream", route="count", data=b"30", initial_n=3, later=[7, 20]))
        nursery.start_soon(partial(ask, "request_channel", route="echo", items=numbers(30), initial_n=3, later=[7, 20]))
    assert took["request_response"]["data"] == pattern(LARGE)
    for what in ("request_stream", "request_channel"):
        assert (took[what]["completed"], took[what]["items"], took[what]["surplus"]) == (True, numbers(30), 0)


async def test_our_connections_share_one_to_a_server_of_theirs(kind: Kind) -> None:
    uri = await server_peer(kind, "h2")
    async with open_shared(uri) as shared, AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(open_connection(uri, over=shared)) for _ in range(CONNECTIONS)]
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(ask_for_all, OurClient(connection))


async def test_their_connections_share_one_to_our_server(kind: Kind) -> None:
    seen = Seen()
    async with (
        serving("h2", our_responder(seen)) as uri,
        client_peer(kind, uri, connections=CONNECTIONS) as client,
        trio.open_nursery() as nursery,
    ):
        for number in range(CONNECTIONS):
            nursery.start_soon(partial(ask_for_all, client, connection=number))

    assert len(seen.setups) == CONNECTIONS
    assert len({setup.peer_address for setup in seen.setups}) == 1
