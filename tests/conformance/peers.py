"""The server and the client that cases are played against here: what they have to do, in our own words."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count, islice

import trio

from rsocket_trio import (
    Channel,
    Connection,
    ConnectionLost,
    Payload,
    Responder,
    ResumeOptions,
    RSocketError,
    open_connection,
    serve,
)
from rsocket_trio.conformance.clients import Start


def responder() -> Responder:
    """Return a responder with every interaction that a case can need."""
    made = Responder()

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


@asynccontextmanager
async def serving(
    dialect: str,
    abilities: Collection[str],
    uri: str = "tcp://127.0.0.1:0",
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serve a dialect with these interactions and options for as long as the block. Yield the URI."""
    async with trio.open_nursery() as nursery:
        resume = resumption(abilities)
        [bound] = await nursery.start(
            partial(serve, responder(), uri, dialects=[dialect], ssl_context=ssl_context, resume=resume)
        )
        yield bound
        nursery.cancel_scope.cancel()


async def client(
    uri: str, dialect: str, asks: str, options: Sequence[str], ssl_context: ssl.SSLContext | None = None
) -> None:
    """Connect, ask what a case wants to be asked, and stay until the connection ends."""
    connecting = open_connection(
        uri, dialect=dialect, responder=responder(), ssl_context=ssl_context, resume=resumption(options)
    )
    with suppress(ConnectionLost):
        async with connecting as connection:
            with suppress(RSocketError):
                await ask(connection, asks)
            await connection.wait_closed()


async def ask(connection: Connection, asks: str) -> None:
    """Make the request, and one more with what answered it."""
    last: Payload | None = None
    if asks == "request":
        last = await connection.request_response(b"q")
    elif asks == "stream":
        async with connection.request_stream(b"s", initial_request_n=2, refill=False) as items:
            async for item in items:
                last = item
    elif asks == "channel":
        async with connection.request_channel(b"c", initial_request_n=2, refill=False) as channel:
            async for one in channel:
                await channel.send(one)
    if last is not None:
        await connection.request_response(last.data)


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
