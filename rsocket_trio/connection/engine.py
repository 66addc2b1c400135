"""The engine of a connection: what runs, what happens when, and who waits for it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.asked import Asked
from rsocket_trio.connection.clock import Clock, run_lease_policy
from rsocket_trio.connection.deadlines import Deadlines
from rsocket_trio.connection.dispatch import Dispatcher
from rsocket_trio.connection.ending import end, leave
from rsocket_trio.connection.fault_log import FailureLog, FaultLog
from rsocket_trio.connection.handler_tasks import Workers
from rsocket_trio.connection.hearing import Hearing
from rsocket_trio.connection.inbox import ReceiveBudget
from rsocket_trio.connection.link import Link
from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.connection.request_queue import RequestQueue
from rsocket_trio.connection.resumption import Reconnector
from rsocket_trio.connection.suspending import replace_link, resume_session
from rsocket_trio.errors import (
    ConnectionClosed,
    ConnectionLost,
    RSocketError,
    fresh_copy,
)
from rsocket_trio.mux.events import Event
from rsocket_trio.mux.session import Session
from rsocket_trio.responder import Responder
from rsocket_trio.transports.base import Transport

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection

DETACHED_TIMEOUT = 1.0
"""Seconds that handlers of fire-and-forget and pushed metadata get to finish once the connection is over."""


class Engine(Asked):
    """Drives one session: the tasks, the waiting, the end.

    ``has_room`` says whether so many bytes may be put into the outbox now.
    ``connection`` is the user's view, ``ended`` why nothing goes on any more, ``receive_budget`` what was received
    and not read, ``faults`` what the log heard of, ``request_queue`` what new requests wait for, ``changes`` where
    tasks wait for whatever is said once: the answer to SETUP, the end of the last stream, the end of all.
    """

    __slots__ = (
        "_commands",
        "_dispatcher",
        "_finished",
        "_nursery",
        "_outbox",
        "changes",
        "clock",
        "connection",
        "detour",
        "ended",
        "faults",
        "has_room",
        "hearing",
        "is_suspended",
        "link",
        "on_growth",
        "on_state",
        "peer_draining",
        "pings",
        "receive_budget",
        "reconnector",
        "request_queue",
        "responder",
        "session",
        "workers",
    )

    workers: Workers
    """The tasks that run handlers, from when the engine runs."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        responder: Responder,
        reconnector: Reconnector | None = None,
        failure_log: FailureLog | None = None,
    ) -> None:
        self.connection = connection
        self.session = session
        self.responder = responder
        self.ended: RSocketError | None = None
        self.faults = FaultLog(self, failure_log)
        no_credit = not session.dialect.keeps_credit
        self.receive_budget = ReceiveBudget(
            session.limits.inbox_size,
            counts_items=no_credit,
            pauses=no_credit and session.dialect.message_budget is None,
        )
        self.clock = Clock(self)
        self.changes = ParkingLot()
        self.pings: dict[trio.Event, None] = {}
        self._commands = session.commands
        self._outbox = session.outbox
        self.has_room = session.outbox.has_room
        self._dispatcher = Dispatcher(self)
        self.request_queue = RequestQueue(self)
        self.hearing = Hearing(self)
        self.peer_draining = False
        self._nursery: trio.Nursery | None = None
        self._finished = 0
        self.link: Link | None = None
        self.reconnector = reconnector
        self.detour: trio.CancelScope | None = None
        self.is_suspended = False
        self.on_state: tuple[Callable[[], object], ...] = ()
        self.on_growth: Callable[[], object] | None = None

    async def run(
        self,
        transport: Transport,
        context: contextvars.Context,
        first: Sequence[bytes] = (),
        deadlines: Deadlines | None = None,
    ) -> None:
        """Run until the connection ends. Shielded: only ``end`` ends it. Handlers run in copies of ``context``.

        ``deadlines`` are those that many connections share; else this one has its own.
        """
        try:
            async with trio.open_nursery() as nursery:
                # The nursery's own scope is the shield: another around it would cost every connection 700 bytes.
                nursery.cancel_scope.shield = True
                self._nursery = nursery
                self.workers = Workers(self, nursery, context, self.session.limits.idle_workers)
                own = None
                try:
                    if deadlines is None:
                        deadlines = own = Deadlines()
                        nursery.start_soon(deadlines.run)
                    self.clock.start(deadlines)
                    if self.session.client and not self.session.awaits_answer:
                        self.start_lease_policy()
                    self.link = Link(transport, self._outbox, self.hearing, first)
                    del transport, first
                    await self.link.run(nursery, context)
                    while self.is_suspended and self.ended is None:
                        await resume_session(self, nursery, context)
                finally:
                    if self.ended is None:
                        # Only a fault, here or in one of the tasks, gets to this point without a word to the engine.
                        self.end(ConnectionLost("the connection failed on this side"))
                self._outbox.clear()  # whoever still refers to this connection need not keep what it sent
                if self.workers.has_detached:
                    with trio.move_on_after(DETACHED_TIMEOUT):
                        await self.workers.wait_detached()
                await self.workers.cancel_detached()
                # Who only waits for something to do is sent home: to be cancelled takes longer than many a call.
                going = self.workers.stop_idle()
                if own is not None:
                    own.stop()
                    going += 1
                if len(nursery.child_tasks) > going:
                    nursery.cancel_scope.cancel()
        finally:
            if self.faults.own is not None:
                self.faults.own.log_repeats(trio.current_time())

    def notify_state(self) -> None:
        """Whoever minds hears that the connection was suspended, goes on, or is over."""
        for function in self.on_state:
            function()

    def act(self, events: Iterable[Event]) -> None:
        """Act on what the session reported."""
        self._dispatcher.act(events)

    def replace_link(self, error: ConnectionLost) -> None:
        """The transport is of no more use, and the session goes on without it until there is another one."""
        replace_link(self, error)

    def lose(self, error: ConnectionLost) -> None:
        """The session ends without its peer."""
        self.faults.lost(error)
        self.end(error)

    @property
    def nursery(self) -> trio.Nursery:
        """Where everything of this connection runs."""
        assert self._nursery is not None
        return self._nursery

    def start_lease_policy(self) -> None:
        """Let the application's policy grant leases, if they were agreed and it has one."""
        setup = self.connection.setup
        if setup.lease and self.responder.lease_policy is not None:
            self.workers.context.copy().run(self.nursery.start_soon, run_lease_policy, self, setup)

    # What users' calls wait for

    def check_open(self) -> None:
        """Raise ``ConnectionLost`` or ``ConnectionClosed`` if nothing can be asked of the peer any more."""
        if self.ended is not None:
            raise fresh_copy(self.ended)

    async def wait_over(self) -> RSocketError:
        """Wait until nothing can be asked of the peer any more, and return why."""
        while self.ended is None:
            await self.changes.park()
        return fresh_copy(self.ended)

    async def wait_for_answer(self) -> None:
        """Wait until the server has answered the SETUP. Raises its refusal, or why no answer came."""
        while self.session.awaits_answer and self.ended is None:
            await self.changes.park()
        self.check_open()

    def resume(self) -> None:
        """What reading paused for may be over."""
        if self.link is not None:
            self.link.resume()

    # What events and the clock say

    def stalled_for(self, now: float) -> float:
        """Seconds that half a frame, or a pause of reading, has lasted."""
        return self.link.stalled_for(now) if self.link is not None and not self.is_suspended else 0.0

    def on_idle(self) -> None:
        """A deadline passed: tasks that had nothing to do since the last one go."""
        if self.is_suspended or self._finished == self.workers.finished:
            self.workers.stop_idle()
        self._finished = self.workers.finished
        if self.link is not None:
            self.link.on_idle()

    def forgive_silence(self, now: float) -> None:
        """Count the peer's silence from now on: frames of it may have stayed unread."""
        timer = self.session.silence_timer
        if timer is not None:
            timer.heard(now)

    def on_deadline(self, now: float) -> None:
        """The session's deadline has come."""
        if self.session.silence_timer is not None:
            self.session.silence_timer.excuse(now)
        self._dispatcher.act(self.session.expire(now))
        self.flush()

    def on_answered(self) -> None:
        """The server lets this client in."""
        self.changes.wake_all()
        self.start_lease_policy()
        self.clock.reset()

    def on_accepted(self) -> None:
        """The application let the peer in, and what was held has happened."""
        self.clock.reset()
        self.after_read()
        self.resume()
        if self.is_suspended:
            self.wake()  # nothing may be queued, but what was held has become streams

    def on_peer_draining(self) -> None:
        """The peer lets open streams finish and takes no new ones."""
        self.peer_draining = True
        self.wake_waiters()
        self._tell_of_drain()

    def after_read(self) -> None:
        """Write what was queued, and look whether the last stream ended that a drain waits for."""
        if self._outbox:
            self.wake()
        if self.session.draining and self.session.is_quiet:
            self.changes.wake_all()
            if self.peer_draining and not self._outbox:
                self.end(ConnectionClosed("the peer closed the connection"))

    # The end

    def drain(self, *, announce: bool) -> None:
        """Take nothing new from now on."""
        self.session.drain()
        announcement = self.session.close_announcement
        if announce and announcement is not None:
            announcement.announce_close(last=False)
        self.wake_waiters()
        self._tell_of_drain()
        self.wake()

    def _tell_of_drain(self) -> None:
        if not self.is_suspended and self.ended is None:
            self.notify_state()

    def leave(self, closed: ConnectionClosed, *, announce: bool = False) -> None:
        """This side is done: what is open is cancelled, what is queued still goes out, then the link closes."""
        leave(self, closed, announce=announce)

    def end(self, error: RSocketError) -> None:
        """The connection is over: everybody who waits hears of it, handlers are cancelled, the link closes."""
        end(self, error)

    def wake_waiters(self) -> None:
        """Everybody who waits looks again."""
        self.request_queue.wake_all()
        self.changes.wake_all()
