"""Hostile and careless clients of a server that resumes: they vanish, guess tokens, and replay."""

from __future__ import annotations

import gc
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
import trio.testing

from qa.processes import resident
from rsocket_trio import Keepalive, Payload, RejectedResume, Responder, ResumeOptions, serve
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
from rsocket_trio.rsocket.frames import ErrorFrame, Frame, KeepaliveFrame, RequestFrame, ResumeFrame
from rsocket_trio.rsocket.handshake import ClientTerms, setup_frame
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE, ResumeRequest
from rsocket_trio.server.session_registry import SessionRegistry
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport

HOST = "127.0.0.1"
KEPT = 4_096
"""Bytes that a session keeps whose client has vanished."""
TERMS = ClientTerms(Payload(), "application/octet-stream", "", Keepalive(), lease=False, strict=False)
PATIENCE = 10.0


class Raw:
    """A client of 1.0 that is frames and nothing else."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def send(self, *frames: Frame) -> None:
        """Send frames in one write."""
        encoded = [RSOCKET_1_0.codec.encode(frame) for frame in frames]
        await self.stream.send_all(b"".join(len(frame).to_bytes(3, "big") + frame for frame in encoded))

    async def receive(self) -> tuple[Frame | None, int]:
        """The next frame and its size; ``None`` at the end."""
        with trio.fail_after(PATIENCE):
            while True:
                size = int.from_bytes(self._buffer[:3], "big")
                if len(self._buffer) >= 3 + size > 3:
                    frame = bytes(self._buffer[3 : 3 + size])
                    del self._buffer[: 3 + size]
                    return RSOCKET_1_0.codec.decode(frame), size
                try:
                    data = await self.stream.receive_some(65536)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    data = b""
                if not data:
                    return None, 0
                self._buffer += data

    async def begin(self, token: bytes) -> None:
        """A session that can be resumed."""
        await self.send(setup_frame(RSOCKET_1_0, attrs.evolve(TERMS, resume_token=token)))

    async def ask(self, stream_id: int, items: int) -> None:
        """Ask for a stream."""
        await self.send(RequestFrame(stream_id, Interaction.REQUEST_STREAM, Payload(), initial_n=items))

    async def come_back(self, token: bytes, position: int = 0, first: int = 0) -> Frame | None:
        """The answer to a RESUME."""
        await self.send(ResumeFrame(1, 0, token, position, first))
        return (await self.receive())[0]

    async def is_alive(self) -> bool:
        """Return whether the server answers."""
        await self.send(KeepaliveFrame(True, 0, b"?"))
        while True:
            frame, _ = await self.receive()
            if frame is None or isinstance(frame, KeepaliveFrame):
                return frame is not None


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[Raw]:
    """A raw client, for as long as the block."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        yield Raw(stream)


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
    async with nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery:
        [uri] = await nursery.start(partial(serve, resume=options, grace=0), responder(), ["tcp://127.0.0.1:0"])
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
        await client.begin(secrets.token_bytes(TOKEN_SIZE))
        await client.ask(1, 1)
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


async def refusal(port: int, token: bytes, position: int = 0, first: int = 0) -> tuple[int, bytes]:
    """Return how a RESUME over a new connection is refused."""
    async with dialled(port) as client:
        answer = await client.come_back(token, position, first)
        assert isinstance(answer, ErrorFrame)
        return answer.code, answer.data


def nowhere() -> Transport:
    """A transport that nobody is at the other end of."""
    return ByteStreamTransport(trio.testing.memory_stream_pair()[0])
