"""The states of a connection in which a row's frames arrive, each with a check that nothing there was harmed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, TypeAlias

import trio

from rsocket_trio import ConnectionLost
from tests.conformance.raw import CONNECTION_ERROR, Log, RawDialect, RawPeer, bare_server, client, server, settle

Check: TypeAlias = Callable[[], Awaitable[None]]
Scene: TypeAlias = Callable[[RawDialect], AbstractAsyncContextManager[tuple[RawPeer, Check]]]


# At a server


@asynccontextmanager
async def first(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """Nothing was said."""
    log = Log()

    async def nothing_ran() -> None:
        assert log.seen == []

    async with bare_server(wire, log.responder) as peer:
        yield peer, nothing_ran


@asynccontextmanager
async def served(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """SETUP was accepted, no stream is open."""
    log = Log()

    async def nothing_ran() -> None:
        await settle()
        assert log.seen == []

    async with server(wire, log.responder) as peer:
        yield peer, nothing_ran


@asynccontextmanager
async def waiting(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A request/response of the client's is being handled."""
    log = Log()

    async def unharmed() -> None:
        await settle()
        assert log.seen == [("request", b"wait", None)]

    async with server(wire, log.responder) as peer:
        await peer.send(wire.ask(wire.first_ids[0], b"wait"))
        await settle()
        yield peer, unharmed


# At a client


@asynccontextmanager
async def fresh(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """The client has sent its SETUP and heard nothing."""
    log = Log()

    async def nothing_ran() -> None:
        await settle()
        assert log.seen == []

    async with client(wire, log.responder) as (_, peer):
        yield peer, nothing_ran


@asynccontextmanager
async def connected(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """The client knows that it was accepted."""
    async with fresh(wire) as (peer, check):
        await peer.expect_alive()
        yield peer, check


@asynccontextmanager
async def asking(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A request/response of the client's waits for its answer."""
    answers: list[bytes] = []
    async with client(wire, Log().responder) as (connection, peer), trio.open_nursery() as nursery:

        async def request() -> None:
            try:
                answers.append((await connection.request_response(b"q")).data)
            except ConnectionLost:
                answers.append(b"lost")

        nursery.start_soon(request)
        await peer.expect(wire.ask(wire.first_ids[0], b"q"))

        async def unharmed() -> None:
            assert answers == []
            await peer.send(wire.last_item(wire.first_ids[0], b"answer"))
            await settle()
            assert answers == [b"answer"]

        yield peer, unharmed
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def streaming(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A stream of the client's is open, with credit for two."""
    async with (
        client(wire, Log().responder) as (connection, peer),
        connection.request_stream(b"s", initial_request_n=2, refill=False) as items,
    ):
        await peer.expect(wire.stream(wire.first_ids[0], 2, b"s"))

        async def unharmed() -> None:
            await peer.send(wire.item(wire.first_ids[0], b"item"))
            with trio.fail_after(1):
                assert (await anext(items)).data == b"item"

        yield peer, unharmed


@asynccontextmanager
async def conversing(wire: RawDialect) -> AsyncIterator[tuple[RawPeer, Check]]:
    """A channel of the client's is open both ways, with credit for two each."""
    async with (
        client(wire, Log().responder) as (connection, peer),
        connection.request_channel(b"c", initial_request_n=2, refill=False) as talk,
    ):
        await peer.expect(wire.channel(wire.first_ids[0], 2, b"c"))
        await peer.send(wire.request_n(wire.first_ids[0], 2))

        async def unharmed() -> None:
            await peer.send(wire.item(wire.first_ids[0], b"item"))
            with trio.fail_after(1):
                assert (await anext(talk)).data == b"item"
                await talk.send(b"ours")
            await peer.expect(wire.channel_item(wire.first_ids[0], b"ours"))

        yield peer, unharmed


# Reactions: conformance catalogue 0.4


class Reaction(NamedTuple):
    """The reaction to frames: these frames and a living connection, an error on stream 0 and the end, or the end."""

    name: str
    sent: tuple[bytes, ...] = ()
    refused: int | str | None = None
    """The code of the error before the end. 0.0 has none for a connection that was accepted, and only closes."""
    stream_error: tuple[int, int] | None = None
    ends: bool = False
    harmless: bool = False


IGNORE = Reaction("IGNORE", harmless=True)
CONN_ERR = Reaction("CONN_ERR", refused=CONNECTION_ERROR)
CLOSE = Reaction("CLOSE", ends=True)


def setup_err(code: int | str) -> Reaction:
    return Reaction("SETUP_ERR", refused=code)


def stream_err(stream_id: int, code: int) -> Reaction:
    return Reaction("STREAM_ERR", stream_error=(stream_id, code))


def sends(*frames: bytes) -> Reaction:
    return Reaction("DELIVER", sent=frames)


class Row(NamedTuple):
    """Frames, where they arrive, what they lead to, and the clauses that say so."""

    clauses: str
    what: str
    scene: Scene
    frames: tuple[bytes, ...]
    reaction: Reaction


def row(clauses: str, what: str, scene: Scene, *frames: bytes, then: Reaction) -> Row:
    return Row(clauses, what, scene, frames, then)


async def react(wire: RawDialect, row: Row) -> None:
    """Play a row's frames in its scene, and hold what follows to the reaction."""
    reaction = row.reaction
    async with row.scene(wire) as (peer, check):
        await peer.send(*row.frames)
        if reaction.refused is not None:
            await peer.expect_failure(reaction.refused)
            return
        if reaction.stream_error is not None:
            await peer.expect_error(*reaction.stream_error)
        await peer.expect(*reaction.sent)
        if reaction.ends:
            await peer.expect_end()
            return
        await peer.expect_alive()
        if reaction.harmless:
            await check()
