"""The server and the client that cases are played against here: what they have to do, in our own words."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count, islice
from typing import Any

import trio

from rsocket_trio import (
    Channel,
    Connection,
    Keepalive,
    Lease,
    Payload,
    Responder,
    ResumeOptions,
    RSocketError,
    StreamuxOptions,
    open_connection,
)
from rsocket_trio.conformance.run import Start
from rsocket_trio.connection.protocols import ALL
from tests.serving import running_server

OPAQUE = "application/octet-stream"
LEASE = Lease(3, 2)
LEASES_EVERY = 3
"""Seconds between two leases."""
TIMES = Keepalive(1, 6)
"""The interval and lifetime of the client, short enough to be waited for."""


def responder(abilities: Collection[str] = ()) -> Responder:
    """Return a responder with every interaction that a case can need, and leases if they are among its abilities."""
    made = Responder()

    if "leases" in abilities:

        @made.lease
        async def leases(setup: object) -> AsyncIterator[Lease]:
            while True:
                yield LEASE
                await trio.sleep(LEASES_EVERY)

    @made.request_response
    async def echo(request: Payload) -> Payload:
        if request.data == b"silent":
            await trio.sleep_forever()
        return request

    @made.request_stream
    @made.request_subscription
    async def numbers(request: Payload) -> AsyncIterator[bytes]:
        for number in islice(count(), int(request.data) if request.data else None):
            yield b"%d" % number

    @made.request_channel
    async def talk(channel: Channel) -> None:
        await channel.send(channel.request)
        async for item in channel:
            await channel.send(item)

    return made


def resumption(options: Collection[str]) -> ResumeOptions | None:
    """Return the options of resumption for a peer that takes part in it."""
    return ResumeOptions(answer_seconds=2) if "resume" in options else None


def streamux_responder() -> Responder:
    """Return one for Streamux: a request is answered whole, or chunk by chunk if it begins with the chunk talk."""
    made = Responder()

    @made.request_response
    async def echo(request: Payload) -> Payload:
        if request.data == b"silent":
            await trio.sleep_forever()
        return request

    @made.request_channel
    async def talk(channel: Channel) -> None:
        chunks = [(await anext(channel)).data]
        if chunks == [b"talk"]:
            await channel.send(chunks[0])
            async for item in channel:
                await channel.send(item)
            return
        chunks += [item.data async for item in channel]
        await channel.send(b"".join(chunks))

    return made


def streamux_options(role: str, abilities: Collection[str]) -> StreamuxOptions:
    """Return the offer of a side with these abilities. Without a quick init it is narrow: some cases do not meet it."""
    if "quick" not in abilities:
        return StreamuxOptions(rec_id=31, max_len=14, rec_len=14)
    return StreamuxOptions(qa=True) if role == "server" else StreamuxOptions(qr=True, rec_id=8, rec_len=14)


def options_of(dialect: str, role: str, abilities: Collection[str]) -> dict[str, Any]:
    """Return the options of our server and client for a dialect and these abilities."""
    if dialect == "streamux/1":
        return {"streamux": streamux_options(role, abilities)}
    found: dict[str, Any] = {"resume": resumption(abilities)}
    if role == "client":
        found |= {"lease": "leases" in abilities, "metadata_mime": OPAQUE}
        if "resume" not in abilities:
            found["keepalive"] = TIMES
    return found


def responder_of(dialect: str, abilities: Collection[str]) -> Responder:
    """Return what serves a dialect here."""
    return streamux_responder() if dialect == "streamux/1" else responder(abilities)


@asynccontextmanager
async def serving(
    dialect: str,
    abilities: Collection[str],
    uri: str = "tcp://127.0.0.1:0",
    ssl_context: ssl.SSLContext | None = None,
    **more: Any,
) -> AsyncIterator[str]:
    """Serve a dialect with these interactions and options for as long as the block. Yield the URI."""
    ours, options = responder_of(dialect, abilities), options_of(dialect, "server", abilities)
    dialects = ALL if "dialects" in abilities else [dialect]
    more |= {"dialects": dialects, "ssl_context": ssl_context}
    async with running_server(ours, uri, **options, **more) as bound:
        yield bound


async def client(
    uri: str, dialect: str, asks: str, options: Sequence[str], ssl_context: ssl.SSLContext | None = None
) -> None:
    """Connect, ask what a case wants to be asked, and stay until the connection ends."""
    more = options_of(dialect, "client", options)
    ours = responder_of(dialect, options)
    connecting = open_connection(uri, dialect=dialect, responder=ours, ssl_context=ssl_context, **more)
    with suppress(RSocketError):
        async with connecting as connection:
            with suppress(RSocketError):
                await ask(connection, asks)
            await connection.wait_closed()


async def ask(connection: Connection, asks: str) -> None:
    """Make the request, and one more with what answered it."""
    last: Payload | None = None
    if asks == "request":
        last = await connection.request_response(b"q")
    elif asks in ("stream", "subscription"):
        ask = connection.request_stream if asks == "stream" else connection.request_subscription
        async with ask(b"s", initial_request_n=2, refill=False) as items:
            async for item in items:
                last = item
    elif asks == "channel":
        async with connection.request_channel(b"c", initial_request_n=2, refill=False) as channel:
            async for one in channel:
                await channel.send(one)
    elif asks == "chunks":
        async with connection.request_channel(b"c") as message:
            async for one in message:
                await message.send(one)
    elif asks == "several":
        async with trio.open_nursery() as nursery:
            for data in (b"1", b"2", b"3", b"4"):
                nursery.start_soon(asked, connection, data)
                await trio.sleep(0.01)
    elif asks == "large":
        await connection.request_response(b"l" * 1000)
    elif asks == "cancel":
        with trio.move_on_after(0.2):
            await connection.request_response(b"x")
        await connection.request_response(b"y")
    elif asks == "ping":
        await connection.ping()
    if last is not None and (last.data or connection.dialect != "streamux/1"):
        await connection.request_response(last.data)


async def asked(connection: Connection, data: bytes) -> None:
    """Make a request that others do not wait for."""
    with suppress(RSocketError):
        await connection.request_response(data)


def starting(ssl_context: ssl.SSLContext | None = None) -> Start:
    """Return what runs the client as a task of this process."""

    @asynccontextmanager
    async def start(
        uri: str, dialect: str, asks: str, options: Sequence[str]
    ) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client, uri, dialect, asks, options, ssl_context))
            yield trio.sleep_forever
            nursery.cancel_scope.cancel()

    return start


def main() -> None:
    """Be the client as a program of its own."""
    uri, dialect, asks, options = (os.environ[f"RSOCKET_{name}"] for name in ("URI", "DIALECT", "ASKS", "WITH"))
    trio.run(client, uri, dialect, asks, options.split(",") if options else [])
