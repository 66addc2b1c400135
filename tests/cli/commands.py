"""The command as a process of its own, and a server in the test that it can talk to."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import trio

from rsocket_trio import Channel, Lease, Payload, Responder, Setup, current_connection, serve
from rsocket_trio.metadata import COMPOSITE_METADATA, decode_composite
from tests.cli.prepared import ForkedProcess, Forker

COMMAND = [sys.executable, "-c", "from rsocket_trio.cli.entry import main; main()"]
PATIENCE = 30
"""Seconds after which a process hangs."""
FORKER = Forker()
"""Made as tests are collected: one of them must not find a process that it did not start."""


@attrs.frozen
class Result:
    """What a process that ended has left."""

    code: int
    stdout: str
    stderr: str


async def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> Result:
    """Run a command to its end."""
    said = {"stdout": b"", "stderr": b""}

    async def keep(name: str) -> None:
        async for chunk in getattr(command.process, name):
            said[name] += chunk

    async with started(*arguments, cwd=cwd) as command, trio.open_nursery() as nursery:
        nursery.start_soon(keep, "stdout")
        nursery.start_soon(keep, "stderr")
        with suppress(trio.BrokenResourceError):  # one that reads nothing may end before all of it is written
            await command.write(stdin)
        await command.close("stdin")
        code = await command.process.wait()
    return Result(code, said["stdout"].decode("utf-8", "surrogateescape"), said["stderr"].decode())


class Running:
    """A process that has not ended: lines come out, lines and signals go in."""

    def __init__(self, process: trio.Process | ForkedProcess) -> None:
        self.process = process
        self._rests: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    async def line(self, name: str = "stdout") -> str:
        """The next line of stdout, or stderr, without its newline; empty at the end."""
        stream = getattr(self.process, name)
        rest = self._rests[name]
        while b"\n" not in rest and (chunk := await stream.receive_some()):
            rest += chunk
        line, _, self._rests[name] = rest.partition(b"\n")
        return line.decode()

    async def write(self, data: bytes) -> None:
        """Send bytes to stdin."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(data)

    async def close(self, name: str) -> None:
        """Close our end of a pipe."""
        await getattr(self.process, name).aclose()

    async def end(self) -> tuple[int, str]:
        """Wait for the exit code; and what is on stderr."""
        lines = []
        while line := await self.line("stderr"):
            lines.append(line)
        return await self.process.wait(), "\n".join(lines)


@asynccontextmanager
async def started(*arguments: str, cwd: Path | None = None) -> AsyncIterator[Running]:
    """A command that runs for as long as the block, its three streams ours."""
    process = await FORKER.start(arguments, cwd)
    try:
        with trio.fail_after(PATIENCE):
            yield Running(process)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.aclose()


@attrs.define(eq=False)
class Served:
    """A server in the test: where it listens, and what it got."""

    uris: list[str] = attrs.field(factory=list)
    got: list[bytes] = attrs.field(factory=list)
    cancelled: trio.Event = attrs.field(factory=trio.Event)
    arrived: trio.Event = attrs.field(factory=trio.Event)

    @property
    def uri(self) -> str:
        """The first of them."""
        return self.uris[0]


@asynccontextmanager
async def serving(*uris: str, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """The handlers that the tests ask for, on a free port of TCP by default."""
    served = Served()
    async with trio.open_nursery() as nursery:
        run_server = partial(serve, ssl_context=ssl_context, grace=0)
        served.uris = await nursery.start(run_server, responder_for(served), list(uris) or ["tcp://127.0.0.1:0"])
        yield served
        nursery.cancel_scope.cancel()


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

    @responder.lease
    async def lease(setup: Setup) -> AsyncIterator[Lease]:
        yield Lease(10, 60)

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
        "lease": setup.lease,
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
