"""Transport over a trio-websocket connection that the program opened or accepted itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio
from trio_websocket import CloseReason, ConnectionClosed, WebSocketConnection

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.transports.base import Handshake, MessageTransport
from rsocket_trio.transports.websocket.websocket_frames import ENDINGS, TEXT_REFUSED, UNSUPPORTED_DATA, close_text


class TrioWebSocketAdapter(MessageTransport):
    """Frames as binary messages of a ``trio_websocket.WebSocketConnection``.

    Its owner's nursery runs it, and its own ``max_message_size`` and ``message_queue_size`` hold. It costs several
    times as much as a ``ws://`` URI: a task of the library's for each message, and a write.
    """

    __slots__ = ("_connection", "_refusal")

    def __init__(self, connection: WebSocketConnection) -> None:
        super().__init__(_handshake(connection))
        self._connection = connection
        self._refusal: RemoteProtocolError | None = None

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        try:
            for frame in frames:
                await self._connection.send_message(whole(frame))
        except ConnectionClosed as exc:
            raise trio.BrokenResourceError(_said(exc.reason)) from None  # the library's text is for programmers

    async def finish(self, code: int = 1000) -> None:
        """Send a close frame and wait for the peer's; the code is 1003 if a text message was refused."""
        try:
            await self._connection.aclose(code if self._refusal is None else UNSUPPORTED_DATA)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def cut(self) -> bool:
        return False  # it needs waiting

    async def aclose(self) -> None:
        """Close at once; never raises for a transport that is broken already.

        If the peer closed first, the library leaves the stream below to the task that opened it.
        """
        await trio.aclose_forcefully(self._connection)

    async def _take(self) -> list[bytes]:
        """Return the next message; none once the peer has closed. A text message raises ``RemoteProtocolError``."""
        if self._refusal is not None:
            raise self._refusal
        try:
            message = await self._connection.get_message()
        except ConnectionClosed as exc:
            if exc.reason is not None and exc.reason.code in ENDINGS:
                return []
            raise trio.BrokenResourceError(_said(exc.reason)) from None
        if isinstance(message, bytes):
            return [message]
        self._refusal = RemoteProtocolError(f"WebSocket: {TEXT_REFUSED}")
        raise self._refusal


def _handshake(connection: WebSocketConnection) -> Handshake:
    raw = connection.handshake_headers
    headers = tuple((name.decode("latin-1").lower(), text.decode("latin-1")) for name, text in raw)
    scheme, peer = "ws", ""
    with suppress(OSError):  # which says that the peer is gone already
        remote = connection.remote
        if not isinstance(remote, str):  # as it is over a stream that is no socket
            scheme = "wss" if remote.is_ssl else "ws"
            host = f"[{remote.address}]" if remote.address.version == 6 else remote.address
            peer = f"{host}:{remote.port}"
    return Handshake(transport=scheme, peer_address=peer, path=connection.path, headers=headers)


def _said(closed: CloseReason | None) -> str:
    if closed is None:
        return "the WebSocket is closed"
    return close_text(closed.code, closed.reason)
