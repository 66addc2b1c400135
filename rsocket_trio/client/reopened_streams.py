"""Streams and channels of a reconnecting client: refused by a peer that drains, they open on the next connection."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import trio

from rsocket_trio.connection.streams import Channel, Incoming, StreamObserver
from rsocket_trio.errors import ConnectionClosed, Drained, RSocketError, fresh_copy
from rsocket_trio.mux.flow_control import MAX_REQUEST_N
from rsocket_trio.payload import Payload, PayloadLike

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.mux.stream_state import StreamState

T = TypeVar("T")


class ReopeningClient(Protocol):
    """The side of a reconnecting client that its streams see."""

    async def _next_engine(self) -> Engine | None:
        """Return the engine that a request is sent to after ``Drained``, ``None`` if there is none."""
        ...

    def _start_task(self, function: Callable[[], Awaitable[object]]) -> None:
        """Start a task that ends with the client at the latest."""
        ...


class Opening(StreamObserver):
    """The first observer of a stream, until its responder takes it.

    The first event shows that it was taken: an item, the end, or credit, without which nothing was sent on a channel
    beyond its opening. ``reopened`` is ``None``, or is set once a refused stream is open again, or never will be.
    ``error`` is why it never will be.
    """

    __slots__ = ("_inner", "_stream", "deadline", "error", "reopened", "scope")

    def __init__(self, stream: Reopened, deadline: float) -> None:
        self._stream = stream
        self._inner: StreamObserver = stream
        self.deadline = deadline
        self.scope = trio.CancelScope()
        self.reopened: trio.Event | None = None
        self.error: Exception | None = None

    def watch(self, state: StreamState) -> None:
        """Receive the events of a stream that was opened, before its own observer."""
        self._inner, state.owner = state.owner, self

    def finish(self, error: Exception | None) -> None:
        """Wake the tasks that wait for the stream: it is open again, or never will be for this ``error``."""
        reopened, self.reopened, self.error = self.reopened, None, error
        if error is not None:
            # Invalid terms of the client end it with an error that is none of the library's.
            self._inner._on_error(cast("RSocketError", error))
        if reopened is not None:
            reopened.set()

    def _on_item(self, payload: Payload, complete: bool) -> None:
        self._taken()._on_item(payload, complete)

    def _on_items(self, payloads: Sequence[Payload]) -> None:
        self._taken()._on_items(payloads)

    def _on_complete(self) -> None:
        self._taken()._on_complete()

    def _on_error(self, error: RSocketError) -> None:
        if type(error) is not Drained:
            self._taken()._on_error(error)
            return
        self.reopened = trio.Event()
        # Wakes the stream's tasks, which wait for the next one. Its own observer may count errors, and hears of none.
        self._stream._on_error(error)
        self._stream._open_again(self, error)

    def _on_cancel(self) -> None:
        self._taken()._on_cancel()

    def _on_credit(self) -> None:
        self._taken()._on_credit()

    def _on_eof(self) -> None:
        self._inner._on_eof()

    def _taken(self) -> StreamObserver:
        self._stream._accepted_by(self._inner)
        return self._inner


class Reopened(Incoming):
    """A stream that opens on the next connection each time that a peer that drains refuses it.

    ``_opening`` is its observer until the responder takes it. A task of the client opens it again; meanwhile its reader
    waits. ``_abandoned`` says that its block was left meanwhile.
    """

    _abandoned: bool
    _client: ReopeningClient
    _opening: Opening | None

    def _open_by(self, client: ReopeningClient) -> Self:
        """Have the stream open on the connections of ``client``."""
        self._abandoned = False
        self._client = client
        self._opening = None
        return self

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # Nothing waits between the opening and this. A request that is sent late says how much time is left then.
        deadline = math.inf if self._renewed is None else trio.current_effective_deadline()
        self._opening = Opening(self, deadline)
        self._opening.watch(self._opened()[0])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and opening.reopened is not None:
            self._abandoned = True
            opening.scope.cancel()
            opening.reopened.set()
        await super().__aexit__(kind, error, trace)

    def _accepted_by(self, observer: StreamObserver) -> None:
        """Note that the responder took the stream, or ended it: its events go to ``observer``."""
        self._opening = None
        self._opened()[0].owner = observer

    def _open_again(self, opening: Opening, refusal: Drained) -> None:
        """Open the stream on the next connection, after this refusal."""
        opening.scope = trio.CancelScope(deadline=opening.deadline)
        self._client._start_task(partial(self._reopen, opening, refusal))

    async def _reopen(self, opening: Opening, refusal: Drained) -> None:
        error: Exception | None = refusal
        try:
            with opening.scope:
                credit = self._credit
                if await self._move():
                    state = await self._request(self._renewed)
                    # No checkpoint from here on: the block was not left, and no event of the stream is missed.
                    self._replace(state, opening)
                    if self._credit > credit:
                        self._port.request_n(state, self._credit - credit)
                    error = None
        except Exception as failure:
            error = failure
        finally:
            # Also if the client ends meanwhile.
            if self._opening is opening:
                opening.finish(error)

    async def _move(self) -> bool:
        """Go to the connection that follows. Return whether there is one."""
        engine = await self._client._next_engine()
        if engine is None:
            return False
        self._port = engine
        if self._renewed is not None:
            self.request = self._renewed()
        return True

    @property
    def _renewed(self) -> Callable[[], Payload] | None:
        return None if self._life is None else self._life.renewed

    async def _request(self, renewed: Callable[[], Payload] | None) -> StreamState:
        while True:
            try:
                return await super()._request(renewed)
            except Drained:
                if not await self._move():
                    raise

    def _replace(self, state: StreamState, opening: Opening) -> None:
        """Go on with a stream in the place of the one that was refused."""
        self._attach(state)
        if self._life is not None:
            self._life.observe(self)
        opening.watch(state)

    async def _again(self, act: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``act``, which uses the stream, on the one that was not refused."""
        while True:
            opening = self._opening
            if opening is not None:
                if opening.reopened is not None:
                    await opening.reopened.wait()
                if opening.error is not None:
                    raise fresh_copy(cast("RSocketError", opening.error))
            inbox = self._inbox
            try:
                return await act()
            except ConnectionClosed:
                # A refusal ended this one, or its connection behind it.
                opening = self._opening
                if self._inbox is inbox and (opening is None or (opening.reopened is None and opening.error is None)):
                    raise

    def __aiter__(self) -> AsyncIterator[Payload]:
        return super().__aiter__() if self._opening is None else self

    def __anext__(self) -> Coroutine[Any, Any, Payload]:
        return super().__anext__() if self._opening is None else self._again(super().__anext__)

    async def receive_batch(self) -> list[Payload]:
        return await self._again(super().receive_batch)

    def request_n(self, request_n: int) -> None:
        super().request_n(request_n)
        if self._opening is not None:
            self._credit = min(self._credit + request_n, MAX_REQUEST_N)

    def _ends_with(self, stream: StreamState, clean: bool) -> bool:
        return not self._abandoned and super()._ends_with(stream, clean)


class ReopenedIncoming(Reopened):
    """An ``Incoming`` that opens on the next connection while peers that drain refuse it."""


class ReopenedChannel(Reopened, Channel):
    """A ``Channel`` that opens on the next connection while peers that drain refuse it."""

    async def wait_room(self, beyond: int = 0) -> int:
        return await self._again(partial(super().wait_room, beyond))

    def send(self, payload: PayloadLike) -> Coroutine[Any, Any, None]:
        return super().send(payload) if self._opening is None else self._again(partial(super().send, payload))

    async def send_many(self, payloads: Iterable[PayloadLike]) -> None:
        items = iter(payloads)
        if self._opening is not None:
            # Taken once, and sent to the responder that takes the channel.
            for item in items:
                await self.send(item)
                break
        await super().send_many(items)

    async def wait_send_closed(self) -> None:
        while True:
            sender = self._sender
            await self._again(super().wait_send_closed)
            if self._sender is sender and (self._opening is None or self._opening.reopened is None):
                return

    async def send_eof(self) -> None:
        await self._again(super().send_eof)

    def _replace(self, state: StreamState, opening: Opening) -> None:
        completed = self._sending().completed
        super()._replace(state, opening)
        if completed:
            self._port.complete_stream(state)
            self._sending().completed = True
