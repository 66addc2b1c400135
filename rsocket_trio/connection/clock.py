"""The timers of a connection: the session names deadlines, this task waits for them."""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import TYPE_CHECKING

import trio

from rsocket_trio.errors import ConnectionLost
from rsocket_trio.terms import Setup

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine

LOOKS = 9
"""How often within the limit of silence a connection without a lifetime is looked at."""


class Clock:
    """Waits for whatever is due next: the end of a server's patience for SETUP, a keepalive, death by silence."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scope: trio.CancelScope | None = None
        self.setup_deadline = math.inf

    async def run(self) -> None:
        """Wait and tell, for as long as the connection."""
        engine = self._engine
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            if engine.ended is not None:
                continue
            if engine.session.awaits_setup:
                if now >= self.setup_deadline:
                    engine.faults.of_peer("no SETUP came in time")
                    engine.end(ConnectionLost("no SETUP came in time"))
            elif now >= engine.session.deadline:
                engine.on_deadline(now)
            elif engine.stalled_for(now) >= engine.session.limits.silence:
                self._end_stall(engine.session.limits.silence)

    def reset(self) -> None:
        """A deadline has come nearer."""
        if self._scope is not None:
            self._scope.deadline = self._deadline()

    async def run_lease_policy(self, setup: Setup) -> None:
        """Grant what the application's policy yields. A policy that fails grants nothing more, and the log hears."""
        engine = self._engine
        policy = engine.responder.lease_policy
        if policy is None:
            return
        try:
            async with aclosing(policy(setup)) as leases:
                async for lease in leases:
                    engine.session.grant(lease, trio.current_time())
                    engine.wake()
        except Exception as error:
            engine.faults.of_handler(policy, error)

    def _end_stall(self, seconds: float) -> None:
        engine = self._engine
        if engine.is_congested and not engine.session.outbox.reply_frames:
            lost = ConnectionLost(f"reading was paused for {seconds:g} s, because nobody here took what had come")
            engine.faults.fatal(lost)
        else:
            lost = ConnectionLost(f"the peer stalled for {seconds:g} s")
            engine.faults.of_peer("half a frame came, and its rest did not")
        engine.end(lost)

    def _deadline(self) -> float:
        engine = self._engine
        if engine.ended is not None:
            return math.inf
        if engine.session.awaits_setup:
            return self.setup_deadline
        deadline = engine.session.deadline
        if math.isinf(deadline):
            # No lifetime was agreed: an idle connection may stay so for ever, but not one that stalls.
            return trio.current_time() + engine.session.limits.silence / LOOKS
        return deadline
