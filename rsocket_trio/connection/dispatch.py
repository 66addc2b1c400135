"""Turns the events of a session into task wake-ups, handler starts and answers."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from rsocket_trio.connection.fault_log import is_failure, only_leaf
from rsocket_trio.connection.handler_tasks import HandlerCall, HandlerPort, NoStream, Unfinished
from rsocket_trio.connection.served_calls import CallPort, served, unmatched
from rsocket_trio.errors import (
    ConnectionLost,
    Invalid,
    RemoteProtocolError,
    RSocketError,
    StreamError,
)
from rsocket_trio.forms import Handler, Kind, unfit
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.metadata.routes import RequestMetadata, read_request
from rsocket_trio.mux.events import (
    CreditGranted,
    EntriesReceived,
    Event,
    ExtensionReceived,
    ItemReceived,
    ItemsReceived,
    LeaseReceived,
    MetadataPushed,
    PeerDraining,
    PeerFault,
    Pong,
    RequestReceived,
    SendingCancelled,
    SessionEnded,
    SetupAccepted,
    SetupReceived,
    StreamCancelled,
    StreamCompleted,
    StreamFailed,
    StreamMetadataPushed,
    TransportSilent,
)
from rsocket_trio.mux.stream_state import FIRE_AND_FORGET, REQUEST_CHANNEL, StreamState
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, as_payload
from rsocket_trio.terms import Setup

if TYPE_CHECKING:
    from rsocket_trio.connection.entries import EntryHooks
    from rsocket_trio.rsocket.frames import ExtensionEntry


NO_METADATA = RequestMetadata()


class DispatchPort(HandlerPort, CallPort, Protocol):
    """The side of a connection that the dispatcher sees. None of these waits."""

    @property
    def entry_hooks(self) -> EntryHooks:
        """The application's hooks for extension entries."""
        ...

    def run_in_context(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function of the application in a fresh copy of the connection's context."""
        ...

    def copy_context(self) -> contextvars.Context:
        """Return a fresh copy of the connection's context."""
        ...

    def handle_setup(self, setup: Setup) -> None:
        """Admit or refuse the client of this SETUP."""
        ...

    def on_answered(self, entries: tuple[ExtensionEntry, ...]) -> None:
        """Let waiting requests begin: the server took this client, and granted these extension entries."""
        ...

    def on_peer_draining(self, *, closing: bool) -> None:
        """Start no new streams: the peer takes none, and lets open ones finish.

        With ``closing`` it expects this side to end the connection behind the last one.
        """
        ...

    def replace_link(self, error: ConnectionLost) -> None:
        """Abandon the transport, which is of no more use, until there is another."""
        ...

    def end(self, error: RSocketError, *, refuses: bool = False) -> None:
        """End the connection with this error."""
        ...


class Dispatcher:
    """Acts on events without waiting; work that takes time becomes a call for a worker."""

    __slots__ = ("_port",)

    def __init__(self, port: DispatchPort) -> None:
        self._port = port

    def act(self, events: Iterable[Event]) -> None:
        """Act on the events of a session, in order."""
        for event in events:
            if type(event) is ItemReceived:
                owner = event.stream.owner
                if owner is not None:
                    owner._on_item(event.payload, event.complete)
            else:
                ACTIONS[type(event)](self, event)

    # Streams

    def _on_items(self, event: ItemsReceived) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner._on_items(event.payloads)

    def _on_complete(self, event: StreamCompleted) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner._on_complete()

    def _on_failed(self, event: StreamFailed) -> None:
        if isinstance(event.error, RemoteProtocolError):
            self._port.faults.peer_fault(str(event.error))
        owner = event.stream.owner
        if owner is not None:
            owner._on_error(event.error)

    def _on_cancelled(self, event: StreamCancelled) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner._on_cancel()

    def _on_credit(self, event: CreditGranted | SendingCancelled) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner._on_credit()

    def _on_request(self, event: RequestReceived) -> None:
        stream, payload = event.stream, event.payload
        port = self._port
        if port.ended is not None or (not stream.open and stream.interaction is not FIRE_AND_FORGET):
            return  # it was cancelled, or the session ended, in the same read
        metadata, registered = NO_METADATA, None
        try:
            if payload.metadata:
                metadata = self._read(payload, payload.metadata)
            handler = registered = port.responder._find(stream.interaction, metadata.route)
            if not handler.plain or metadata.travelling or port.responder._interceptors:
                handler = served(port, handler, payload, metadata)
            if event.entries:
                entitled = self._with_entries(handler, stream, payload, event.entries)
                if entitled is None:
                    return
                handler = entitled
        except StreamError as error:
            refused = self._refused(stream, payload, metadata, registered, error)
            if refused is None:
                return
            handler = refused
        if handler.kind is Kind.INLINE:
            self._run_inline(stream, handler, payload)
            return
        call = HandlerCall(port, stream, handler, payload)
        if stream.interaction is FIRE_AND_FORGET:
            port.workers.detach(call)
        else:
            stream.owner = call
            if stream.interaction is REQUEST_CHANNEL:
                call.accept_channel()
        port.workers.start(call)

    def _with_entries(
        self, handler: Handler, stream: StreamState, payload: Payload, entries: tuple[ExtensionEntry, ...]
    ) -> Handler | None:
        """Return the handler with the entries of its request; ``None`` if a hook of the application failed.

        Raise ``StreamError`` if a hook refuses a request that has something round it.
        """
        # Imported here, so that programs without the extension draft do not load it.
        from rsocket_trio.connection.entries import HookFailed, with_entries

        try:
            self._port.entry_hooks.offer_request(entries)
        except HookFailed as failed:
            if handler.counts and isinstance(failed.error, StreamError):
                raise failed.error from None  # inside of the interceptors
            if stream.interaction is FIRE_AND_FORGET and isinstance(failed.error, StreamError):
                self._port.faults.count_dropped()
            else:
                HandlerCall(self._port, stream, failed.hook, payload).fail(failed.error)
            return None
        return with_entries(handler, entries)

    def _refused(
        self,
        stream: StreamState,
        payload: Payload,
        metadata: RequestMetadata,
        registered: Handler | None,
        error: StreamError,
    ) -> Handler | None:
        """Refuse a request by ``error``. Return a handler that raises it inside of the interceptors, if there are any.

        ``registered`` is the handler that the request is for, ``None`` if none matches.
        """
        port, is_answered = self._port, stream.interaction is not FIRE_AND_FORGET
        handler = unmatched(stream.interaction) if registered is None else registered
        if not port.responder._interceptors and not handler.around:
            if is_answered:
                port.fail_stream(stream, error)
            else:
                port.faults.count_dropped()
            return None
        stand_in = served(port, handler, payload, metadata, error)
        if registered is None and isinstance(error, Invalid):
            stand_in.call._drop_entries()  # its metadata is malformed
        if not is_answered and not isinstance(error, Invalid):
            port.faults.count_dropped()  # as an ``Invalid`` is in every case
        return stand_in

    def _read(self, payload: Payload, metadata: bytes) -> RequestMetadata:
        """Return what the metadata of a request says of the call. Raise ``Invalid`` if it is malformed."""
        port = self._port
        try:
            limit = port.session.limits.metadata_entries
            mime = port.metadata_mime
            if payload.metadata_mime not in NO_MIME:
                mime = mime_name(payload.metadata_mime)
            return read_request(metadata, mime, limit)
        except RemoteProtocolError as error:
            raise Invalid(f"metadata: {error}") from error

    def _run_inline(self, stream: StreamState, handler: Handler, payload: Any) -> None:
        port = self._port
        context = port.copy_context()
        try:
            result = context.run(handler.function, payload)
            if stream.interaction is FIRE_AND_FORGET:
                if result is not None and isawaitable(result):
                    self._finish_in_task(stream, handler, payload, Unfinished(result, context))
                return
            if isinstance(result, PAYLOAD_LIKE):
                reply = as_payload(result)
            elif isawaitable(result):
                # No payload yet: a wrapper or a lambda around an async function must still be awaited.
                self._finish_in_task(stream, handler, payload, Unfinished(result, context))
                return
            else:
                reply = HandlerCall(port, stream, handler, payload)._as_payload(result)
            if port.session.outbox.has_room(reply):
                port.send_item(stream, reply, complete=True)
                return
        except Exception as error:
            # An error of the handler, or of an answer that can't be encoded.
            HandlerCall(port, stream, handler, payload).fail(error)
            return

        held = [reply]

        async def late(request: Payload) -> Payload:
            return held.pop()

        del reply  # the worker keeps its last handler, which keeps no answer
        # The outbox is full: the answer waits in a task, and the receive task does not.
        self._finish_in_task(stream, handler, payload, late)

    def _finish_in_task(
        self, stream: StreamState, handler: Handler, payload: object, function: Callable[[Any], Awaitable[object]]
    ) -> None:
        """Let a worker finish a request whose plain function has returned."""
        port = self._port
        remaining = attrs.evolve(handler, function=function, kind=Kind.ASYNC, origin=handler.registered)
        call = HandlerCall(port, stream, remaining, payload)
        if stream.interaction is FIRE_AND_FORGET:
            port.workers.detach(call)
        else:
            stream.owner = call
        port.workers.start(call)

    # The connection

    def _on_setup(self, event: SetupReceived) -> None:
        self._port.handle_setup(event.setup)

    def _on_accepted(self, event: SetupAccepted) -> None:
        self._port.on_answered(event.entries)

    def _on_entries(self, event: EntriesReceived) -> None:
        self._port.entry_hooks.offer_connection(event.entries, self._hook_failed)

    def _hook_failed(self, handler: Handler, error: Exception) -> None:
        if is_failure(only_leaf(error), self._port.ended):
            self._port.faults.handler_failed(handler, error)

    def _on_metadata_push(self, event: MetadataPushed) -> None:
        port = self._port
        handler = port.responder._metadata_push_handler
        if handler is None or port.workers.detached >= port.session.limits.pending_handlers:
            port.faults.count_dropped()
            return
        stream = NoStream()
        if handler.kind is Kind.INLINE:
            self._run_inline(stream, handler, event.metadata)
            return
        call = HandlerCall(port, stream, handler, event.metadata)
        port.workers.detach(call)
        port.workers.start(call)

    def _on_stream_push(self, event: StreamMetadataPushed) -> None:
        owner = event.stream.owner
        if owner is None or not owner._on_push(event.push):
            self._port.faults.count_dropped()

    def _on_extension(self, event: ExtensionReceived) -> None:
        port = self._port
        handler = port.responder._extensions[event.ext_type]
        try:
            result = port.run_in_context(handler.function, event.stream_id, event.body)
            if result is not None and isawaitable(result):
                raise unfit(handler.interaction, handler.registered, result, "nothing: it is a plain function")
        except Exception as error:
            self._hook_failed(handler, error)

    def _on_silent(self, event: TransportSilent) -> None:
        self._port.replace_link(event.error)

    def _on_ended(self, event: SessionEnded) -> None:
        port = self._port
        if isinstance(event.error, ConnectionLost) and not event.ordinary:
            port.faults.peer_fault(str(event.error))
        else:
            # A refusal (waiting calls raise it, and on the server the application itself decided), or an ordinary end.
            port.faults.lost(event.error)
        port.end(event.error, refuses=event.refuses)

    def _on_lease(self, event: LeaseReceived) -> None:
        self._port.request_queue.grant_next()

    def _on_pong(self, event: Pong) -> None:
        event.token.set()

    def _on_peer_fault(self, event: PeerFault) -> None:
        faults = self._port.faults
        if event.ignored:
            faults.ignored_frame(event.text)
        else:
            faults.peer_fault(event.text)

    def _on_peer_draining(self, event: PeerDraining) -> None:
        self._port.on_peer_draining(closing=event.closing)


ACTIONS: dict[type, Callable[[Dispatcher, Any], None]] = {
    ItemsReceived: Dispatcher._on_items,
    RequestReceived: Dispatcher._on_request,
    CreditGranted: Dispatcher._on_credit,
    StreamCompleted: Dispatcher._on_complete,
    StreamCancelled: Dispatcher._on_cancelled,
    StreamFailed: Dispatcher._on_failed,
    SendingCancelled: Dispatcher._on_credit,
    MetadataPushed: Dispatcher._on_metadata_push,
    StreamMetadataPushed: Dispatcher._on_stream_push,
    LeaseReceived: Dispatcher._on_lease,
    Pong: Dispatcher._on_pong,
    ExtensionReceived: Dispatcher._on_extension,
    SetupReceived: Dispatcher._on_setup,
    SetupAccepted: Dispatcher._on_accepted,
    EntriesReceived: Dispatcher._on_entries,
    PeerFault: Dispatcher._on_peer_fault,
    PeerDraining: Dispatcher._on_peer_draining,
    TransportSilent: Dispatcher._on_silent,
    SessionEnded: Dispatcher._on_ended,
}
