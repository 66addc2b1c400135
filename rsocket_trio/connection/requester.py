"""Holds a connection's request methods: all interactions, metadata pushes, pings and extensions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, overload

import trio

from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.loops import need_trio, no_trio
from rsocket_trio.connection.request_queue import supported
from rsocket_trio.connection.streams import Channel, Incoming, IncomingWithPushes, PendingResponse
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.metadata.routes import with_route
from rsocket_trio.mux.flow_control import checked_request_n
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import BytesLike, Payload, PayloadLike, as_bytes, as_payload
from rsocket_trio.rsocket.extensions.terms import as_entries
from rsocket_trio.terms import Setup
from rsocket_trio.values import UnsaidNumber

INITIAL_REQUEST_N = UnsaidNumber(256)
"""Initial credit of a request in items, unless its caller or ``peer=`` sets another."""


class Requester:
    """The requester side of a connection, which both ends have."""

    setup: Setup
    _engine: Engine

    async def request_response(
        self, payload: PayloadLike = b"", *, route: str | None = None, entries: Iterable[object] = ()
    ) -> Payload:
        """Send a request, and return its one answer. A cancellation, also by a deadline, sends CANCEL.

        ``entries`` are extension entries of the request, in the extension draft.

        Raise ``ApplicationError``, ``Rejected``, ``Canceled`` or ``Invalid`` as the responder answered,
        ``ConnectionLost`` or ``ConnectionClosed`` when the connection is gone, ``Unsupported`` if the dialect has no
        such interaction. Waits for a permit if leases were agreed.
        """
        engine = self._engine
        request = as_payload(payload) if route is None else self._request(payload, route)
        extensions = as_entries(entries) if entries else ()
        # The same as RequestQueue.open, without a coroutine of its own for each request.
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except RuntimeError:
            raise no_trio() from None
        stream = engine.request_queue.at_once(Interaction.REQUEST_RESPONSE, request, None, extensions)
        if stream is None:
            stream = await engine.request_queue.in_turn(Interaction.REQUEST_RESPONSE, request, None, extensions)
        stream.owner = reply = PendingResponse(trio.lowlevel.current_task(), engine, stream)
        answer: Payload = await trio.lowlevel.wait_task_rescheduled(reply.abort)
        return answer

    @overload
    def request_stream(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = INITIAL_REQUEST_N,
        refill: bool = True,
        pushes: Literal[False] = False,
    ) -> Incoming: ...

    @overload
    def request_stream(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = INITIAL_REQUEST_N,
        refill: bool = True,
        pushes: Literal[True],
    ) -> IncomingWithPushes: ...

    def request_stream(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = INITIAL_REQUEST_N,
        refill: bool = True,
        pushes: bool = False,
    ) -> Incoming:
        """Return a stream of items, for use under ``async with``.

        ``initial_request_n`` items (256, or what ``peer=`` sets) may come before the reader takes one; credit is
        topped up at half, unless ``refill`` is false. Raise ``ValueError`` for a credit outside of 1 to 2^31-1. With
        ``pushes`` metadata that a peer of ReactiveSocket 0.0 pushes onto the stream comes between the items, as
        ``MetadataPush``; without it such metadata is dropped.
        """
        return self._incoming(Interaction.REQUEST_STREAM, payload, route, entries, initial_request_n, refill, pushes)

    @overload
    def request_subscription(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = INITIAL_REQUEST_N,
        refill: bool = True,
        pushes: Literal[False] = False,
    ) -> Incoming: ...

    @overload
    def request_subscription(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = INITIAL_REQUEST_N,
        refill: bool = True,
        pushes: Literal[True],
    ) -> IncomingWithPushes: ...

    def request_subscription(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = INITIAL_REQUEST_N,
        refill: bool = True,
        pushes: bool = False,
    ) -> Incoming:
        """Return a stream that never completes (drafts 0.0 and 0.1), for use like that of ``request_stream``."""
        kind = Interaction.REQUEST_SUBSCRIPTION
        return self._incoming(kind, payload, route, entries, initial_request_n, refill, pushes)

    def request_channel(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = INITIAL_REQUEST_N,
        refill: bool = True,
    ) -> Channel:
        """Return a channel for ``async with``; the payload opens it and is the handler's ``channel.request``."""
        credit = self._credit(initial_request_n)
        request = self._request(payload, route)
        return Channel(
            *(self._engine, Interaction.REQUEST_CHANNEL, request, credit),
            refill=refill,
            entries=as_entries(entries),
        )

    async def fire_and_forget(
        self, payload: PayloadLike = b"", *, route: str | None = None, entries: Iterable[object] = ()
    ) -> None:
        """Send a request that is never answered. An accepted request is still sent when the connection is left."""
        request = self._request(payload, route)
        extensions = as_entries(entries)
        need_trio()
        await trio.lowlevel.checkpoint()
        await self._engine.request_queue.open(Interaction.FIRE_AND_FORGET, request, None, extensions)

    async def metadata_push(self, metadata: BytesLike, *, metadata_type: int = 0) -> None:
        """Send metadata that concerns the connection as a whole; its type is that of ReactiveSocket 0.0."""
        engine = self._engine
        content = as_bytes(metadata)
        need_trio()
        await trio.lowlevel.checkpoint()
        await engine.request_queue.wait_for_room(len(content))
        supported(engine.session, engine.session.connection_metadata, "metadata").metadata_push(content, metadata_type)
        engine.wake()

    async def ping(self) -> float:
        """Send a ping, and return its round trip time in seconds.

        Answers match in order; their data is not checked. Raise ``Unsupported`` if the dialect has no ping. In
        Streamux a ping takes a request id, and waits while none is free.
        """
        engine = self._engine
        need_trio()
        await trio.lowlevel.checkpoint()
        answered = trio.Event()
        await engine.request_queue.ping(answered)
        started = trio.current_time()
        engine.pings[answered] = None
        try:
            await answered.wait()
        finally:
            del engine.pings[answered]
        engine.check_open()
        return trio.current_time() - started

    async def send_extension(self, ext_type: int, body: BytesLike = b"", *, ignore: bool = True) -> None:
        """Send an EXT frame; a peer that does not know the type skips it, unless ``ignore`` is false."""
        engine = self._engine
        need_trio()
        await trio.lowlevel.checkpoint()
        engine.check_open()
        extensions = supported(engine.session, engine.session.extensions, "extension frames")
        extensions.extension(ext_type, as_bytes(body), ignore=ignore)
        engine.wake()

    async def send_entries(self, entries: Iterable[object], *, ignore: bool = True) -> None:
        """Send extension entries that concern the connection, in the extension draft.

        A peer that cannot read them skips all, unless ``ignore`` is false. Raise ``Unsupported`` in another dialect.
        """
        engine = self._engine
        content = as_entries(entries)
        need_trio()
        await trio.lowlevel.checkpoint()
        engine.check_open()
        extension = supported(engine.session, engine.session.extension_entries, "extension entries")
        extension.entries(content, ignore=ignore)
        engine.wake()

    def _incoming(
        self,
        interaction: Interaction,
        payload: PayloadLike,
        route: str | None,
        entries: Iterable[object],
        credit: int,
        refill: bool,
        pushes: bool,
    ) -> Incoming:
        credit = self._credit(credit)
        kind = IncomingWithPushes if pushes else Incoming
        request = self._request(payload, route)
        return kind(self._engine, interaction, request, credit, refill=refill, entries=as_entries(entries))

    def _credit(self, asked: int) -> int:
        if type(asked) is UnsaidNumber:
            return self._engine.session.dialect.initial_request_n
        return checked_request_n(asked)

    def _request(self, payload: PayloadLike, route: str | None) -> Payload:
        request = payload if type(payload) is Payload else as_payload(payload)
        if route is None:
            return request
        if not isinstance(route, str):
            raise TypeError(f"a route is a str, not {type(route).__name__}")
        session = self._engine.session
        if not session.dialect.routes:
            supported(session, None, "routes")
        mime = self.setup.metadata_mime
        if request.metadata_mime not in NO_MIME and session.dialect.mime_fields:
            mime = mime_name(request.metadata_mime)
        return Payload(
            request.data,
            with_route(route, request.metadata, mime),
            data_mime=request.data_mime,
            metadata_mime=request.metadata_mime,
        )
