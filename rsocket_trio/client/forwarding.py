"""Requests that are asked of another server: with their metadata, their credit, their errors and their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from rsocket_trio import errors
from rsocket_trio.connection.connection import Connection, Requester, answered, current_connection
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.handler_tasks import RelayedResponse
from rsocket_trio.connection.request_queue import routed
from rsocket_trio.connection.streams import Channel, Incoming, Outgoing
from rsocket_trio.errors import ApplicationError, Rejected, RSocketError
from rsocket_trio.forms import checked
from rsocket_trio.metadata.composite import converted
from rsocket_trio.metadata.mime import mime_name
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream_state import FIRE_AND_FORGET, REQUEST_CHANNEL, REQUEST_RESPONSE, Interaction, StreamState
from rsocket_trio.payload import Payload
from rsocket_trio.responder import Responder
from rsocket_trio.tools.exception_groups import only_leaf

Far: TypeAlias = Requester[Any, Any, Any]
"""A connection, or the client of ``connect_forever`` or ``open_pool``."""
MAX_OWED_ITEMS: Final = 4096
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
    responder._setup_checks = (lambda setup, near: check_data(near, connection._usable(), errors.RejectedSetup),)
    responder._last_pushes = (checked("metadata_push", partial(push, connection)),)
    forms: Any = {REQUEST_RESPONSE: ask, FIRE_AND_FORGET: ask, REQUEST_CHANNEL: channel}
    for registered, to in (("**", None), (None, route)):
        # A channel's client may send what the far side asks for, and nothing before.
        terms: Any = {"route": registered, "credit": 0, "refill": False, "relay": partial(relay, connection, to)}
        for interaction in Interaction:
            handler = partial(forms.get(interaction, stream), connection, getattr(connection, interaction), to)
            responder._decorator(interaction, credentials=credentials, **terms)(handler)
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


def relay(far: Far, route: str | None, port: Engine, stream: StreamState, request: Payload) -> bool:
    """Send a request of one answer, or of none, at once. Return False if that takes a task."""
    engine, interaction = far._usable(), stream.interaction
    if interaction not in (REQUEST_RESPONSE, FIRE_AND_FORGET) or engine is None or engine is port:
        return False
    if not engine.plain_requests or has_odd_answers(port.connection, engine.session):
        return False
    try:
        request = routed(engine, far_request(request, port.connection, engine), route)
        asked = engine.request_queue.at_once(interaction, request, None, ())
    except (RSocketError, ValueError):
        return False  # the task says why
    if asked is not None and interaction is REQUEST_RESPONSE:
        RelayedResponse(port, stream, engine, asked, partial(finish, far, engine, request))
    return asked is not None


async def finish(far: Far, engine: Engine, request: Payload, result: Payload | RSocketError) -> Payload:
    """Return an answer over ``engine``, or over another one for an error of a request that was not processed."""
    if isinstance(result, Payload):
        return result
    with translated_errors():
        following = await far._next_engine(result, [engine])
        if following is None:
            raise result
        return checked_answer(await far._sent(answered, following, (), None, request, [engine]))


async def ask(far: Far, send: Callable[..., Any], route: str | None, request: Payload) -> Payload | None:
    """Return the answer of the far side, if there is to be one."""
    with translated_errors():
        answer = await send(far_request(request, current_connection(), far._usable()), route=route)
        return None if answer is None else checked_answer(answer)


async def push(far: Far, metadata: bytes) -> None:
    """Send metadata that the client pushed."""
    with translated_errors():
        await far.metadata_push(metadata)


async def stream(far: Far, opening: Callable[..., Any], route: str | None, request: Payload, out: Outgoing) -> None:
    """Send the items of the far side, as many as the client grants."""
    owed = min(await out.wait_room(), MAX_OWED_ITEMS)
    with translated_errors():
        request = far_request(request, current_connection(), far._usable())
        async with opening(request, route=route, initial_request_n=owed, refill=False) as items:
            await pass_on(items, out, owed)


async def channel(far: Far, opening: Callable[..., Any], route: str | None, near: Channel) -> None:
    """Pass items on in both directions, each half until its end."""
    owed = min(await near.wait_room(), MAX_OWED_ITEMS)
    with translated_errors():
        request = far_request(near.request, current_connection(), far._usable())
        opened = opening(request, route=route, initial_request_n=owed, refill=False)
        async with opened as items, trio.open_nursery() as nursery:
            nursery.start_soon(pass_on, near, items, 0)
            await pass_on(items, near, owed)


def check_data(near: Connection, engine: Engine | None, refusal: type[RSocketError]) -> None:
    """Raise ``refusal`` for a client whose data the far side would take for another type."""
    data_mime = near.setup.data_mime
    if engine is not None and data_mime and not near._engine.session.dialect.mime_fields:
        far_mime = engine.connection.setup.data_mime
        if mime_name(data_mime) != mime_name(far_mime):
            raise refusal(f"data of type {data_mime!r}: what is behind this server has {far_mime!r}")


def far_request(request: Payload, near: Connection, engine: Engine | None) -> Payload:
    """Return a request as the far side gets it. Raise ``ValueError`` for metadata that it has no place for."""
    check_data(near, engine, Rejected)  # the far side may not have been there when the client came
    mime = request.metadata_mime or near.setup.metadata_mime
    if engine is None or not request.metadata or mime == engine.connection.setup.metadata_mime:
        return request
    metadata = converted(request.metadata, mime, engine.connection.setup.metadata_mime)
    return Payload(request.data, metadata, metadata_type=request.metadata_type, data_mime=request.data_mime)


def has_odd_answers(near: Connection, session: Session) -> bool:
    """Return whether an answer of ``session`` may have what the dialect of a client lacks: it is checked then."""
    return not near.setup.metadata_mime or session.dialect.mime_fields or session.dialect.metadata_types


def checked_answer(payload: Payload) -> Payload:
    """Return an answer as its client gets it. Raise ``ApplicationError`` for what its dialect can't carry."""
    near = current_connection()
    missing = near._engine.session.dialect.lacks(payload)
    if payload.metadata is not None and not near.setup.metadata_mime:
        missing = "metadata"
    if missing:
        raise ApplicationError(f"the answer can't be passed on: {near.dialect} has no {missing}")
    return payload


async def pass_on(source: Incoming, sink: Outgoing | Channel, owed: int) -> None:
    """Send the items of ``source``, which owes ``owed``, to ``sink``, and ask for what that grants."""
    is_odd = has_odd_answers(current_connection(), source._port.session)

    def grant() -> None:
        nonlocal owed
        more = min(sink.room, MAX_OWED_ITEMS) - owed
        if more > 0:
            owed += more
            source.request_n(more)
        if isinstance(source, Channel) and isinstance(sink, Channel) and not sink._is_sending:
            source._stop_receiving()

    # Called by the receive task as credit comes, without a task of its own for each stream.
    sink._watch_credit(grant)
    grant()
    while batch := await source.receive_batch():
        try:
            await sink.send_many(map(checked_answer, batch) if is_odd else batch)
        except errors.Canceled:
            if not (isinstance(source, Channel) and isinstance(sink, Channel)) or sink._is_sending:
                raise
            break  # what comes is not wanted any more, and the other half goes on
        owed -= len(batch)
        grant()
    if isinstance(sink, Channel):
        await sink.send_eof()
