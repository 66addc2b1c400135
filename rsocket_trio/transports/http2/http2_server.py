"""The server's side of HTTP/2: requests that begin a connection are granted, and all others refused."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.http2.http2_stream import CONTENT_TYPE, Http2Stream
from rsocket_trio.transports.http2.multiplexed import Headers, Multiplexed, running
from rsocket_trio.transports.schemes import AcceptOptions, Endpoint

OF_THE_HANDSHAKE = frozenset({"content-type", "content-length", "host", "te"})
"""Headers of a request that the handshake leaves out."""
LAST_STREAMS_TIMEOUT = 1.0
"""Seconds that a client gets to hear that it can open no more streams."""


class AcceptedHttp2:
    """The HTTP/2 connection of a client. Made by ``accept_http2``."""

    def __init__(
        self, stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: AcceptOptions
    ) -> None:
        self._endpoint = endpoint
        self._handshake = handshake
        self._limits = options.limits
        self._queue: deque[ByteStreamTransport] = deque()
        self._leaves = False
        self._announced_until = math.inf
        self._stopped = False
        self.connection = Multiplexed(stream, options.limits, self._on_request, client=False)

    async def accept(self) -> ByteStreamTransport | None:
        """Return the next stream that the client opens; ``None`` once it can open no more.

        It can open no more once it heard of ``stop_accepting``, once the connection is lost, and when no stream was
        open for as long as ``limits.silence``.
        """
        connection = self.connection
        while not self._queue:
            if self._announced_until < math.inf and connection.answered_pings:
                self._stop()
            if connection.failure or self._stopped or (connection.leaving and not connection.carried):
                return None
            with trio.CancelScope(deadline=self._announced_until) as scope:
                if not connection.carried:
                    # Whatever else the client sends, SETTINGS and the like, is no use of the connection.
                    scope.deadline = min(scope.deadline, connection.idle_since + self._limits.silence)
                # Woken by ``_on_request``, by ``stop_accepting``, when a PING is answered, when a stream closes, and
                # when the client goes.
                await connection.watcher.park()
            if scope.cancelled_caught:
                self._stop()
        return self._queue.popleft()

    def stop_accepting(self) -> None:
        """Tell the client that it can open no more. Those that are open go on, and those that are on their way.

        A client that has opened none yet is about to: it is told when it has.
        """
        self._leaves = True
        if self.connection.h2.highest_inbound_stream_id and self._announced_until == math.inf:
            self._announced_until = trio.current_time() + LAST_STREAMS_TIMEOUT
            self.connection.say_goaway(crossing=True)
            self.connection.ping()
            self.connection.watcher.unpark_all()

    def _stop(self) -> None:
        """Accept no more streams: the client has heard of it, or opened none for long."""
        self._stopped = True
        self.connection.say_goaway()

    def _on_request(self, stream_id: int, headers: Headers) -> None:
        connection = self.connection
        if self._stopped or connection.carried >= self._limits.shared_connections:
            connection.refuse_quietly(stream_id)
            return
        fields = dict(headers)
        if refusal := self._refusal(fields):
            connection.refuse(stream_id, refusal)
            return
        connection.send_headers(stream_id, [(":status", "200"), ("content-type", CONTENT_TYPE)])
        known = tuple(pair for pair in headers if pair[0] not in OF_THE_HANDSHAKE and not pair[0].startswith(":"))
        handshake = attrs.evolve(self._handshake, path=fields[":path"], headers=known)
        stream = Http2Stream(connection, stream_id, has_length="content-length" in fields)
        connection.add(stream)
        self._queue.append(ByteStreamTransport(stream, handshake))
        connection.watcher.unpark_all()
        if self._leaves:
            self.stop_accepting()

    def _refusal(self, fields: dict[str, str]) -> list[tuple[str, str]]:
        """Return the headers of the answer that refuses a request; none if it is granted."""
        if _path(fields.get(":path", "")) != _path(self._endpoint.path):
            return [(":status", "404")]
        if fields[":method"] != "POST":
            return [(":status", "405"), ("allow", "POST")]
        if fields.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
            return [(":status", "415"), ("accept", CONTENT_TYPE)]
        return []


@asynccontextmanager
async def accept_http2(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: AcceptOptions
) -> AsyncIterator[AcceptedHttp2]:
    """Carry a client's streams for as long as the block. Raise ``HandshakeFailed`` if it does not speak HTTP/2.

    A request for another path than the endpoint's gets 404, another method 405, another content type 415.
    """
    accepted = AcceptedHttp2(stream, endpoint, handshake, options)
    async with running(accepted.connection):
        await accepted.connection.wait_begun()
        yield accepted


def _path(target: str) -> str:
    return target.partition("?")[0] or "/"
