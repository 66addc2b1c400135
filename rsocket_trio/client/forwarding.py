"""Requests that are asked of another server: with their metadata, their credit, their errors and their ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import attrs
import trio

from rsocket_trio import errors
from rsocket_trio.connection.connection import Connection, Requester, answered, current_connection
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.handler_tasks import RelayedResponse
from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.connection.request_queue import routed
from rsocket_trio.connection.streams import Channel, Incoming, Outgoing
from rsocket_trio.errors import ApplicationError, Rejected, RSocketError
from rsocket_trio.forms import checked
from rsocket_trio.metadata.composite import Entry, decode_composite, encode_composite
from rsocket_trio.metadata.mime import AUTHENTICATION, COMPOSITE_METADATA, mime_name
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream_state import FIRE_AND_FORGET, REQUEST_RESPONSE, Interaction, StreamState
from rsocket_trio.payload import Payload
from rsocket_trio.responder import Responder
from rsocket_trio.services.calls.context import Call
from rsocket_trio.terms import Setup
from rsocket_trio.tools.exception_groups import only_leaf

Far: TypeAlias = Requester[Any, Any, Any]
"""A connection, or the client of ``connect_forever`` or ``open_pool``."""
MAX_OWED_ITEMS = 4096
"""Items that the far side may owe at a time, whatever its client grants: what that does not read waits here."""


def forwarding(connection: Far, *, route: str | None = None, credentials: bool = False) -> Responder:
    """Return a responder that asks the far side of ``connection`` whatever it is asked, for ``Responder.include``.

    There it serves all that no other handler matches, and requests without a route, which are sent to ``route`` if that
    is given; behind a prefix it serves only routes that begin so. Where the responder has an ``authenticate`` of its
    own, credentials pass only with ``credentials``. A client with another data MIME type than ``connection`` is
    refused. A request that never left for the far side is ``Rejected``; one whose far side is lost meanwhile ends with
    ``ApplicationError``. Raise ``TypeError`` for what makes no requests.
    """
    if not isinstance(connection, Requester):
        raise TypeError(f"forwarding takes a connection or a pool, not {type(connection).__name__}")
    responder = Responder()
    forwarder = Forwarder(connection, credentials)
    responder._setup_checks = (forwarder.check_setup,)
    responder._last_pushes = (checked("metadata_push", forwarder.push),)
    for registered, to in (("**", None), (None, route)):
        # A channel's client may send what the far side asks for, and nothing before.
        terms: Any = {"route": registered, "credit": 0, "refill": False, "relay": partial(forwarder.relay, to)}
        for interaction, function in (
            (Interaction.REQUEST_RESPONSE, partial(forwarder.ask, connection.request_response, to)),
            (Interaction.FIRE_AND_FORGET, partial(forwarder.ask, connection.fire_and_forget, to)),
            (Interaction.REQUEST_STREAM, partial(forwarder.stream, connection.request_stream, to)),
            (Interaction.REQUEST_SUBSCRIPTION, partial(forwarder.stream, connection.request_subscription, to)),
            (Interaction.REQUEST_CHANNEL, partial(forwarder.channel, to)),
        ):
            responder._decorator(interaction, **terms)(function)
    return responder


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise the errors of the block as its client is told of them."""
    try:
        yield
    except Exception as error:
        leaf = only_leaf(error)
        while isinstance(leaf, ExceptionGroup) and leaf.split(RSocketError)[1] is None:
            leaf = leaf.exceptions[0]  # both directions of a channel hear of the loss
        if isinstance(leaf, errors.StreamError) and not isinstance(leaf, errors.Drained):
            raise leaf from None
        if isinstance(leaf, errors.Unsupported | errors.LocalProtocolError | ValueError):
            raise Rejected(f"the far side can't be asked so: {leaf}") from error
        if isinstance(leaf, errors.SetupError) or (isinstance(leaf, RSocketError) and errors.did_not_run(leaf)):
            raise Rejected("the far side can't be reached: the request was not sent") from error
        if isinstance(leaf, RSocketError):
            raise ApplicationError("the far side was lost") from error
        raise


@attrs.frozen(eq=False)
class Forwarder:
    """Asks the far side of ``requester``; ``credentials`` pass in any case.

    ``route`` is that of requests which have none.
    """

    requester: Far
    credentials: bool

    def relay(self, route: str | None, port: Engine, stream: StreamState, request: Payload) -> bool:
        """Send a request of one answer, or of none, at once. Return False if that takes a task."""
        engine, interaction = self.requester._usable(), stream.interaction
        if (
            engine is None
            or engine is port
            or not engine.plain_requests
            or interaction not in (REQUEST_RESPONSE, FIRE_AND_FORGET)
            or self.credentials
            or has_odd_answers(port.connection, engine.session)
        ):
            return False
        try:
            request = routed(engine, self._far_request(request, port.connection, engine), route)
            far = engine.request_queue.at_once(interaction, request, None, ())
        except (RSocketError, ValueError):
            return False  # the task says why
        if far is not None and interaction is REQUEST_RESPONSE:
            RelayedResponse(port, stream, engine, far, partial(self._finish, engine, request))
        return far is not None

    async def _finish(self, engine: Engine, request: Payload, result: Payload | RSocketError) -> Payload:
        """Return an answer over ``engine``, or over another one for an error of a request that was not processed."""
        if isinstance(result, Payload):
            return result
        with translated_errors():
            following = await self.requester._next_engine(result, [engine])
            if following is None:
                raise result
            return checked_answer(await self.requester._sent(answered, following, (), None, request, [engine]))

    async def ask(self, send: Any, route: str | None, request: Payload) -> Payload | None:
        """Return the answer of the far side, if there is to be one."""
        with translated_errors():
            answer = await send(self._request_from_here(request), route=route)
            return None if answer is None else checked_answer(answer)

    async def push(self, metadata: bytes) -> None:
        """Send metadata that the client pushed."""
        with translated_errors():
            await self.requester.metadata_push(metadata)

    async def stream(self, opening: Any, route: str | None, request: Payload, out: Outgoing) -> None:
        """Send the items of the far side, as many as the client grants."""
        owed = min(await out.wait_room(), MAX_OWED_ITEMS)
        with translated_errors():
            far_request = self._request_from_here(request)
            async with opening(far_request, route=route, initial_request_n=owed, refill=False) as items:
                await pass_on(items, out, owed)

    async def channel(self, route: str | None, near: Channel) -> None:
        """Pass items on in both directions, each half until its end."""
        owed = min(await near.wait_room(), MAX_OWED_ITEMS)
        with translated_errors():
            request = self._request_from_here(near.request)
            opening = self.requester.request_channel(request, route=route, initial_request_n=owed, refill=False)
            async with opening as far, trio.open_nursery() as nursery:
                nursery.start_soon(pass_upstream, near, far)
                await pass_on(far, near, owed)
                await near.send_eof()

    # What differs between the two connections

    def check_setup(self, setup: Setup, near: Connection) -> None:
        """Raise ``RejectedSetup`` for a client whose data the far side would misread."""
        refusal = misread_data(near, self.requester._usable())
        if refusal:
            raise errors.RejectedSetup(refusal)

    def _request_from_here(self, request: Payload) -> Payload:
        return self._far_request(request, current_connection(), self.requester._usable())

    def _far_request(self, request: Payload, near: Connection, engine: Engine | None) -> Payload:
        """Return a request as the far side gets it. Raise ``Rejected`` for metadata that it has no place for."""
        refusal = misread_data(near, engine)
        if refusal:
            raise Rejected(refusal)  # the far side was not there yet when the client came
        metadata, mime = request.metadata, request.metadata_mime or near.setup.metadata_mime
        if self.credentials and mime == COMPOSITE_METADATA and near._engine.responder._authenticator is not None:
            # The responder that takes them has left them out. A request without any may have no call.
            call = current_call_variable.get(None)
            kept = [entry for entry in call.entries if entry.mime == AUTHENTICATION] if isinstance(call, Call) else []
            metadata = (metadata or b"") + encode_composite(kept) or None
        if engine is not None and metadata and mime != engine.connection.setup.metadata_mime:
            metadata = converted_metadata(metadata, mime, engine.connection.setup.metadata_mime)
        if metadata is request.metadata:
            return request
        return Payload(request.data, metadata, metadata_type=request.metadata_type, data_mime=request.data_mime)


def misread_data(near: Connection, engine: Engine | None) -> str:
    """Return why the far side would take a client's data for another type, or ``""``."""
    data_mime = near.setup.data_mime
    if engine is None or not data_mime or near._engine.session.dialect.mime_fields:
        return ""
    far_mime = engine.connection.setup.data_mime
    if mime_name(data_mime) == mime_name(far_mime):
        return ""
    return f"data of type {data_mime!r}: what is behind this server has {far_mime!r}"


def converted_metadata(metadata: bytes, mime: str | int, far_mime: str | int) -> bytes | None:
    """Return metadata of one MIME type as that of another. Raise ``Rejected`` if this can't hold it."""
    entries = decode_composite(metadata) if mime == COMPOSITE_METADATA else [Entry(mime_name(mime), metadata)]
    if far_mime == COMPOSITE_METADATA:
        return encode_composite(entries)
    for number, entry in enumerate(entries):
        if number or entry.mime != far_mime:
            taken = f"only {far_mime!r}" if far_mime else "no metadata"
            raise Rejected(f"metadata of type {entry.mime!r}: what is behind this server takes {taken}")
    return entries[0].content if entries else None


def has_odd_answers(near: Connection, session: Session) -> bool:
    """Return whether an answer of ``session`` may have what the dialect of a client lacks: it is checked then."""
    return not near.setup.metadata_mime or session.dialect.mime_fields or session.dialect.metadata_types


def checked_answer(payload: Payload) -> Payload:
    """Return an answer as its client gets it. Raise ``ApplicationError`` for what its dialect can't carry."""
    near = current_connection()
    dialect = near._engine.session.dialect
    has_types = payload.data_mime is not None or payload.metadata_mime is not None
    if (
        (payload.metadata is not None and not near.setup.metadata_mime)
        or (has_types and not dialect.mime_fields)
        or (payload.metadata_type and not dialect.metadata_types)
    ):
        raise ApplicationError(f"the answer has metadata, or a type of its own, and {near.dialect} has no such thing")
    return payload


async def pass_on(source: Incoming, sink: Outgoing | Channel, owed: int, scope: trio.CancelScope | None = None) -> None:
    """Send the items of ``source``, which owes ``owed``, to ``sink``, and ask for what that grants.

    ``scope`` is cancelled once ``sink`` wants no more.
    """
    is_odd = has_odd_answers(current_connection(), source._port.session)

    def grant() -> None:
        nonlocal owed
        more = min(sink.room, MAX_OWED_ITEMS) - owed
        if more > 0:
            owed += more
            source.request_n(more)
        if scope is not None and isinstance(sink, Channel) and not sink._is_sending:
            scope.cancel()

    # Called by the receive task as credit comes, without a task of its own for each stream.
    sink._watch_credit(grant)
    grant()
    while batch := await source.receive_batch():
        await sink.send_many(map(checked_answer, batch) if is_odd else batch)
        owed -= len(batch)
        grant()


async def pass_upstream(near: Channel, far: Channel) -> None:
    """Pass on what the client of a channel sends, until it has completed or the far side wants no more."""
    with trio.CancelScope() as scope:
        await pass_on(near, far, 0, scope)
        await far.send_eof()
    if scope.cancelled_caught:
        near._stop_receiving()
