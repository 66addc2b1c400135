"""Streams and channels of a client with several connections: what one peer refuses, opens on another connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import trio

from rsocket_trio.connection.streams import Channel, Incoming
from rsocket_trio.errors import RSocketError
from rsocket_trio.mux.flow_control import MAX_REQUEST_N
from rsocket_trio.payload import Payload, PayloadLike

if TYPE_CHECKING:
    from rsocket_trio.client.reconnecting import FailoverRequester
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.mux.stream_state import StreamState

T = TypeVar("T")


class Reopened(Incoming):
    """A stream that opens on another connection each time that it was certainly not processed.

    A refused stream was not processed: no item came, and a channel had no credit to send. The call that hears of the
    refusal opens it again; others wait for that. Once an item came or left, the stream is like any other.
    """

    _client: FailoverRequester
    _port: Engine  # each connection that it opens on is one of the client's
    _tried: list[Engine]
    """The engines that it was opened on, and refused."""
    _refusal: RSocketError | None
    """The refusal after which the stream was not opened again yet."""
    _is_taken: bool
    """True once the responder has sent or taken an item, and if no connection follows: then it is not opened again."""
    _lock: trio.Lock | None
    _scope: trio.CancelScope | None
    """The scope in which it is opened again; leaving the block cancels it."""

    def _open_by(self, client: FailoverRequester) -> Self:
        """Have the stream open on the connections of ``client``."""
        self._client = client
        self._refusal = self._lock = self._scope = None
        self._is_taken = False
        self._tried = []
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._refusal = None  # it is not opened any more
        if self._scope is not None:
            self._scope.cancel()
        await super().__aexit__(kind, error, trace)

    def _on_error(self, error: RSocketError) -> None:
        if not self._is_taken and self._client._sends_again(error):
            self._refusal = error
        super()._on_error(error)

    @property
    def _renewed(self) -> Callable[[], Payload] | None:
        return None if self._life is None else self._life.renewed

    async def _move(self, refusal: RSocketError) -> bool:
        """Go to the connection that follows on a refusal. Return whether there is one."""
        self._tried.append(self._port)
        engine = await self._client._next_engine(refusal, self._tried)
        if engine is None:
            return False
        self._port = engine
        if self._renewed is not None:
            self.request = self._renewed()
        return True

    async def _request(self, renewed: Callable[[], Payload] | None) -> StreamState:
        while True:
            try:
                return await super()._request(renewed)
            except RSocketError as refusal:
                if not await self._move(refusal):
                    raise

    async def _reopen(self) -> bool:
        """Open the stream again after a refusal, unless another task has done so. Return whether it is open."""
        self._lock = self._lock or trio.Lock()
        async with self._lock:
            with trio.CancelScope() as self._scope:
                if self._refusal is not None:
                    if not await self._move(self._refusal):
                        self._refusal, self._is_taken = None, True  # it stays refused
                        return False
                    # More may be granted while the request waits for its turn.
                    asked = self._credit
                    state = await self._request(self._renewed)
                    # No checkpoint from here on: no event of the stream is missed.
                    self._refusal = None
                    self._replace(state)
                    if self._credit > asked:
                        super().request_n(self._credit - asked)
            return not self._scope.cancel_called

    def _replace(self, state: StreamState) -> None:
        """Go on with a stream in the place of the one that was refused."""
        self._attach(state)
        if self._life is not None:
            self._life.call.error = None  # the call goes on
            self._life.observe(self)

    async def _again(self, act: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``act``, which reads or sends an item, on the stream that was not refused."""
        while True:
            try:
                result = await act()
            except RSocketError:
                # The refusal, or the end of the connection behind it.
                if self._refusal is None or not await self._reopen():
                    raise
            else:
                self._is_taken = True
                return result

    def __aiter__(self) -> AsyncIterator[Payload]:
        return super().__aiter__() if self._is_taken else self

    def __anext__(self) -> Coroutine[object, object, Payload]:
        return super().__anext__() if self._is_taken else self._again(super().__anext__)

    async def receive_batch(self) -> list[Payload]:
        return await self._again(super().receive_batch)

    def request_n(self, request_n: int) -> None:
        super().request_n(request_n)
        if not self._is_taken:
            self._credit = min(self._credit + request_n, MAX_REQUEST_N)


class ReopenedChannel(Reopened, Channel):
    """A ``Channel`` that opens on another connection while it is refused."""

    async def wait_room(self, beyond: int = 0) -> int:
        return await self._again(partial(super().wait_room, beyond))

    def send(self, payload: PayloadLike) -> Coroutine[object, object, None]:
        return super().send(payload) if self._is_taken else self._again(partial(super().send, payload))

    async def send_many(self, payloads: Iterable[PayloadLike]) -> None:
        items = iter(payloads)
        if not self._is_taken:
            # Taken once, and sent to the responder that takes the channel.
            for item in items:
                await self.send(item)
                break
        await super().send_many(items)

    async def send_eof(self) -> None:
        if self._refusal is not None:
            await self._reopen()
        await super().send_eof()

    @property
    def _is_sending(self) -> bool:
        # What was refused may open again.
        return self._refusal is not None or super()._is_sending

    async def wait_send_closed(self) -> None:
        await super().wait_send_closed()
        while self._refusal is not None and await self._reopen():
            await super().wait_send_closed()

    def _replace(self, state: StreamState) -> None:
        completed = self._sending().completed
        super()._replace(state)
        if completed:
            self._port.complete_stream(state)
            self._sending().completed = True
