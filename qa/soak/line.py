"""A connection of a client, and how its network goes: first it loses everything, then it is gone."""

from __future__ import annotations

import socket
from typing import Any

import trio

from qa.resume.proxy import reset
from rsocket_trio import Connection
from rsocket_trio.transports.socket_stream import SocketStream


class Deaf(trio.abc.Stream):
    """In place of a stream whose network is gone: what is written is lost, and nothing is read until the end."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._gone = trio.Event()

    async def send_all(self, data: object) -> None:
        """Lose it."""
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """There is always room."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Nothing comes, and then the end."""
        await self._gone.wait()
        raise trio.BrokenResourceError("cut")

    async def aclose(self) -> None:
        """Close the socket."""
        self._gone.set()
        await self.stream.aclose()

    def end(self, *, rudely: bool) -> None:
        """Take the socket away, with a reset or with the ends of both directions."""
        self._gone.set()
        try:
            if rudely:
                reset(self.stream)
            else:
                self.stream.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was lost already


class Line:
    """One connection, and whether it was cut here."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.is_cut = False
        self.resumed = 0
        connection.on_state(self._on_state)

    def _on_state(self, status: str) -> None:
        self.resumed += status == "open"

    async def cut(self, *, seconds: float, rudely: bool) -> None:
        """Have the network lose everything for so long, and then be gone."""
        self.is_cut = True
        link: Any = self.connection._engine.link
        transport = link._transport
        deaf = transport._stream = Deaf(transport._stream)
        transport._socket = None
        await trio.sleep(seconds)
        deaf.end(rudely=rudely)
