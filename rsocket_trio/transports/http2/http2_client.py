"""The client's side of HTTP/2: each connection is a POST whose body, and whose answer's, are frames."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from h2.errors import ErrorCodes
from h2.exceptions import H2Error

from rsocket_trio.errors import readable
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.http2.h2_setup import Headers
from rsocket_trio.transports.http2.http2_stream import CONTENT_TYPE, Http2Stream
from rsocket_trio.transports.http2.multiplexed import Multiplexed, running
from rsocket_trio.transports.schemes import ConnectOptions, Endpoint

ANSWER_TIMES = (0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds to wait for the answer to a request before each PING; together those until it is waited for no longer."""


class SharedHttp2:
    """An HTTP/2 connection to a server. Made by ``share_http2``."""

    def __init__(
        self, stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: ConnectOptions
    ) -> None:
        self._scheme = endpoint.scheme
        self._handshake = handshake
        self._answers: dict[int, Headers] = {}
        self.connection = Multiplexed(stream, options.limits, self._on_answer, client=True)

    @property
    def takes_more(self) -> bool:
        """Return whether another stream can be opened: the connection is not over, and the server not going away."""
        return not (self.connection.failure or self.connection.leaving)

    @asynccontextmanager
    async def open(self, endpoint: Endpoint, options: ConnectOptions) -> AsyncIterator[Http2Stream]:
        """Open a stream for the block: a POST to the path of ``endpoint``, with the headers of ``options``.

        The block begins with the server's answer, or without one after ``ANSWER_TIMES``: a refusal that comes later
        breaks the stream. Raise ``HandshakeFailed`` if the server is going away, allows no more streams, or refuses
        this one, and ``ValueError`` for an endpoint of another scheme.
        """
        if endpoint.scheme != self._scheme:
            raise ValueError(f"{endpoint}: a connection of {self._scheme} is shared here")
        connection = self.connection
        if connection.failure or connection.leaving:
            raise HandshakeFailed(connection.failure or connection.leaving)
        path = endpoint.path or "/"
        stream_id = self._request(endpoint, path, options)
        # Until the answer came h2 judges DATA, which has no place before it.
        stream = Http2Stream(connection, stream_id, attrs.evolve(self._handshake, path=path), has_length=True)
        connection.add(stream)
        connection.is_alone = options.is_alone
        try:
            answer = await self._answer(stream)
            known = tuple(pair for pair in answer if pair[0] != "content-type" and not pair[0].startswith(":"))
            stream.handshake = attrs.evolve(stream.handshake, headers=known)
            yield stream
        finally:
            stream.cut()
            self._answers.pop(stream_id, None)

    def _request(self, endpoint: Endpoint, path: str, options: ConnectOptions) -> int:
        """Send the request. Return its stream."""
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

    async def _answer(self, stream: Http2Stream) -> Headers:
        """Wait for the server's answer, which grants the stream. Return its headers, none if it does not come.

        A proxy may hold the answer back until there is more to send, as nginx does under TLS: its answer to a PING
        carries it along. Behind one that waits for the request's first bytes, no answer comes before those are sent.
        """
        for seconds in ANSWER_TIMES:
            with trio.move_on_after(seconds):
                while not stream.failure:
                    if (answer := self._answers.get(stream.stream_id)) is not None:
                        return answer
                    # Woken by ``_on_answer``, and by whatever ends the stream.
                    await stream.reader.wait()
                if stream.stream_id in self._answers:
                    raise HandshakeFailed(stream.failure)
                raise self.connection.handshake_failed(stream.failure)
            self.connection.ping()
        return []

    def _on_answer(self, stream_id: int, headers: Headers) -> None:
        lane = self.connection.lanes.get(stream_id)
        if lane is None:
            return
        said = dict(headers)
        lane.has_length = "content-length" in said
        self._answers[stream_id] = headers
        if refusal := _refusal(said):
            # An error page that follows is nobody's: without the lane h2 takes it.
            self.connection.drop(lane, refusal, ErrorCodes.CANCEL)
        lane.reader.wake()


def _refusal(said: dict[str, str]) -> str:
    """Return why an answer does not grant the stream; nothing if it does."""
    if said[":status"] != "200":
        return f"the server answered HTTP {readable(said[':status'])} to the request"
    kind = said.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != CONTENT_TYPE:
        return f"the server answered with content type {readable(kind)!r}, not {CONTENT_TYPE}"
    return ""


@asynccontextmanager
async def share_http2(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: ConnectOptions
) -> AsyncIterator[SharedHttp2]:
    """Carry streams to a server for as long as the block. Raise ``HandshakeFailed`` if it does not speak HTTP/2."""
    shared = SharedHttp2(stream, endpoint, handshake, options)
    async with running(shared.connection):
        yield shared
