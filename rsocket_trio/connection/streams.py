"""The user objects of streams: ``Incoming``, ``Outgoing``, ``Channel``, and ``PendingResponse``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import outcome
import trio

from rsocket_trio.connection.inbox import BudgetedInbox, Inbox, PushInbox
from rsocket_trio.connection.sender import CountingSender, Sender
from rsocket_trio.errors import LocalProtocolError, RSocketError
from rsocket_trio.mux.stream_state import RECEIVING, SENDING, Interaction
from rsocket_trio.payload import BytesLike, MetadataPush, Payload, PayloadLike, as_bytes, as_payload
from rsocket_trio.tools.event_loop_checks import need_trio

if TYPE_CHECKING:
    from rsocket_trio.connection.fault_log import FaultLog
    from rsocket_trio.connection.hooks import Call, ClientCall
    from rsocket_trio.connection.inbox import ReceiveBudget
    from rsocket_trio.connection.link import Link, NoLink
    from rsocket_trio.connection.request_queue import RequestQueue
    from rsocket_trio.errors import StreamError
    from rsocket_trio.mux.session import Session
    from rsocket_trio.mux.stream_state import StreamState
    from rsocket_trio.rsocket.frames import ExtensionEntry


ResultT = TypeVar("ResultT")


class StreamPort(Protocol):
    """The side of a connection that streams and handlers see. None of its methods waits."""

    ended: RSocketError | None
    """The error that ended the connection, or ``None``."""
    faults: FaultLog
    receive_budget: ReceiveBudget
    request_queue: RequestQueue
    session: Session

    @property
    def link(self) -> Link | NoLink:
        """The link of the current transport; its send task is woken after something was queued."""

    def wake(self) -> None:
        """Have what was queued written."""

    def check_open(self) -> None:
        """Raise ``ConnectionLost`` or ``ConnectionClosed`` if nothing can be asked of the peer any more."""

    def send_item(self, stream: StreamState, payload: Payload, *, complete: bool = False) -> None:
        """Send one item; the caller has checked credit and room."""

    def answer(self, stream: StreamState, payload: Payload) -> None:
        """Send a handler's one answer, from the task that ran the handler; the caller has checked the room."""

    def complete_stream(self, stream: StreamState) -> None:
        """Complete this side's half, if it is still open."""

    def fail_stream(self, stream: StreamState, error: StreamError) -> None:
        """End a stream with an error if this side's half is open; else cancel the peer's half."""

    def cancel_stream(self, stream: StreamState) -> None:
        """Cancel a stream, if it has not ended. Never waits and never raises."""

    def request_n(self, stream: StreamState, amount: int) -> None:
        """Grant credit."""


class StreamObserver:
    """The receiver of a stream's events. By default it ignores them."""

    __slots__ = ()

    @property
    def _unread(self) -> int:
        """Number of received items that were not taken."""
        return 0

    def _as_payload(self, item: Any) -> Payload:
        """Return an item of another type than payloads have, which is sent on the stream, as one.

        Raise ``TypeError`` if it can't be.
        """
        return as_payload(item)

    def _on_item(self, payload: Payload, complete: bool) -> None:
        """Handle an item; with ``complete`` it is the last."""

    def _on_items(self, payloads: Sequence[Payload]) -> None:
        """Handle items that came together, none of them the last."""
        for payload in payloads:
            self._on_item(payload, False)

    def _on_push(self, push: MetadataPush) -> bool:
        """Handle metadata pushed onto this stream. Return whether it will be read."""
        return False

    def _on_complete(self) -> None:
        """Handle the completion of the peer's half."""

    def _on_error(self, error: RSocketError) -> None:
        """Handle the error that ended the stream or the whole connection."""

    def _on_cancel(self) -> None:
        """Handle a cancellation by the peer."""

    def _on_credit(self) -> None:
        """Wake a waiting sender, because the peer granted credit or cancelled our half."""

    def _on_eof(self) -> None:
        """Handle the completion of our half, whose user goes on."""


class Sending:
    """Sends the items of this side's half. Each ``send`` waits for the peer's credit."""

    __slots__ = ()

    _sender: Sender | None

    @property
    def room(self) -> int:
        """Number of items that the peer's credit allows right now, without waiting."""
        return self._sending().room

    async def wait_room(self, beyond: int = 0) -> int:
        """Wait until the peer's credit allows more than ``beyond`` items, and return how many it allows: ``room``.

        For handlers that pass demand on instead of buffering: they request from others as much as the peer granted.
        Waits for credit alone, not for room in the outbox. Raise as ``send`` does when nothing more can be sent. If the
        protocol has no credit (Streamux) ``room`` is always 2^31-1.
        """
        return await self._sending().wait_room(beyond)

    def send(self, payload: PayloadLike) -> Coroutine[object, object, None]:
        """Send ``payload`` as one item.

        Waits for the peer's credit and for room in the connection's outbox; when cancelled meanwhile, nothing was sent.
        Raise ``Canceled`` after the peer cancelled this half, ``LocalProtocolError`` after ``send_eof`` of a channel,
        ``ConnectionLost`` or ``ConnectionClosed`` when the connection is over.
        """
        # No coroutine of its own: there is one for every item.
        sender = self._sender
        return self._sending().send(payload) if sender is None else sender.send(payload)

    async def send_many(self, payloads: Iterable[PayloadLike]) -> None:
        """Send ``payloads`` in order, at a lower cost than one ``send`` for each.

        Waits and raises as ``send`` does, before the item that must wait or cannot be sent; the items before it were
        sent.
        """
        await self._sending().send_many(payloads)

    def _watch_credit(self, function: Callable[[], object]) -> None:
        """Call a plain function whenever the peer grants credit, and when nothing more can be sent."""
        self._sending().on_grant = function

    def _sending(self) -> Sender:
        if self._sender is None:
            raise LocalProtocolError("the channel is not open: use it under 'async with'")
        return self._sender


class Outgoing(Sending):
    """Sends the items of a handler. Each ``send`` waits for the peer's credit."""

    __slots__ = ("_sender",)

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def metadata_push(self, metadata: BytesLike, *, metadata_type: int = 0) -> None:
        """Send ``metadata`` that concerns this stream, in order with its items; it takes no credit.

        ``metadata_type`` is its type byte. Raise ``Unsupported`` in every dialect but ReactiveSocket 0.0.
        """
        await self._sending().push(MetadataPush(as_bytes(metadata), metadata_type))


class Incoming(StreamObserver):
    """The items of a stream that this side requested: ``async with`` opens it, ``async for`` reads it.

    Leaving the block cancels the stream, unless it has ended. An ERROR of the responder is raised to the reader after
    the items that came before it. ``request`` is the payload that opened the stream.
    """

    __slots__ = (
        *("_credit", "_entries", "_inbox", "_interaction", "_life", "_port", "_refill", "_sender", "_stream"),
        "request",
    )

    def __init__(
        self,
        port: StreamPort,
        interaction: Interaction,
        request: Payload,
        credit: int,
        *,
        refill: bool,
        entries: tuple[ExtensionEntry, ...] = (),
        life: ClientCall | None = None,
    ) -> None:
        self._life = life
        self._port = port
        self._interaction = interaction
        self._credit = credit
        self._refill = refill
        self._entries = entries
        self._stream: StreamState | None = None
        self._inbox: Inbox | None = None
        self._sender: Sender | None = None  # of a channel
        self.request = request

    async def __aenter__(self) -> Self:
        if self._stream is not None:
            raise LocalProtocolError("a stream can be opened once only: ask the connection for a new one")
        need_trio()
        if self._life is not None:
            return await self._opened_within(self._life)
        await trio.lowlevel.checkpoint()
        # There is no checkpoint between the opening and the owner's registration, so no event is missed.
        self._attach(await self._request(None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing before this may wait: the block may be left with its deadline expired, and CANCEL must go out all the
        # same.
        stream = self._opened()[0]
        clean = kind is None
        over = self._ends_with(stream, clean)
        stream.owner = None
        self._leave(stream, clean=clean)
        self._discard()
        if self._life is not None:
            await self._life.leave(error, over=over)

    async def _opened_within(self, life: ClientCall) -> Self:
        """Open the stream inside of what its call needs."""
        self.request = await life.begin()
        try:
            self._attach(await self._request(life.renewed))
        except BaseException as error:
            await life.leave(error)
            raise
        life.observe(self)
        return self

    def _decoder(self, kind: object) -> Callable[[Payload], Any]:
        """Return the function that turns items into ``kind``."""
        assert self._life is not None
        return self._life.item_decoder(kind)

    def _discard(self) -> None:
        """Drop the received items that were not read; no reader is left."""
        self._opened()[1].drop()

    @property
    def _unread(self) -> int:
        return self._inbox.unread if self._inbox is not None else 0

    def __aiter__(self) -> AsyncIterator[Payload]:
        # ``async for`` asks the inbox itself for each item.
        inbox = self._inbox
        return self if inbox is None else inbox

    def __anext__(self) -> Coroutine[object, object, Payload]:
        # No coroutine of its own: there is one for every item. Nothing may be raised here: the interpreter's
        # ``anext(items, default)`` crashes then.
        inbox = self._inbox
        return self._not_opened() if inbox is None else inbox.__anext__()

    async def receive_batch(self) -> list[Payload]:
        """Return all items that came and were not read; wait for at least one. An empty list is the end.

        For readers of many small items: one call instead of one per item. Credit, order and errors are those of
        ``async for``; an ERROR of the responder is raised by the call after the one that took the last items.
        """
        return await self._opened()[1].get_all()

    def request_n(self, request_n: int) -> None:
        """Grant the peer credit for ``request_n`` more items, beyond the automatic refill.

        Raise ``ValueError`` unless it is between 1 and 2^31-1.
        """
        self._opened()[1].request_n(request_n)

    async def metadata_push(self, metadata: BytesLike, *, metadata_type: int = 0) -> None:
        """Send ``metadata`` that concerns this stream to its responder; ``metadata_type`` is its type byte.

        Raise ``Unsupported`` in every dialect but ReactiveSocket 0.0.
        """
        await Sender(self._port, self._opened()[0]).push(MetadataPush(as_bytes(metadata), metadata_type))

    def _on_item(self, payload: Payload, complete: bool) -> None:
        self._opened()[1].put(payload, complete)

    def _on_items(self, payloads: Sequence[Payload]) -> None:
        self._opened()[1].put_all(payloads)

    def _on_complete(self) -> None:
        self._opened()[1].end(None)

    def _on_error(self, error: RSocketError) -> None:
        self._opened()[1].end(error)

    def _observed_by(self, observer: StreamObserver) -> None:
        """Have the stream's events go to ``observer``, which passes them on."""
        self._opened()[0].owner = observer

    def _request(self, renewed: Callable[[], Payload] | None) -> Coroutine[object, object, StreamState]:
        """Open the stream, with its request ``renewed`` if it had to wait. There is no checkpoint after that."""
        return self._port.request_queue.open(self._interaction, self.request, self._credit, self._entries, renewed)

    def _attach(self, stream: StreamState) -> None:
        self._stream = stream
        self._inbox = self._new_inbox(stream)
        stream.owner = self

    def _new_inbox(self, stream: StreamState) -> Inbox:
        port = self._port
        message_budget = port.session.dialect.message_budget
        if message_budget is not None:
            return BudgetedInbox(port, port.receive_budget, stream, self._credit, message_budget)
        return Inbox(port, port.receive_budget, stream, self._credit, refill=self._refill)

    def _ends_with(self, stream: StreamState, clean: bool) -> bool:
        """Return whether a stream comes to its end, and is not cancelled, if its block is left now."""
        return not stream.open

    def _leave(self, stream: StreamState, *, clean: bool) -> None:
        self._port.cancel_stream(stream)

    async def _not_opened(self) -> Payload:
        return await self._opened()[1].__anext__()

    def _opened(self) -> tuple[StreamState, Inbox]:
        if self._stream is None or self._inbox is None:
            raise LocalProtocolError("the stream is not open: use it under 'async with'")
        return self._stream, self._inbox


class IncomingWithPushes(Incoming):
    """An ``Incoming`` with ``MetadataPush`` values between the items, as the peer pushed them (ReactiveSocket 0.0)."""

    __slots__ = ()

    def __anext__(self) -> Coroutine[object, object, Payload | MetadataPush]:  # type: ignore[override]  # the caller asked for them
        return super().__anext__()

    async def receive_batch(self) -> list[Payload | MetadataPush]:  # type: ignore[override]
        """Return all items that came, with pushes in their places. An empty list is the end."""
        return [*await super().receive_batch()]

    def _on_push(self, push: MetadataPush) -> bool:
        inbox = self._opened()[1]
        return isinstance(inbox, PushInbox) and inbox.push(push)

    def _new_inbox(self, stream: StreamState) -> Inbox:
        port, limit = self._port, self._port.session.limits.pending_handlers
        return PushInbox(port, port.receive_budget, stream, self._credit, refill=self._refill, limit=limit)


class Channel(Sending, Incoming):
    """Both directions of a channel: iterate to receive, ``send`` to send; each half ends by itself.

    ``request`` is the payload that opened the channel; iterating yields those that follow it.
    """

    __slots__ = ()

    async def wait_send_closed(self) -> None:
        """Wait until nothing more can be sent: completed by this side, cancelled or ended by the peer.

        For code that sends rarely and has to know at once that the peer stopped listening.
        """
        await self._sending().wait_closed()

    async def send_eof(self) -> None:
        """Complete this side's half; receiving goes on. Do nothing the second time.

        In ReactiveSocket 0.2 and 0.1 the responder's completion ends the channel for both sides: a handler that reads
        on gets the items that came before, and then the end.
        """
        sender = self._sending()
        await trio.lowlevel.checkpoint()
        if not sender.completed:
            self._port.check_open()
            stream, inbox = self._opened()
            self._port.complete_stream(stream)
            if not stream.open & RECEIVING:
                inbox.end(None)  # RS02-SEQ-04, RS01-SEQ-12; everywhere else it has ended before
            sender.completed = True
            sender.on_credit()
            if stream.owner is not None:
                stream.owner._on_eof()

    def _on_item(self, payload: Payload, complete: bool) -> None:
        self._opened()[1].put(payload, complete)
        if complete:
            # If this ends both halves, tasks that wait to send are woken to raise.
            self._on_credit()

    def _on_complete(self) -> None:
        super()._on_complete()
        self._on_credit()

    def _on_error(self, error: RSocketError) -> None:
        super()._on_error(error)
        self._sending().error = error
        self._on_credit()

    def _on_credit(self) -> None:
        self._sending().on_credit()

    def _attach(self, stream: StreamState) -> None:
        super()._attach(stream)
        self._send_by(Sender(self._port, stream))

    def _send_by(self, sender: Sender) -> None:
        if self._sender is not None:
            sender.on_grant = self._sender.on_grant
        self._sender = sender

    def _encoder(self, kind: object) -> Callable[[Any], PayloadLike]:
        """Return the function that turns objects of type ``kind`` into payloads."""
        assert self._life is not None
        return self._life.item_encoder(kind)

    def _count_sent(self, call: Call | None) -> None:
        """Count the items that are sent from now on for ``call``."""
        self._send_by(CountingSender(self._port, self._opened()[0], call))

    @property
    def _is_sending(self) -> bool:
        """Return whether more may be sent, with or without credit."""
        return bool(self._opened()[0].open & SENDING)

    def _stop_receiving(self) -> None:
        """Cancel the peer's half, unless it has ended: it learns that no more items are wanted. Sending goes on."""
        stream, inbox = self._opened()
        if stream.open & RECEIVING:
            self._port.cancel_stream(stream)
            inbox.end(None)

    def _ends_with(self, stream: StreamState, clean: bool) -> bool:
        return not stream.open or (clean and stream.open == SENDING)

    def _leave(self, stream: StreamState, *, clean: bool) -> None:
        if clean and stream.open == SENDING:
            self._port.complete_stream(stream)
        else:
            self._port.cancel_stream(stream)
        sender = self._sending()
        sender.completed = True
        sender.on_credit()


class PendingResponse(StreamObserver, outcome.Outcome[Payload]):
    """The parked task of a request/response, without a scope, event or task of its own.

    The task is woken with this object as the outcome: an ``outcome.Value`` costs more to make than all of this.
    """

    __slots__ = ("_payload", "_port", "_stream", "_task")

    _payload: Payload

    def __init__(self, task: trio.lowlevel.Task, port: StreamPort, stream: StreamState) -> None:
        self._task: trio.lowlevel.Task | None = task
        self._port = port
        self._stream = stream

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """Cancel the request, because its task was cancelled."""
        # Trio may call this in the middle of a dispatch: it only appends to the outbox and never raises.
        self._stream.owner = None
        self._port.cancel_stream(self._stream)
        return trio.lowlevel.Abort.SUCCEEDED

    def _on_item(self, payload: Payload, complete: bool) -> None:
        stream = self._stream
        stream.owner = None  # nothing more comes, and a reference cycle would wait for the garbage collector
        self._port.session.outbox.on_answer(stream)
        task, self._task = self._task, None
        if task is not None:
            self._payload = payload
            trio.lowlevel.reschedule(task, self)

    def unwrap(self) -> Payload:
        """Return the answer, in the task that waited for it."""
        return self._payload

    def send(self, gen: Generator[ResultT, Payload, object]) -> ResultT:
        """Send the answer into a generator."""
        return gen.send(self._payload)

    async def asend(self, agen: AsyncGenerator[ResultT, Payload]) -> ResultT:
        """Send the answer into an async generator."""
        return await agen.asend(self._payload)

    def _on_complete(self) -> None:
        self._on_item(Payload(), True)

    def _on_error(self, error: RSocketError) -> None:
        self._stream.owner = None
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Error(error))
