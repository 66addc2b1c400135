"""Turns the events of a session into task wake-ups, handler starts and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.connection.admission import meet
from rsocket_trio.connection.entries import HookFailed, offer_connection, offer_request, with_entries
from rsocket_trio.connection.handler_tasks import HandlerCall, Unfinished, is_failure, only_leaf
from rsocket_trio.errors import (
    ConnectionLost,
    Invalid,
    RemoteProtocolError,
    StreamError,
)
from rsocket_trio.forms import Handler, Kind, unfit
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.metadata.routes import route_of
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
from rsocket_trio.mux.stream_state import Interaction, StreamState
from rsocket_trio.payload import Payload, as_payload
from rsocket_trio.rsocket.stream_table import Stream

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


class Dispatcher:
    """Acts on events without waiting; work that takes time becomes a call for a worker."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def act(self, events: Iterable[Event]) -> None:
        """Act on the events of a session, in order."""
        for event in events:
            ACTIONS[type(event)](self, event)

    # Streams

    def _on_item(self, event: ItemReceived) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner.on_item(event.payload, event.complete)

    def _on_items(self, event: ItemsReceived) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner.on_items(event.payloads)

    def _on_complete(self, event: StreamCompleted) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner.on_complete()

    def _on_failed(self, event: StreamFailed) -> None:
        if isinstance(event.error, RemoteProtocolError):
            self._engine.faults.peer_fault(str(event.error))
        owner = event.stream.owner
        if owner is not None:
            owner.on_error(event.error)

    def _on_cancelled(self, event: StreamCancelled) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner.on_cancel()

    def _on_credit(self, event: CreditGranted | SendingCancelled) -> None:
        owner = event.stream.owner
        if owner is not None:
            owner.on_credit()

    def _on_request(self, event: RequestReceived) -> None:
        stream, payload = event.stream, event.payload
        engine = self._engine
        if engine.ended is not None or (not stream.open and stream.interaction is not Interaction.FIRE_AND_FORGET):
            return  # it was cancelled, or the session ended, in the same read
        try:
            handler = self._find(stream.interaction, payload)
        except StreamError as error:
            if stream.interaction is Interaction.FIRE_AND_FORGET:
                engine.faults.dropped += 1
            else:
                engine.fail_stream(stream, error)
            return
        if event.entries:
            handler = with_entries(handler, event.entries)
            try:
                offer_request(engine, event.entries)
            except HookFailed as failed:
                if stream.interaction is Interaction.FIRE_AND_FORGET and isinstance(failed.error, StreamError):
                    engine.faults.dropped += 1
                else:
                    HandlerCall(engine, stream, failed.hook, payload).fail(failed.error)
                return
        if handler.kind is Kind.INLINE:
            self._run_inline(stream, handler, payload)
            return
        call = HandlerCall(engine, stream, handler, payload)
        if stream.interaction is Interaction.FIRE_AND_FORGET:
            engine.workers.detach(call)
        else:
            stream.owner = call
            if stream.interaction is Interaction.REQUEST_CHANNEL:
                call.accept_channel()
        engine.workers.start(call)

    def _find(self, interaction: Interaction, payload: Payload) -> Handler:
        engine = self._engine
        if not payload.metadata:
            return engine.responder.find(interaction, None)
        try:
            limit = engine.session.limits.metadata_entries
            mime = engine.connection.setup.metadata_mime
            if payload.metadata_mime not in NO_MIME:
                mime = mime_name(payload.metadata_mime)
            route = route_of(payload.metadata, mime, limit)
        except RemoteProtocolError as error:
            raise Invalid(f"metadata: {error}") from error
        return engine.responder.find(interaction, route)

    def _run_inline(self, stream: StreamState, handler: Handler, payload: Any) -> None:
        engine = self._engine
        context = engine.workers.context.copy()
        result: Any = None
        try:
            result = context.run(handler.function, payload)
            if stream.interaction is Interaction.FIRE_AND_FORGET:
                if result is not None and isawaitable(result):
                    self._finish_in_task(stream, handler, payload, Unfinished(result, context))
                return
            reply = as_payload(result)
            if engine.has_room(reply.size):
                engine.send_item(stream, reply, complete=True)
                return
        except Exception as error:
            if isawaitable(result):
                # No payload yet: a wrapper or a lambda around an async function must still be awaited.
                self._finish_in_task(stream, handler, payload, Unfinished(result, context))
                return
            told = error
            if hasattr(result, "__aiter__"):
                told = unfit(handler.interaction, handler.registered, result, "a payload: request_stream answers items")
                told = told.with_traceback(error.__traceback__)
            # An error of the handler, or of an answer that the dialect cannot encode.
            HandlerCall(engine, stream, handler, payload).fail(told)
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
        engine = self._engine
        rest = attrs.evolve(handler, function=function, kind=Kind.ASYNC, origin=handler.registered)
        call = HandlerCall(engine, stream, rest, payload)
        if stream.interaction is Interaction.FIRE_AND_FORGET:
            engine.workers.detach(call)
        else:
            stream.owner = call
        engine.workers.start(call)

    # The connection

    def _on_setup(self, event: SetupReceived) -> None:
        meet(self._engine, event.setup)

    def _on_accepted(self, event: SetupAccepted) -> None:
        self._engine.connection.granted = event.entries
        self._engine.on_answered()

    def _on_entries(self, event: EntriesReceived) -> None:
        offer_connection(self._engine, event.entries)

    def _on_metadata_push(self, event: MetadataPushed) -> None:
        engine = self._engine
        handler = engine.responder.metadata_push_handler
        if handler is None or engine.workers.detached >= engine.session.limits.pending_handlers:
            engine.faults.dropped += 1
            return
        stream = Stream(0, Interaction.FIRE_AND_FORGET, 0, requester=False)
        if handler.kind is Kind.INLINE:
            self._run_inline(stream, handler, event.metadata)
            return
        call = HandlerCall(engine, stream, handler, event.metadata)
        engine.workers.detach(call)
        engine.workers.start(call)

    def _on_stream_push(self, event: StreamMetadataPushed) -> None:
        owner = event.stream.owner
        if owner is None or not owner.on_push(event.push):
            self._engine.faults.dropped += 1

    def _on_extension(self, event: ExtensionReceived) -> None:
        engine = self._engine
        handler = engine.responder.extensions[event.ext_type]
        try:
            result = engine.workers.context.copy().run(handler.function, event.stream_id, event.body)
            if result is not None and isawaitable(result):
                raise unfit(handler.interaction, handler.registered, result, "nothing: it is a plain function")
        except Exception as error:
            if is_failure(engine, only_leaf(error)):
                engine.faults.handler_failed(handler, error)

    def _on_silent(self, event: TransportSilent) -> None:
        self._engine.replace_link(event.error)

    def _on_ended(self, event: SessionEnded) -> None:
        engine = self._engine
        if isinstance(event.error, ConnectionLost) and not event.ordinary:
            engine.faults.peer_fault(str(event.error))
        else:
            # A refusal (waiting calls raise it, and on the server the application itself decided), or an ordinary end.
            engine.faults.lost(event.error)
        engine.end(event.error)

    def _on_lease(self, event: LeaseReceived) -> None:
        self._engine.request_queue.grant_next()

    def _on_pong(self, event: Pong) -> None:
        event.token.set()

    def _on_peer_fault(self, event: PeerFault) -> None:
        faults = self._engine.faults
        if event.ignored:
            faults.ignored_frame(event.text)
        else:
            faults.peer_fault(event.text)

    def _on_peer_draining(self, event: PeerDraining) -> None:
        self._engine.on_peer_draining()


ACTIONS: dict[type, Callable[[Dispatcher, Any], None]] = {
    ItemReceived: Dispatcher._on_item,
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
