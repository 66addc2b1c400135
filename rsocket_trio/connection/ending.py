"""How does a connection end? Left by this side in good order, or over from one moment to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio.connection.handlers import Job
from rsocket_trio.connection.reporting import hurry
from rsocket_trio.errors import Canceled, ConnectionClosed, RSocketError, again
from rsocket_trio.mux.halves import SENDING

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


def part(engine: Engine, closed: ConnectionClosed) -> bool:
    """This side is done: what is open is cancelled, and the peer is told that the connection ends.

    Return whether it hears of that, and can end the connection in its turn: what it asked before it heard is refused
    until then, in place of being cut.
    """
    if engine.ended is not None:
        return False
    session = engine.session
    cancel_all(engine, closed)
    if engine.is_suspended:
        return False
    if not session.has_announced:
        session.announce_close(last=True)
    engine.wake()
    return session.has_announced


def leave(engine: Engine, closed: ConnectionClosed, *, announce: bool) -> None:
    """This side is done: what is open is cancelled, what is queued still goes out, then the link closes."""
    if engine.ended is not None:
        return
    cancel_all(engine, closed)
    if announce:
        engine.session.announce_close(last=True)
    end(engine, closed)


def cancel_all(engine: Engine, closed: ConnectionClosed) -> None:
    """Cancel every open stream, and say so to the peer."""
    session = engine.session
    for stream in session.open_streams():
        owner, stream.owner = stream.owner, None
        if stream.requester:
            session.commands.send_cancel(stream)
        elif stream.open & SENDING:
            session.commands.send_error(stream, Canceled("the connection is closing"))
        if isinstance(owner, Job):
            owner.cancel()
        elif owner is not None:
            owner.on_error(again(closed))


def end(engine: Engine, error: RSocketError) -> None:
    """The connection is over: everybody who waits hears of it, handlers are cancelled, the link closes."""
    if engine.ended is not None:
        return
    engine.ended = error
    engine.clock.stop()
    engine.session.close(error)
    jobs: list[Job] = []
    for stream in engine.session.open_streams():
        owner, stream.owner = stream.owner, None
        if isinstance(owner, Job):
            jobs.append(owner)
        elif owner is not None:
            owner.on_error(again(error))
    if jobs:
        engine.workers.end(jobs, error)
    if engine.faults.reports:
        hurry(engine)
    engine.stock.clear()
    engine.wake_waiters()
    for ping in engine.pings:
        ping.set()
    if engine.detour is not None and engine.is_suspended:
        engine.detour.cancel()
    elif engine.link is not None:
        engine.link.stop()
    engine.tell_state()
