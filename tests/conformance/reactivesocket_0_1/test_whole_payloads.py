"""Payloads for peers that join no fragments: those of 0.1 that announce version 0.0 or 0.2 get them whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import Payload, Responder, connect_forever, open_connection, open_connection_over, serve, serve_stream
from rsocket_trio.rsocket.dialects import ALL
from tests.conformance.old_frames import RS01
from tests.conformance.raw import RS02, RawPeer, bare_server, client
from tests.conformance.raw import settle as settled

clause = pytest.mark.clause
W = RS01
BELOW = 2**24 - 2
"""Bytes of the largest payload that is promised to stay whole."""
DEFAULT = 65536
"""Bytes of a frame, its length not counted, where peers join fragments and nobody says otherwise."""
OLD = [(0, 0), (0, 2)]


def answering(size: int, metadata: bytes | None = None) -> Responder:
    """A responder whose answers, and items, have so many bytes of data."""
    responder = Responder()
    answer = Payload(bytes(size), metadata)

    @responder.request_response
    async def respond(request: Payload) -> Payload:
        return answer

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[Payload]:
        yield answer

    return responder


async def sizes(peer: RawPeer, number: int) -> list[tuple[str, int]]:
    """Flags and body of the next frames."""
    frames = [await peer.receive() for _ in range(number)]
    return [(frame.flags, len(frame.body)) for frame in frames]


@clause("RS01-FRAG-01", "DET-05", "QRK-18")
@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("options", [{}, {"dialects": ALL}], ids=["alone", "with all dialects"])
async def test_a_server_answers_a_client_that_joins_nothing_with_whole_payloads(
    autojump_clock: object, version: tuple[int, int], options: Any
) -> None:
    async with bare_server(W, answering(BELOW), **options) as peer:
        await peer.send(W.setup(version=version), W.ask(2, b"x"))
        assert await sizes(peer, 1) == [("C", BELOW)]
        await peer.send(W.stream(4, 2))
        assert await sizes(peer, 2) == [("", BELOW), ("C", 0)]
    async with bare_server(W, answering(BELOW - 100, bytes(100)), **options) as peer:
        await peer.send(W.setup(version=version), W.ask(2, b"x"))
        assert await sizes(peer, 1) == [("MC", BELOW + 4)]


@clause("RS01-FRAG-01")
async def test_a_server_cuts_for_a_client_that_says_0_1(autojump_clock: object) -> None:
    async with bare_server(W, answering(100_000)) as peer:
        await peer.send(W.setup(), W.ask(2, b"x"))
        assert await sizes(peer, 2) == [("F", DEFAULT - 8), ("C", 100_000 - DEFAULT + 8)]


@clause("RS01-FRAG-01", "QRK-18")
@pytest.mark.parametrize("size", [64, 1000, DEFAULT])
async def test_a_fragment_size_that_is_given_wins_on_a_server(autojump_clock: object, size: int) -> None:
    async with bare_server(W, answering(size), fragment_size=size) as peer:
        await peer.send(W.setup(version=(0, 0)), W.ask(2, b"x"))
        assert await sizes(peer, 2) == [("F", size - 8), ("C", 8)]


@clause("RS01-FRAG-01", "QRK-02", "QRK-18")
async def test_a_client_that_says_0_0_cuts_nothing(autojump_clock: object) -> None:
    async with client(W, quirks=["version_0_0"]) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(connection.request_response, bytes(BELOW))
        assert await sizes(peer, 1) == [("", BELOW)]
        nursery.start_soon(connection.fire_and_forget, Payload(bytes(BELOW - 9), bytes(9)))
        assert await sizes(peer, 1) == [("M", BELOW + 4)]
        async with connection.request_stream(Payload(bytes(BELOW - 9), bytes(9)), initial_request_n=1):
            assert await sizes(peer, 1) == [("MN", BELOW + 8)]
        await peer.expect(W.cancel(6))
        async with connection.request_channel(b"", initial_request_n=1) as channel:
            await peer.expect(W.channel(8, 1))
            await peer.send(W.request_n(8, 1))
            await channel.send(bytes(BELOW))
            assert await sizes(peer, 1) == [("", BELOW)]
        nursery.cancel_scope.cancel()


@clause("RS01-FRAG-01", "QRK-02", "QRK-18")
@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, DEFAULT),
        ({"quirks": ["version_0_0"], "fragment_size": 1000}, 1000),
        ({"quirks": ["version_0_0"], "fragment_size": DEFAULT}, DEFAULT),
    ],
    ids=["0.1", "given", "the default's number given"],
)
async def test_any_other_client_cuts(autojump_clock: object, options: Any, size: int) -> None:
    async with client(W, **options) as (connection, peer):
        await connection.fire_and_forget(bytes(size))
        assert await sizes(peer, 2) == [("F", size - 8), ("", 8)]


@clause("RS02-FRAG-01")
async def test_the_0_2_of_the_newer_layout_is_cut_as_ever(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, answering(DEFAULT), theirs))
        peer = RawPeer(ours)
        await peer.send(RS02.setup(), bytes.fromhex("00000001 1000"))
        assert len((await peer.receive()).body) == DEFAULT - 6
        await settled()
        await trio.aclose_forcefully(ours)


@pytest.mark.parametrize("size", [63, 2**31])
async def test_a_fragment_size_that_is_given_has_to_be_one(autojump_clock: object, size: int) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(ValueError, match=f"fragment_size of {size} bytes"):
        await serve_stream(Responder(), theirs, dialects=[W.name], fragment_size=size)
    with pytest.raises(ValueError, match=f"fragment_size of {size} bytes"):
        async with open_connection_over(theirs, dialect=W.name, fragment_size=size):
            pass
    await trio.aclose_forcefully(ours)


async def test_a_server_over_tcp_knows_what_each_of_its_clients_joins() -> None:
    responder = answering(100_000)
    async with trio.open_nursery() as nursery:
        (uri,) = await nursery.start(partial(serve, responder, "tcp://127.0.0.1:0"))
        for quirks in ((), ("version_0_0",)):
            async with open_connection(uri, dialect=W.name, quirks=quirks) as connection:
                assert len((await connection.request_response(b"x")).data) == 100_000
        async with connect_forever(uri, dialect=W.name, quirks=("version_0_0",)) as connected:
            assert len((await connected.request_response(bytes(100_000))).data) == 100_000
        nursery.cancel_scope.cancel()
