"""Where a connection stands when a row's frame arrives, and how to see that nothing there was harmed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, TypeAlias

import trio

from rsocket_trio import ConnectionLost
from tests.conformance.raw import (
    CONNECTION_ERROR,
    C,
    F,
    Log,
    N,
    RawPeer,
    Wire,
    ask,
    bare_server,
    channel,
    client,
    payload,
    request_n,
    server,
    settle,
    stream,
)

Check: TypeAlias = Callable[[], Awaitable[None]]
Scene: TypeAlias = Callable[[Wire], AbstractAsyncContextManager[tuple[RawPeer, Check]]]


# At a server


@asynccontextmanager
async def first(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """Nothing was said."""
    log = Log()

    async def nothing_ran() -> None:
        assert log.seen == []

    async with bare_server(wire, log.responder) as peer:
        yield peer, nothing_ran


@asynccontextmanager
async def served(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """SETUP was accepted, no stream is open."""
    log = Log()

    async def nothing_ran() -> None:
        await settle()
        assert log.seen == []

    async with server(wire, log.responder) as peer:
        yield peer, nothing_ran


@asynccontextmanager
async def waiting(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A request/response of the client's is being handled."""
    log = Log()

    async def unharmed() -> None:
        await settle()
        assert log.seen == [("request", b"wait", None)]

    async with server(wire, log.responder) as peer:
        await peer.send(ask(1, b"wait"))
        await settle()
        yield peer, unharmed


@asynccontextmanager
async def ticking(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A stream of the client's is open and has no credit left."""
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(stream(1, 1))
        await peer.expect(payload(1, b"tick 0"))

        async def unharmed() -> None:
            await peer.send(request_n(1, 1))
            await peer.expect(payload(1, b"tick 1"))

        yield peer, unharmed


@asynccontextmanager
async def talking(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A channel of the client's is open both ways."""
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(channel(1, 9, b"hi"))
        await peer.expect(request_n(1, 4))

        async def unharmed() -> None:
            await peer.send(payload(1, b"back"))
            await peer.expect(payload(1, b"back"))
            assert log.seen == [("channel", b"hi"), ("item", b"back")]

        yield peer, unharmed


@asynccontextmanager
async def halfway(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """The first fragment of a request came."""
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(ask(1, b"one ", F))

        async def unharmed() -> None:
            await peer.send(payload(1, b"two"))
            await peer.expect(payload(1, b"one two", N | C))
            assert log.seen == [("request", b"one two", None)]

        yield peer, unharmed


@asynccontextmanager
async def past(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """Stream 1 of the client's is over."""
    log = Log()

    async def nothing_more() -> None:
        await settle()
        assert log.seen == [("request", b"x", None)]

    async with server(wire, log.responder) as peer:
        await peer.send(ask(1, b"x"))
        await peer.expect(payload(1, b"x", N | C))
        yield peer, nothing_more


# At a client


@asynccontextmanager
async def fresh(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """The client has sent its SETUP and heard nothing."""
    log = Log()

    async def nothing_ran() -> None:
        await settle()
        assert log.seen == []

    async with client(wire, log.responder) as (_, peer):
        yield peer, nothing_ran


@asynccontextmanager
async def connected(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """The client knows that it was accepted."""
    async with fresh(wire) as (peer, check):
        await peer.expect_alive(b"accepted")
        yield peer, check


@asynccontextmanager
async def asking(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A request/response of the client's waits for its answer."""
    answers: list[bytes] = []
    async with client(wire, Log().responder) as (connection, peer), trio.open_nursery() as nursery:

        async def request() -> None:
            try:
                answers.append((await connection.request_response(b"q")).data)
            except ConnectionLost:
                answers.append(b"lost")

        nursery.start_soon(request)
        await peer.expect(ask(1, b"q"))

        async def unharmed() -> None:
            assert answers == []
            await peer.send(payload(1, b"answer", N | C))
            await settle()
            assert answers == [b"answer"]

        yield peer, unharmed
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def streaming(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A stream of the client's is open, with credit for two."""
    async with (
        client(wire, Log().responder) as (connection, peer),
        connection.request_stream(b"s", initial_request_n=2, refill=False) as items,
    ):
        await peer.expect(stream(1, 2, b"s"))

        async def unharmed() -> None:
            await peer.send(payload(1, b"item"))
            with trio.fail_after(1):
                assert (await anext(items)).data == b"item"

        yield peer, unharmed


@asynccontextmanager
async def conversing(wire: Wire) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A channel of the client's is open both ways, with credit for two each."""
    async with (
        client(wire, Log().responder) as (connection, peer),
        connection.request_channel(b"c", initial_request_n=2, refill=False) as talk,
    ):
        await peer.expect(channel(1, 2, b"c"))
        await peer.send(request_n(1, 2))

        async def unharmed() -> None:
            await peer.send(payload(1, b"item"))
            with trio.fail_after(1):
                assert (await anext(talk)).data == b"item"
                await talk.send(b"ours")
            await peer.expect(payload(1, b"ours"))

        yield peer, unharmed


# Reactions: conformance catalogue 0.4


class Reaction(NamedTuple):
    """What a frame must lead to: these frames and a living connection, or an ERROR on stream 0 and the end."""

    name: str
    sent: tuple[bytes, ...] = ()
    error: tuple[int, int] | None = None
    ends: bool = False
    harmless: bool = False


IGNORE = Reaction("IGNORE", harmless=True)
CONN_ERR = Reaction("CONN_ERR", error=(0, CONNECTION_ERROR), ends=True)
CLOSE = Reaction("CLOSE", ends=True)


def setup_err(code: int) -> Reaction:
    return Reaction("SETUP_ERR", error=(0, code), ends=True)


def stream_err(stream_id: int, code: int) -> Reaction:
    return Reaction("STREAM_ERR", error=(stream_id, code))


def sends(*frames: bytes) -> Reaction:
    return Reaction("DELIVER", sent=frames)


async def react(scene: Scene, wire: Wire, frames: tuple[bytes, ...], reaction: Reaction) -> None:
    """Play these frames in that scene, and hold what follows to the reaction."""
    async with scene(wire) as (peer, check):
        await peer.send(*frames)
        if reaction.error is not None:
            await peer.expect_error(*reaction.error)
        await peer.expect(*reaction.sent)
        if reaction.ends:
            await peer.expect_end()
            return
        await peer.expect_alive(b"probe")
        if reaction.harmless:
            await check()
