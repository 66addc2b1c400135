"""Handles the events of a link and answers its questions, on behalf of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.suspending import suspend
from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RemoteProtocolError

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


class Hearing:
    """Implements ``Rules`` for the link of the current transport. Nothing here waits."""

    __slots__ = ("_engine", "_told_so")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told_so = False

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause."""
        engine = self._engine
        if not engine.receive_budget.blocks(self._read_on):
            return engine.session.is_congested
        engine.clock.reset()  # the check for readers that take nothing may be due before the next deadline
        return True

    def _read_on(self) -> None:
        """Resume reading after readers made room. Frames of the peer stayed unread meanwhile, so it was not silent."""
        engine = self._engine
        engine.forgive_silence(trio.current_time())
        engine.resume()

    @property
    def is_stuck(self) -> bool:
        """Whether reading pauses for answers that cannot leave before something is read.

        Only a new transport helps: when the peer resumes, it says which frames it has.
        """
        session = self._engine.session
        resumable = session.resumable
        if resumable is None or not session.outbox.is_stalled:
            return False
        return session.is_congested and resumable.can_resume

    @property
    def is_mid_frame(self) -> bool:
        """Whether the session holds a part of a frame."""
        framing = self._engine.session.own_framing
        return framing is not None and framing.is_mid_frame

    @property
    def progress(self) -> int:
        """A counter that grows while readers take received items, and handlers finish."""
        return self._engine.receive_budget.readings + self._engine.workers.finished

    @property
    def is_over(self) -> bool:
        """Whether nothing more has to be read."""
        return self._engine.ended is not None

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Act on whole frames, with all their effects, before the next frames are read."""
        engine = self._engine
        engine.act(engine.session.receive(frames, trio.current_time()))
        engine.request_queue.grant_next()
        engine.after_read()

    def on_broken(self, error: RemoteProtocolError) -> None:
        """Handle a framing error: the transport cannot find the next frame."""
        self._engine.act(self._engine.session.broken(error))

    def on_lost(self, error: ConnectionLost) -> None:
        """Handle the loss of the transport: end the connection, or suspend the session."""
        engine = self._engine
        session = engine.session
        announcement, resumable, framing = session.close_announcement, session.resumable, session.own_framing
        if engine.peer_draining:
            engine.end(ConnectionClosed("the peer closed the connection"))
        elif announcement is not None and announcement.has_announced and session.is_quiet:
            engine.end(ConnectionClosed("the connection was drained by this side"))
        elif resumable is not None and resumable.can_resume and engine.reconnector is not None:
            suspend(engine, error)
        elif engine.ended is None:
            cut = error if framing is None else framing.cut_off(error)
            engine.faults.lost(cut)
            engine.end(cut)

    def on_written(self) -> None:
        """Handle a write: wake requests that wait for room, and report a session that gave up resumption."""
        engine = self._engine
        request_queue = engine.request_queue
        if request_queue.room.first is not None or request_queue.line.first is not None:
            request_queue.on_written()
        resumable = engine.session.resumable
        if resumable is not None and resumable.gave_up_resuming and not self._told_so:
            self._told_so = True
            engine.faults.fatal(ConnectionLost("the store is full: from now on the session can't be resumed"))
            engine.notify_state()
        if engine.session.draining:
            engine.after_read()
