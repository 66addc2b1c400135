"""Streams and channels of objects: what typed handlers and typed requests read and write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload, PayloadLike

T = TypeVar("T")
Received = TypeVar("Received")
Sent = TypeVar("Sent")
Decode = Callable[[Payload], Any]
Encode = Callable[[Any], PayloadLike]
NOT_OPEN = "the stream is not open: use it under 'async with'"


class PayloadStream(Protocol):
    """A stream of payloads, under its objects."""

    def __anext__(self) -> Awaitable[Payload]: ...
    async def receive_batch(self) -> list[Payload]: ...
    def request_n(self, request_n: int) -> None: ...
    def _decoder(self, kind: Any) -> Decode: ...


class PayloadChannel(PayloadStream, Protocol):
    """A channel of payloads, under its objects."""

    request: Payload

    @property
    def room(self) -> int: ...
    def send(self, payload: PayloadLike) -> Coroutine[Any, Any, None]: ...
    async def send_many(self, payloads: Iterable[PayloadLike]) -> None: ...
    async def send_eof(self) -> None: ...
    async def wait_send_closed(self) -> None: ...
    def _encoder(self) -> Encode: ...


class Receiving(Generic[T]):
    """The items of a channel, as its handler reads them: ``async for``. One that does not fit raises ``Invalid``.

    The payload that opened the channel is the first item, if it has data.
    """

    __slots__ = ("_channel", "_decode", "_first")

    def __init__(self, channel: PayloadChannel, decode: Decode, *, with_request: bool = True) -> None:
        self._channel = channel
        self._decode = decode
        request = channel.request
        self._first: Payload | None = request if with_request and request.data else None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if self._first is not None:
            first, self._first = self._first, None
            found: T = self._decode(first)
            return found
        item: T = self._decode(await self._channel.__anext__())
        return item

    async def receive_batch(self) -> list[T]:
        """Return all items that came and were not read; wait for at least one. An empty list is the end."""
        if self._first is not None:
            first, self._first = self._first, None
            return [self._decode(first)]
        return [self._decode(each) for each in await self._channel.receive_batch()]

    def request_n(self, request_n: int) -> None:
        """Grant the requester credit for ``request_n`` more items, beyond the automatic refill."""
        self._channel.request_n(request_n)


class Stream(Generic[T]):
    """The items of a stream that this side requested: ``async with`` opens it, ``async for`` reads it.

    Leaving the block cancels the stream, unless it has ended. An ERROR of the responder is raised to the reader after
    the items that came before it. An item that does not fit its type raises ``DecodeError``, a ``ValueError``.
    """

    __slots__ = ("_decode", "_inner", "_opening")

    def __init__(self, opening: AbstractAsyncContextManager[PayloadStream], items: Any) -> None:
        self._opening = opening
        self._inner: PayloadStream | None = None
        self._decode: Decode = items

    async def __aenter__(self) -> Self:
        self._inner = inner = await self._opening.__aenter__()
        self._decode = inner._decoder(self._decode)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opening.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        item: T = self._decode(await self._opened().__anext__())
        return item

    async def receive_batch(self) -> list[T]:
        """Return all items that came and were not read; wait for at least one. An empty list is the end."""
        return [self._decode(each) for each in await self._opened().receive_batch()]

    def request_n(self, request_n: int) -> None:
        """Grant the responder credit for ``request_n`` more items, beyond the automatic refill.

        Raise ``ValueError`` unless it is between 1 and 2^31-1.
        """
        self._opened().request_n(request_n)

    def _opened(self) -> PayloadStream:
        if self._inner is None:
            raise LocalProtocolError(NOT_OPEN)
        return self._inner


class TypedChannel(Generic[Received, Sent]):
    """Both directions of a channel of objects: ``async for`` receives, ``send`` sends; each half ends by itself.

    The responder's handler gets one that is open; on the requester's side ``async with`` opens it. The payload that
    opened the channel is the responder's first item, if it has data. An item that does not fit its type raises
    ``Invalid`` in a handler, and ``DecodeError`` at the requester.
    """

    __slots__ = ("_channel", "_decode", "_encode", "_first", "_opening")

    def __init__(
        self,
        opening: AbstractAsyncContextManager[PayloadChannel] | None,
        items: Any,
        *,
        channel: PayloadChannel | None = None,
        encode: Encode | None = None,
        with_request: bool = True,
    ) -> None:
        self._opening = opening
        self._channel = channel
        self._decode: Decode = items
        self._encode = encode
        request = channel.request if channel is not None and with_request else None
        self._first = request if request is not None and request.data else None

    async def __aenter__(self) -> Self:
        if self._opening is None:
            return self
        self._channel = channel = await self._opening.__aenter__()
        self._decode, self._encode = channel._decoder(self._decode), channel._encoder()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._opening is None else await self._opening.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        channel = self._opened()
        if self._first is not None:
            payload, self._first = self._first, None
        else:
            payload = await channel.__anext__()
        item: Received = self._decode(payload)
        return item

    async def receive_batch(self) -> list[Received]:
        """Return all items that came and were not read; wait for at least one. An empty list is the end."""
        channel = self._opened()
        if self._first is not None:
            payload, self._first = self._first, None
            return [self._decode(payload)]
        return [self._decode(each) for each in await channel.receive_batch()]

    def request_n(self, request_n: int) -> None:
        """Grant the peer credit for ``request_n`` more items, beyond the automatic refill."""
        self._opened().request_n(request_n)

    @property
    def room(self) -> int:
        """Number of items that the peer's credit allows right now, without waiting."""
        return self._opened().room

    def send(self, item: Sent) -> Coroutine[Any, Any, None]:
        """Send ``item``. Waits and raises as ``Channel.send``, and raises ``TypeError`` for what can't be encoded."""
        channel = self._opened()
        assert self._encode is not None
        return channel.send(self._encode(item))

    async def send_many(self, items: Iterable[Sent]) -> None:
        """Send ``items`` in order, at a lower cost than one ``send`` for each."""
        channel = self._opened()
        assert self._encode is not None
        await channel.send_many(map(self._encode, items))

    async def send_eof(self) -> None:
        """Complete this side's half; receiving goes on. Do nothing the second time."""
        await self._opened().send_eof()

    async def wait_send_closed(self) -> None:
        """Wait until nothing more can be sent: completed by this side, cancelled or ended by the peer."""
        await self._opened().wait_send_closed()

    def _opened(self) -> PayloadChannel:
        if self._channel is None:
            raise LocalProtocolError(NOT_OPEN)
        return self._channel
