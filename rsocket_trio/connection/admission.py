"""Who is let in? What a server does with a SETUP: its application considers it, and says yes or no."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio

from rsocket_trio.connection.entries import grants
from rsocket_trio.connection.handlers import only_leaf
from rsocket_trio.errors import NegotiationFailed, RejectedSetup, SetupError
from rsocket_trio.forms import Kind
from rsocket_trio.metadata.mime import mime_name
from rsocket_trio.rsocket.extensions import Entry
from rsocket_trio.terms import Setup

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


def meet(engine: Engine, said: Setup) -> None:
    """A SETUP came: let its client in at once, or let the application consider it in a task of its own."""
    facts = engine.connection.handshake
    engine.connection.setup = setup = attrs.evolve(
        said,
        data_mime=mime_name(said.data_mime),
        metadata_mime=mime_name(said.metadata_mime),
        transport=facts.transport,
        peer=facts.peer,
        certificate=facts.certificate,
        path=facts.path,
        headers=facts.headers,
    )
    engine.clock.reset()
    if engine.responder.setup_handler is None:
        _accept(engine)
    else:
        engine.workers.context.copy().run(engine.nursery.start_soon, _consider, engine, setup)


async def _consider(engine: Engine, setup: Setup) -> None:
    handler = engine.responder.setup_handler
    assert handler is not None
    try:
        answer = handler.function(setup, engine.connection)
        if handler.kind is Kind.ASYNC:
            await answer
    except Exception as error:
        _refuse_for(engine, handler.function, error)
    else:
        _accept(engine)


def _accept(engine: Engine) -> None:
    if engine.ended is not None:
        return
    granted: tuple[Entry, ...] = ()
    if engine.connection.setup.entries:
        try:
            granted = grants(engine, engine.connection.setup.entries)
        except Exception as error:
            _refuse_for(engine, grants, error)
            return
    engine.start_lease_policy()
    engine.act(engine.session.accept(trio.current_time(), granted))
    engine.on_accepted()


def _refuse_for(engine: Engine, function: Callable[..., Any], error: Exception) -> None:
    leaf = only_leaf(error)
    if isinstance(leaf, SetupError) and not isinstance(leaf, NegotiationFailed):
        engine.act(engine.session.refuse(leaf))
        return
    engine.faults.of_handler(function, error)
    engine.act(engine.session.refuse(RejectedSetup("internal error")))
