"""0.1 over WebSocket as its peers spoke it: each message keeps the length that its frame has on a byte stream."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trio_websocket

from rsocket_trio import (
    ConnectionLost,
    Limits,
    Payload,
    Responder,
    ResumeOptions,
    open_connection,
    open_connection_over,
    serve,
    serve_stream,
)
from rsocket_trio.rsocket.dialects import ALL
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.memory import MemoryTransport, memory_pair
from rsocket_trio.transports.websocket.length_prefix import LengthOnMessages

clause = pytest.mark.clause
NAME = "reactivesocket/0.1"
# What JavaScript 3.3.1 says: version 0.0, keepalive 20 s, lifetime 90 s, "utf-8" for both MIME types.
SETUP = bytes.fromhex("00000024 0001 0000 00000000 00000000 00004e20 00015f90 05 7574662d38 05 7574662d38")
REQUEST = bytes.fromhex("00000019 0004 4000 00000001 00000008 4d455441 68656c6c6f")
ANSWER = bytes.fromhex("00000019 000b 5000 00000001 00000008 4d455441 68656c6c6f")
SERVED = [
    pytest.param({}, id="all dialects"),
    pytest.param({"dialects": NAME}, id="0.1 alone"),
    pytest.param({"quirks": ["length_on_messages"]}, id="all, by name"),
    pytest.param({"dialects": NAME, "quirks": ["length_on_messages"]}, id="0.1, by name"),
    pytest.param({"resume": ResumeOptions()}, id="where others resume"),
]


def echo() -> Responder:
    responder = Responder()

    @responder.request_response
    def answer(request: Payload) -> Payload:
        return request

    @responder.request_stream
    async def twice(request: Payload) -> AsyncIterator[Payload]:
        yield request
        yield request

    return responder


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[MemoryTransport]:
    """A server on a transport of messages, and the other end of it; the server returns once that is closed."""
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, echo(), theirs, **options))
        yield ours
        ours.close()


async def answers(peer: MemoryTransport, *messages: bytes) -> list[bytes]:
    """All that a server says to these messages, until it closes or is silent for long."""
    await peer.send(list(messages))
    heard: list[bytes] = []
    with trio.move_on_after(60):
        while came := await peer.receive():
            heard += came
        return [*heard, b"closed"]
    return heard


@clause("RS01-HDR-01", "DET-05", "DET-09", "QRK-14")
@pytest.mark.parametrize("options", SERVED)
async def test_a_client_that_keeps_the_length_is_answered_alike(autojump_clock: object, options: Any) -> None:
    async with served(**options) as peer:
        assert await answers(peer, SETUP, REQUEST) == [ANSWER]


@clause("RS01-HDR-01", "QRK-14")
@pytest.mark.parametrize("options", SERVED)
async def test_a_client_that_follows_the_document_is_served_as_ever(autojump_clock: object, options: Any) -> None:
    async with served(**options) as peer:
        assert await answers(peer, SETUP[4:], REQUEST[4:]) == [ANSWER[4:]]


@clause("RS01-HDR-01", "DET-09", "QRK-14")
@pytest.mark.parametrize("options", SERVED)
async def test_so_it_is_over_a_websocket(options: Any) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(partial(serve, echo(), "ws://127.0.0.1:0", **options))
            async with trio_websocket.open_websocket_url(uri) as peer:
                await peer.send_message(SETUP)
                await peer.send_message(REQUEST)
                assert await peer.get_message() == ANSWER
            async with trio_websocket.open_websocket_url(uri) as peer:
                await peer.send_message(SETUP[4:])
                await peer.send_message(REQUEST[4:])
                assert await peer.get_message() == ANSWER[4:]
            nursery.cancel_scope.cancel()


@clause("RS01-HDR-01", "QRK-14")
@pytest.mark.parametrize("options", SERVED)
async def test_so_it_is_over_a_websocket_that_the_program_accepted(options: Any) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def take(request: trio_websocket.WebSocketRequest) -> None:
                await serve_stream(echo(), await request.accept(), **options)

            accepting = partial(trio_websocket.serve_websocket, take, "127.0.0.1", 0, ssl_context=None)
            server = await nursery.start(accepting)
            async with trio_websocket.open_websocket_url(f"ws://127.0.0.1:{server.port}") as peer:
                await peer.send_message(SETUP)
                await peer.send_message(REQUEST)
                assert await peer.get_message() == ANSWER
            nursery.cancel_scope.cancel()


# A server tells such a client what is wrong in frames that have the length, too, and closes.
REFUSED = {
    "a length that is too large": SETUP.replace(b"\x24", b"\x25", 1),
    "a length that is too small": SETUP.replace(b"\x24", b"\x23", 1),
    "a length of nought": bytes(4) + SETUP[4:],
    "a length with its top bit set": b"\x80" + SETUP[1:],
    "two frames in a message": SETUP + REQUEST,
    "a SETUP that is cut": SETUP[:30],
    "another version": SETUP[:12] + bytes.fromhex("00000003") + SETUP[16:],
}


@clause("RS01-HDR-01", "RS01-SETUP-10", "ALL-RCT-05", "QRK-14")
@pytest.mark.parametrize("options", SERVED[:2])
@pytest.mark.parametrize("why", REFUSED)
async def test_a_first_message_that_is_wrong_is_refused_alike(autojump_clock: object, options: Any, why: str) -> None:
    async with served(**options) as peer:
        refusal, end = await answers(peer, REFUSED[why], REQUEST)

    assert refusal[:4] == len(refusal).to_bytes(4, "big")
    assert refusal[4:].startswith(bytes.fromhex("000c 0000 00000000 00000001"))  # ERROR, INVALID_SETUP
    assert end == b"closed"


async def test_the_refusal_says_both_sizes(autojump_clock: object) -> None:
    async with served() as peer:
        refusal, _ = await answers(peer, SETUP + REQUEST)

    assert refusal.endswith(b"message of 61 bytes whose length says 36: a message is one frame")


@clause("DET-07", "QRK-14")
@pytest.mark.parametrize("dialects", [[name for name in ALL if name != NAME], ["rsocket/1.0", "streamux/1"]])
async def test_where_0_1_is_not_served_it_is_refused_alike(autojump_clock: object, dialects: list[str]) -> None:
    async with served(dialects=dialects) as peer:
        refusal, end = await answers(peer, SETUP, REQUEST)

    assert refusal[:16] == len(refusal).to_bytes(4, "big") + bytes.fromhex("000c 0000 00000000 00000001")
    assert end == b"closed"


@clause("DET-07", "RS01-CON-02", "QRK-14")
async def test_any_other_first_frame_is_refused_alike_where_0_1_is_alone(autojump_clock: object) -> None:
    async with served(dialects=NAME) as peer:
        refusal, end = await answers(peer, REQUEST)
    assert refusal[:16] == len(refusal).to_bytes(4, "big") + bytes.fromhex("000c 0000 00000000 00000001")
    assert end == b"closed"
    async with served() as peer:
        assert await answers(peer, REQUEST) == [b"closed"]


# Later there is no frame that such a message could be: the connection ends, with a word.
BROKEN = {
    "a length that is too large": b"\0\0\0\x1a" + REQUEST[4:],
    "a length that is too small": b"\0\0\0\x18" + REQUEST[4:],
    "no length": REQUEST[4:],
    "two frames in a message": REQUEST + REQUEST,
    "a frame without its end": REQUEST[:20],
    "a length alone": REQUEST[:4],
    "three bytes": b"\0\0\3",
    "nothing": b"",
}


@clause("RS01-HDR-01", "ALL-RCT-05", "QRK-14")
@pytest.mark.parametrize("why", BROKEN)
async def test_a_later_message_that_is_wrong_ends_the_connection(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    with caplog.at_level(logging.WARNING):
        async with served() as peer:
            await peer.send([SETUP, REQUEST])
            assert await peer.receive() == [ANSWER]
            error, end = await answers(peer, BROKEN[why], REQUEST)

    assert error[:16] == len(error).to_bytes(4, "big") + bytes.fromhex("000c 0000 00000000 00000101")
    assert end == b"closed"
    assert f"message of {len(BROKEN[why])} bytes" in caplog.text


async def test_a_frame_of_the_largest_size_passes_with_its_length() -> None:
    limits = Limits(frame_size=1000)
    size = 1000
    request = (size + 4).to_bytes(4, "big") + REQUEST[4:8] + REQUEST[8:] + bytes(size + 4 - len(REQUEST))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(partial(serve, echo(), "ws://127.0.0.1:0", limits=limits))
            async with open_transport(uri) as peer:
                await peer.send([SETUP, REQUEST])
                assert await peer.receive() == [ANSWER]
                await peer.send([request])
                assert await peer.receive() == [request[:4] + ANSWER[4:8] + request[8:]]
                await peer.send([(size + 5).to_bytes(4, "big") + request[4:] + b"1"])
                with pytest.raises(trio.BrokenResourceError, match="1009"):
                    await peer.receive()
            nursery.cancel_scope.cancel()


@clause("RS01-HDR-01", "QRK-14")
async def test_a_client_keeps_the_length_by_name(autojump_clock: object) -> None:
    ours, theirs = memory_pair()
    async with open_connection_over(ours, dialect=NAME, quirks=["length_on_messages"]) as connection:
        (setup,) = await theirs.receive()
        assert setup[:16] == len(setup).to_bytes(4, "big") + bytes.fromhex("0001 0000 00000000 00000001")
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                answer = await connection.request_response(Payload(b"hello", b"META"))
                assert answer == Payload(b"hello", b"META")

            nursery.start_soon(ask)
            (request,) = await theirs.receive()
            assert request == REQUEST.replace(b"\0\0\0\1\0", b"\0\0\0\2\0", 1)
            await theirs.send([ANSWER.replace(b"\0\0\0\1\0", b"\0\0\0\2\0", 1)])
    theirs.close()


@clause("RS01-HDR-01", "QRK-14")
async def test_a_client_by_name_says_why_it_ends_on_a_server_without_lengths(autojump_clock: object) -> None:
    ours, theirs = memory_pair()
    async with open_connection_over(ours, dialect=NAME, quirks=["length_on_messages"]) as connection:
        await theirs.receive()
        await theirs.send([ANSWER[4:]])
        with pytest.raises(
            ConnectionLost, match="message of 21 bytes whose length says 741376: a message is one frame"
        ):
            await connection.request_response(b"?")
    theirs.close()


async def test_so_it_is_over_a_websocket_that_the_program_opened() -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(serve, echo(), "ws://127.0.0.1:0")
            async with (
                trio_websocket.open_websocket_url(uri) as websocket,
                open_connection_over(websocket, dialect="0.1", quirks=["length_on_messages"]) as connection,
            ):
                assert (await connection.request_response(b"hello")).data == b"hello"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("uri", ["ws://127.0.0.1:0", "memory://lengths", "tcp://127.0.0.1:0"])
async def test_both_ends_of_ours_agree_on_every_transport(uri: str) -> None:
    large = Payload(bytes(300_000))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(serve, echo(), uri)
            async with open_connection(uri, dialect="0.1", quirks=["length_on_messages"]) as connection:
                assert await connection.request_response(large) == large
                async with connection.request_stream(large) as items:
                    assert [item async for item in items] == [large, large]
                await connection.ping()
            nursery.cancel_scope.cancel()


async def test_a_capture_has_the_frames_without_their_lengths(tmp_path: Path) -> None:
    from rsocket_trio.capture import Capture

    for side in ("client", "server"):
        (tmp_path / side).mkdir()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            capture = Capture(tmp_path / "server", format="jsonl")
            started = partial(serve, echo(), "ws://127.0.0.1:0", capture=capture)
            (uri,) = await nursery.start(started)
            ours = Capture(tmp_path / "client", format="jsonl")
            terms: Any = {"dialect": "0.1", "quirks": ["length_on_messages"], "capture": ours}
            async with open_connection(uri, **terms) as connection:
                await connection.request_response(b"hello")
            nursery.cancel_scope.cancel()
        capture.close()
        ours.close()
    seen = {side: frames_in(tmp_path / side) for side in ("client", "server")}
    assert seen["client"] == seen["server"] == [0x01, 0x04, 0x0B]


def frames_in(folder: Path) -> list[int]:
    lines = [line for file in folder.glob("frames/*/*.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line)["frame_type"] for line in lines]


@pytest.mark.parametrize("unread", [True, False])
async def test_whether_something_waits_to_be_read_is_asked_of_the_transport_below(unread: bool) -> None:
    class Telling(MemoryTransport):
        has_unread = unread

    ours, theirs = memory_pair()
    silent, telling = (
        LengthOnMessages(ours),
        LengthOnMessages(Telling(theirs._outgoing, theirs._incoming, theirs.handshake)),
    )
    assert not silent.has_unread
    assert telling.has_unread == unread
