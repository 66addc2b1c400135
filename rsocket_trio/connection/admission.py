"""Accepts or refuses a client's SETUP on the server, as the application's handlers decide."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from rsocket_trio.connection.entries import HookFailed, grants
from rsocket_trio.connection.fault_log import failures_told_to
from rsocket_trio.connection.handler_tasks import is_the_end, only_leaf
from rsocket_trio.errors import NegotiationFailed, RejectedSetup, SetupError
from rsocket_trio.forms import Handler, Kind
from rsocket_trio.metadata.mime import mime_name
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.terms import Setup

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


def meet(engine: Engine, said: Setup) -> None:
    """Handle a SETUP: accept it at once, or run the application's setup handler in a task of its own."""
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
    taken = False
    with failures_told_to(partial(_refuse_for, engine, handler)):
        answer = handler.function(setup, engine.connection)
        if handler.kind is Kind.ASYNC or inspect.isawaitable(answer):
            await answer
        taken = True
    if taken:
        _accept(engine)


def _accept(engine: Engine) -> None:
    if engine.ended is not None:
        return
    granted: tuple[Entry, ...] = ()
    if engine.connection.setup.entries:
        try:
            granted = grants(engine, engine.connection.setup.entries)
        except HookFailed as failed:
            _refuse_for(engine, failed.hook, failed.error)
            return
    engine.start_lease_policy()
    engine.act(engine.session.accept(trio.current_time(), granted))
    engine.on_accepted()


def _refuse_for(engine: Engine, handler: Handler, error: Exception) -> None:
    leaf = only_leaf(error)
    refusal: SetupError = RejectedSetup("internal error")
    if isinstance(leaf, SetupError) and not isinstance(leaf, NegotiationFailed):
        refusal = leaf
    elif not is_the_end(engine, error):
        engine.faults.handler_failed(handler, error)
    if engine.ended is None:
        engine.act(engine.session.refuse(refusal))
