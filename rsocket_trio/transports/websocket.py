"""How do frames travel as WebSocket messages? One binary message is one frame."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import attrs
import trio
from trio_websocket import (
    CloseReason,
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    WebSocketRequest,
    wrap_client_stream,
    wrap_server_stream,
)
from wsproto.utilities import LocalProtocolError

from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.mux.framing import EncodedFrame, Framing, whole
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.pacing import PacedStream
from rsocket_trio.transports.reasons import HandshakeFailed
from rsocket_trio.transports.uris import Endpoint

SUBPROTOCOL = "rsocket"
"""Echoed to a client that offers it. Our client offers none: servers that echo nothing would make others fail."""
ENDINGS = frozenset({1000, 1001, 1005, 1006})
"""Close codes that are an end of stream: done, going away, none given, and a connection that just ended."""
UNSUPPORTED_DATA = 1003
QUEUE = 65536
"""Messages that the library may queue. What bounds them is ``PacedStream``, which counts bytes."""


T = TypeVar("T")


class WebSocketTransport:
    """Frames as binary messages. Made by ``open_websocket`` and ``accept_websocket``, which own its reader task."""

    is_message_based = True

    def __init__(self, connection: WebSocketConnection, reader: _Reader, handshake: Handshake) -> None:
        self.handshake = handshake
        self._connection = connection
        self._stream = reader.paced
        self._reader = reader
        self._peeked: list[bytes] = []
        self._shown = 0
        self._refusal: RemoteProtocolError | None = None

    def use_framing(self, framing: Framing) -> None:
        """Nothing to cut: messages are frames."""

    async def peek(self) -> tuple[bytes, bool]:
        """The first message, at the next call with the one behind it, and whether no more can come.

        ``receive`` delivers them again.
        """
        if self._shown == len(self._peeked):
            self._peeked += await self._take()
        ended = self._shown == len(self._peeked)
        self._shown += not ended
        return b"".join(self._peeked[: self._shown]), ended

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Write all frames in one write, a message each."""
        with self._stream.corked():
            try:
                for frame in frames:
                    await self._connection.send_message(whole(frame))
            except (ConnectionClosed, LocalProtocolError) as exc:
                raise trio.BrokenResourceError(_said(self._connection.closed)) from exc
            await self._stream.flush()

    async def receive(self) -> Sequence[bytes]:
        """The messages that are here, at least one; an empty sequence once the peer has closed.

        A text message raises ``RemoteProtocolError`` once those before it were handed out; ``finish`` then closes
        with 1003 whatever code it is given.
        """
        messages, self._peeked = self._peeked, []
        self._shown = 0
        return messages or await self._take()

    @property
    def mid_frame(self) -> bool:
        """Whether a part of a message was received and its rest was not."""
        # The library has no public word for it.
        return bool(self._connection._message_parts)

    async def finish(self, code: int = 1000) -> None:
        """Say that nothing more is sent, then discard what comes until the peer does the same, at most 4 MiB.

        Nobody may be in ``send`` or ``receive`` meanwhile. The caller bounds the time.
        """
        self._stream.discard()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._connection.aclose(UNSUPPORTED_DATA if self._refusal else code)
            await self._reader.done.wait()
            # After a message that was too large the library leaves the rest of it unread, and the stream open.
            await self._stream.send_eof()
            while await self._stream.receive_some():
                pass

    def cut(self) -> bool:
        """Closing takes waiting."""
        return False

    async def aclose(self) -> None:
        """Close at once; never raises for a transport that is broken already."""
        await trio.aclose_forcefully(self._stream)

    async def _take(self) -> list[bytes]:
        """The next message together with those behind it; none at the end."""
        if self._refusal is not None:
            raise self._refusal
        try:
            self._stream.want()
            message = await self._connection.get_message()
        except ConnectionClosed as exc:
            if exc.reason is not None and exc.reason.code in ENDINGS:
                return []
            raise trio.BrokenResourceError(self._reader.reason or _said(exc.reason)) from exc
        finally:
            self._stream.took()
        messages: list[bytes] = []
        try:
            while isinstance(message, bytes):
                messages.append(message)
                # The public get_message() waits, and costs a checkpoint for every message that is here already.
                message = self._connection._recv_channel.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            return messages
        self._refusal = RemoteProtocolError(f"text message of {len(message)} characters: frames are binary messages")
        if not messages:
            raise self._refusal
        return messages


@asynccontextmanager
async def open_websocket(
    stream: trio.abc.Stream,
    endpoint: Endpoint,
    handshake: Handshake,
    *,
    headers: Iterable[tuple[str, str]] = (),
    max_message: int,
) -> AsyncIterator[WebSocketTransport]:
    """Do the client's handshake over a stream, and close it when the block ends. Raises ``HandshakeFailed``.

    A header ``Sec-WebSocket-Protocol`` offers sub-protocols; by default none is offered.
    """
    subprotocols: list[str] = []
    extra: list[tuple[bytes, bytes]] = []
    for name, text in headers:
        if name.lower() == "sec-websocket-protocol":
            subprotocols += [each.strip() for each in text.split(",")]
        else:
            extra.append((name.encode("ascii"), text.encode("latin-1")))

    async def connect(readers: trio.Nursery, paced: PacedStream) -> WebSocketConnection:
        return await wrap_client_stream(
            readers,
            paced,  # type: ignore[arg-type]  # any stream does
            endpoint.authority,
            endpoint.path or "/",
            subprotocols=subprotocols,
            extra_headers=extra,
            message_queue_size=QUEUE,
            max_message_size=max_message,
            receive_buffer_size=None,
        )

    async with _reading(stream) as reader:
        connection = await reader.handshake(connect)
        handshake = attrs.evolve(handshake, path=endpoint.path or "/", headers=_as_text(connection.handshake_headers))
        yield WebSocketTransport(connection, reader, handshake)


@asynccontextmanager
async def accept_websocket(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, *, max_message: int
) -> AsyncIterator[WebSocketTransport]:
    """Do the server's handshake over a stream, and close it when the block ends. Raises ``HandshakeFailed``.

    A path other than the endpoint's gets 404. Compression is never agreed on.
    """

    async def await_request(readers: trio.Nursery, paced: PacedStream) -> WebSocketRequest:
        return await wrap_server_stream(
            readers, paced, message_queue_size=QUEUE, max_message_size=max_message, receive_buffer_size=None
        )

    async with _reading(stream) as reader:
        request = await reader.handshake(await_request)
        try:
            if _path(request.path) != _path(endpoint.path):
                await request.reject(404)
                raise HandshakeFailed(f"WebSocket path {readable(request.path)!r}, served is {_path(endpoint.path)!r}")
            echo = SUBPROTOCOL if SUBPROTOCOL in request.proposed_subprotocols else None
            connection = await request.accept(subprotocol=echo)
        except ConnectionClosed as exc:
            raise HandshakeFailed("the peer left during the WebSocket handshake") from exc
        handshake = attrs.evolve(handshake, path=request.path, headers=_as_text(request.headers))
        yield WebSocketTransport(connection, reader, handshake)


class _Reader:
    """The library's reader task, and what its end means."""

    def __init__(self, paced: PacedStream) -> None:
        self.done = trio.Event()
        self.paced = paced
        self._readers: trio.Nursery | None = None
        self._ready = trio.Event()
        self.error: BaseException | None = None
        self._scope = trio.CancelScope(shield=True)
        self._handshake = trio.CancelScope()
        self._begun = trio.Event()

    @property
    def reason(self) -> str:
        """Why the reader failed; empty if it did not."""
        if isinstance(self.error, ConnectionRejected):
            return f"the server answered HTTP {self.error.status_code} to the WebSocket handshake"
        return "" if self.error is None else f"WebSocket: {readable(str(self.error)) or type(self.error).__name__}"

    async def run(self) -> None:
        """Own the nursery that the library starts its reader in. Shielded: ``stop`` ends it and nothing else."""
        try:
            with self._scope:
                async with trio.open_nursery() as self._readers:
                    self._ready.set()
                    await self._begun.wait()
        except ExceptionGroup as group:
            # Bytes of the peer made it fail, in whichever way: that concerns this connection only.
            self.error = group.exceptions[0]
        finally:
            # The library would wait for ever for a handshake that nobody reads any more.
            self._handshake.cancel()
            self.done.set()

    async def handshake(self, begin: Callable[[trio.Nursery, PacedStream], Awaitable[T]]) -> T:
        """Start the library's reader and wait for its handshake. ``HandshakeFailed`` if the reader ends first."""
        await self._ready.wait()
        assert self._readers is not None
        result: T | None = None
        with self._handshake:
            # The library starts its task before it first waits; only then may our nursery end with its last task.
            self._begun.set()
            result = await begin(self._readers, self.paced)
        if result is None:
            raise HandshakeFailed(self.reason or "the peer did no WebSocket handshake") from self.error
        self.paced.handshake_done()
        return result

    async def stop(self) -> None:
        """End the reader, whatever it does."""
        self._scope.cancel()
        await self.done.wait()


@asynccontextmanager
async def _reading(stream: trio.abc.Stream) -> AsyncIterator[_Reader]:
    """A reader for as long as the block. What the block raises leaves it alone, in no group."""
    reader = _Reader(PacedStream(stream))
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        try:
            yield reader
        except BaseException as exc:
            error = exc
        with trio.CancelScope(shield=True):
            await reader.stop()
            await trio.aclose_forcefully(stream)
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


def _said(closed: CloseReason | None) -> str:
    if closed is None:
        return "the WebSocket is closed"
    return f"the WebSocket was closed with {closed.code} {readable(closed.reason or closed.name)}"


def _path(target: str) -> str:
    return target.partition("?")[0] or "/"


def _as_text(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1").lower(), text.decode("latin-1")) for name, text in headers)
