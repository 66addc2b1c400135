"""Runs each kind of handler and maps its return, exception or cancellation to the stream."""

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
from rsocket_trio.mux.stream_state import NEITHER, RECEIVING, SENDING, Interaction
from rsocket_trio.payload import Payload, PayloadLike, as_payload

if TYPE_CHECKING:
    import trio

    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.mux.stream_state import StreamState


class Job(Owner):
    """One request that a handler processes.

    ``payload`` is the argument of the handler: the request, or metadata that was pushed. ``cancelled`` is kept for a
    handler that has not taken its first step; ``lingering`` says that the stream is over while the handler still runs,
    so that it still counts as a stream.
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
        # The job gets the stream's events before the channel does: a cancel stops the handler.
        self.stream.owner = self

    def fail(self, error: Exception) -> None:
        """Log the error of a handler; send the peer a ``StreamError`` as it is, any other as an internal error."""
        told = only_leaf(error)
        # A stream that ends by a fault of the peer is no failure of the handler.
        is_the_peers = isinstance(told, RemoteProtocolError) and self.stream.open == NEITHER
        if not is_the_peers and is_failure(self.engine, told):
            self.engine.faults.of_handler(self.handler, error)
        if not isinstance(told, StreamError):
            told = ApplicationError("internal error")
        self.engine.fail_stream(self.stream, told)

    @property
    def _unread(self) -> int:
        """Number of received items that the handler has not taken."""
        return self.channel._unread if self.channel is not None else 0

    def cancel(self) -> None:
        """Stop the handler, after its stream or connection ended."""
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
        """Handle the end of a half. A handler that runs on after both halves ended still counts as a stream."""
        if self.stream.open == NEITHER:
            self.engine.workers.linger(self)

    def on_error(self, error: RSocketError) -> None:
        self.engine.workers.linger(self)
        if self.channel is not None and not self.engine.ended:
            # The requester of a channel failed: the handler gets the error when it reads, and is not cancelled.
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
    """Return whether an exception is a fault of the handler: not meant for the peer, nor the end of the connection."""
    return told.is_fault if isinstance(told, StreamError) else not is_the_end(engine, told)


def is_the_end(engine: Engine, error: BaseException) -> bool:
    """Return whether an exception says only that the connection is over."""
    return engine.ended is not None and isinstance(only_leaf(error), ConnectionLost | ConnectionClosed)


def only_leaf(error: BaseException) -> BaseException:
    """Return the single exception inside of groups, or the first group that holds more than one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class Unfinished:
    """The awaitable that a plain function returned, awaited in the context in which the function was called.

    A coroutine that is never awaited, because its request was cancelled first, is closed.
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
        # The worker keeps its last handler, which must not keep the request.
        waiting, self._waiting = self._waiting, None
        self._context = None
        return await waiting

    def __del__(self) -> None:
        if inspect.iscoroutine(self._waiting):
            self._waiting.close()


async def drive(items: AsyncGenerator[PayloadLike, None], send: Callable[[PayloadLike], Awaitable[None]]) -> None:
    """Send the items that a handler yields; the error or cancellation of a send is raised at the yield.

    So ``yield x`` means ``await out.send(x)``, and scopes and nurseries around a yield work.
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


# The coroutines that a worker awaits; ``Job.fail`` turns their exceptions into the end of the stream.
RUNNERS: dict[Interaction, Callable[[Job], Awaitable[Any]]] = {
    Interaction.REQUEST_RESPONSE: _respond,
    Interaction.FIRE_AND_FORGET: _forget,
    Interaction.REQUEST_STREAM: _stream,
    Interaction.REQUEST_SUBSCRIPTION: _stream,
    Interaction.REQUEST_CHANNEL: _channel,
}
