"""The life of one connection: run, act after reads and writes, admit, suspend and resume, drain, close."""

from __future__ import annotations

import contextvars
import math
import sys
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from rsocket_trio.connection.deadlines import Deadlines, Timeout, Timer
from rsocket_trio.connection.dispatch import Dispatcher
from rsocket_trio.connection.fault_log import FailureLog, FaultLog
from rsocket_trio.connection.handler_tasks import HandlerCall, Workers
from rsocket_trio.connection.hooks import PLAIN, CallTerms, RequestCalls
from rsocket_trio.connection.inbox import ReceiveBudget
from rsocket_trio.connection.link import Link, NoLink, RefusedClients
from rsocket_trio.connection.request_queue import RequestQueue
from rsocket_trio.connection.resumption import Reconnector, ResumeFailed
from rsocket_trio.errors import (
    GRACE_IS_OVER,
    Canceled,
    ConnectionClosed,
    ConnectionLost,
    Drained,
    RemoteProtocolError,
    RSocketError,
    StreamError,
    fresh_copy,
    unsent_copy,
)
from rsocket_trio.forms import CallObserver, Handler, Kind
from rsocket_trio.metadata.mime import mime_name
from rsocket_trio.mux.session import Session, State
from rsocket_trio.mux.stream_state import RECEIVING, SENDING, StreamState
from rsocket_trio.payload import EMPTY, Payload
from rsocket_trio.terms import Setup
from rsocket_trio.tools.parking_lot import ParkingLot
from rsocket_trio.transports.base import Transport

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.connection.hooks import Call, Responder
    from rsocket_trio.rsocket.frames import ExtensionEntry

STALL_CHECKS = 9
"""The number of times within the limit of silence that a connection without a lifetime is looked at."""
NO_LINK = NoLink()


class Engine(Timer):
    """Drives one session: the tasks, the waiting, the end.

    ``ended`` is why nothing goes on any more, ``receive_budget`` what was received and
    not read, ``faults`` what the log heard of, ``request_queue`` what new requests wait for, ``changes`` where tasks
    wait for what is said once: the answer to SETUP, the end of the last stream, the end of all. ``link`` moves the
    frames; without a transport it is a ``NoLink``. ``calls`` are the settings of this side's requests.
    ``request_calls`` is the hook for those that need more than their bytes, and ``request_form`` the form of those with
    objects, after the first of them.
    """

    __slots__ = (
        "_commands",
        "_dispatcher",
        "_finished",
        "_outbox",
        "_refused_clients",
        "_reported_full_store",
        "_resume_scope",
        "_view",
        "calls",
        "changes",
        "deadlines",
        "ended",
        "faults",
        "is_suspended",
        "link",
        "nursery",
        "observers",
        "on_growth",
        "on_state",
        "peer_closing",
        "peer_draining",
        "pings",
        "plain_requests",
        "read_at",
        "receive_budget",
        "reconnector",
        "request_calls",
        "request_form",
        "request_queue",
        "responder",
        "session",
        "setup_deadline",
        "workers",
    )

    read_at: float
    """The time of the last read, as ``trio.current_time`` counts."""
    workers: Workers
    """The tasks that run handlers, while the engine runs."""
    nursery: trio.Nursery
    """The nursery of all tasks of this connection, while the engine runs."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        responder: Responder,
        failure_log: FailureLog | None = None,
        calls: CallTerms = PLAIN,
    ) -> None:
        super().__init__()
        self._view: Connection | weakref.ref[Connection] = connection
        self.session = session
        self.responder = responder
        self.ended: RSocketError | None = None
        self.faults: FaultLog = FaultLog(self, failure_log or FailureLog())
        no_credit = not session.dialect.keeps_credit
        self.receive_budget = ReceiveBudget(
            session.limits.inbox_size,
            counts_items=no_credit,
            pauses=no_credit and session.dialect.message_budget is None,
        )
        self.deadlines: Deadlines | None = None
        self.setup_deadline = math.inf
        self.changes = ParkingLot()
        self.pings: dict[trio.Event, None] = {}
        self._commands = session.commands
        self._outbox = session.outbox
        self._dispatcher = Dispatcher(self)
        self.request_queue: RequestQueue = RequestQueue(self, session)
        self.calls = calls
        self.plain_requests = not calls.around and not calls.deadlines
        self.request_calls: RequestCalls | None = None
        self.request_form: object = None
        self.peer_draining = False
        self.peer_closing = False
        self._finished = 0
        self.link: Link | NoLink = NO_LINK
        self._refused_clients: RefusedClients | None = None
        self.reconnector: Reconnector | None = None
        self._resume_scope: trio.CancelScope | None = None
        self.is_suspended = False
        self.observers: tuple[object, ...] = ()
        self.on_state: tuple[Callable[[], object], ...] = ()
        self.on_growth: Callable[[], object] | None = None
        """Called whenever something is queued while the session is suspended."""

    async def run(
        self,
        transport: Transport,
        context: contextvars.Context,
        first: Sequence[bytes] = (),
        deadlines: Deadlines | None = None,
        refused_clients: RefusedClients | None = None,
    ) -> None:
        """Run until the connection ends. Shielded: only ``end`` ends it. Handlers run in copies of ``context``.

        ``deadlines`` are those that many connections share; else this one has its own. Among ``refused_clients`` the
        client of this connection waits if it is refused.
        """
        self._refused_clients = refused_clients
        try:
            async with trio.open_nursery() as nursery:
                # The nursery's own scope is the shield: another around it would cost every connection 700 bytes.
                nursery.cancel_scope.shield = True
                self.nursery = nursery
                self.workers = Workers(self, nursery, context)
                own = None
                try:
                    if deadlines is None:
                        deadlines = own = Deadlines()
                        nursery.start_soon(deadlines.run)
                    self.deadlines = deadlines
                    self.reset_deadline()
                    if self.session.client and self.session.state is not State.ASKING:
                        self._dispatcher.start_lease_policy()
                    self.link = link = Link(transport, self.session, self, first)
                    del transport, first
                    await link.run(nursery, context)
                    del link
                    while self.is_suspended and self.ended is None:
                        await self._resume(nursery, context)
                finally:
                    if self.ended is None:
                        # Only a fault, here or in one of the tasks, gets to this point without a word to the engine.
                        self.end(ConnectionLost("the connection failed on this side"))
                self._outbox.clear()  # a reference to this connection need not keep what it sent
                await self.workers.finish_detached()
                # Tasks that only wait for something to do are woken to end: to cancel them takes longer.
                going = self.workers.stop_idle()
                if own is not None:
                    own.stop()
                    going += 1
                if len(nursery.child_tasks) > going:
                    nursery.cancel_scope.cancel()
        finally:
            self._release()

    def _release(self) -> None:
        """Break the circles of references: nothing runs any more. So what a connection kept is freed with it.

        Left to the collector of cycles, it cost a short connection a seventh of its time.
        """
        self.faults.release()
        self.link = NO_LINK
        self.request_queue.release()
        self.receive_budget.resume_reading()
        self.on_state = ()
        self.on_growth = self.deadlines = None
        self._view = weakref.ref(self.connection)
        del self.workers, self.nursery, self._dispatcher

    @property
    def connection(self) -> Connection:
        """The connection as its users see it. Raise why it ended, if nobody has it any more."""
        view = self._view
        if isinstance(view, weakref.ref):
            kept = view()
            if kept is None:
                self.check_open()
                raise AssertionError("a connection that goes on is kept by its context")
            return kept
        return view

    def run_in_context(self, function: Callable[..., object], *args: object) -> object:
        """Call a function of the application in a fresh copy of the context."""
        return self.workers.context.copy().run(function, *args)

    def start_task(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that runs the application's code, in a fresh copy of the context."""
        self.workers.context.copy().run(self.nursery.start_soon, function, *args)

    def tell_connected(self) -> None:
        """Tell those that hear of connections that this one is open. They hear of its faults and its end.

        They are all that hear of calls, and interceptors with a method ``connected``; each hears once.
        """
        around = {id(each): each for each in (*self.responder._interceptors, *self.calls.around)}
        hear = ("connected", "call_ended")
        self.observers = tuple(each for each in around.values() if any(hasattr(each, name) for name in hear))
        self.tell("connected", self.connection)

    def tell(self, event: str, *args: object) -> None:
        """Tell those that hear of connections of an event. What one raises is logged."""
        for observer in self.observers:
            hear = getattr(observer, event, None)
            if hear is not None:
                try:
                    hear(*args)
                except Exception as error:
                    # Not counted as a fault, of which it would hear again.
                    self.faults.log_failure(Handler(hear, Kind.INLINE, interaction=event), error)

    def tell_ended(self, call: Call, observers: Sequence[CallObserver]) -> None:
        """Tell those that hear of a call that it has ended, the innermost first. What one raises is logged."""
        for observer in observers[::-1]:
            try:
                observer.call_ended(call)
            except Exception as error:
                self.faults.log_failure(Handler(observer.call_ended, Kind.INLINE, interaction="call_ended"), error)

    def notify_state(self) -> None:
        """Call the functions that hear that the connection was suspended, goes on, drains or is over."""
        for function in self.on_state:
            function()

    def attach_request_calls(self) -> RequestCalls:
        """Attach the hook for requests that need more than their bytes, and return it."""
        self.request_calls = calls = self.responder._request_calls()
        return calls

    # After a read, and after a write

    def after_read(self, frames: Sequence[bytes]) -> bool:
        """Act on whole frames. Return whether the link has to look at congestion and the end before it reads on.

        One flag tells whether anything is unusual; the session, the queue of requests and the end of the connection
        set it, and ``_attend`` clears it.
        """
        # All frames of a read become events before any is acted on, and nothing here awaits: no other task runs between
        # the first frame of a read and the last.
        self.read_at = now = trio.current_time()
        self._dispatcher.act(self.session.receive(frames, now))
        outbox, budget = self._outbox, self.receive_budget
        if self.session.attention or budget.size > budget.pause_above:
            self.request_queue.grant_next()
            self.reset_deadline()
            self._attend()
            return True
        if outbox.entries or outbox.has_urgent:
            # The session queued answers to these frames, and sessions wake no tasks.
            link = self.link
            if not link.is_awake:
                link.wake()
        return False

    def after_write(self) -> None:
        """Wake requests that wait for room.

        Called while the session has ``attention``, and only then.
        """
        self.request_queue.on_written()
        self._attend()

    def _attend(self) -> None:
        """Look at what is rare, and keep the flag for what goes on: tasks that wait, a drain, the end."""
        session = self.session
        if self._outbox:
            self.wake()
        if session.draining and session.is_quiet:
            self.changes.wake_all()
            if self.peer_closing and not self._outbox:
                self.end(ConnectionClosed("the peer closed the connection"))
        session.attention = session.draining or self.request_queue.has_waiters or self.ended is not None

    # What the link asks and reports: none of it waits

    @property
    def is_congested(self) -> bool:
        """Return whether reading must pause: readers take too little, or replies wait for a peer that does not read."""
        return self.receive_budget.is_exceeded or self.session.is_congested

    @property
    def is_stuck(self) -> bool:
        """Return whether reading pauses for answers that cannot leave before something is read.

        Only a new transport helps: when the peer resumes, it says which frames it has.
        """
        session = self.session
        return self._outbox.is_stalled and session.is_congested and session.can_resume

    @property
    def progress(self) -> int:
        """A number that grows while readers take received items, and handlers finish, unless something is read."""
        return self.workers.finished - self.receive_budget.size

    def pause_reading(self) -> None:
        """Have the link resumed once there is room for more."""
        if self.receive_budget.is_exceeded:
            self.receive_budget.pause_reading(self._on_readers_progress)
            self.reset_deadline()  # the check for readers that take nothing may be due before the next deadline
        else:
            self.receive_budget.resume_reading()  # readers have no part in what reading pauses for

    def resume_reading(self) -> None:
        """Note that reading goes on."""
        self.receive_budget.resume_reading()

    def reconsider_pause(self) -> None:
        """Have the link read on if nothing is left that reading pauses for: a handler let go of its request."""
        if not self.is_congested:
            self.link.resume()

    def _on_readers_progress(self) -> None:
        """Resume reading. Frames of the peer stayed unread meanwhile, so it was not silent."""
        self.session.heard(trio.current_time())
        self.link.resume()

    def on_broken(self, error: RemoteProtocolError) -> None:
        """Act on a framing error: the transport cannot find the next frame."""
        self._dispatcher.act(self.session.broken(error))

    def on_lost(self, error: ConnectionLost) -> None:
        """Handle the loss of the transport: end the connection, or suspend the session."""
        session = self.session
        if self.peer_closing or (self.peer_draining and session.is_quiet):
            self.end(ConnectionClosed("the peer closed the connection"))
        elif session.has_announced and session.is_quiet:
            self.end(ConnectionClosed("the connection was drained by this side"))
        elif session.can_resume and self.reconnector is not None:
            self._suspend(error)
        elif self.ended is None:
            cut = session.cut_off(error)
            self.faults.lost(cut)
            self.end(cut)

    # What streams and handlers ask: none of it waits

    def send_item(self, stream: StreamState, payload: Payload, *, complete: bool = False) -> None:
        """Send one item; the caller has checked credit and room."""
        self._commands.send_item(stream, payload, complete=complete)
        link = self.link
        if not link.is_awake:
            link.wake()

    def answer(self, stream: StreamState, payload: Payload) -> None:
        """Send a handler's one answer, from the task that ran the handler; the caller has checked the room.

        Written here and now if no send task runs: no session call is in progress in the task of a handler.
        """
        self._commands.send_item(stream, payload, complete=True)
        link = self.link
        if not link.is_awake:
            link.flush()

    def complete_stream(self, stream: StreamState) -> None:
        """Complete this side's half, if it is still open."""
        if stream.open & SENDING and self.ended is None:
            self._commands.send_complete(stream)
            self.wake()

    def fail_stream(self, stream: StreamState, error: StreamError) -> None:
        """End a stream with an error if this side's half is open; else cancel the peer's half."""
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
        """Cancel a stream, if it has not ended. Raise nothing."""
        if self.ended is None:
            self._commands.send_cancel(stream)
            self.request_queue.grant_next()  # a stream that sent no frame yet gives its id back at once
            self.wake()

    def request_n(self, stream: StreamState, amount: int) -> None:
        if self.ended is None:
            self._commands.request_n(stream, amount)
            self.wake()

    def wake(self) -> None:
        """Wake the send task, after something was queued."""
        link = self.link
        if not link.is_awake:
            link.wake()

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

    async def wait_quiet(self) -> None:
        """Wait until no stream is open on a connection that drains, or it is over."""
        while not self.session.is_quiet and self.ended is None:
            await self.changes.park()

    async def wait_for_answer(self) -> None:
        """Wait until the server has answered the SETUP. Raise its refusal, or why no answer came."""
        while self.session.state is State.ASKING and self.ended is None:
            await self.changes.park()
        self.check_open()

    # How a connection begins

    def note_setup(self, setup: Setup) -> Setup:
        """Keep the SETUP of a client, with the facts of its transport, and return it so."""
        facts = self.connection.handshake
        self.connection.setup = setup = attrs.evolve(
            setup,
            payload=EMPTY if setup.payload == EMPTY else setup.payload,
            data_mime=_shared(mime_name(setup.data_mime)),
            metadata_mime=_shared(mime_name(setup.metadata_mime)),
            transport=facts.transport,
            peer_address=facts.peer_address,
            certificate=facts.certificate,
            path=facts.path,
            headers=facts.headers,
        )
        self.reset_deadline()
        return setup

    def let_in(self, granted: tuple[ExtensionEntry, ...]) -> None:
        """Open the session to the client, and grant it these extension entries."""
        self.tell_connected()
        self._dispatcher.act(self.session.accept(trio.current_time(), granted))
        self.reset_deadline()
        self._attend()
        self.link.resume()  # reading may pause because the gate held enough
        if self.is_suspended:
            self.wake()  # nothing may be queued, but what was held has become streams

    # Deadlines: the session names them

    def reset_deadline(self) -> None:
        """Look whether the deadline came nearer. One that moved away is looked at when it would have come."""
        if self.deadlines is not None and self.ended is None:
            deadline = self._next_deadline
            if deadline < self.due:
                self.deadlines.set(self, deadline)

    @property
    def _next_deadline(self) -> float:
        """The time at which ``expire`` has something to do, as far as is known now."""
        if self.session.state is State.NEW:
            return self.setup_deadline
        deadline = self.session.deadline
        if (math.isinf(deadline) or self.receive_budget.pauses_reading) and not self.is_suspended:
            # No lifetime was agreed, or none counts: an idle connection may stay so for ever, but not one that stalls.
            return min(deadline, trio.current_time() + self.session.limits.silence / STALL_CHECKS)
        return deadline

    @property
    def has_unread(self) -> bool:
        return self.link.has_unread

    def overdue_since(self, now: float) -> float:
        if self.ended is not None:
            return math.inf
        _, over = self._judge(now)
        return over if over <= now else math.inf

    def expire(self, now: float) -> None:
        if self.ended is not None:
            return  # by another connection, whose deadline came at the same time
        try:
            self._act_on_deadline(now)
            self.reset_deadline()
        except Exception as error:
            # A fault of ours costs this connection, and not all those that the same task looks after.
            self.nursery.start_soon(_fail, error)

    def _act_on_deadline(self, now: float) -> None:
        waits_for_readers = self._waits_for_readers
        if waits_for_readers:
            # Before the judgement, which leaves the peer's silence out of account then, but not the keepalive.
            self.session.heard(now)  # frames of it may have stayed unread
        act, _ = self._judge(now)
        if act is None or waits_for_readers:
            self.link.observe_progress(now)
        if act is not None:
            act(now)
        self._on_idle()

    def _judge(self, now: float) -> tuple[Callable[[float], None] | None, float]:
        """Return what has to be done at ``now``, if anything, and the time at which the peer's time was over.

        The time is infinite, or later than ``now``, where the peer is not given up.
        """
        session = self.session
        if session.state is State.NEW:
            return (self._end_without_setup if now >= self.setup_deadline else None), self.setup_deadline
        expired, waits_for_readers = now >= session.deadline, self._waits_for_readers
        if expired and not waits_for_readers:
            return self._expire, session.patience_until
        beyond = self.link.stalled_for(now) - session.limits.silence
        if beyond >= 0:
            return self._end_stall, now - beyond
        # Nothing is read because readers here take nothing: that is no silence of the peer's.
        return (self._expire if expired else None), math.inf

    @property
    def _waits_for_readers(self) -> bool:
        """Return whether reading pauses until readers here take something."""
        return self.receive_budget.pauses_reading and not self.is_suspended

    def _expire(self, now: float) -> None:
        """Act on the session's deadline: send a sign of life, or give up a peer that is silent."""
        self.session.excuse(now)
        self._dispatcher.act(self.session.expire(now))
        link = self.link
        if not link.is_awake:
            link.flush()

    def _end_without_setup(self, now: float) -> None:
        missing = f"no {self.session.dialect.first_message} came in time"
        self.faults.peer_fault(missing)
        self.end(ConnectionLost(missing))

    def _end_stall(self, now: float) -> None:
        seconds = self.session.limits.silence
        if self.receive_budget.pauses_reading or (self.is_congested and not self._outbox.reply_frames):
            lost = ConnectionLost(f"reading was paused for {seconds:g} s, because nobody here took what had come")
            self.faults.fatal(lost)
        else:
            lost = ConnectionLost(f"the peer stalled for {seconds:g} s")
            if self.is_congested:
                self.faults.peer_fault("the peer read none of the answers that wait for it")
            else:
                self.faults.peer_fault("half a frame came, and its rest did not")
        self.end(lost)

    def _on_idle(self) -> None:
        """Let tasks go that had nothing to do since the last deadline."""
        if self.is_suspended or self._finished == self.workers.finished:
            self.workers.stop_idle()
        self._finished = self.workers.finished
        self.link.on_idle()

    # Going on over another transport

    def replace_link(self, error: ConnectionLost) -> None:
        """Abandon the transport, which is of no more use, and suspend the session until there is another."""
        link = self.link
        self._suspend(error)
        link.abandon()

    def _suspend(self, error: ConnectionLost) -> None:
        """Suspend the session, because its transport is lost, until there is another."""
        if self.is_suspended or self.ended is not None:
            return
        self.faults.lost(error)
        self.is_suspended = True
        # From here on what is queued wakes no send task: it counts towards what waiting sessions may keep.
        link, self.link = self.link, NoLink(self.on_growth)
        self._dispatcher.act(self.session.suspend())
        self._on_idle()
        link.on_idle()
        self.notify_state()

    async def _resume(self, nursery: trio.Nursery, context: contextvars.Context) -> None:
        """Wait for the next transport, within the session's time; then run over it until it is lost as well."""
        reconnector = self.reconnector
        assert reconnector is not None
        seconds = reconnector.options.session_seconds
        with Timeout(self.deadlines, trio.current_time() + seconds) as timeout:
            self._resume_scope = timeout.scope
            try:
                async with reconnector.next() as resumed:
                    timeout.lift()
                    link = Link(resumed.transport, self.session, self, resumed.frames)
                    if self.is_suspended and self.ended is None:
                        # From here on what is queued wakes the new link's send task again.
                        self.is_suspended = False
                        self.link = link
                        self.reset_deadline()
                        self.notify_state()
                    await link.run(nursery, context)
            except ResumeFailed as failed:
                if isinstance(failed.__cause__, RemoteProtocolError):
                    self.faults.peer_fault(str(failed.error))
                else:
                    self.faults.lost(failed.error)
                self.end(failed.error)
            except Exception as error:
                # A fault of the function that opens streams leaves the block; all waiting calls raise that it is over.
                self.end(ConnectionLost(f"the session was given up: {error!r}"))
                raise
        if timeout.scope.cancelled_caught and self.ended is None:
            self.lose(ConnectionLost(f"the session was not resumed within {seconds:g} s"))

    # The end

    def on_peer_draining(self, *, closing: bool) -> None:
        """Send no new requests: the peer takes none, and lets open streams finish.

        With ``closing`` this side ends the connection behind the last of them.
        """
        is_news, self.peer_draining = not self.peer_draining, True
        self.peer_closing = self.peer_closing or closing
        if is_news:
            self._wake_waiters()
            self._notify_drain()

    def drain(self, *, announce: bool) -> None:
        """Take and send no new requests from now on, and tell the peer."""
        session = self.session
        session.drain()
        if announce:
            session.announce_close(last=False)
        elif not session.is_quiet:
            session.announce_drain()
        self._wake_waiters()
        self._notify_drain()
        self.wake()

    def _notify_drain(self) -> None:
        if not self.is_suspended and self.ended is None:
            self.notify_state()

    def announce_end(self, closed: ConnectionClosed) -> bool:
        """Cancel all open streams, and announce the end of the connection to the peer.

        Return whether the peer gets the announcement, and can end the connection in its turn. Requests that it sent
        before are refused until then, instead of cut off.
        """
        if self.ended is not None:
            return False
        self._cancel_streams(closed)
        if self.is_suspended:
            return False
        session = self.session
        if not session.has_announced:
            session.announce_close(last=True)
        self.wake()
        return session.has_announced

    def close(self, closed: ConnectionClosed, *, announce: bool = False) -> None:
        """Cancel all open streams, send the queued frames, then close the link."""
        if self.ended is not None:
            return
        self._cancel_streams(closed)
        if announce:
            self.session.announce_close(last=True)
        self.end(closed)

    def lose(self, error: ConnectionLost) -> None:
        """End the session without its peer."""
        self.faults.lost(error)
        self.end(error)

    def end(self, error: RSocketError, *, refuses: bool = False) -> None:
        """End the connection: waiting calls raise the error, handlers are cancelled, the link closes.

        With ``refuses`` the last frame to send refuses the client, which may close first.
        """
        if self.ended is not None:
            return
        # First, so that every task that is woken below finds the reason when it runs.
        self.ended = error
        if self.deadlines is not None:
            self.deadlines.clear(self)
        self.session.close(error)
        self.session.attention = True  # the link reads no more
        for stream in self.session.open_streams():
            owner, stream.owner = stream.owner, None
            if owner is not None:
                if not stream.requester or stream.left:
                    owner._on_error(fresh_copy(error))
                else:
                    owner._on_error(Drained(str(error)) if self.peer_draining else unsent_copy(error))
        self.receive_budget.clear()
        self.tell("ended", self.connection, error)
        self.observers = ()
        # Tasks that wait for room, a permit or the end itself look again; those of streams were woken by their owners.
        self._wake_waiters()
        for ping in self.pings:
            ping.set()
        if self._resume_scope is not None and self.is_suspended:
            # No transport: the task of ``run`` waits for the next one, in this scope.
            self._resume_scope.cancel()
        else:
            # The receive task stops; queued frames still leave, then the task of ``run`` goes on.
            self.link.stop(self._refused_clients if refuses else None)
        self.notify_state()

    def _cancel_streams(self, closed: ConnectionClosed) -> None:
        """Cancel every open stream, and send the peer CANCEL or ERROR."""
        session = self.session
        for stream in session.open_streams():
            owner, stream.owner = stream.owner, None
            if stream.requester:
                session.commands.send_cancel(stream)
            elif stream.open & SENDING:
                session.commands.send_error(stream, Canceled(GRACE_IS_OVER))
            if isinstance(owner, HandlerCall):
                owner.cancel()
            elif owner is not None:
                owner._on_error(fresh_copy(closed))

    def _wake_waiters(self) -> None:
        """Wake every task that waits for the connection, so that it looks again."""
        self.request_queue.wake_all()
        self.changes.wake_all()


def _shared(mime: str | int) -> str | int:
    """Return the MIME type as one object for all connections that have the same one."""
    return sys.intern(mime) if type(mime) is str else mime


async def _fail(error: Exception) -> None:
    raise error
