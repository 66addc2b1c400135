"""Runs handlers in tasks that are kept between requests, and maps how each one ends to its stream."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from rsocket_trio.connection.sender import CountingSender, Sender
from rsocket_trio.connection.streams import Channel, Outgoing, StreamObserver
from rsocket_trio.errors import (
    ApplicationError,
    ConnectionClosed,
    ConnectionLost,
    Invalid,
    RemoteProtocolError,
    RSocketError,
    StreamError,
)
from rsocket_trio.forms import Handler, Kind
from rsocket_trio.mux.stream_state import NEITHER, RECEIVING, SENDING, Interaction, StreamState
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, as_payload
from rsocket_trio.tools.exception_groups import failures_told_to, only_leaf
from rsocket_trio.tools.parking_lot import ParkingLot

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


def is_failure(error: BaseException, ended: RSocketError | None) -> bool:
    """Return whether an exception is a fault of its handler: not meant for the peer, nor the end of the connection.

    ``ended`` says why the connection is over, if it is.
    """
    return error.is_fault if isinstance(error, StreamError) else not is_the_end(error, ended)


def is_the_end(error: BaseException, ended: RSocketError | None) -> bool:
    """Return whether an exception says only that the connection is over; ``ended`` says why it is, if it is."""
    return ended is not None and isinstance(only_leaf(error), ConnectionLost | ConnectionClosed)


class NoStream(StreamState):
    """Stands for the stream of a handler that serves none: that of metadata for the connection."""

    __slots__ = ()

    room = 0

    def __init__(self) -> None:
        super().__init__()
        self.id, self.interaction, self.requester = 0, Interaction.FIRE_AND_FORGET, False
        self.open, self.owner = NEITHER, None


class HandlerCall(StreamObserver):
    """One request that a handler processes.

    ``payload`` is the argument of the handler: the request, or metadata that was pushed. ``cancelled`` is kept for a
    handler that has not taken its first step; ``detached`` says that the stream is over while the handler
    still runs, so that it still counts as a stream.
    """

    __slots__ = ("cancelled", "channel", "detached", "handler", "payload", "port", "scope", "sender", "stream")

    def __init__(self, port: Engine, stream: StreamState, handler: Handler, payload: Any) -> None:
        self.port = port
        self.stream = stream
        self.handler = handler
        self.payload = payload
        self.scope: trio.CancelScope | None = None
        self.sender: Sender | None = None
        self.channel: Channel | None = None
        self.cancelled = False
        self.detached = False

    def accept_channel(self) -> None:
        """Open the channel at once, not with the handler's first step: items may follow in the same read."""
        handler, stream = self.handler, self.stream
        self.channel = channel = Channel(
            self.port, stream.interaction, self.payload, handler.credit, refill=handler.refill
        )
        channel._attach(stream)
        if not stream.open & RECEIVING:
            channel._on_complete()
        elif handler.credit:
            self.port.request_n(stream, handler.credit)  # RS10-SEQ-07
        if handler.counts:
            channel._count_sent(handler.call)
        # The call gets the stream's events before the channel does: a cancel stops the handler.
        stream.owner = self

    def _as_payload(self, item: object) -> Payload:
        if item is None:
            return Payload()
        responder = self.port.responder
        calls = responder._served_calls or responder._attach_served_calls()
        return calls.answer_payload(self.handler, self.payload, self.port.connection.setup, item)

    def fail(self, error: Exception) -> None:
        """Log the error of a handler; send the peer a ``StreamError`` as it is, any other as an internal error."""
        self.note_end(error)
        leaf = only_leaf(error)
        # A stream that ends by a fault of the peer is no failure of the handler.
        is_the_peers = isinstance(leaf, RemoteProtocolError) and self.stream.open == NEITHER
        if not is_the_peers and is_failure(leaf, self.port.ended):
            self.port.faults.handler_failed(self.handler, error, self.stream.id)
        if not isinstance(leaf, StreamError):
            leaf = ApplicationError("internal error")
        elif isinstance(leaf, Invalid) and self.stream.interaction is Interaction.FIRE_AND_FORGET:
            self.port.faults.count_dropped()  # nobody else learns of a request that does not fit
        self.port.fail_stream(self.stream, leaf)

    def note_end(self, error: BaseException) -> None:
        """Note, for those that hear of the call, that it ended with this exception."""
        if self.handler.observers:
            self.handler.call._end(error)

    def tell_end(self) -> None:
        """Tell those that hear of the call how it ended: as was noted, or else completed or cancelled."""
        call = self.handler.call
        if call.outcome == "running":
            call._end(None, cancelled=self.cancelled)
        self.port.tell_ended(call, self.handler.observers)

    @property
    def _unread(self) -> int:
        """Number of received items that the handler has not taken."""
        return self.channel._unread if self.channel is not None else 0

    def cancel(self) -> None:
        """Stop the handler, after its stream or connection ended."""
        self.cancelled = True
        if self.scope is not None:
            self.scope.cancel()

    def _on_item(self, payload: Payload, complete: bool) -> None:
        if self.channel is not None:
            if self.handler.counts and self.handler.call is not None:
                self.handler.call._count_received(1, payload.size)
            self.channel._on_item(payload, complete)
            if complete:
                self._on_eof()

    def _on_items(self, payloads: Sequence[Payload]) -> None:
        if self.channel is not None:
            if self.handler.counts and self.handler.call is not None:
                self.handler.call._count_received(len(payloads), sum(payload.size for payload in payloads))
            self.channel._on_items(payloads)

    def _on_complete(self) -> None:
        if self.channel is not None:
            self.channel._on_complete()
            self._on_eof()

    def _on_eof(self) -> None:
        """Handle the end of a half. A handler that runs on after both halves ended still counts as a stream."""
        if self.stream.open == NEITHER:
            self.port.workers.mark_detached(self)

    def _on_error(self, error: RSocketError) -> None:
        self.port.workers.mark_detached(self)
        if self.channel is not None and not self.port.ended:
            # The requester of a channel failed: the handler gets the error when it reads, and is not cancelled.
            self.channel._on_error(error)
        else:
            self.cancel()

    def _on_cancel(self) -> None:
        self.port.workers.mark_detached(self)
        self.cancel()

    def _on_credit(self) -> None:
        if self.channel is not None:
            self.channel._on_credit()
        elif self.sender is not None:
            self.sender.on_credit()


class RelayedResponse(StreamObserver):
    """A request/response that was handed on to another connection: the owner of both streams, in place of a task.

    The receive task of either side passes on what came there. ``finish`` returns the answer, or raises, for what can't
    be passed on at once: it takes the far side's answer or error.
    """

    __slots__ = ("_far", "_far_port", "_finish", "_near", "_port")

    def __init__(
        self,
        port: Engine,
        near: StreamState,
        far_port: Engine,
        far: StreamState,
        finish: Callable[[Payload | RSocketError], Awaitable[Payload]],
    ) -> None:
        self._port = port
        self._near = near
        self._far_port = far_port
        self._far = far
        self._finish = finish
        near.owner = far.owner = self

    def _on_item(self, payload: Payload, complete: bool) -> None:
        self._far.owner = None
        self._far_port.session.outbox.on_answer(self._far)
        port = self._port
        if not port.session.outbox.has_room(payload):
            self._go_on(payload)
            return
        self._near.owner = None
        port.answer(self._near, payload)
        port.workers.finished += 1
        if port.link.is_paused:
            port.reconsider_pause()

    def _on_complete(self) -> None:
        self._on_item(Payload(), True)

    def _on_error(self, error: RSocketError) -> None:
        self._far.owner = None
        if self._port.ended is not None or not self._near.open & SENDING:
            self._on_cancel()  # it is the near side that ended
        else:
            self._go_on(error)

    def _on_cancel(self) -> None:
        self._far.owner = None
        self._far_port.cancel_stream(self._far)

    def _go_on(self, result: Payload | RSocketError) -> None:
        """Leave what the far side answered to a task."""
        handler = Handler(self._finish, Kind.ASYNC, interaction=self._near.interaction)
        self._near.owner = call = HandlerCall(self._port, self._near, handler, result)
        self._port.workers.start(call)


async def _respond(call: HandlerCall) -> None:
    answer = await call.handler.function(call.payload)
    if type(answer) is Payload:
        reply = answer
    else:
        reply = as_payload(answer) if isinstance(answer, PAYLOAD_LIKE) else call._as_payload(answer)
    port, stream = call.port, call.stream
    while stream.open & SENDING and not port.session.outbox.has_room(reply):
        await port.request_queue.wait_for_room(reply.size)
    if stream.open & SENDING:
        port.answer(stream, reply)
        if call.handler.observers:
            call.handler.call._count_sent(1, reply.size)


async def _forget(call: HandlerCall) -> None:
    await call.handler.function(call.payload)


def _stream(call: HandlerCall) -> Awaitable[None]:
    # No coroutine of its own around that of a generator: each costs every open stream 230 bytes.
    sender = Sender(call.port, call.stream)
    if call.handler.counts:
        sender = CountingSender(call.port, call.stream, call.handler.call)
    call.sender = sender
    if call.handler.kind is Kind.GENERATOR:
        return sender.serve(call.handler.function(call.payload))
    return _push(call, sender)


async def _push(call: HandlerCall, sender: Sender) -> None:
    await call.handler.function(call.payload, Outgoing(sender))
    sender.end()


async def _channel(call: HandlerCall) -> None:
    port, stream, channel = call.port, call.stream, call.channel
    assert channel is not None
    try:
        await call.handler.function(channel)
    finally:
        channel._discard()
    port.complete_stream(stream)
    if stream.open & RECEIVING:
        port.cancel_stream(stream)


# The coroutines that a worker awaits; ``HandlerCall.fail`` turns their exceptions into the end of the stream.
RUNNERS: dict[Interaction, Callable[[HandlerCall], Awaitable[object]]] = {
    Interaction.REQUEST_RESPONSE: _respond,
    Interaction.FIRE_AND_FORGET: _forget,
    Interaction.REQUEST_STREAM: _stream,
    Interaction.REQUEST_SUBSCRIPTION: _stream,
    Interaction.REQUEST_CHANNEL: _channel,
}


class Worker:
    """One task and the call that it has, or ``idle``: those that wait for one. ``handler`` is that of the last call."""

    __slots__ = ("call", "handler", "idle", "task")

    task: trio.lowlevel.Task
    """The task, from its first step."""

    def __init__(self, call: HandlerCall, idle: list[Worker]) -> None:
        self.call: HandlerCall | None = call
        self.handler = call.handler
        self.idle = idle

    def leave(self, _: object) -> trio.lowlevel.Abort:
        """Stop waiting; Trio calls this when the task is cancelled."""
        self.idle.remove(self)
        return trio.lowlevel.Abort.SUCCEEDED


IDLE: Final = Handler(_forget, Kind.ASYNC)
"""Stands for the handler of one call, which keeps its request, where the task of that call waits for the next."""
HANDLER_TASK: Final = "rsocket_trio handler"
"""The name of the tasks that run handlers; Trio would make one for each, of 100 bytes."""
MAX_STARTING = 32
"""Tasks that may be on their way to a call at once, when many handlers wait."""
DETACHED_TIMEOUT = 1.0
"""Seconds that handlers of fire-and-forget and pushed metadata get to finish once the connection is over."""
CALLS_IN_A_ROW = 32
"""Calls in line that a task runs without letting other tasks run, if no handler waits."""


class Workers:
    """Runs calls in the connection's nursery, each under a cancel scope that stands for its stream.

    The scope is replaced only after a cancel. Each call runs in a fresh copy of ``context``, or in the one of the call
    before if that did not change it.

    In a burst one task is woken, and the other calls wait in line: a handler that does not wait leaves its task to the
    next of them. As soon as all tasks that were woken have begun, twice as many are woken for the calls in line, so
    that handlers that do wait hold up no other for long.
    """

    __slots__ = (
        "_coming",
        "_detached",
        "_done",
        "_idle",
        "_idle_limit",
        "_in_a_row",
        "_line",
        "_nursery",
        "_port",
        "_variables",
        "_waking",
        "context",
        "finished",
    )

    def __init__(self, port: Engine, nursery: trio.Nursery, context: contextvars.Context) -> None:
        self.context = context
        self._variables = tuple(context.items())
        self._port = port
        self._nursery = nursery
        self._idle_limit = -1
        self._idle: list[Worker] = []
        self._line: deque[HandlerCall] | tuple[()] = ()  # an empty deque costs 600 bytes
        self._coming = 0
        self._waking = 1
        self._in_a_row = 0
        self.finished = 0
        self._detached: dict[HandlerCall, None] = {}  # no set: an empty one costs 216 bytes
        self._done = ParkingLot()

    def start(self, call: HandlerCall) -> None:
        """Run a call in an idle task or a new one, or as soon as a task is free."""
        if not self._coming:
            self._give(call)
        elif self._line:
            self._line.append(call)
        else:
            self._line = deque((call,))

    def _give(self, call: HandlerCall) -> None:
        """Give a call to an idle task or a new one, and wake it."""
        self._coming += 1
        if self._idle:
            worker = self._idle.pop()
            task = worker.task
            # Given before the task runs: a cancel that comes in between finds the call, which never begins then.
            worker.call = call
            # A parked task takes its next step in whatever context it has then.
            task.context = self.context.copy()
            trio.lowlevel.reschedule(task)
        else:
            # Many a connection is made for one request: the first task is kept for no other, unless more were needed.
            self._idle_limit = 0 if self._idle_limit < 0 else self._port.session.limits.idle_workers
            worker = Worker(call, self._idle)
            self.context.copy().run(partial(self._nursery.start_soon, self._work, worker, name=HANDLER_TASK))

    def stop_idle(self) -> int:
        """End the tasks that wait for a call. Return their number."""
        going = len(self._idle)
        for worker in self._idle:
            self._coming += 1
            trio.lowlevel.reschedule(worker.task)
        self._idle.clear()
        return going

    def mark_detached(self, call: HandlerCall) -> None:
        """Count a handler as a stream although its stream is over before it."""
        if not call.detached:
            call.detached = True
            self._port.session.receiver.detached += 1

    def detach(self, call: HandlerCall) -> None:
        """Count a handler without an answer as a stream, and give it a moment when the connection ends."""
        self.mark_detached(call)
        self._detached[call] = None

    @property
    def detached(self) -> int:
        """The number of running handlers without an answer."""
        return len(self._detached)

    async def finish_detached(self) -> None:
        """Wait for the handlers without an answer, and cancel those that take too long.

        Calls that wait for a task never begin: they are cancelled.
        """
        if self._detached:
            with trio.move_on_after(DETACHED_TIMEOUT):
                while self._detached:
                    await self._done.park()
        line, self._line = self._line, ()
        for call in line:
            call.cancel()
            self._forget(call)
        for call in self._detached:
            call.cancel()

    async def _work(self, worker: Worker) -> None:
        # One coroutine on purpose, of few locals: every frame on the way to a waiting handler, and every slot of it,
        # costs memory for each open stream.
        worker.task = trio.lowlevel.current_task()
        self._begin()
        while (call := worker.call) is not None:
            scope = trio.CancelScope()
            was_cancelled = False
            try:
                with scope:
                    while call is not None:
                        worker.handler = call.handler
                        try:
                            if not call.cancelled:
                                call.scope = scope
                                await RUNNERS[call.stream.interaction](call)
                        except Exception as error:
                            call.fail(error)
                        except BaseException as error:
                            call.note_end(error)
                            raise
                        finally:
                            # Forgotten before this task parks, so that a late CANCEL can't hit the next call.
                            worker.call = call.scope = None
                            was_cancelled = call.cancelled
                            self._forget(call)
                            call = None  # a task that waits keeps no request alive
                        if was_cancelled:
                            break
                        if self._line:
                            # No local of this frame refers to the context: its iterators keep cycles uncollected.
                            if (
                                self._in_a_row < CALLS_IN_A_ROW
                                and len(worker.task.context) == len(self._variables)
                                and self._is_fresh(worker.task.context)
                            ):
                                # The handler left its context as it was: the next one can't tell it from a fresh copy.
                                self._in_a_row += 1
                                worker.call = call = self._line.popleft()
                            else:
                                call = await self._next_call(worker)
                        elif len(self._idle) >= self._idle_limit:
                            call = await self._next_call(worker)
                        else:
                            # As in ``_next_call``, without a coroutine of its own: ``start`` wakes this task.
                            if worker.handler.call is not None:
                                self._release_call(worker)
                            self._idle.append(worker)
                            await trio.lowlevel.wait_task_rescheduled(worker.leave)
                            self._in_a_row = 0
                            self._begin()
                            call = worker.call
            except (Exception, BaseExceptionGroup):
                # A handler raised beside being cancelled. Its stream is over, so the error goes to the log alone. If
                # the nursery was cancelled meanwhile, being cancelled goes on, and nothing else.
                with failures_told_to(partial(self._fail, worker)):
                    raise
            if was_cancelled:
                await self._next_call(worker)

    def _fail(self, worker: Worker, error: Exception) -> None:
        if is_failure(only_leaf(error), self._port.ended):
            self._port.faults.handler_failed(worker.handler, error)

    async def _next_call(self, worker: Worker) -> HandlerCall | None:
        """Return the next call in line, or a later one; ``None`` at once if enough tasks wait already."""
        if self._line:
            self._in_a_row = 0
            worker.call = self._line.popleft()
            trio.lowlevel.current_task().context = self.context.copy()
            # The new context holds from the next step on.
            await trio.lowlevel.cancel_shielded_checkpoint()
        elif len(self._idle) < self._idle_limit:
            if worker.handler.call is not None:
                self._release_call(worker)
            self._idle.append(worker)
            await trio.lowlevel.wait_task_rescheduled(worker.leave)
            self._begin()
        return worker.call

    def _is_fresh(self, context: contextvars.Context) -> bool:
        """Return whether a context of as many variables holds what ``context`` does."""
        # Values may compare in any way, or not at all.
        for variable, content in self._variables:  # noqa: SIM110 - a generator costs more than all the rest
            if context.get(variable) is not content:
                return False
        return True

    def _release_call(self, worker: Worker) -> None:
        """Forget the call that a task has served, with its request: in the handler, and in the context."""
        worker.handler = IDLE
        worker.task.context = self.context.copy()  # from its next step on

    def _begin(self) -> None:
        """Note that a woken task runs. After the last of them wake more: those before it may all be waiting."""
        self._coming -= 1
        if self._coming == 0:
            line = self._line
            if type(line) is deque and line:
                for _ in range(min(self._waking, len(line))):
                    self._give(line.popleft())
                self._waking = min(2 * self._waking, MAX_STARTING)
            else:
                self._line = ()
                self._waking = 1

    def _forget(self, call: HandlerCall) -> None:
        self.finished += 1
        if call.channel is not None:
            # A call that was cancelled before its first step has read nothing of what came.
            call.channel._discard()
        if call.stream.owner is call:
            call.stream.owner = None
        if call.handler.observers:
            call.tell_end()
        if call.detached:
            self._port.session.receiver.detached -= 1
            if call in self._detached:
                del self._detached[call]
                self._done.wake_all()
        if self._port.link.is_paused:
            # The answer may stay in the outbox until something is read, and its request counts no more.
            self._port.reconsider_pause()
