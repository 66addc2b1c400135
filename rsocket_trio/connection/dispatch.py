"""Turns the events of a session into task wake-ups, handler starts and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from contextvars import Context
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import attrs
import trio

from rsocket_trio.connection.handler_tasks import HandlerCall, NoStream, is_failure, is_the_end
from rsocket_trio.errors import (
    ConnectionLost,
    Invalid,
    NegotiationFailed,
    RejectedSetup,
    RemoteProtocolError,
    SetupError,
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
from rsocket_trio.tools.exception_groups import failures_told_to, only_leaf

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.rsocket.frames import ExtensionEntry
    from rsocket_trio.terms import Setup


NO_METADATA = RequestMetadata()


class Dispatcher:
    """Acts on events without waiting; work that takes time becomes a call for a worker."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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

    def _on_failed(self, event: StreamFailed) -> None:
        if isinstance(event.error, RemoteProtocolError):
            self._engine.faults.peer_fault(str(event.error))
        owner = event.stream.owner
        if owner is not None:
            owner._on_error(event.error)

    def _on_request(self, event: RequestReceived) -> None:
        stream, payload = event.stream, event.payload
        engine = self._engine
        if engine.ended is not None or (not stream.open and stream.interaction is not FIRE_AND_FORGET):
            return  # it was cancelled, or the session ended, in the same read
        metadata, registered = NO_METADATA, None
        try:
            if payload.metadata:
                metadata = self._read(payload, payload.metadata)
            handler = registered = engine.responder._find(stream.interaction, metadata.route)
            if not handler.plain or metadata.travelling or engine.responder._interceptors:
                responder = engine.responder
                calls = responder._served_calls or responder._attach_served_calls()
                handler = calls.served(engine, handler, payload, metadata)
            elif handler.relay is not None and not event.entries and handler.relay(engine, stream, payload):
                return
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
        call = HandlerCall(engine, stream, handler, payload)
        if stream.interaction is FIRE_AND_FORGET:
            engine.workers.detach(call)
        else:
            stream.owner = call
            if stream.interaction is REQUEST_CHANNEL:
                call.accept_channel()
        engine.workers.start(call)

    def _with_entries(
        self, handler: Handler, stream: StreamState, payload: Payload, entries: tuple[ExtensionEntry, ...]
    ) -> Handler | None:
        """Return the handler with the entries of its request; ``None`` if a hook of the application failed.

        Raise ``StreamError`` if a hook refuses a request that has something round it.
        """
        # Imported here, so that programs without the extension draft do not load it.
        from rsocket_trio.connection.entries import AT_STREAM, HookFailed, offer, with_entries

        try:
            offer(self._engine, AT_STREAM, entries)
        except HookFailed as failed:
            if handler.counts and isinstance(failed.error, StreamError):
                raise failed.error from None  # inside of the interceptors
            if stream.interaction is FIRE_AND_FORGET and isinstance(failed.error, StreamError):
                self._engine.faults.count_dropped()
            else:
                HandlerCall(self._engine, stream, failed.hook, payload).fail(failed.error)
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
        engine, is_answered = self._engine, stream.interaction is not FIRE_AND_FORGET
        if not engine.responder._interceptors and (registered is None or not registered.around):
            if is_answered:
                engine.fail_stream(stream, error)
            else:
                engine.faults.count_dropped()
            return None
        calls = engine.responder._served_calls or engine.responder._attach_served_calls()
        handler = calls.unmatched(stream.interaction) if registered is None else registered
        stand_in = calls.served(engine, handler, payload, metadata, error)
        if registered is None and isinstance(error, Invalid):
            stand_in.call._drop_entries()  # its metadata is malformed
        if not is_answered and not isinstance(error, Invalid):
            engine.faults.count_dropped()  # as an ``Invalid`` is in every case
        return stand_in

    def _read(self, payload: Payload, metadata: bytes) -> RequestMetadata:
        """Return what the metadata of a request says of the call. Raise ``Invalid`` if it is malformed."""
        engine = self._engine
        try:
            limit = engine.session.limits.metadata_entries
            mime = engine.connection.setup.metadata_mime
            if payload.metadata_mime not in NO_MIME:
                mime = mime_name(payload.metadata_mime)
            return read_request(metadata, mime, limit)
        except RemoteProtocolError as error:
            raise Invalid(f"metadata: {error}") from error

    def _run_inline(self, stream: StreamState, handler: Handler, payload: object) -> None:
        engine, is_over = self._engine, True
        context = engine.workers.context.copy()
        try:
            result = context.run(handler.function, payload)
            if isawaitable(result):
                # A wrapper or a lambda around an async function: it must still be awaited.
                self._finish_in_task(stream, handler, payload, result, context)
                is_over = False
                return
            if stream.interaction is FIRE_AND_FORGET:
                return
            if isinstance(result, PAYLOAD_LIKE):
                reply = as_payload(result)
            else:
                reply = HandlerCall(engine, stream, handler, payload)._as_payload(result)
            if engine.session.outbox.has_room(reply):
                engine.send_item(stream, reply, complete=True)
                if handler.observers:
                    handler.call._count_sent(1, reply.size)
                return
            is_over = False
        except Exception as error:
            # An error of the handler, or of an answer that can't be encoded.
            HandlerCall(engine, stream, handler, payload).fail(error)
            return
        except BaseException as error:
            # Raised again at once: it ends the connection.
            HandlerCall(engine, stream, handler, payload).note_end(error)
            raise
        finally:
            if is_over and handler.observers:
                HandlerCall(engine, stream, handler, payload).tell_end()

        async def late() -> Payload:
            return reply

        # The outbox is full: the answer waits in a task, and the receive task does not.
        self._finish_in_task(stream, handler, payload, late(), context)

    def _finish_in_task(
        self, stream: StreamState, handler: Handler, payload: object, result: Awaitable[object], context: Context
    ) -> None:
        """Let a worker await what the plain function of a request has returned, in the function's context."""
        engine, unfinished = self._engine, [(result, context)]

        async def finish(request: object) -> object:
            waiting, called_in = unfinished.pop()  # the worker keeps its last handler, which keeps no answer
            for variable, content in called_in.items():
                variable.set(content)
            return await waiting

        remaining = attrs.evolve(handler, function=finish, kind=Kind.ASYNC, origin=handler.registered)
        call = HandlerCall(engine, stream, remaining, payload)
        if stream.interaction is FIRE_AND_FORGET:
            engine.workers.detach(call)
        else:
            stream.owner = call
        engine.workers.start(call)

    # The connection

    def _on_setup(self, event: SetupReceived) -> None:
        engine = self._engine
        setup = engine.note_setup(event.setup)
        handler = engine.responder._setup_handler
        if handler is None:
            self._let_in()
        else:
            engine.start_task(self._run_setup_handler, handler, setup)

    async def _run_setup_handler(self, handler: Handler, setup: Setup) -> None:
        is_accepted = False
        with failures_told_to(partial(self._refuse_client, handler)):
            answer = handler.function(setup, self._engine.connection)
            if handler.kind is Kind.ASYNC or isawaitable(answer):
                await answer
            is_accepted = True
        if is_accepted:
            self._let_in()

    def _let_in(self) -> None:
        """Let the client in, unless the connection is over or a hook refuses an entry of its SETUP."""
        engine = self._engine
        if engine.ended is not None:
            return
        granted: tuple[ExtensionEntry, ...] = ()
        if engine.connection.setup.extension_entries:
            from rsocket_trio.connection.entries import AT_SETUP, HookFailed, offer

            try:
                granted = offer(engine, AT_SETUP, engine.connection.setup.extension_entries)
            except HookFailed as failed:
                self._refuse_client(failed.hook, failed.error)
                return
        self.start_lease_policy()
        engine.let_in(granted)

    def _refuse_client(self, handler: Handler, error: Exception) -> None:
        """Refuse the client, because its setup handler or a hook raised ``error``."""
        engine, leaf = self._engine, only_leaf(error)
        refusal: SetupError = RejectedSetup("internal error")
        if isinstance(leaf, SetupError) and not isinstance(leaf, NegotiationFailed):
            refusal = leaf
        elif not is_the_end(error, engine.ended):
            engine.faults.handler_failed(handler, error)
        if engine.ended is None:
            self.act(engine.session.refuse(refusal))

    def start_lease_policy(self) -> None:
        """Let the application's policy grant leases, in a task, if they were agreed and it has one."""
        engine = self._engine
        policy, setup = engine.responder._lease_handler, engine.connection.setup
        if setup.lease and policy is not None:
            engine.start_task(self._run_lease_policy, policy, setup)

    async def _run_lease_policy(self, policy: Handler, setup: Setup) -> None:
        """Grant what the policy yields. A policy that fails grants nothing more, and the failure is logged."""
        with failures_told_to(partial(self._lease_policy_failed, policy)):
            async with aclosing(policy.function(setup)) as leases:
                async for lease in leases:
                    self._engine.session.grant(lease, trio.current_time())
                    self._engine.wake()

    def _lease_policy_failed(self, policy: Handler, error: Exception) -> None:
        if not is_the_end(error, self._engine.ended):
            self._engine.faults.handler_failed(policy, error)

    def _on_accepted(self, event: SetupAccepted) -> None:
        engine = self._engine
        engine.connection.granted = event.entries
        engine.changes.wake_all()
        engine.reset_deadline()
        self.start_lease_policy()

    def _on_entries(self, event: EntriesReceived) -> None:
        from rsocket_trio.connection.entries import AT_EXT, HookFailed, offer

        try:
            offer(self._engine, AT_EXT, event.entries)
        except HookFailed as failed:
            self._hook_failed(failed.hook, failed.error)

    def _hook_failed(self, handler: Handler, error: Exception) -> None:
        if is_failure(only_leaf(error), self._engine.ended):
            self._engine.faults.handler_failed(handler, error)

    def _on_metadata_push(self, event: MetadataPushed) -> None:
        engine = self._engine
        handler = engine.responder._metadata_push_handler
        if handler is None or engine.workers.detached >= engine.session.limits.pending_handlers:
            engine.faults.count_dropped()
            return
        stream = NoStream()
        if handler.kind is Kind.INLINE:
            self._run_inline(stream, handler, event.metadata)
            return
        call = HandlerCall(engine, stream, handler, event.metadata)
        engine.workers.detach(call)
        engine.workers.start(call)

    def _on_stream_push(self, event: StreamMetadataPushed) -> None:
        owner = event.stream.owner
        if owner is None or not owner._on_push(event.push):
            self._engine.faults.count_dropped()

    def _on_extension(self, event: ExtensionReceived) -> None:
        engine = self._engine
        handler = engine.responder._extensions[event.ext_type]
        try:
            result = engine.run_in_context(handler.function, event.stream_id, event.body)
            if result is not None and isawaitable(result):
                raise unfit(handler.interaction, handler.registered, result, "nothing: it is a plain function")
        except Exception as error:
            self._hook_failed(handler, error)

    def _on_ended(self, event: SessionEnded) -> None:
        engine = self._engine
        if isinstance(event.error, ConnectionLost) and not event.ordinary:
            engine.faults.peer_fault(str(event.error))
        else:
            # A refusal (waiting calls raise it, and on the server the application itself decided), or an ordinary end.
            engine.faults.lost(event.error)
        engine.end(event.error, refuses=event.refuses)


ACTIONS: dict[type, Callable[[Dispatcher, Any], object]] = {
    ItemsReceived: lambda self, event: (owner := event.stream.owner) and owner._on_items(event.payloads),
    RequestReceived: Dispatcher._on_request,
    CreditGranted: lambda self, event: (owner := event.stream.owner) and owner._on_credit(),
    StreamCompleted: lambda self, event: (owner := event.stream.owner) and owner._on_complete(),
    StreamCancelled: lambda self, event: (owner := event.stream.owner) and owner._on_cancel(),
    StreamFailed: Dispatcher._on_failed,
    SendingCancelled: lambda self, event: (owner := event.stream.owner) and owner._on_credit(),
    MetadataPushed: Dispatcher._on_metadata_push,
    StreamMetadataPushed: Dispatcher._on_stream_push,
    LeaseReceived: lambda self, event: self._engine.request_queue.grant_next(),
    Pong: lambda self, event: event.token.set(),
    ExtensionReceived: Dispatcher._on_extension,
    SetupReceived: Dispatcher._on_setup,
    SetupAccepted: Dispatcher._on_accepted,
    EntriesReceived: Dispatcher._on_entries,
    PeerFault: lambda self, event: self._engine.faults.peer_fault(event.text),
    PeerDraining: lambda self, event: self._engine.on_peer_draining(closing=event.closing),
    TransportSilent: lambda self, event: self._engine.replace_link(event.error),
    SessionEnded: Dispatcher._on_ended,
}
