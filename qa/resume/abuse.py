"""Hostile and careless clients of a server that resumes: they vanish, guess tokens, and replay."""

from __future__ import annotations

import gc
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from qa.processes import resident
from rsocket_trio import Payload, RejectedResume, Responder, ResumeOptions
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE, ResumeRequest
from rsocket_trio.server.session_registry import SessionRegistry
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from tests.conformance import raw
from tests.conformance.resuming import resume
from tests.serving import running_server

HOST = "127.0.0.1"
KEPT = 4_096
"""Bytes that a session keeps whose client has vanished."""
PATIENCE = 10.0


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[raw.RawPeer]:
    """A raw client, for as long as the block."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        yield raw.RawPeer(stream)


def responder() -> Responder:
    """Items of 4 KiB without end."""
    responder = Responder()

    @responder.request_stream
    async def items(request: Payload) -> AsyncIterator[bytes]:
        while True:
            yield bytes(KEPT)

    return responder


@asynccontextmanager
async def resuming_server(options: ResumeOptions) -> AsyncIterator[tuple[int, SessionRegistry]]:
    """A server's port, and its sessions."""
    before = {id(registry) for registry in every_sessions()}
    async with running_server(responder(), resume=options, grace=0) as uri:
        [sessions] = [registry for registry in every_sessions() if id(registry) not in before]
        try:
            yield int(uri.rpartition(":")[2]), sessions
        finally:
            del sessions


def every_sessions() -> list[SessionRegistry]:
    """All that live in this process."""
    return [one for one in gc.get_objects() if isinstance(one, SessionRegistry)]


def kept_bytes(sessions: SessionRegistry) -> int:
    """Return the bytes kept by sessions that wait for their clients."""
    return sum(waiting.kept_bytes for waiting in sessions._waiting)


@attrs.frozen
class LeftBehind:
    """The costs of clients that vanished."""

    most_waiting: int
    most_bytes: int
    growth: int
    left: int


async def leave_behind(count: int, options: ResumeOptions) -> LeftBehind:
    """So many clients begin a session, receive an item, and vanish."""
    most_waiting = most_bytes = 0
    async with resuming_server(options) as (port, sessions):
        await _vanish(port)
        before = resident()
        for _ in range(count):
            await _vanish(port)
            most_waiting = max(most_waiting, sessions.waiting)
            most_bytes = max(most_bytes, kept_bytes(sessions))
        gc.collect()
        growth = resident() - before
        with trio.move_on_after(options.session_seconds + PATIENCE):
            while len(sessions):  # noqa: ASYNC110
                await trio.sleep(0.02)
        return LeftBehind(most_waiting, most_bytes, growth, len(sessions))


async def _vanish(port: int) -> None:
    async with dialled(port) as client:
        await client.send(raw.setup(token=secrets.token_bytes(TOKEN_SIZE)), raw.stream(1, 1))
        await client.receive()


def guess(sessions: SessionRegistry, count: int, transport: Transport) -> int:
    """Try random tokens; how many of them named a session."""
    found = 0
    for _ in range(count):
        try:
            sessions.resume(ResumeRequest(secrets.token_bytes(TOKEN_SIZE), (1, 0), 0), transport, ())
            found += 1
        except RejectedResume:
            pass
    return found


async def refusal(port: int, token: bytes, position: int = 0) -> tuple[int, bytes]:
    """Return how a RESUME over a new connection is refused."""
    async with dialled(port) as client:
        await client.send(resume(raw.RS10, token, got=position))
        answer = await client.receive()
        assert answer.type == raw.ERROR
        return answer.error_code, answer.body[4:]


def nowhere() -> Transport:
    """A transport that nobody is at the other end of."""
    return ByteStreamTransport(trio.testing.memory_stream_pair()[0])
