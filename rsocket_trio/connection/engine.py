"""The engine of a connection: who waits for what, what streams and handlers may ask, and how it all ends."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.clock import Clock
from rsocket_trio.connection.dispatch import Dispatcher
from rsocket_trio.connection.faults import Faults
from rsocket_trio.connection.handlers import Job
from rsocket_trio.connection.link import Link
from rsocket_trio.connection.opening import Opening
from rsocket_trio.connection.receiving import Stock
from rsocket_trio.connection.resuming import NoWayBack, Road
from rsocket_trio.connection.waiting import Parking
from rsocket_trio.connection.workers import Workers
from rsocket_trio.errors import (
    Canceled,
    ConnectionClosed,
    ConnectionLost,
    RemoteProtocolError,
    RSocketError,
    StreamError,
    again,
)
from rsocket_trio.mux.halves import RECEIVING, SENDING
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream import StreamState
from rsocket_trio.payload import MetadataPush, Payload
from rsocket_trio.responder import Responder
from rsocket_trio.transports.base import Transport

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection

AFTERLIFE = 1.0
"""Seconds that handlers of fire-and-forget and pushed metadata get to finish once the connection is over."""


class Engine:
    """Drives one session: the tasks, the waiting, the end.

    ``connection`` is the user's view of it, ``ended`` why nothing goes on any more, ``stock`` what was received and
    not read, ``faults`` what the log heard of, ``opening`` what new requests wait for.
    """

    def __init__(
        self, connection: Connection, session: Session, responder: Responder, road: Road | None = None
    ) -> None:
        self.connection = connection
        self.session = session
        self.responder = responder
        self.ended: RSocketError | None = None
        self.faults = Faults(connection)
        self.stock = Stock(
            session.limits.inbox_size,
            counts_items=not session.has_credit,
            pauses=not session.has_credit and session.message_budget is None,
        )
        self.clock = Clock(self)
        self.quiet = Parking()
        self.over = Parking()
        self.pings: set[trio.Event] = set()
        self._commands = session.commands
        self._outbox = session.outbox
        self._dispatcher = Dispatcher(self)
        self.opening = Opening(self)
        self._answered = Parking()
        self._peer_draining = False
        self._nursery: trio.Nursery | None = None
        self._workers: Workers | None = None
        self._link: Link | None = None
        self._road = road
        self._detour: trio.CancelScope | None = None
        self._told_so = False
        self.is_suspended = False
        self.on_state: list[Callable[[], object]] = []
        self.on_growth: Callable[[], object] | None = None

    async def run(self, transport: Transport, context: contextvars.Context, first: Sequence[bytes] = ()) -> None:
        """Run until the connection ends. Shielded: only ``end`` ends it. Handlers run in copies of ``context``."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._workers = Workers(self, nursery, context, self.session.limits.idle_workers)
                nursery.start_soon(self.clock.run)
                if self.session.client and not self.session.awaits_answer:
                    self.start_lease_policy()
                await self._run_link(transport, first)
                while self.is_suspended and self.ended is None:
                    await self._find_the_way_back()
                if self.ended is None:
                    # Only a fault of ours can end a link without a word to the engine.
                    self.end(ConnectionLost("the link ended"))
                with trio.move_on_after(AFTERLIFE):
                    await self._workers.outlast()
                await self._workers.give_up()
                nursery.cancel_scope.cancel()

    async def _run_link(self, transport: Transport, first: Sequence[bytes]) -> None:
        self._link = Link(transport, self._outbox, self, first)
        await self._link.run()

    async def _find_the_way_back(self) -> None:
        """Wait for the next transport, as long as the session may; then go on over it until it is lost as well."""
        road = self._road
        assert road is not None
        seconds = road.options.session_seconds
        with trio.CancelScope(deadline=trio.current_time() + seconds) as self._detour:
            try:
                async with road.next() as arrival:
                    self._detour.deadline = math.inf
                    self._come_back()
                    await self._run_link(arrival.transport, arrival.frames)
            except NoWayBack as end:
                self.end(end.error)
        if self._detour.cancelled_caught and self.ended is None:
            self.end(ConnectionLost(f"the session was not resumed within {seconds:g} s"))

    def _suspend(self, error: ConnectionLost) -> None:
        """The transport is gone, and the session waits for another."""
        if self.is_suspended or self.ended is not None:
            return
        self.faults.lost(error)
        self.is_suspended = True
        self._dispatcher.act(self.session.suspend())
        self.clock.reset()
        self._tell_state()

    def _come_back(self) -> None:
        if self.is_suspended and self.ended is None:
            self.is_suspended = False
            self.clock.reset()
            self._tell_state()

    def _tell_state(self) -> None:
        for function in self.on_state:
            function()

    def replace_link(self, error: ConnectionLost) -> None:
        """The transport is of no more use, and the session goes on without it until there is another one."""
        self._suspend(error)
        if self._link is not None:
            self._link.abandon()

    def lose(self, error: ConnectionLost) -> None:
        """The session ends without its peer."""
        self.faults.lost(error)
        self.end(error)

    @property
    def nursery(self) -> trio.Nursery:
        """Where everything of this connection runs."""
        assert self._nursery is not None
        return self._nursery

    @property
    def workers(self) -> Workers:
        """The tasks that run handlers."""
        assert self._workers is not None
        return self._workers

    def start_lease_policy(self) -> None:
        """Let the application's policy grant leases, if they were agreed and it has one."""
        setup = self.connection.setup
        if setup.lease and self.responder.lease_policy is not None:
            self.workers.context.copy().run(self.nursery.start_soon, self.clock.run_lease_policy, setup)

    # What users' calls wait for

    def check_open(self) -> None:
        """Raise ``ConnectionLost`` or ``ConnectionClosed`` if nothing can be asked of the peer any more."""
        if self.ended is not None:
            raise again(self.ended)

    async def wait_over(self) -> RSocketError:
        """Wait until nothing can be asked of the peer any more, and return why."""
        while self.ended is None:
            await self.over.park()
        return again(self.ended)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be put into the outbox now."""
        return self._outbox.has_room(size)

    async def wait_for_answer(self) -> None:
        """Wait until the server has answered the SETUP. Raises its refusal, or why no answer came."""
        while self.session.awaits_answer and self.ended is None:
            await self._answered.park()
        self.check_open()

    # What streams and handlers ask

    def send_item(self, stream: StreamState, payload: Payload, *, complete: bool = False) -> None:
        """Send one item; there is credit and room for it."""
        self._commands.send_item(stream, payload, complete=complete)
        self.wake()

    def push_on(self, stream: StreamState, push: MetadataPush) -> None:
        """Send metadata for one stream; there is room for it."""
        self._commands.metadata_push(stream, push)
        self.wake()

    def complete_stream(self, stream: StreamState) -> None:
        """Complete this side's half, if it is still open."""
        if stream.open & SENDING and self.ended is None:
            self._commands.send_complete(stream)
            self.wake()

    def fail_stream(self, stream: StreamState, error: StreamError) -> None:
        """End a stream with an error, if this side may still say so; else cancel what the peer sends."""
        if self.ended is not None:
            return
        if stream.open & SENDING:
            fatal = self._commands.send_error(stream, error)
            if fatal is not None:
                self.faults.fatal(fatal)
                self.end(fatal)
                return
        elif stream.open & RECEIVING:
            self._commands.send_cancel(stream)
        self.wake()

    def cancel_stream(self, stream: StreamState) -> None:
        """Cancel a stream, if it has not ended. Never waits and never raises."""
        if self.ended is None:
            self._commands.send_cancel(stream)
            self.opening.next_in_line()  # what had said nothing yet gives its id back at once
            self.wake()

    def request_n(self, stream: StreamState, amount: int) -> None:
        """Grant credit."""
        if self.ended is None:
            self._commands.request_n(stream, amount)
            self.wake()

    def wake(self) -> None:
        """Let the send task run: something was queued."""
        if self.is_suspended:
            if self.on_growth is not None:
                self.on_growth()
        elif self._link is not None:
            self._link.wake()

    # What the link says

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause."""
        return self.session.is_congested or self.stock.blocks(self.resume)

    @property
    def is_mid_frame(self) -> bool:
        """Whether the session has a part of a frame."""
        return self.session.is_mid_frame

    @property
    def progress(self) -> int:
        """Grows while readers take what was received, and handlers finish."""
        return self.stock.readings + self.workers.finished

    def resume(self) -> None:
        """What reading paused for may be over."""
        if self._link is not None:
            self._link.resume()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read."""
        return self.ended is not None

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Whole frames came: everything that they mean happens before the next ones are read."""
        self._dispatcher.act(self.session.receive(frames, trio.current_time()))
        self.opening.next_in_line()
        self.settle()

    def on_broken(self, error: RemoteProtocolError) -> None:
        """The transport can't find the next frame."""
        self._dispatcher.act(self.session.broken(error))

    def on_lost(self, error: ConnectionLost) -> None:
        """The transport is gone."""
        if self._peer_draining:
            self.end(ConnectionClosed("the peer closed the connection"))
        elif self.session.can_resume and self._road is not None:
            self._suspend(error)
        elif self.ended is None:
            cut = self.session.cut_off(error)
            self.faults.lost(cut)
            self.end(cut)

    def on_written(self) -> None:
        """Something left the outbox."""
        self.opening.on_written()
        if self.session.gave_up_resuming and not self._told_so:
            self._told_so = True
            self.faults.fatal(ConnectionLost("the store is full: from now on the session can't be resumed"))
            self._tell_state()
        if self.session.draining:
            self.settle()

    # What events and the clock say

    def stalled_for(self, now: float) -> float:
        """Seconds that half a frame, or a pause of reading, has lasted."""
        return self._link.stalled_for(now) if self._link is not None and not self.is_suspended else 0.0

    def on_deadline(self, now: float) -> None:
        """The session's deadline has come."""
        self._dispatcher.act(self.session.expire(now))
        self.wake()

    def on_answered(self) -> None:
        """The server lets this client in."""
        self._answered.wake_all()
        self.start_lease_policy()
        self.clock.reset()

    def on_accepted(self) -> None:
        """The application let the peer in, and what was held has happened."""
        self.clock.reset()
        self.settle()
        self.resume()

    def on_peer_draining(self) -> None:
        """The peer lets open streams finish and takes no new ones."""
        self._peer_draining = True
        self._wake_waiters()

    def settle(self) -> None:
        """Write what was queued, and look whether the last stream ended that a drain waits for."""
        if self._outbox:
            self.wake()
        if self.session.draining and self.session.is_quiet:
            self.quiet.wake_all()
            if self._peer_draining and not self._outbox:
                self.end(ConnectionClosed("the peer closed the connection"))

    # The end

    def drain(self, *, announce: bool) -> None:
        """Take nothing new from now on."""
        self.session.drain()
        if announce:
            self.session.announce_close(last=False)
        self._wake_waiters()
        self.wake()

    def leave(self, closed: ConnectionClosed, *, announce: bool = False) -> None:
        """This side is done: what is open is cancelled, what is queued still goes out, then the link closes."""
        if self.ended is not None:
            return
        for stream in self.session.open_streams():
            owner, stream.owner = stream.owner, None
            if stream.requester:
                self._commands.send_cancel(stream)
            elif stream.open & SENDING:
                self._commands.send_error(stream, Canceled("the connection is closing"))
            if isinstance(owner, Job):
                owner.cancel()
            elif owner is not None:
                owner.on_error(again(closed))
        if announce:
            self.session.announce_close(last=True)
        self.end(closed)

    def end(self, error: RSocketError) -> None:
        """The connection is over: everybody who waits hears of it, handlers are cancelled, the link closes."""
        if self.ended is not None:
            return
        self.ended = error
        self.session.close(error)
        jobs: list[Job] = []
        for stream in self.session.open_streams():
            owner, stream.owner = stream.owner, None
            if isinstance(owner, Job):
                jobs.append(owner)
            elif owner is not None:
                owner.on_error(again(error))
        if jobs:
            self.workers.end(jobs, error)
        self.stock.clear()
        self._wake_waiters()
        for ping in self.pings:
            ping.set()
        if self._detour is not None and self.is_suspended:
            self._detour.cancel()
        elif self._link is not None:
            self._link.stop()
        self.clock.reset()
        self._tell_state()

    def _wake_waiters(self) -> None:
        self.opening.wake_all()
        self._answered.wake_all()
        self.quiet.wake_all()
        self.over.wake_all()
