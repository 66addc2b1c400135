"""One port with all defaults serves the clients of 2016 and 2017, byte for byte as they write, beside those of 1.0."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
import trio
import trio_websocket

from rsocket_trio import Payload, Responder, open_connection, serve

clause = pytest.mark.clause


class Client(NamedTuple):
    """What an old client writes, in hex and without lengths: its SETUP, a request, and what answers that."""

    setup: str
    request: str
    answer: str
    stream: str = ""
    """A stream of three items, where the client has streams; its credit is 1, and 2 more follow."""
    channel: tuple[str, ...] = ()
    """A channel that opens, sends one more item and ends; each has a credit of 1."""
    keeps_length: bool = False
    """Over WebSocket, where it has that."""


JAVA_MIMES: Final = "18 6170706c69636174696f6e2f6f637465742d73747265616d" * 2  # application/octet-stream
UTF_8: Final = "05 7574662d38" * 2
CLIENTS: Final = {
    "java-0.2.2": Client(
        "0001 0000 00000000 00000000 00004e20 00015f90" + JAVA_MIMES,
        "0004 4000 00000002 00000008 4d455441 68656c6c6f",
        "000b 5000 00000002 00000008 4d455441 68656c6c6f",
        "0006 0800 00000004 00000001 73",
        ("0008 0800 00000006 00000001 6f6e65", "0008 0800 00000006 00000001 74776f", "0008 1000 00000006 00000000"),
        keeps_length=True,
    ),
    "java-0.5.2": Client(
        "0001 0000 00000000 00000000 00004e20 00015f90" + JAVA_MIMES,
        "0004 4000 00000001 00000008 4d455441 68656c6c6f",
        "000b 5000 00000001 00000008 4d455441 68656c6c6f",
        "0006 0800 00000003 00000001 73",
        ("0008 0800 00000005 00000001 6f6e65", "0008 0800 00000005 00000001 74776f", "000b 1000 00000005"),
    ),
    "js-3": Client(
        "0001 0000 00000000 00000000 000003e8 00002710" + UTF_8,
        "0004 4000 00000001 00000008 4d455441 68656c6c6f",
        "000b 5000 00000001 00000008 4d455441 68656c6c6f",
        keeps_length=True,
    ),
    "js-1": Client(
        "0001 0000 00000000 00000000 000003e8 00002710" + UTF_8,
        "0004 0000 00000002 68656c6c6f",
        "000b 1000 00000002 68656c6c6f",
        keeps_length=True,
    ),
    "go-2016": Client(
        "0001 0000 00000000 00000000 00004e20 00015f90" + JAVA_MIMES,
        "0004 0000 00000001 68656c6c6f",
        "000b 1000 00000001 68656c6c6f",
        "0006 0800 00000003 00000001 73",
        ("0008 0800 00000005 00000001 6f6e65", "0008 0000 00000005 74776f", "0008 1000 00000005"),
    ),
    "python-2017": Client(
        "0001 1000 00000000 00000002 0000ea60 0003a980" + UTF_8,  # strict, 60 s and 240 s
        "0004 0000 00000002 68656c6c6f",
        "000b 1000 00000002 68656c6c6f",
        "0006 0000 00000004 00000001 73",
    ),
}


def application() -> Responder:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    @responder.request_stream
    async def thrice(request: Payload) -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    @responder.request_channel
    async def back(channel: Any) -> None:
        await channel.send(channel.request)
        async for item in channel:
            await channel.send(item)

    return responder


def wire(frame: str) -> bytes:
    data = bytes.fromhex(frame)
    return (len(data) + 4).to_bytes(4, "big") + data


class Talk:
    """A raw client: what it says, and the frames that it hears, without lengths."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = b""

    async def say(self, *frames: str) -> None:
        await self._stream.send_all(b"".join(map(wire, frames)))

    async def hear(self) -> str:
        while len(self._data) < 4 or len(self._data) < (size := int.from_bytes(self._data[:4], "big")):
            chunk = bytes(await self._stream.receive_some())
            assert chunk, "the server closed"
            self._data += chunk
        frame, self._data = self._data[4:size], self._data[size:]
        return frame.hex()


def frame(text: str) -> str:
    return bytes.fromhex(text).hex()


@clause("DET-05", "RS01-SETUP-10", "RS01-SID-04", "RS01-SETUP-04", "QRK-04")
async def test_one_port_serves_them_all_at_once_beside_1_0() -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(serve, application(), "tcp://127.0.0.1:0")
            port = int(uri.rpartition(":")[2])
            streams = {name: await trio.open_tcp_stream("127.0.0.1", port) for name in CLIENTS}
            talks = {name: Talk(stream) for name, stream in streams.items()}
            async with open_connection(uri) as modern:
                for name, client in CLIENTS.items():
                    await talks[name].say(client.setup, client.request)
                for name, client in CLIENTS.items():
                    assert await talks[name].hear() == frame(client.answer), name
                assert (await modern.request_response(b"hi")).data == b"hi"
            for stream in streams.values():
                await stream.aclose()
            nursery.cancel_scope.cancel()


@clause("RS01-FLOW-01", "RS01-SEQ-06")
@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.stream])
async def test_their_streams_have_their_items(name: str) -> None:
    client = CLIENTS[name]
    stream_id = frame(client.stream)[8:16]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(serve, application(), "tcp://127.0.0.1:0")
            stream = await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2]))
            talk = Talk(stream)
            await talk.say(client.setup, client.request, client.stream)
            assert await talk.hear() == frame(client.answer)
            assert await talk.hear() == frame(f"000b 0000 {stream_id} 30")
            await talk.say(f"0009 0000 {stream_id} 00000002")
            assert [await talk.hear() for _ in range(3)] == [
                frame(f"000b 0000 {stream_id} 31"),
                frame(f"000b 0000 {stream_id} 32"),
                frame(f"000b 1000 {stream_id}"),
            ]
            await stream.aclose()
            nursery.cancel_scope.cancel()


@clause("RS01-CH-01", "RS01-SEQ-09", "QRK-16")
@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.channel])
async def test_their_channels_have_their_items_and_end(name: str) -> None:
    client = CLIENTS[name]
    opening, item, end = client.channel
    stream_id = frame(opening)[8:16]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(serve, application(), "tcp://127.0.0.1:0")
            stream = await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2]))
            talk = Talk(stream)
            await talk.say(client.setup, client.request)
            assert await talk.hear() == frame(client.answer)
            await talk.say(opening)
            heard = [await talk.hear(), await talk.hear()]
            assert frame(f"000b 0000 {stream_id} 6f6e65") in heard
            assert any(one.startswith(frame(f"0009 0000 {stream_id}")) for one in heard)  # REQUEST_N
            await talk.say(f"0009 0000 {stream_id} 00000002", item, end)
            assert await talk.hear() == frame(f"000b 0000 {stream_id} 74776f")
            assert await talk.hear() == frame(f"000b 1000 {stream_id}")
            await stream.aclose()
            nursery.cancel_scope.cancel()


@clause("RS01-HDR-01", "QRK-14")
@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.keeps_length])
async def test_over_websocket_those_that_keep_the_length_are_served_beside_1_0(name: str) -> None:
    client = CLIENTS[name]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(partial(serve, application()), "ws://127.0.0.1:0")
            async with trio_websocket.open_websocket_url(uri) as peer, open_connection(uri) as modern:
                await peer.send_message(wire(client.setup))
                await peer.send_message(wire(client.request))
                assert await peer.get_message() == wire(client.answer)
                assert (await modern.request_response(b"hi")).data == b"hi"
            nursery.cancel_scope.cancel()
