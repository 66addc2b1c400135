"""CONNECTION_ERROR while nothing is open, as Java's ``dispose`` says it, is an ordinary end and nobody's fault."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Channel, Connection, ConnectionLost, Payload, Responder
from tests.conformance import raw
from tests.conformance.raw import (
    CONNECTION_ERROR,
    RS10,
    F,
    Wire,
    ask,
    both,
    channel,
    complete,
    error,
    settle,
    stream,
)
from tests.each_row import each_row

DISPOSED = error(0, CONNECTION_ERROR, b"Disposed")


class Served:
    """A responder, the connections that it was asked over, and what the log had of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture, decided: trio.Event | None = None) -> None:
        caplog.set_level(logging.INFO, "rsocket_trio")
        self._caplog = caplog
        self.connections: list[Connection] = []
        self.responder = responder = Responder()

        @responder.setup
        async def remember(setup: object, connection: Connection) -> None:
            self.connections.append(connection)
            if decided is not None:
                await decided.wait()

        @responder.request_response
        async def answer(request: Payload) -> Payload:
            if request.data == b"wait":
                await trio.sleep_forever()
            return request

        @responder.request_stream
        async def endless(request: Payload) -> AsyncIterator[bytes]:
            while True:
                yield b"x"

        @responder.request_channel
        async def talk(channel: Channel) -> None:
            await trio.sleep_forever()

        @responder.fire_and_forget
        async def note(request: Payload) -> None:
            await trio.sleep(1)

    @property
    def levels(self) -> list[int]:
        """Of the lines that say how a connection ended."""
        return [record.levelno for record in self._caplog.records if "the peer ended the connection" in record.message]


@both
async def test_at_a_server_with_nothing_open(
    wire: Wire, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(caplog)
    async with raw.server(wire, served.responder) as peer:
        await peer.send(ask(1, b"x"), stream(3, 1), raw.cancel(3), raw.forget(5, b"x"))
        await settle()
        await peer.send(DISPOSED)
        await settle()
        [connection] = served.connections
        assert connection.status == "closed"
        assert connection.faults.peer_faults == 0
        ended = await connection.wait_closed()
        assert isinstance(ended, ConnectionLost)
        assert (ended.code, ended.args) == (CONNECTION_ERROR, ("the peer ended the connection: Disposed",))
    assert served.levels == [logging.INFO]


@both
async def test_at_a_client_with_nothing_open(
    wire: Wire, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(caplog)
    async with raw.client(wire) as (connection, peer):
        await peer.send(DISPOSED)
        ended = await connection.wait_closed()
        assert connection.faults.peer_faults == 0
        with pytest.raises(ConnectionLost, match="the peer ended the connection: Disposed"):
            await connection.request_response(b"x")
    assert isinstance(ended, ConnectionLost)
    assert served.levels == [logging.INFO]


OPEN: dict[str, list[bytes]] = {
    "a request": [ask(1, b"wait")],
    "a request in the same read": [ask(1, b"x"), DISPOSED],
    "a stream": [stream(1, 1)],
    "a channel": [channel(1, 1)],
    "a channel of which one half is over": [channel(1, 1), complete(1)],
    "half a request": [ask(1, b"x", F)],
}


@each_row("frames", OPEN.values(), ids=OPEN.keys())
async def test_with_a_stream_open_it_is_a_fault(
    frames: list[bytes], autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(caplog)
    async with raw.server(RS10, served.responder) as peer:
        await peer.send(*frames)
        if DISPOSED not in frames:
            await settle()
            await peer.send(DISPOSED)
        await settle()
        assert served.connections[0].faults.peer_faults == 1
    assert served.levels == [logging.WARNING]
