"""The requests of a ``Connection``, made over whichever connection there is when they are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from rsocket_trio.connection.connection import Connection
from rsocket_trio.connection.streams import Channel, Incoming, IncomingWithPushes
from rsocket_trio.payload import BytesLike, Payload, PayloadLike

S = TypeVar("S", bound=Incoming)


class RequestTerms(TypedDict, total=False):
    """What every request takes beside its payload."""

    route: str | None
    entries: Iterable[object]


class StreamTerms(RequestTerms, total=False):
    """What the request of a stream takes."""

    initial_request_n: int
    refill: bool


class Requests(ABC):
    """Each request takes a connection, and stays with it."""

    async def request_response(self, payload: PayloadLike = b"", **terms: Unpack[RequestTerms]) -> Payload:
        """Ask, and wait for the one answer: see ``Connection``."""
        return await (await self._take()).request_response(payload, **terms)

    async def fire_and_forget(self, payload: PayloadLike = b"", **terms: Unpack[RequestTerms]) -> None:
        """Send a request that is never answered. It may be lost with the connection, and nobody hears of that."""
        await (await self._take()).fire_and_forget(payload, **terms)

    async def metadata_push(self, metadata: BytesLike, *, metadata_type: int = 0) -> None:
        """Send metadata that concerns the connection of the moment; the next one knows nothing of it."""
        await (await self._take()).metadata_push(metadata, metadata_type=metadata_type)

    async def ping(self) -> float:
        """Seconds that a sign of life takes there and back, once there is a connection."""
        return await (await self._take()).ping()

    @overload
    def request_stream(
        self, payload: PayloadLike = b"", *, pushes: Literal[False] = False, **terms: Unpack[StreamTerms]
    ) -> AbstractAsyncContextManager[Incoming]: ...

    @overload
    def request_stream(
        self, payload: PayloadLike = b"", *, pushes: Literal[True], **terms: Unpack[StreamTerms]
    ) -> AbstractAsyncContextManager[IncomingWithPushes]: ...

    def request_stream(
        self, payload: PayloadLike = b"", *, pushes: bool = False, **terms: Unpack[StreamTerms]
    ) -> AbstractAsyncContextManager[Incoming]:
        """A stream of items, to be used under ``async with``: see ``Connection``."""
        arguments: dict[str, Any] = {**terms, "pushes": pushes}
        return self._open(lambda connection: connection.request_stream(payload, **arguments))

    @overload
    def request_subscription(
        self, payload: PayloadLike = b"", *, pushes: Literal[False] = False, **terms: Unpack[StreamTerms]
    ) -> AbstractAsyncContextManager[Incoming]: ...

    @overload
    def request_subscription(
        self, payload: PayloadLike = b"", *, pushes: Literal[True], **terms: Unpack[StreamTerms]
    ) -> AbstractAsyncContextManager[IncomingWithPushes]: ...

    def request_subscription(
        self, payload: PayloadLike = b"", *, pushes: bool = False, **terms: Unpack[StreamTerms]
    ) -> AbstractAsyncContextManager[Incoming]:
        """A stream that never completes (drafts 0.0 and 0.1): it ends with its connection as well."""
        arguments: dict[str, Any] = {**terms, "pushes": pushes}
        return self._open(lambda connection: connection.request_subscription(payload, **arguments))

    def request_channel(
        self, payload: PayloadLike = b"", **terms: Unpack[StreamTerms]
    ) -> AbstractAsyncContextManager[Channel]:
        """A channel, to be used under ``async with``: see ``Connection``."""
        return self._open(lambda connection: connection.request_channel(payload, **terms))

    @asynccontextmanager
    async def _open(self, request: Callable[[Connection], S]) -> AsyncIterator[S]:
        async with request(await self._take()) as stream:
            yield stream

    @abstractmethod
    async def _take(self) -> Connection:
        """The connection for a new request. Nothing may wait after it was found."""
