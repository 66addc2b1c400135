"""Hostile and careless clients of a server that resumes: they vanish, guess tokens, and replay."""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
import trio.testing

from qa.processes import MIB, resident
from rsocket_trio import Keepalive, Payload, RejectedResume, Responder, ResumeOptions, serve
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
from rsocket_trio.rsocket.frames import ErrorFrame, Frame, KeepaliveFrame, RequestFrame, ResumeFrame
from rsocket_trio.rsocket.handshake import ClientTerms, setup_frame
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE, ResumeRequest
from rsocket_trio.server.session_registry import SessionRegistry
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport

HOST = "127.0.0.1"
KEPT = 4_096
"""Bytes that a session keeps whose client has vanished."""
A_SESSION = 32 * 1024
"""Bytes of a session beside what it keeps: a connection, and the handler's task that waits in it."""
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
    before = {id(one) for one in every_sessions()}
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, resume=options, grace=0), responder(), ["tcp://127.0.0.1:0"])
        [sessions] = [one for one in every_sessions() if id(one) not in before]
        try:
            yield int(uri.rpartition(":")[2]), sessions
        except BaseException as exc:
            error = exc
        del sessions
        nursery.cancel_scope.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


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
    seconds: float


async def leave_behind(count: int, options: ResumeOptions) -> LeftBehind:
    """So many clients begin a session, receive an item, and vanish."""
    most_waiting = most_bytes = 0
    began = time.monotonic()
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
        return LeftBehind(most_waiting, most_bytes, growth, len(sessions), time.monotonic() - began)


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


VANISHING, GUESSES, GUESSES_BY_WIRE = 5_000, 1_000_000, 2_000
FULL = ResumeOptions(sessions=1_000, sessions_bytes=2 * MIB, session_seconds=10)


async def everything() -> bool:
    """The full sizes, printed. Return whether all is as it should be."""
    came = await leave_behind(VANISHING, FULL)
    print(
        f"{VANISHING:,} sessions left behind: at most {came.most_waiting} waiting (limit {FULL.sessions}), "
        f"{came.most_bytes} bytes (limit {FULL.sessions_bytes}), memory +{came.growth / MIB:.1f} MiB, "
        f"{came.left} left after {came.seconds:.0f} s",
        flush=True,
    )
    began = time.monotonic()
    async with resuming_server(FULL) as (port, sessions):
        async with dialled(port) as rightful:
            await rightful.begin(secrets.token_bytes(TOKEN_SIZE))
            await rightful.is_alive()
            found = guess(sessions, GUESSES, nowhere())
            answers = {await refusal(port, secrets.token_bytes(TOKEN_SIZE)) for _ in range(GUESSES_BY_WIRE)}
            alive = await rightful.is_alive()
        del sessions
    print(
        f"{GUESSES:,} guessed tokens, {GUESSES_BY_WIRE:,} of them more by wire: {found} found, "
        f"{len(answers)} kind of answer, rightful session {'unharmed' if alive else 'harmed'}, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    within = came.most_waiting <= FULL.sessions and came.most_bytes <= FULL.sessions_bytes and not came.left
    bound = FULL.sessions_bytes + came.most_waiting * A_SESSION + 16 * MIB
    return within and came.growth <= bound and not found and len(answers) == 1 and alive


def nowhere() -> Transport:
    """A transport that nobody is at the other end of."""
    return ByteStreamTransport(trio.testing.memory_stream_pair()[0])
