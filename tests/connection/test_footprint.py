"""What a connection costs while nothing happens: tasks and memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from rsocket_trio import Limits, Responder
from rsocket_trio.client.options import FRAGMENT_SIZE, LIMITS
from rsocket_trio.server.accept import Server
from rsocket_trio.server.serve import serve_options
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from tests.conformance import raw
from tests.connection.pairs import echo_responder, settle
from tests.memory import traced

CONNECTIONS = 50
LIFETIME = 90
CONNECTION_BYTES = 14_400
"""Of Python's own memory, without a socket: 13,000 were measured."""
STREAM_BYTES = 4_300
"""The same for a stream whose handler waits for credit: 3,900 were measured."""


@asynccontextmanager
async def server_of(
    count: int, responder: Responder, limits: Limits = LIMITS
) -> AsyncIterator[tuple[list[raw.RawPeer], Callable[..., Awaitable[None]]]]:
    """A server, clients made of bytes, and what connects them, which say these frames."""
    server = Server(responder, serve_options(dialects=["rsocket/1.0"], limits=limits, fragment_size=FRAGMENT_SIZE))
    pairs = [trio.testing.memory_stream_pair() for _ in range(count)]
    peers = [raw.RawPeer(ours) for ours, _ in pairs]

    async def connect(*frames: bytes) -> None:
        for peer, (_, theirs) in zip(peers, pairs, strict=True):
            await peer.send(*frames)
            nursery.start_soon(server.serve_one, ByteStreamTransport(theirs), trio.Event())
        await settle()

    async with server.sharing_deadlines(), trio.open_nursery() as nursery:
        await settle()
        try:
            yield peers, connect
        finally:
            for peer in peers:
                await trio.aclose_forcefully(peer.stream)


@asynccontextmanager
async def served(count: int, responder: Responder, limits: Limits = LIMITS) -> AsyncIterator[list[raw.RawPeer]]:
    """Clients made of bytes at one server, which has read their SETUPs."""
    async with server_of(count, responder, limits) as (peers, connect):
        await connect(raw.setup(lifetime=LIFETIME * 1000))
        yield peers


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_a_connection_that_was_told_nothing_is_one_task_and_one_that_answered_is_two(
    autojump_clock: MockClock,
) -> None:
    before = tasks() + 1  # the one that looks after all deadlines
    async with served(CONNECTIONS, echo_responder()) as peers:
        assert tasks() == before + CONNECTIONS

        for peer in peers:
            await peer.send(raw.keepalive())
            await peer.expect(raw.keepalive(respond=False))
        await settle()

        assert tasks() == before + 2 * CONNECTIONS


async def test_tasks_that_had_nothing_to_do_for_a_lifetime_go_and_come_back(autojump_clock: MockClock) -> None:
    before = tasks() + 1
    async with served(1, echo_responder()) as (peer,):
        for first in (1, 5):
            for stream_id in (first, first + 2):  # the first task of all is kept for no other request
                await peer.send(raw.ask(stream_id, b"?"))
                await peer.expect(raw.payload(stream_id, b"?", raw.N | raw.C))
                await settle()
            assert tasks() == before + 3

            for _ in range(3):
                # Frames that need no answer keep the connection alive.
                await trio.sleep(LIFETIME - 10)
                await peer.send(raw.keepalive(respond=False))
            await settle()
            assert tasks() == before + 1


async def test_an_idle_connection_is_small(autojump_clock: MockClock) -> None:
    async with served(1, echo_responder()):
        pass  # whatever is made once
    async with server_of(CONNECTIONS, echo_responder()) as (_, connect):
        with traced() as memory:
            await connect(raw.setup(), raw.keepalive())
            grown = memory.kept()

    assert grown / CONNECTIONS <= CONNECTION_BYTES


async def test_a_stream_that_waits_for_credit_is_small(autojump_clock: MockClock) -> None:
    count = 500
    async with served(1, echo_responder()) as (peer,):
        await peer.send(raw.request(raw.REQUEST_STREAM, 1, n=1))
        await settle()
        with traced() as memory:
            for number in range(1, count + 1):
                await peer.send(raw.request(raw.REQUEST_STREAM, 1 + 2 * number, n=1))
            await settle()
            # What the server said waits in the stream between us.
            said = bytes(await peer.stream.receive_some())
            assert len(said) == (count + 1) * len(raw.prefixed(raw.payload(1, b"0")))
            del said
            grown = memory.kept()

    assert grown / count <= STREAM_BYTES
