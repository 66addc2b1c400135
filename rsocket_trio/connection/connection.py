"""Connection: the nursery around a session, and everything that a user asks of it."""

from __future__ import annotations

import contextvars
import logging
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import trio

from rsocket_trio.connection.dispatch import Dispatcher
from rsocket_trio.connection.handlers import Job
from rsocket_trio.connection.link import Link
from rsocket_trio.connection.receiving import Inbox
from rsocket_trio.connection.replies import Reply
from rsocket_trio.connection.streams import Channel, Incoming
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
    readable,
)
from rsocket_trio.metadata.routes import with_route
from rsocket_trio.mux.credit import checked_request_n
from rsocket_trio.mux.halves import RECEIVING, SENDING
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.payload import BytesLike, Payload, PayloadLike, as_bytes, as_payload
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.session import Session, State
from rsocket_trio.rsocket.streams import Stream
from rsocket_trio.terms import Lease, Setup
from rsocket_trio.transports.base import Handshake, Transport

logger = logging.getLogger("rsocket_trio")

GRACE = 10.0
"""Seconds that open streams get to finish when a connection drains."""
AFTERLIFE = 1.0
"""Seconds that handlers of fire-and-forget and pushed metadata get to finish once the connection is over."""

_current: contextvars.ContextVar[Connection] = contextvars.ContextVar("rsocket_trio.connection")


def current_connection() -> Connection:
    """The connection that the running handler's request came on. Raises ``LookupError`` outside of a handler."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("current_connection() works in handlers only") from None


@attrs.define
class Counters:
    """What happened on a connection that nobody was told of: dropped work, and faults beyond the first log line."""

    dropped: int = 0
    """Fire-and-forget requests and pushed metadata that no handler took."""
    handler_errors: int = 0
    """Handlers that failed with an exception of their own."""


class Connection:
    """One connection to a peer, whichever side opened it. Both sides can request and respond at the same time.

    ``state`` is the application's own, for what a setup handler learns and handlers want to know. ``setup`` is what
    the client said, ``handshake`` what the transport knows of the peer.
    """

    def __init__(self, session: Session, responder: Responder | None, setup: Setup, handshake: Handshake) -> None:
        self.session = session
        self.responder = responder if responder is not None else Responder()
        self.setup = setup
        self.handshake = handshake
        self.state = SimpleNamespace()
        self.counters = Counters()
        self.ended: RSocketError | None = None
        self.inbox_size = 0
        self.starved: dict[Inbox, None] = {}
        self.workers: Workers | None = None
        self.nursery: trio.Nursery | None = None
        self._outbox = session.outbox
        self._commands = session.streams
        self._link: Link | None = None
        self._room = Parking()
        self._permits = Parking()
        self._pings: set[trio.Event] = set()
        self._quiet = Parking()
        self._peer_draining = False
        self._afterlife: set[Job] = set()
        self._failed_handlers: set[Callable[..., Any]] = set()
        self._faults = 0
        self._timer: trio.CancelScope | None = None
        self._setup_deadline = math.inf
        self._dispatcher = Dispatcher(self)

    def __repr__(self) -> str:
        side = "client" if self.session.client else "server"
        peer = f" {self.handshake.transport} {self.handshake.peer}".rstrip()
        return f"<Connection {self.session.dialect.name} {side}{peer}, {self.status}>"

    # Requests

    async def request_response(self, payload: PayloadLike = b"", *, route: str | None = None) -> Payload:
        """Ask, and wait for the one answer. Being cancelled, by a deadline too, sends CANCEL.

        Raises ``ApplicationError``, ``Rejected``, ``Canceled`` or ``Invalid`` as the responder answered,
        ``ConnectionLost`` or ``ConnectionClosed`` when the connection is gone, ``Unsupported`` where the dialect has no
        such interaction. Waits for a permit where leases were agreed.
        """
        stream = await self.open_stream(Interaction.REQUEST_RESPONSE, self._request(payload, route), None)
        reply = Reply(trio.lowlevel.current_task())
        stream.owner = reply

        def abort(_: object) -> trio.lowlevel.Abort:
            stream.owner = None
            self.cancel_stream(stream)
            return trio.lowlevel.Abort.SUCCEEDED

        result = await trio.lowlevel.wait_task_rescheduled(abort)
        assert isinstance(result, Payload)
        return result

    def request_stream(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        initial_request_n: int = 256,
        refill: bool = True,
    ) -> Incoming:
        """A stream of items, to be used under ``async with``.

        ``initial_request_n`` items may come before the reader takes one; credit is topped up at half, unless
        ``refill`` is false. Raises ``ValueError`` for a credit outside of 1 to 2^31-1.
        """
        return self._incoming(Interaction.REQUEST_STREAM, payload, route, initial_request_n, refill)

    def request_subscription(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        initial_request_n: int = 256,
        refill: bool = True,
    ) -> Incoming:
        """A stream that never completes (drafts 0.0 and 0.1), to be used under ``async with``."""
        return self._incoming(Interaction.REQUEST_SUBSCRIPTION, payload, route, initial_request_n, refill)

    def request_channel(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        initial_request_n: int = 256,
        refill: bool = True,
    ) -> Channel:
        """A channel, to be used under ``async with``; the payload opens it and is the handler's ``channel.request``."""
        checked_request_n(initial_request_n)
        request = self._request(payload, route)
        return Channel(self, Interaction.REQUEST_CHANNEL, request, initial_request_n, refill=refill)

    async def fire_and_forget(self, payload: PayloadLike, *, route: str | None = None) -> None:
        """Send a request that is never answered. What was accepted is not lost by leaving the connection."""
        request = self._request(payload, route)
        await self.open_stream(Interaction.FIRE_AND_FORGET, request, None)

    async def metadata_push(self, metadata: BytesLike) -> None:
        """Send metadata that concerns the connection as a whole."""
        content = as_bytes(metadata)
        await trio.lowlevel.checkpoint()
        self.check_open()
        while not self.has_room(len(content)):
            await self.wait_for_room(len(content))
        self.session.metadata_push(content)
        self.wake()

    async def ping(self) -> float:
        """Seconds that a sign of life takes there and back. Raises ``Unsupported`` where the dialect has none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.check_open()
        started = trio.current_time()
        answered = trio.Event()
        self.session.ping(answered)
        self.wake()
        self._pings.add(answered)
        try:
            await answered.wait()
        finally:
            self._pings.discard(answered)
        self.check_open()
        return trio.current_time() - started

    async def send_extension(self, ext_type: int, body: BytesLike = b"", *, ignore: bool = True) -> None:
        """Send an EXT frame; a peer that does not know the type skips it, unless ``ignore`` is false."""
        await trio.lowlevel.checkpoint()
        self.check_open()
        self.session.extension(ext_type, as_bytes(body), ignore=ignore)
        self.wake()

    # The end

    async def drain(self, *, grace: float = GRACE, announce: bool = False) -> None:
        """Close in good order.

        New requests are answered with REJECTED, and own ones raise ``ConnectionClosed``; open streams get ``grace``
        seconds to finish, then they are cancelled; then CONNECTION_CLOSE is sent and the connection closed. With
        ``announce`` it is sent first, for peers that honour it.
        """
        await trio.lowlevel.checkpoint()
        if self.ended is not None:
            return
        self.session.drain()
        if announce:
            self.session.announce_close()
        self._wake_waiters()
        self.wake()
        with trio.move_on_after(grace):
            while self.session.table and self.ended is None:
                await self._quiet.park()
        if self.ended is None:
            drained = ConnectionClosed("the connection was drained by this side")
            self._cancel_streams(drained)
            if not announce:
                self.session.announce_close()
            self.end(drained)

    @property
    def status(self) -> str:
        """``open``, ``draining`` or ``closed``."""
        if self.ended is not None:
            return "closed"
        return "draining" if self.session.draining else "open"

    @property
    def lease(self) -> Lease | None:
        """What the peer's last lease still allows, to look at; ``None`` without leases."""
        permits, now = self.session.permits, trio.current_time()
        return None if permits is None else Lease(permits.remaining(now), min(permits.expires_in(now), 2147483.647))

    def check_open(self) -> None:
        """Raise ``ConnectionLost`` or ``ConnectionClosed`` if nothing can be asked of the peer any more."""
        if self.ended is not None:
            raise again(self.ended)

    # What streams ask

    async def open_stream(self, interaction: Interaction, payload: Payload, initial_n: int | None) -> Stream:
        """Open a stream, waiting for room and, with leases, for a permit.

        Nothing waits after the stream was opened.
        """
        session = self.session
        if interaction not in session.dialect.interactions:
            # Without waiting for anything: nothing of this is a matter of time.
            self._commands.open(interaction, payload, initial_n)
        size = len(payload.data)
        if interaction is not Interaction.REQUEST_RESPONSE:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self.ended is not None or session.draining or session.permits is not None or not self.has_room(size):
            await self._wait_to_open(size)
        stream = self._commands.open(interaction, payload, initial_n)
        self.wake()
        return stream

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be put into the outbox now."""
        return self._outbox.has_room(size)

    async def wait_for_room(self, size: int) -> None:
        """Wait until something left the outbox. Raises when the connection is gone."""
        await self._room.park()
        self.check_open()

    def send_item(self, stream: Stream, payload: Payload, *, complete: bool = False) -> None:
        """Send one item; there is credit and room for it."""
        self._commands.send_item(stream, payload, complete=complete)
        self.wake()

    def complete_stream(self, stream: Stream) -> None:
        """Complete this side's half, if it is still open."""
        if stream.open & SENDING and self.ended is None:
            self._commands.send_complete(stream)
            self.wake()

    def fail_stream(self, stream: Stream, error: StreamError) -> None:
        """End a stream with an error, if this side may still say so; else cancel what the peer sends."""
        if self.ended is not None:
            return
        if stream.open & SENDING:
            self._commands.send_error(stream, error)
        elif stream.open & RECEIVING:
            self._commands.send_cancel(stream)
        self.wake()

    def cancel_stream(self, stream: Stream) -> None:
        """Cancel a stream, if it has not ended. Never waits and never raises."""
        if self.ended is None:
            self._commands.send_cancel(stream)
            self.wake()

    def request_n(self, stream: Stream, amount: int) -> None:
        """Grant credit."""
        if self.ended is None:
            self._commands.request_n(stream, amount)
            self.wake()

    @property
    def inbox_is_full(self) -> bool:
        """Whether too many bytes wait for their readers to grant more credit."""
        return self.inbox_size > self.session.limits.inbox_size

    def credit_freed(self) -> None:
        """Readers took something: grant what was withheld, if there is room again."""
        if self.starved and not self.inbox_is_full:
            starved, self.starved = self.starved, {}
            for inbox in starved:
                inbox.top_up()

    def wake(self) -> None:
        """Let the send task run: something was queued."""
        if self._link is not None:
            self._link.wake()

    # What handlers ask

    def job_over(self, job: Job) -> None:
        """A handler has ended."""
        if job.stream.owner is job:
            job.stream.owner = None
        if job.lingering:
            self.session.inbound.lingering -= 1
        if job in self._afterlife:
            self._afterlife.discard(job)
            if self.ended is not None and not self._afterlife:
                self._quiet.wake_all()

    @property
    def afterlives(self) -> int:
        """Handlers at work that answer nobody."""
        return len(self._afterlife)

    def linger(self, job: Job) -> None:
        """A handler's stream is over before the handler is: it goes on counting as a stream."""
        if not job.lingering:
            job.lingering = True
            self.session.inbound.lingering += 1

    def outlive(self, job: Job) -> None:
        """A handler that answers nobody: it counts as a stream, and gets a moment when the connection ends."""
        self.linger(job)
        self._afterlife.add(job)

    def log_failure(self, function: Callable[..., Any], error: BaseException) -> None:
        """Tell the log of a handler's own failure: the first of each handler with its traceback, then counted."""
        self.counters.handler_errors += 1
        if function not in self._failed_handlers:
            self._failed_handlers.add(function)
            name = getattr(function, "__qualname__", repr(function))
            logger.error("%r: handler %s failed; further failures are counted", self, name, exc_info=error)

    def log_fault(self, text: str) -> None:
        """Tell the log of a fault of the peer's: one line for each connection, then counted."""
        self._faults += 1
        if self._faults == 1:
            logger.warning("%r: %s", self, readable(text))

    # What the link and the clock say: the rules that it asks

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause."""
        return self.session.is_congested

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read."""
        return self.ended is not None

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Whole frames came: everything that they mean happens before the next ones are read."""
        self._dispatcher.act(self.session.receive(frames, trio.current_time()))
        self._settle()

    def on_broken(self, error: RemoteProtocolError) -> None:
        """The transport can't find the next frame."""
        self._dispatcher.act(self.session.broken(error))

    def on_lost(self, error: ConnectionLost) -> None:
        """The transport is gone."""
        self.end(ConnectionClosed("the peer closed the connection") if self._peer_draining else error)

    def on_written(self) -> None:
        """Something left the outbox."""
        if self._room and self.has_room(0):
            self._room.wake_all()
        self._settle()

    def on_peer_draining(self) -> None:
        """The peer lets open streams finish and takes no new ones."""
        self._peer_draining = True
        self._wake_waiters()

    def on_lease(self) -> None:
        """The peer granted requests: as many tasks as it allows go on."""
        self._permits.wake_all()

    def on_accepted(self) -> None:
        """The application let the peer in, and what was held has happened."""
        self.reset_timer()
        self._settle()

    def leave(self) -> None:
        """This side is done: what is open is cancelled, what is queued still goes out, then the link closes."""
        if self.ended is None:
            closed = ConnectionClosed("the connection was closed by this side")
            self._cancel_streams(closed)
            self.end(closed)

    def end(self, error: RSocketError) -> None:
        """The connection is over: everybody who waits hears of it, handlers are cancelled, the link closes."""
        if self.ended is not None:
            return
        self.ended = error
        self.session.close(error)
        table = self.session.table
        for stream in [*table.mine.values(), *table.theirs.values()]:
            owner, stream.owner = stream.owner, None
            if owner is not None:
                owner.on_error(again(error))
        self.starved.clear()
        self._wake_waiters()
        for ping in self._pings:
            ping.set()
        if self._link is not None:
            self._link.stop()
        self.reset_timer()

    # Running

    async def run(self, transport: Transport, *, setup_deadline: float = math.inf) -> None:
        """Run the connection over this transport until it ends. Shielded: only ``end`` ends it."""
        self._setup_deadline = setup_deadline
        self._link = Link(transport, self._outbox, self)
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                context = contextvars.copy_context()
                context.run(_current.set, self)
                self.workers = Workers(self, nursery, context, self.session.limits.idle_workers)
                nursery.start_soon(self._run_timer)
                await self._link.run()
                if self.ended is None:
                    # Only a fault of ours can end a link without a word to the connection.
                    self.end(ConnectionLost("the link ended"))
                await self._outlast()
                nursery.cancel_scope.cancel()

    def reset_timer(self) -> None:
        """Deadlines have changed."""
        if self._timer is not None:
            self._timer.deadline = self._deadline()

    def start_lease_policy(self, setup: Setup) -> None:
        """Run the application's lease policy for as long as the connection."""
        policy = self.responder.lease_policy
        if policy is not None and self.nursery is not None:
            self.nursery.start_soon(self._run_lease_policy, policy, setup)

    async def _run_lease_policy(self, policy: Callable[[Setup], Any], setup: Setup) -> None:
        try:
            leases = policy(setup)
            async for lease in leases:
                self.session.grant(lease, trio.current_time())
                self.wake()
        except Exception as error:  # noqa: BLE001 - a policy that fails grants nothing more, and the log hears of it
            self.log_failure(policy, error)

    async def _run_timer(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            if self.session.state is State.NEW and now >= self._setup_deadline:
                self.log_fault("no SETUP came in time")
                self.end(ConnectionLost("no SETUP came in time"))
            elif self.ended is None:
                self._dispatcher.act(self.session.expire(now))
                self.wake()

    async def _outlast(self) -> None:
        with trio.move_on_after(AFTERLIFE):
            while self._afterlife:
                await self._quiet.park()

    def _deadline(self) -> float:
        if self.ended is not None:
            return math.inf
        return self._setup_deadline if self.session.state is State.NEW else self.session.deadline

    def _settle(self) -> None:
        """Look whether the last stream ended that a drain waits for."""
        self.wake()
        if self.session.draining and not self.session.table:
            self._quiet.wake_all()
            if self._peer_draining and not self._outbox:
                self.end(ConnectionClosed("the peer closed the connection"))

    def _cancel_streams(self, closed: ConnectionClosed) -> None:
        for stream in list(self.session.table.theirs.values()):
            owner, stream.owner = stream.owner, None
            if stream.open & SENDING:
                self._commands.send_error(stream, Canceled("the connection is closing"))
            if isinstance(owner, Job):
                owner.cancel()
        for stream in list(self.session.table.mine.values()):
            owner, stream.owner = stream.owner, None
            self._commands.send_cancel(stream)
            if owner is not None:
                owner.on_error(again(closed))

    def _wake_waiters(self) -> None:
        self._permits.wake_all()
        self._room.wake_all()
        self._quiet.wake_all()

    async def _wait_to_open(self, size: int) -> None:
        """Wait until a stream may be opened; its permit is taken then."""
        session = self.session
        await trio.lowlevel.checkpoint_if_cancelled()
        queued = False
        while True:
            self.check_open()
            if session.draining:
                await trio.lowlevel.checkpoint()
                raise ConnectionClosed("the connection is closing: no new requests")
            if not self.has_room(size):
                await self._room.park()
            elif session.permits is None:
                return
            elif (queued or not self._permits) and session.permits.take(trio.current_time()):
                return
            else:
                queued = True
                await self._permits.park()

    def _incoming(
        self, interaction: Interaction, payload: PayloadLike, route: str | None, credit: int, refill: bool
    ) -> Incoming:
        checked_request_n(credit)
        return Incoming(self, interaction, self._request(payload, route), credit, refill=refill)

    def _request(self, payload: PayloadLike, route: str | None) -> Payload:
        request = payload if type(payload) is Payload else as_payload(payload)
        if route is None:
            return request
        return Payload(request.data, with_route(route, request.metadata, self.setup.metadata_mime))
