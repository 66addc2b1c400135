"""Suspends a session that lost its transport and resumes it over the next one."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.deadlines import Timeout
from rsocket_trio.connection.link import Link
from rsocket_trio.connection.resumption import ResumeFailed
from rsocket_trio.errors import ConnectionLost, RemoteProtocolError

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


def suspend(engine: Engine, error: ConnectionLost) -> None:
    """Suspend the session, because its transport is lost, until there is another."""
    resumable = engine.session.resumable
    if engine.is_suspended or engine.ended is not None or resumable is None:
        return
    engine.faults.lost(error)
    engine.is_suspended = True
    engine.act(resumable.suspend())
    engine.on_idle()
    engine.notify_state()


def replace_link(engine: Engine, error: ConnectionLost) -> None:
    """Abandon the transport, which is of no more use, and suspend the session until there is another."""
    suspend(engine, error)
    if engine.link is not None:
        engine.link.abandon()


async def resume_session(engine: Engine, nursery: trio.Nursery, context: contextvars.Context) -> None:
    """Wait for the next transport, within the session's time; then run over it until it is lost as well."""
    reconnector = engine.reconnector
    assert reconnector is not None
    seconds = reconnector.options.session_seconds
    engine.link = None  # frees the lost transport and its read buffer meanwhile
    with Timeout(engine.clock.deadlines, trio.current_time() + seconds) as patience:
        engine.detour = patience.scope
        try:
            async with reconnector.next() as resumed:
                patience.lift()
                _come_back(engine)
                engine.link = Link(resumed.transport, engine.session.outbox, engine.hearing, resumed.frames)
                await engine.link.run(nursery, context)
        except ResumeFailed as end:
            if isinstance(end.__cause__, RemoteProtocolError):
                engine.faults.peer_fault(str(end.error))
            else:
                engine.faults.lost(end.error)
            engine.end(end.error)
        except Exception as error:
            # A fault of the function that opens streams leaves the block; all waiting calls raise that it is over.
            engine.end(ConnectionLost(f"the session was given up: {error!r}"))
            raise
    if patience.scope.cancelled_caught and engine.ended is None:
        engine.lose(ConnectionLost(f"the session was not resumed within {seconds:g} s"))


def _come_back(engine: Engine) -> None:
    if engine.is_suspended and engine.ended is None:
        engine.is_suspended = False
        engine.clock.reset()
        engine.notify_state()
