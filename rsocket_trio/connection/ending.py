"""Ends a connection, in good order by this side or at once with an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio.connection.fault_log import hurry
from rsocket_trio.connection.handler_tasks import HandlerCall
from rsocket_trio.errors import Canceled, ConnectionClosed, RSocketError, fresh_copy
from rsocket_trio.mux.stream_state import SENDING

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


def part(engine: Engine, closed: ConnectionClosed) -> bool:
    """Cancel all open streams, and announce the end of the connection to the peer.

    Return whether the peer gets the announcement, and can end the connection in its turn. Requests that it sent before
    are refused until then, instead of cut off.
    """
    if engine.ended is not None:
        return False
    session = engine.session
    cancel_all(engine, closed)
    if engine.is_suspended:
        return False
    announcement = session.close_announcement
    if announcement is not None and not announcement.has_announced:
        announcement.announce_close(last=True)
    engine.wake()
    return announcement is not None and announcement.has_announced


def leave(engine: Engine, closed: ConnectionClosed, *, announce: bool) -> None:
    """Cancel all open streams, send the queued frames, then close the link."""
    if engine.ended is not None:
        return
    cancel_all(engine, closed)
    announcement = engine.session.close_announcement
    if announce and announcement is not None:
        announcement.announce_close(last=True)
    end(engine, closed)


def cancel_all(engine: Engine, closed: ConnectionClosed) -> None:
    """Cancel every open stream, and send the peer CANCEL or ERROR."""
    session = engine.session
    for stream in session.open_streams():
        owner, stream.owner = stream.owner, None
        if stream.requester:
            session.commands.send_cancel(stream)
        elif stream.open & SENDING:
            session.commands.send_error(stream, Canceled("the connection is closing"))
        if isinstance(owner, HandlerCall):
            owner.cancel()
        elif owner is not None:
            owner.on_error(fresh_copy(closed))


def end(engine: Engine, error: RSocketError) -> None:
    """End the connection: waiting calls raise the error, handlers are cancelled, the link closes."""
    if engine.ended is not None:
        return
    engine.ended = error
    engine.clock.stop()
    engine.session.close(error)
    calls: list[HandlerCall] = []
    for stream in engine.session.open_streams():
        owner, stream.owner = stream.owner, None
        if isinstance(owner, HandlerCall):
            calls.append(owner)
        elif owner is not None:
            owner.on_error(fresh_copy(error))
    if calls:
        engine.workers.end(calls, error)
    if engine.faults.reports:
        hurry(engine)
    engine.receive_budget.clear()
    engine.wake_waiters()
    for ping in engine.pings:
        ping.set()
    if engine.detour is not None and engine.is_suspended:
        engine.detour.cancel()
    elif engine.link is not None:
        engine.link.stop()
    engine.notify_state()
