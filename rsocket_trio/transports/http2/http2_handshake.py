"""Both sides of HTTP/2: each connection is a POST whose body, and whose answer's, are frames; a server grants it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from h2.errors import ErrorCodes
from h2.exceptions import H2Error

from rsocket_trio.errors import readable
from rsocket_trio.transports.base import ConnectTimeout, Handshake
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.first_bytes import HTTP_2, wrong_protocol
from rsocket_trio.transports.http2.http2_stream import CONTENT_TYPE, Http2Stream
from rsocket_trio.transports.http2.multiplexed import Headers, Multiplexed, running
from rsocket_trio.transports.schemes import AcceptOptions, ConnectOptions, Endpoint, path_of

ANSWER_TIMES = (0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds to wait for the answer to a request before each PING; together those until the first frames are sent."""


class RequestedTransport(ByteStreamTransport):
    """Frames over a stream that this side asked for."""

    __slots__ = ("_requested",)

    def __init__(self, stream: Http2Stream, handshake: Handshake) -> None:
        super().__init__(stream, handshake)
        self._requested = stream

    async def granted(self, time_limit: ConnectTimeout) -> Handshake:
        """Wait for the answer. Return the handshake with its headers.

        Raise ``HandshakeFailed`` for a refusal, ``ConnectionLost`` once the time is over, and ``ClosedResourceError``
        if this side ended the stream meanwhile.
        """
        stream = self._requested
        with time_limit.step("the POST was not answered"):
            while not (stream.failure or stream.is_closed or stream.answer is not None):
                await stream.reader.park()  # woken by ``_on_answer``, and by whatever ends the stream
        if stream.failure and not stream.said_the_end:
            if stream.is_refused:
                raise HandshakeFailed(stream.failure)
            raise stream.connection.handshake_failed(stream.failure)
        if stream.failure or stream.is_closed:
            raise trio.ClosedResourceError("the HTTP/2 stream was ended")
        self.handshake = attrs.evolve(self.handshake, headers=stream.answer or ())
        return self.handshake


class SharedHttp2:
    """An HTTP/2 connection to a server. Made by ``share_http2``."""

    def __init__(
        self, stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: ConnectOptions
    ) -> None:
        self._scheme = endpoint.scheme
        self._handshake = handshake
        self.connection = Multiplexed(stream, options.limits, self._on_answer, client=True)

    @property
    def takes_more(self) -> bool:
        """Return whether another stream can be opened: the connection is not over, and the server not going away."""
        return not (self.connection.failure or self.connection.leaving)

    async def wait_over(self) -> None:
        """Wait until the connection is over, or the server goes away and no stream is open."""
        connection = self.connection
        while not connection.failure and (connection.carried or not connection.leaving):
            await connection.watcher.park()

    @asynccontextmanager
    async def open(self, endpoint: Endpoint, options: ConnectOptions) -> AsyncIterator[RequestedTransport]:
        """Open a stream for the block: a POST to the path of ``endpoint``, with the headers of ``options``.

        The block begins with the server's answer, or without one after ``ANSWER_TIMES``: then ``granted`` waits for it.
        Raise ``HandshakeFailed`` if the server is going away, allows no more streams, or refuses this one,
        ``ConnectionLost`` if the time to connect is over, and ``ValueError`` for an endpoint of another scheme.
        """
        if endpoint.scheme != self._scheme:
            raise ValueError(f"{endpoint}: a connection of {self._scheme} is shared here")
        connection = self.connection
        if connection.failure or connection.leaving:
            raise HandshakeFailed(connection.failure or connection.leaving)
        path = endpoint.path or "/"
        # Until the answer came h2 judges DATA, which has no place before it.
        stream = Http2Stream(connection, self._request(endpoint, path, options), has_length=True)
        transport = RequestedTransport(stream, attrs.evolve(self._handshake, path=path))
        connection.add(stream)
        try:
            await self._ask_for_answer(transport, options.time_limit)
            yield transport
        finally:
            stream.close()

    def _request(self, endpoint: Endpoint, path: str, options: ConnectOptions) -> int:
        connection = self.connection
        headers = [
            (":method", "POST"),
            (":scheme", "https" if endpoint.uses_tls else "http"),
            (":authority", endpoint.authority),
            (":path", path),
            ("content-type", CONTENT_TYPE),
        ]
        for name, text in options.headers:
            if name.lower() == "content-type":
                raise HandshakeFailed(f"HTTP/2: the content type is {CONTENT_TYPE}, and no other can be sent")
            headers.append((name.lower(), text))
        try:
            stream_id = connection.h2.get_next_available_stream_id()
            connection.send_headers(stream_id, headers)
        except (H2Error, UnicodeError) as error:
            # A path or a header is not valid in HTTP/2, or the server allows no more streams.
            raise HandshakeFailed(f"HTTP/2: {readable(str(error))}") from error
        return stream_id

    async def _ask_for_answer(self, transport: RequestedTransport, time_limit: ConnectTimeout) -> None:
        """Wait for the server's answer for as long as no frame need be sent for it. Raise ``HandshakeFailed``.

        A proxy may hold the answer back until there is more to send, as nginx does under TLS: its answer to a PING
        carries it along. Behind one that waits for the request's first bytes, no answer comes before those are sent.
        """
        for seconds in ANSWER_TIMES:
            with trio.move_on_after(seconds):
                await transport.granted(time_limit)
                return
            self.connection.ping()

    def _on_answer(self, stream_id: int, headers: Headers) -> None:
        stream = self.connection.streams.get(stream_id)
        if stream is None:
            return
        fields = dict(headers)
        stream.has_length = "content-length" in fields
        if refusal := _refusal(fields):
            stream.is_refused = True
            # An error page that follows is nobody's: without the stream h2 takes it.
            self.connection.drop(stream, refusal, ErrorCodes.CANCEL)
        else:
            stream.answer = tuple(pair for pair in headers if pair[0] != "content-type" and not pair[0].startswith(":"))
            stream.reader.unpark_all()


def _refusal(fields: dict[str, str]) -> str:
    """Return why an answer does not grant the stream; nothing if it does."""
    if fields[":status"] != "200":
        return f"the server answered HTTP {readable(fields[':status'])} to the request"
    kind = fields.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != CONTENT_TYPE:
        return f"the server answered with content type {readable(kind)!r}, not {CONTENT_TYPE}"
    return ""


@asynccontextmanager
async def share_http2(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: ConnectOptions
) -> AsyncIterator[SharedHttp2]:
    """Carry streams to a server for as long as the block. Raise ``HandshakeFailed`` if it does not speak HTTP/2."""
    shared = SharedHttp2(stream, endpoint, handshake, options)
    connection = shared.connection
    async with running(connection):
        with options.time_limit.step("no SETTINGS of HTTP/2"):
            try:
                await connection.wait_begun()
            except HandshakeFailed as error:
                raise wrong_protocol(connection.first, HTTP_2, over_tls=endpoint.uses_tls) or error from None
        yield shared


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
            connection.refuse(stream_id)
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
        if path_of(fields.get(":path", "")) != path_of(self._endpoint.path):
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
