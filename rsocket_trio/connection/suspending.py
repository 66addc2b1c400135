"""How does a session outlive its transport? It is suspended, waits for the next one, and goes on over it."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.link import Link
from rsocket_trio.connection.resuming import NoWayBack
from rsocket_trio.connection.timers import Patience
from rsocket_trio.errors import ConnectionLost, RemoteProtocolError

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


def suspend(engine: Engine, error: ConnectionLost) -> None:
    """The transport is gone, and the session waits for another."""
    if engine.is_suspended or engine.ended is not None:
        return
    engine.faults.lost(error)
    engine.is_suspended = True
    engine.act(engine.session.suspend())
    engine.rest()
    engine.tell_state()


def replace_link(engine: Engine, error: ConnectionLost) -> None:
    """The transport is of no more use, and the session goes on without it until there is another one."""
    suspend(engine, error)
    if engine.link is not None:
        engine.link.abandon()


async def find_the_way_back(engine: Engine, nursery: trio.Nursery, context: contextvars.Context) -> None:
    """Wait for the next transport, as long as the session may; then go on over it until it is lost as well."""
    road = engine.road
    assert road is not None
    seconds = road.options.session_seconds
    engine.link = None  # the transport that is gone, and what it had read, cost nothing meanwhile
    with Patience(engine.clock.timers, trio.current_time() + seconds) as patience:
        engine.detour = patience.scope
        try:
            async with road.next() as arrival:
                patience.lift()
                _come_back(engine)
                engine.link = Link(arrival.transport, engine.session.outbox, engine.hearing, arrival.frames)
                await engine.link.run(nursery, context)
        except NoWayBack as end:
            if isinstance(end.__cause__, RemoteProtocolError):
                engine.faults.of_peer(str(end.error))
            else:
                engine.faults.lost(end.error)
            engine.end(end.error)
        except Exception as error:
            # A fault of the function that opens streams leaves the block; all who wait hear that it is over.
            engine.end(ConnectionLost(f"the session was given up: {error!r}"))
            raise
    if patience.scope.cancelled_caught and engine.ended is None:
        engine.lose(ConnectionLost(f"the session was not resumed within {seconds:g} s"))


def _come_back(engine: Engine) -> None:
    if engine.is_suspended and engine.ended is None:
        engine.is_suspended = False
        engine.clock.reset()
        engine.tell_state()
