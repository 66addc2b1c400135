"""Where a connection of 0.0 or 0.1 stands when a row's frames arrive, and how to see that nothing was harmed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, TypeAlias

import trio

from rsocket_trio import ConnectionLost
from tests.conformance.old_frames import Log, Old, Peer, bare_server, client, server, settle

Check: TypeAlias = Callable[[], Awaitable[None]]
Scene: TypeAlias = Callable[[Old], AbstractAsyncContextManager[tuple[Peer, Check]]]


# At a server: the client's streams are even


@asynccontextmanager
async def first(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Nothing was said."""
    log = Log()

    async def nothing_ran() -> None:
        assert log.seen == []

    async with bare_server(old, log.responder) as peer:
        yield peer, nothing_ran


@asynccontextmanager
async def served(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """SETUP was accepted, no stream is open."""
    log = Log()

    async def nothing_ran() -> None:
        await settle()
        assert log.seen == []

    async with server(old, log.responder) as peer:
        yield peer, nothing_ran


@asynccontextmanager
async def waiting(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Request/response 2 of the client's is being handled."""
    log = Log()

    async def unharmed() -> None:
        await settle()
        assert log.seen == [("request", b"wait")]

    async with server(old, log.responder) as peer:
        await peer.send(old.ask(2, b"wait"))
        await settle()
        yield peer, unharmed


@asynccontextmanager
async def ticking(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Stream 2 of the client's is open and has no credit left."""
    async with server(old, Log().responder) as peer:
        await peer.send(old.stream(2, 1))
        await peer.expect(old.item(2, b"tick 0"))

        async def unharmed() -> None:
            await peer.send(old.request_n(2, 1))
            await peer.expect(old.item(2, b"tick 1"))

        yield peer, unharmed


@asynccontextmanager
async def talking(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Channel 2 of the client's is open both ways."""
    log = Log()
    async with server(old, log.responder) as peer:
        await peer.send(old.channel(2, 9, b"hi"))
        await peer.expect(old.request_n(2, 4))

        async def unharmed() -> None:
            await peer.send(old.channel(2, None, b"back"))
            await peer.expect(old.item(2, b"back"))
            assert log.seen == [("channel", b"hi"), ("item", b"back")]

        yield peer, unharmed


@asynccontextmanager
async def halfway(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """The first fragment of request 2 came."""
    log = Log()
    async with server(old, log.responder) as peer:
        await peer.send(old.ask(2, b"one ", "F"))

        async def unharmed() -> None:
            await peer.send(old.ask(2, b"two"))
            await peer.expect(old.item(2, b"one two", "C"))
            assert log.seen == [("request", b"one two")]

        yield peer, unharmed


@asynccontextmanager
async def past(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Stream 2 of the client's is over."""
    log = Log()

    async def nothing_more() -> None:
        await settle()
        assert log.seen == [("request", b"x")]

    async with server(old, log.responder) as peer:
        await peer.send(old.ask(2, b"x"))
        await peer.expect(old.item(2, b"x", "C"))
        yield peer, nothing_more


# At a client: its own streams are even


@asynccontextmanager
async def fresh(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """The client has sent its SETUP and heard nothing."""
    log = Log()

    async def nothing_ran() -> None:
        await settle()
        assert log.seen == []

    async with client(old, log.responder) as (_, peer):
        yield peer, nothing_ran


@asynccontextmanager
async def connected(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """The client knows that it was accepted."""
    async with fresh(old) as (peer, check):
        await peer.expect_alive()
        yield peer, check


@asynccontextmanager
async def asking(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Request/response 2 of the client's waits for its answer."""
    answers: list[bytes] = []
    async with client(old, Log().responder) as (connection, peer), trio.open_nursery() as nursery:

        async def request() -> None:
            try:
                answers.append((await connection.request_response(b"q")).data)
            except ConnectionLost:
                answers.append(b"lost")

        nursery.start_soon(request)
        await peer.expect(old.ask(2, b"q"))

        async def unharmed() -> None:
            assert answers == []
            await peer.send(old.item(2, b"answer", "C"))
            await settle()
            assert answers == [b"answer"]

        yield peer, unharmed
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def streaming(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Stream 2 of the client's is open, with credit for two."""
    async with (
        client(old, Log().responder) as (connection, peer),
        connection.request_stream(b"s", initial_request_n=2, refill=False) as items,
    ):
        await peer.expect(old.stream(2, 2, b"s"))

        async def unharmed() -> None:
            await peer.send(old.item(2, b"item"))
            with trio.fail_after(1):
                assert (await anext(items)).data == b"item"

        yield peer, unharmed


@asynccontextmanager
async def conversing(old: Old) -> AsyncIterator[tuple[Peer, Check]]:
    """Channel 2 of the client's is open both ways, with credit for two each."""
    async with (
        client(old, Log().responder) as (connection, peer),
        connection.request_channel(b"c", initial_request_n=2, refill=False) as talk,
    ):
        await peer.expect(old.channel(2, 2, b"c"))
        await peer.send(old.request_n(2, 2))

        async def unharmed() -> None:
            await peer.send(old.item(2, b"item"))
            with trio.fail_after(1):
                assert (await anext(talk)).data == b"item"
                await talk.send(b"ours")
            await peer.expect(old.channel(2, None, b"ours"))

        yield peer, unharmed


# Reactions: conformance catalogue 0.4


class Reaction(NamedTuple):
    """What frames must lead to: these frames and a living connection, a refusal, or the end."""

    name: str
    sent: tuple[bytes, ...] = ()
    refused: str = ""
    fails: bool = False
    stream_error: tuple[int, int] | None = None
    ends: bool = False
    harmless: bool = False


IGNORE = Reaction("IGNORE", harmless=True)
FAILS = Reaction("CONN_ERR, or CLOSE in 0.0", fails=True)
CLOSE = Reaction("CLOSE", ends=True)


def setup_err(code: str) -> Reaction:
    return Reaction(f"SETUP_ERR({code})", refused=code)


def stream_err(stream_id: int, code: int) -> Reaction:
    return Reaction(f"STREAM_ERR({code:#x})", stream_error=(stream_id, code))


def sends(*frames: bytes) -> Reaction:
    return Reaction("DELIVER", sent=frames)


class Row(NamedTuple):
    clauses: str
    what: str
    scene: Scene
    frames: tuple[bytes, ...]
    reaction: Reaction


def row(clauses: str, what: str, scene: Scene, *frames: bytes, then: Reaction) -> Row:
    return Row(clauses, what, scene, frames, then)


async def react(old: Old, row: Row) -> None:
    """Play a row's frames in its scene, and hold what follows to the reaction."""
    reaction = row.reaction
    async with row.scene(old) as (peer, check):
        await peer.send(*row.frames)
        if reaction.refused:
            await peer.expect_refusal(reaction.refused)
            return
        if reaction.fails:
            await peer.expect_failure()
            return
        if reaction.ends:
            await peer.expect_end()
            return
        if reaction.stream_error is not None:
            await peer.expect_error(*reaction.stream_error)
        await peer.expect(*reaction.sent)
        await peer.expect_alive()
        if reaction.harmless:
            await check()
