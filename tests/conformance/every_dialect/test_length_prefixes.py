"""On byte streams a length stands before each frame, in messages it does not: both roles, every dialect, by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
import trio
import trio.testing
import trio_websocket

from rsocket_trio import Keepalive, Payload, Responder, open_connection, open_connection_over, serve, serve_stream
from rsocket_trio.rsocket.dialects import DIALECTS

PATIENCE = 10


class Wire(NamedTuple):
    """The first frames of a client in one dialect, as its document draws them, and the answer of a server that echoes.

    ``on_streams`` and ``in_messages`` are the clauses about the length, ``roles`` those about who says what first.
    """

    name: str
    setup: str
    request: str
    answer: str
    size: int
    counts_itself: bool
    on_streams: str
    in_messages: str
    roles: str

    @property
    def frames(self) -> tuple[bytes, bytes, bytes]:
        return bytes.fromhex(self.setup), bytes.fromhex(self.request), bytes.fromhex(self.answer)

    def prefixed(self, frame: bytes) -> bytes:
        size = len(frame) + (self.size if self.counts_itself else 0)
        return size.to_bytes(self.size, "big") + frame


WIRES: Final = (
    Wire(
        "rsocket/1.0",
        "00000000 0400 0001 0000 00004E20 00015F90 03612F62 03632F64",
        "00000001 1000 6869",
        "00000001 2860 6869",
        *(3, False),
        "RS10-FRM-01 RS10-FRM-03",
        "RS10-FRM-02",
        "RS10-CON-01 RS10-CON-05 RS10-SID-01 RS10-SID-03",
    ),
    Wire(
        "rsocket/2.0-draft",
        "00000000 0600 03632F64 03612F62 0002 0000 8140000008 00004E20 00015F90",
        "00000001 1000 6869",
        "00000001 2860 6869",
        *(3, False),
        "RSX-GEN-01 RSX-GAP-16",
        "RSX-GEN-01",
        "RSX-SETUP-03",
    ),
    Wire(
        "reactivesocket/0.2",
        "00000000 0400 0000 0002 00004E20 00015F90 03612F62 03632F64",
        "00000001 1000 6869",
        "00000001 2860 6869",
        *(3, False),
        "RS02-FRM-01 RS02-FRM-03",
        "RS02-FRM-02",
        "RS02-CON-01 RS02-SID-01 RS02-SID-03",
    ),
    Wire(
        "reactivesocket/0.1",
        "0001 0000 00000000 0000 0001 00004E20 00015F90 03612F62 03632F64",
        "0004 0000 00000002 6869",
        "000B 1000 00000002 6869",
        *(4, True),
        "RS01-HDR-02 RS01-HDR-03 RS01-HDR-04",
        "RS01-HDR-01",
        "RS01-CON-01 RS01-CON-04 RS01-SID-01 RS01-SID-04",
    ),
    Wire(
        "reactivesocket/0.0",
        "00 00 0001 0000000000000000 03612F62 03632F64",
        "00 00 0011 0000000000000002 6869",
        "00 10 0020 0000000000000002 6869",
        *(4, True),
        "RS00-HDR-01 RS00-HDR-03 RS00-HDR-04",
        "RS00-HDR-02",
        "RS00-CON-01 RS00-CON-03 RS00-SID-01 RS00-SID-05",
    ),
)


def wires(column: str) -> pytest.MarkDecorator:
    """A row for each dialect that there is, with the clauses of this column."""
    return pytest.mark.parametrize(
        "wire",
        [
            pytest.param(
                wire, id=wire.name, marks=pytest.mark.clause(*getattr(wire, column).split(), *wire.roles.split())
            )
            for wire in WIRES
            if wire.name in DIALECTS
        ],
    )


def echoing() -> Responder:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    return responder


TERMS: Final[dict[str, Any]] = {"metadata_mime": "a/b", "data_mime": "c/d", "keepalive": Keepalive(20, 90)}


def test_every_dialect_has_a_row() -> None:
    assert {wire.name for wire in WIRES} >= set(DIALECTS)


@wires("on_streams")
async def test_a_server_reads_and_writes_lengths_on_a_stream(wire: Wire, autojump_clock: object) -> None:
    setup, request, answer = wire.frames
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, echoing(), theirs))
        with trio.fail_after(PATIENCE):
            await ours.send_all(wire.prefixed(setup) + wire.prefixed(request))
            assert await read(ours, len(wire.prefixed(answer))) == wire.prefixed(answer)
        await ours.aclose()


@wires("on_streams")
async def test_a_client_reads_and_writes_lengths_on_a_stream(wire: Wire, autojump_clock: object) -> None:
    setup, request, answer = wire.frames
    ours, theirs = trio.testing.memory_stream_pair()
    answers: list[Payload] = []
    async with open_connection_over(theirs, dialect=wire.name, **TERMS) as connection, trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await connection.request_response(b"hi"))

        nursery.start_soon(ask)
        with trio.fail_after(PATIENCE):
            wanted = wire.prefixed(setup) + wire.prefixed(request)
            assert (await read(ours, len(wanted))).hex(" ") == wanted.hex(" ")
            await ours.send_all(wire.prefixed(answer))
    assert answers == [Payload(b"hi")]
    await ours.aclose()


@wires("in_messages")
async def test_a_server_reads_and_writes_a_frame_in_each_message(wire: Wire) -> None:
    setup, request, answer = wire.frames
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, echoing(), ["ws://127.0.0.1:0"])
            async with trio_websocket.open_websocket_url(uri) as socket:
                await socket.send_message(setup)
                await socket.send_message(request)
                assert await socket.get_message() == answer
            nursery.cancel_scope.cancel()


@wires("in_messages")
async def test_a_client_reads_and_writes_a_frame_in_each_message(wire: Wire) -> None:
    setup, request, answer = wire.frames
    heard: list[str | bytes] = []

    async def be_a_server(incoming: trio_websocket.WebSocketRequest) -> None:
        socket = await incoming.accept()
        heard.extend([await socket.get_message(), await socket.get_message()])
        await socket.send_message(answer)
        await closed(socket)

    with trio.fail_after(PATIENCE):
        async with listening(be_a_server) as uri, open_connection(uri, dialect=wire.name, **TERMS) as connection:
            assert await connection.request_response(b"hi") == Payload(b"hi")
    assert heard == [setup, request]


@asynccontextmanager
async def listening(handler: Any) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(trio_websocket.serve_websocket, handler, "127.0.0.1", 0, None)
        yield f"ws://127.0.0.1:{server.port}"
        nursery.cancel_scope.cancel()


async def closed(socket: Any) -> None:
    try:
        await socket.get_message()
    except trio_websocket.ConnectionClosed:
        return


async def read(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = await stream.receive_some()
        assert chunk, f"{data.hex(' ')} and the end"
        data += chunk
    return data
