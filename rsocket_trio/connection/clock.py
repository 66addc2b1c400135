"""The deadlines of a connection: the session names them, this tells the connection when one has come."""

from __future__ import annotations

import math
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.deadlines import Deadlines
from rsocket_trio.connection.fault_log import failures_told_to
from rsocket_trio.connection.handler_tasks import is_the_end
from rsocket_trio.errors import ConnectionLost
from rsocket_trio.forms import Handler
from rsocket_trio.terms import Setup

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine

STALL_CHECKS = 9
"""How often within the limit of silence a connection without a lifetime is looked at."""


class Clock:
    """Hears when something is due: the end of a server's patience for SETUP, a keepalive, death by silence."""

    __slots__ = ("_deadlines", "_engine", "due", "setup_deadline")

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._deadlines: Deadlines | None = None
        self.due = math.inf
        self.setup_deadline = math.inf

    def start(self, deadlines: Deadlines) -> None:
        """Mind the deadlines from now on."""
        self._deadlines = deadlines
        self.reset()

    def reset(self) -> None:
        """A deadline may have come nearer. One that moved away is looked at when it would have come."""
        if self._deadlines is not None and self._engine is not None:
            deadline = self._deadline(self._engine)
            if deadline < self.due:
                self._deadlines.set(self, deadline)

    @property
    def deadlines(self) -> Deadlines | None:
        """What rings at this connection's deadlines; ``None`` before it runs."""
        return self._deadlines

    def stop(self) -> None:
        """The connection is over: nothing is due, and nothing of it is kept for a deadline that has not come."""
        if self._deadlines is not None:
            self._deadlines.clear(self)
        self._engine = None

    def overdue_since(self, now: float) -> float:
        """When the time of this connection's peer was over; infinite while it is not."""
        engine = self._engine
        if engine is None:
            return math.inf
        session = engine.session
        if session.awaits_setup:
            over = self.setup_deadline
        elif now >= session.deadline and not engine.receive_budget.is_blocking:
            over = session.patience_until
        else:
            over = now - engine.stalled_for(now) + session.limits.silence
        return over if over <= now else math.inf

    @property
    def has_unread(self) -> bool:
        """Whether something that came waits to be read."""
        engine = self._engine
        return engine is not None and not engine.is_suspended and engine.link is not None and engine.link.has_unread

    def expire(self, now: float) -> None:
        """The deadline has come, or the time that it was set to before. ``now`` is when that was seen: what came since
        was heard later, and counts."""
        engine = self._engine
        if engine is None:
            return
        try:
            self._act(engine, now)
            self.reset()
        except Exception as error:
            # A fault of ours costs this connection, and not all those that the same task looks after.
            engine.nursery.start_soon(_fail, error)

    def _act(self, engine: Engine, now: float) -> None:
        if engine.session.awaits_setup:
            if now >= self.setup_deadline:
                missing = f"no {engine.session.dialect.first_message} came in time"
                engine.faults.peer_fault(missing)
                engine.end(ConnectionLost(missing))
        elif engine.receive_budget.is_blocking and not engine.is_suspended:
            # Nothing is read because nobody here takes what came: that is no silence of the peer's.
            engine.forgive_silence(now)
            if engine.stalled_for(now) >= engine.session.limits.silence:
                _end_stall(engine, engine.session.limits.silence)
            elif now >= engine.session.deadline:
                engine.on_deadline(now)
        elif now >= engine.session.deadline:
            engine.on_deadline(now)
        elif engine.stalled_for(now) >= engine.session.limits.silence:
            _end_stall(engine, engine.session.limits.silence)
        engine.on_idle()

    def _deadline(self, engine: Engine) -> float:
        if engine.session.awaits_setup:
            return self.setup_deadline
        deadline = engine.session.deadline
        if (math.isinf(deadline) or engine.receive_budget.is_blocking) and not engine.is_suspended:
            # No lifetime was agreed, or none counts: an idle connection may stay so for ever, but not one that stalls.
            return min(deadline, trio.current_time() + engine.session.limits.silence / STALL_CHECKS)
        return deadline


async def run_lease_policy(engine: Engine, setup: Setup) -> None:
    """Grant what the application's policy yields. A policy that fails grants nothing more, and the log hears."""
    policy = engine.responder.lease_handler
    leasing = engine.session.leasing
    if policy is None or leasing is None:
        return
    with failures_told_to(partial(_failed, engine, policy)):
        async with aclosing(policy.function(setup)) as leases:
            async for lease in leases:
                leasing.grant(lease, trio.current_time())
                engine.wake()


def _failed(engine: Engine, policy: Handler, error: Exception) -> None:
    if not is_the_end(engine, error):
        engine.faults.handler_failed(policy, error)


def _end_stall(engine: Engine, seconds: float) -> None:
    if engine.receive_budget.is_blocking or (engine.hearing.is_congested and not engine.session.outbox.reply_frames):
        lost = ConnectionLost(f"reading was paused for {seconds:g} s, because nobody here took what had come")
        engine.faults.fatal(lost)
    else:
        lost = ConnectionLost(f"the peer stalled for {seconds:g} s")
        engine.faults.peer_fault("half a frame came, and its rest did not")
    engine.end(lost)


async def _fail(error: Exception) -> None:
    raise error
