"""The command as a process of its own, and a server in the test that it can talk to."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import trio

from rsocket_trio import Channel, Payload, Responder, Setup, current_connection
from rsocket_trio.metadata import COMPOSITE_METADATA, decode_composite
from tests.programs import PATIENCE, Result, Running, program, run_program
from tests.serving import running_server

__all__ = [
    "COMMAND",
    "MAIN",
    "PATIENCE",
    "Result",
    "Running",
    "Served",
    "app_served",
    "hosting",
    "run",
    "serving",
    "started",
]

MAIN = ("-c", "from rsocket_trio.cli.entry import main; main()")
LISTEN = "tcp://127.0.0.1:0"
COMMAND = [sys.executable, *MAIN]


async def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> Result:
    """Run a command to its end."""
    return await run_program(*MAIN, *arguments, stdin=stdin, cwd=cwd)


def started(*arguments: str, cwd: Path | None = None) -> AbstractAsyncContextManager[Running]:
    """A command that runs for as long as the block, its three streams ours."""
    return program(*MAIN, *arguments, cwd=cwd)


@asynccontextmanager
async def app_served(folder: Path, *arguments: str) -> AsyncIterator[tuple[Running, list[str]]]:
    """Serve ``app:responder`` of this folder by the command line: the process, and the URIs that it prints."""
    async with started("serve", "app:responder", *arguments, cwd=folder) as server:
        count = sum("://" in each and before != "--origin" for before, each in pairwise(("", *arguments)))
        lines = [await server.line() for _ in range(count)]
        assert all(line.startswith("listening ") for line in lines), f"{lines}: {await server.line('stderr')}"
        yield server, [line.removeprefix("listening ") for line in lines]


@attrs.define(eq=False)
class Served:
    """A server in the test: where it listens, and what it got."""

    uri: str = ""
    got: list[bytes] = attrs.field(factory=list)
    cancelled: trio.Event = attrs.field(factory=trio.Event)
    arrived: trio.Event = attrs.field(factory=trio.Event)


@asynccontextmanager
async def serving(uri: str = LISTEN, **options: Any) -> AsyncIterator[Served]:
    """The handlers that the tests ask for, on a free port of TCP by default."""
    served = Served()
    async with hosting(responder_for(served), uri, **options) as served.uri:
        yield served


def hosting(responder: Responder, uri: str = LISTEN, **options: Any) -> AbstractAsyncContextManager[str]:
    """Serve a responder for as long as the block, and yield its URI."""
    return running_server(responder, uri, grace=0, **options)


def responder_for(served: Served) -> Responder:
    """Handlers of every kind."""
    responder = Responder()

    def got(data: bytes) -> None:
        served.got.append(data)
        served.arrived.set()

    @responder.request_response
    @responder.request_response("echo")
    def echo(request: Payload) -> Payload:
        return request

    @responder.request_response("facts")
    def facts(request: Payload) -> str:
        return json.dumps(seen(request, current_connection().setup))

    @responder.request_response("never")
    async def never(request: Payload) -> bytes:
        got(request.data)
        return await wait_for_ever()

    async def wait_for_ever() -> bytes:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            served.cancelled.set()
            raise

    @responder.request_stream
    @responder.request_stream("count")
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(int(request.data or b"10")):
            yield b"%d" % number

    @responder.request_stream("first")
    async def first(request: Payload) -> AsyncIterator[bytes]:
        yield b"first"
        await wait_for_ever()

    @responder.request_stream("endless")
    async def endless(request: Payload) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 1000
        finally:
            served.cancelled.set()

    @responder.request_channel
    @responder.request_channel("echo")
    async def echo_all(channel: Channel) -> None:
        if channel.request.data:
            await channel.send(b"opened with " + channel.request.data)
        async for item in channel:
            await channel.send(item)

    @responder.fire_and_forget
    @responder.fire_and_forget("log")
    def log(request: Payload) -> None:
        got(request.data)

    @responder.metadata_push
    def pushed(metadata: bytes) -> None:
        got(metadata)

    return responder


def seen(request: Payload, setup: Setup) -> dict[str, object]:
    """Return what a request and its connection's SETUP look like from here."""
    return {
        "data": request.data.decode(),
        "metadata": entries(request.metadata, str(setup.metadata_mime)),
        "data_mime": setup.data_mime,
        "metadata_mime": setup.metadata_mime,
        "setup_data": setup.payload.data.decode(),
        "setup_metadata": entries(setup.payload.metadata, str(setup.metadata_mime)),
        "keepalive": setup.keepalive_interval,
        "lifetime": setup.max_lifetime,
        "dialect": setup.dialect,
        "transport": setup.transport,
        "x_one": setup.header("X-One"),
    }


def entries(metadata: bytes | None, mime: str) -> object:
    """Composite metadata as pairs of type and content, in hex where it is no text; other metadata as its text."""
    if metadata is None:
        return None
    if mime != COMPOSITE_METADATA:
        return metadata.decode()
    return [[entry.mime, entry.content.decode("latin-1")] for entry in decode_composite(metadata)]
