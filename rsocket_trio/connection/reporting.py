"""Tells an application's own functions of handlers that failed: those of ``on_error``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from rsocket_trio.connection.fault_log import failures_told_to
from rsocket_trio.forms import Handler, Kind

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.connection.engine import Engine

REPORTS = 16
"""Async functions of one connection that may be at work at once: each keeps the exception that it was told of."""
LAST_WORD = 1.0
"""Seconds that these get to finish once the connection is over."""


@attrs.frozen(kw_only=True)
class Call:
    """What a handler was called for: ``route`` of ``interaction`` on ``connection``.

    ``interaction`` is the name of the decorator, as in ``"request_response"``; ``route`` is ``None`` for the handler
    without a route, and for what has no routes, as ``"setup"``.
    """

    route: str | None
    interaction: str
    connection: Connection


def report(engine: Engine, interaction: str, route: str | None, error: BaseException) -> None:
    """Tell every function that was registered. A plain one is called here, an async one awaited in a task."""
    call = Call(route=route, interaction=interaction, connection=engine.connection)
    for handler in engine.responder.error_handlers:
        if handler.kind is Kind.ASYNC and not _has_room(engine):
            continue
        waiting: Any = None
        with failures_told_to(partial(engine.faults.of_function, handler)):
            waiting = engine.workers.context.copy().run(handler.function, error, call)
        if inspect.isawaitable(waiting):
            _await(engine, handler, waiting)


def _await(engine: Engine, handler: Handler, waiting: Awaitable[object]) -> None:
    """Await what a function returned, in a task that the end of the connection gives some time."""
    if not _has_room(engine):
        if inspect.iscoroutine(waiting):
            waiting.close()
        return
    scope = trio.CancelScope(shield=True)
    if engine.faults.reports is None:
        engine.faults.reports = {}
    engine.faults.reports[scope] = None
    if engine.ended is not None:
        scope.deadline = trio.current_time() + LAST_WORD
    engine.workers.context.copy().run(engine.nursery.start_soon, _finish, engine, handler, waiting, scope)


async def _finish(engine: Engine, handler: Handler, waiting: Awaitable[object], scope: trio.CancelScope) -> None:
    try:
        with scope, failures_told_to(partial(engine.faults.of_function, handler)):
            await waiting
    finally:
        assert engine.faults.reports is not None
        del engine.faults.reports[scope]


def _has_room(engine: Engine) -> bool:
    """Whether one more async function may be at work; one that may not is counted."""
    if len(engine.faults.reports or ()) < REPORTS:
        return True
    engine.faults.unreported += 1
    return False


def hurry(engine: Engine) -> None:
    """The connection is over: functions at work get a moment to finish."""
    last = trio.current_time() + LAST_WORD
    for scope in engine.faults.reports or ():
        scope.deadline = min(scope.deadline, last)
