"""A connection that is lost before its first frame says so, and one that was heard of does not."""

from __future__ import annotations

import ssl
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ConnectionLost, open_connection
from rsocket_trio.transports.error_text import NO_FRAME
from tests.conformance import raw
from tests.connection.pairs import settle


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss", "h2", "h2s"])
@pytest.mark.parametrize("reads", [True, False], ids=["reads first", "cut"])
async def test_a_server_that_accepts_and_goes_said_nothing(scheme: str, reads: bool) -> None:
    async def go(stream: trio.SocketStream) -> None:
        if reads:
            await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, go, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        context = ssl.create_default_context() if scheme in {"tls", "wss", "h2s"} else None
        with pytest.raises(ConnectionLost, match=NO_FRAME):
            async with open_connection(f"{scheme}://127.0.0.1:{port}", ssl_context=context) as connection:
                await connection.request_response()
        nursery.cancel_scope.cancel()


async def test_a_server_that_sent_a_frame_is_not_said_to_have_sent_none(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        await peer.send(raw.keepalive(respond=False))
        await settle()
        await peer.stream.aclose()
        lost = await connection.wait_closed()

    assert isinstance(lost, ConnectionLost)
    assert NO_FRAME not in str(lost)
