"""Streams and channels of objects: what typed handlers and typed requests read and write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rsocket_trio.connection.streams import Channel, Incoming
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload

T = TypeVar("T")
Received = TypeVar("Received")
Sent = TypeVar("Sent")
Carrier = TypeVar("Carrier", bound="Incoming")


class Decoding(Generic[T, Carrier]):
    """Reads the payloads of a stream as objects: of one that is open, or that ``opening`` opens under ``async with``.

    What a batch brought behind a payload that does not fit is left for the next read.
    """

    __slots__ = ("_carrier", "_decode", "_left", "_opening")

    def __init__(
        self,
        carrier: Carrier | None,
        decode: Any,
        *,
        opening: AbstractAsyncContextManager[Carrier] | None = None,
        with_request: bool = False,
    ) -> None:
        self._carrier = carrier
        self._decode = decode
        self._opening = opening
        request = carrier.request if carrier is not None and with_request else None
        self._left: list[Payload] = [] if request is None or not request.data else [request]

    async def __aenter__(self) -> Self:
        if self._opening is not None:
            self._carrier = await self._opening.__aenter__()
            self._attach(self._carrier)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._opening is None else await self._opening.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        carrier = self._opened()
        item: T = self._decode(self._left.pop(0) if self._left else await carrier.__anext__())
        return item

    async def receive_batch(self) -> list[T]:
        """Return all items that came and were not read; wait for at least one. An empty list is the end."""
        carrier = self._opened()
        left, self._left = self._left, []
        payloads = left or await carrier.receive_batch()
        items: list[T] = []
        for number, payload in enumerate(payloads):
            try:
                items.append(self._decode(payload))
            except Exception:
                # Those before one that does not fit come first, and it raises later.
                self._left = payloads[number if items else number + 1 :]
                if items:
                    break
                raise
        return items

    def request_n(self, request_n: int) -> None:
        """Grant the peer credit for ``request_n`` more items, beyond the automatic refill.

        Raise ``ValueError`` unless it is between 1 and 2^31-1.
        """
        self._opened().request_n(request_n)

    def _attach(self, carrier: Carrier) -> None:
        """Read what was opened: until now ``_decode`` was the type of the items."""
        self._decode = carrier._decoder(self._decode)

    def _opened(self) -> Carrier:
        if self._carrier is None:
            raise LocalProtocolError("the stream is not open: use it under 'async with'")
        return self._carrier


class Receiving(Decoding[T, Channel]):
    """The items of a channel, as its handler reads them: ``async for``. One that does not fit raises ``Invalid``.

    The payload that opened the channel is the first item, if it has data.
    """

    __slots__ = ()


class Stream(Decoding[T, Incoming]):
    """The items of a stream that this side requested: ``async with`` opens it, ``async for`` reads it.

    Leaving the block cancels the stream, unless it has ended. An ERROR of the responder is raised to the reader after
    the items that came before it. An item that does not fit its type raises ``DecodeError``, a ``ValueError``.
    """

    __slots__ = ()


class TypedChannel(Decoding[Received, Channel], Generic[Received, Sent]):
    """Both directions of a channel of objects: ``async for`` receives, ``send`` sends; each half ends by itself.

    The responder's handler gets one that is open; on the requester's side ``async with`` opens it. The payload that
    opened the channel is the responder's first item, if it has data. An item that does not fit its type raises
    ``Invalid`` in a handler, and ``DecodeError`` at the requester.
    """

    __slots__ = ("_encode",)

    def __init__(
        self,
        carrier: Channel | None,
        decode: Any,
        *,
        opening: AbstractAsyncContextManager[Channel] | None = None,
        encode: Any = Any,
        with_request: bool = False,
    ) -> None:
        super().__init__(carrier, decode, opening=opening, with_request=with_request)
        self._encode = encode  # until the channel is open, the type of what is sent

    def _sends(self, kind: object) -> None:
        """Encode the items that are sent as ``kind`` says, from the opening on."""
        self._encode = kind

    def _attach(self, carrier: Channel) -> None:
        super()._attach(carrier)
        self._encode = carrier._encoder(self._encode)

    @property
    def room(self) -> int:
        """Number of items that the peer's credit allows right now, without waiting."""
        return self._opened().room

    def send(self, item: Sent) -> Coroutine[object, object, None]:
        """Send ``item``. Waits and raises as ``Channel.send``, and raises ``TypeError`` for what can't be encoded."""
        channel = self._opened()
        return channel.send(self._encode(item))

    async def send_many(self, items: Iterable[Sent]) -> None:
        """Send ``items`` in order, at a lower cost than one ``send`` for each."""
        channel = self._opened()
        await channel.send_many(map(self._encode, items))

    async def send_eof(self) -> None:
        """Complete this side's half, as on a ``Channel``. Do nothing the second time."""
        await self._opened().send_eof()

    async def wait_send_closed(self) -> None:
        """Wait until nothing more can be sent: completed by this side, cancelled or ended by the peer."""
        await self._opened().wait_send_closed()
