"""How each kind of handler is run, and what its return, its exception or its cancellation means to the stream."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from rsocket_trio.connection.channels import AcceptedChannel
from rsocket_trio.connection.sending import Sender
from rsocket_trio.connection.streams import Outgoing, Owner
from rsocket_trio.errors import (
    ApplicationError,
    ConnectionClosed,
    ConnectionLost,
    RemoteProtocolError,
    RSocketError,
    StreamError,
)
from rsocket_trio.forms import Handler, Kind
from rsocket_trio.mux.halves import NEITHER, RECEIVING, SENDING
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.payload import Payload, PayloadLike, as_payload

if TYPE_CHECKING:
    import trio

    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.mux.stream import StreamState


class Job(Owner):
    """One request on its way through a handler.

    ``payload`` is what the handler is given: the request, or metadata that was pushed.
    ``cancelled`` is remembered for a handler that has not taken its first step; ``lingering`` says that the stream is
    over while the handler still runs, so that it goes on counting as a stream.
    """

    __slots__ = ("cancelled", "channel", "engine", "handler", "lingering", "payload", "scope", "sender", "stream")

    def __init__(self, engine: Engine, stream: StreamState, handler: Handler, payload: Any) -> None:
        self.engine = engine
        self.stream = stream
        self.handler = handler
        self.payload = payload
        self.scope: trio.CancelScope | None = None
        self.sender: Sender | None = None
        self.channel: AcceptedChannel | None = None
        self.cancelled = False
        self.lingering = False

    def accept_channel(self) -> None:
        """Open the channel at once, not with the handler's first step: items may follow in the same read."""
        handler = self.handler
        self.channel = AcceptedChannel(self.engine, self.stream, self.payload, handler.credit, refill=handler.refill)
        # The job is told first: a cancel stops the handler.
        self.stream.owner = self

    def fail(self, error: Exception) -> None:
        """The handler raised: tell the peer what it may know, and the log the rest."""
        told = only_leaf(error)
        # The end of the stream by a fault of the peer's is no failure of the handler's.
        is_the_peers = isinstance(told, RemoteProtocolError) and self.stream.open == NEITHER
        if not is_the_peers and is_failure(self.engine, told):
            self.engine.faults.of_handler(self.handler, error)
        if not isinstance(told, StreamError):
            told = ApplicationError("internal error")
        self.engine.fail_stream(self.stream, told)

    @property
    def _unread(self) -> int:
        """Items that came and the handler has not taken."""
        return self.channel._unread if self.channel is not None else 0

    def cancel(self) -> None:
        """The stream, or the connection, is over: stop the handler."""
        self.cancelled = True
        if self.scope is not None:
            self.scope.cancel()

    def on_item(self, payload: Payload, complete: bool) -> None:
        if self.channel is not None:
            self.channel.on_item(payload, complete)
            if complete:
                self.on_eof()

    def on_items(self, payloads: Sequence[Payload]) -> None:
        if self.channel is not None:
            self.channel.on_items(payloads)

    def on_complete(self) -> None:
        if self.channel is not None:
            self.channel.on_complete()
            self.on_eof()

    def on_eof(self) -> None:
        """A half is complete. A handler that goes on when both are counts as a stream all the same."""
        if self.stream.open == NEITHER:
            self.engine.workers.linger(self)

    def on_error(self, error: RSocketError) -> None:
        self.engine.workers.linger(self)
        if self.channel is not None and not self.engine.ended:
            # The requester of a channel failed: its reader hears why, and is not cut short.
            self.channel.on_error(error)
        else:
            self.cancel()

    def on_cancel(self) -> None:
        self.engine.workers.linger(self)
        self.cancel()

    def on_credit(self) -> None:
        if self.channel is not None:
            self.channel.on_credit()
        elif self.sender is not None:
            self.sender.on_credit()


def is_failure(engine: Engine, told: BaseException) -> bool:
    """Whether what a handler raised is a fault of it: neither chosen for its peer, nor the end of its connection."""
    return told.is_fault if isinstance(told, StreamError) else not is_the_end(engine, told)


def is_the_end(engine: Engine, error: BaseException) -> bool:
    """Whether this says no more than that the connection is over."""
    return engine.ended is not None and isinstance(only_leaf(error), ConnectionLost | ConnectionClosed)


def only_leaf(error: BaseException) -> BaseException:
    """What groups of one exception hold, or the group that holds more."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class Unfinished:
    """What a plain function returned that has to be awaited, in the context in which it was called.

    A coroutine that is never awaited, since its request was cancelled first, is closed.
    """

    __slots__ = ("_context", "_waiting")

    def __init__(self, waiting: Awaitable[object], context: contextvars.Context) -> None:
        self._waiting: Awaitable[object] | None = waiting
        self._context: contextvars.Context | None = context

    async def __call__(self, _: object) -> Any:
        assert self._context is not None
        assert self._waiting is not None
        for variable, content in self._context.items():
            variable.set(content)
        # The worker keeps its last handler: nothing of the request stays with that.
        waiting, self._waiting = self._waiting, None
        self._context = None
        return await waiting

    def __del__(self) -> None:
        if inspect.iscoroutine(self._waiting):
            self._waiting.close()


async def drive(items: AsyncGenerator[PayloadLike, None], send: Callable[[PayloadLike], Awaitable[None]]) -> None:
    """Send what the handler yields; a send that fails or is cancelled is raised at its yield.

    So ``yield x`` means ``await out.send(x)``, and scopes and nurseries around a yield behave.
    """
    try:
        item = await items.__anext__()
        while True:
            try:
                await send(item)
            except BaseException as error:
                item = await items.athrow(error)
            else:
                item = await items.__anext__()
    except StopAsyncIteration:
        return


async def _respond(job: Job) -> None:
    reply = as_payload(await job.handler.function(job.payload))
    engine, stream = job.engine, job.stream
    size = len(reply.data) if reply.metadata is None else reply.size
    while stream.open & SENDING and not engine.has_room(size):
        await engine.opening.wait_for_room(size)
    if stream.open & SENDING:
        engine.answer(stream, reply)


async def _forget(job: Job) -> None:
    await job.handler.function(job.payload)


async def _stream(job: Job) -> None:
    job.sender = sender = Sender(job.engine, job.stream)
    if job.handler.kind is Kind.GENERATOR:
        await drive(job.handler.function(job.payload), sender.send)
    else:
        await job.handler.function(job.payload, Outgoing(sender))
    if job.stream.interaction is Interaction.REQUEST_SUBSCRIPTION:
        # A subscription has no COMPLETE.
        raise ApplicationError("subscription ended")
    job.engine.complete_stream(job.stream)


async def _channel(job: Job) -> None:
    engine, stream, channel = job.engine, job.stream, job.channel
    assert channel is not None
    try:
        await job.handler.function(channel)
    finally:
        channel.discard()
    engine.complete_stream(stream)
    if stream.open & RECEIVING:
        engine.cancel_stream(stream)


# What a worker awaits; whatever these raise is an outcome of the stream: ``Job.fail``.
RUNNERS: dict[Interaction, Callable[[Job], Awaitable[Any]]] = {
    Interaction.REQUEST_RESPONSE: _respond,
    Interaction.FIRE_AND_FORGET: _forget,
    Interaction.REQUEST_STREAM: _stream,
    Interaction.REQUEST_SUBSCRIPTION: _stream,
    Interaction.REQUEST_CHANNEL: _channel,
}
