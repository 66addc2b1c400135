"""Moves the frames of one transport: a loop that reads, in turn with those of other connections, and one writer."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio

from rsocket_trio.errors import ConnectionLost, RemoteProtocolError, RSocketError
from rsocket_trio.limits import charged
from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.session import Session
from rsocket_trio.tools.parking_lot import ParkingLot
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT
from rsocket_trio.transports.error_text import NO_FRAME, WrongProtocol

READ_AFTER_BREAK_TIMEOUT = 1.0
"""Seconds for reading what a peer said before writing to it broke: why it went tells more than that it did."""
DIRECT_WRITES = 4
"""Writes that need no send task before there is one, and again after it went. A task that starts, waits and is ended
costs as much as five writes."""
CLOSE_TIMEOUT = 1.0
"""Seconds that what is queued gets to be written, and the peer to close, before the transport is cut."""
REFUSED_TIMEOUT = 0.3
"""Seconds that a refused client gets to close first. rsocket-kotlin loses an ERROR with the end of stream behind it."""
MAX_REFUSED = 256
"""Refused clients of one server that get this time at once. A further one has the end of stream behind its ERROR."""
FRAMES_IN_TURN = 512
"""Frames that the connections of one run act on before other tasks run: what these begin fits into a cache."""
MAX_UNHURRIED_CONNECTIONS = 4
"""Connections that let no other tasks run first when they have filled a turn."""


class LinkOwner(Protocol):
    """The connection that a link serves, as the link sees it. Nothing here waits.

    Questions change nothing. The ``after_``, ``on_``, ``pause_`` and ``resume_`` methods are commands.
    """

    ended: RSocketError | None
    """The error that ended the connection, or ``None``: nothing more has to be read then."""

    @property
    def is_congested(self) -> bool:
        """Return whether reading must pause: readers take too little, or replies wait for a peer that does not read."""

    @property
    def is_stuck(self) -> bool:
        """Return whether a pause of reading would not end without another transport."""

    @property
    def progress(self) -> int:
        """A number that grows while readers take received items, and handlers finish, unless something is read."""

    def after_read(self, frames: Sequence[bytes]) -> bool:
        """Act on whole frames. Return whether to look at ``is_congested`` and ``ended`` before the next read."""

    def after_write(self) -> None:
        """Act on a write, or on a look at an empty outbox."""

    def on_broken(self, error: RemoteProtocolError) -> None:
        """Act on a framing error: the transport cannot find the next frame."""

    def on_lost(self, error: ConnectionLost) -> None:
        """Act on the loss of the transport."""

    def pause_reading(self) -> None:
        """Have the link resumed once there is room for more."""

    def resume_reading(self) -> None:
        """Note that reading goes on."""


@attrs.define(eq=False)
class RefusedClients:
    """The refused clients of one server that may close first, which are limited in number."""

    _waiting: int = attrs.field(default=0, init=False)

    async def wait_closed(self, transport: Transport) -> None:
        """Discard what comes until the client closes, or its time is over. No task may be in ``receive`` meanwhile."""
        if self._waiting >= MAX_REFUSED:
            return
        self._waiting += 1
        discarded = 0
        try:
            with trio.move_on_after(REFUSED_TIMEOUT):
                while discarded < DISCARD_LIMIT and (frames := await transport.receive()):
                    discarded += charged(sum(map(len, frames)), len(frames))
        except (trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError):
            return  # nothing that follows can be read
        finally:
            self._waiting -= 1


@attrs.define(eq=False)
class Turns:
    """The turns in which the connections of one run act on what they read, about ``FRAMES_IN_TURN`` frames in each.

    Without them a thousand connections that become readable together would all begin what their frames ask for before
    any of it is finished: each further step finds its memory in no cache, and the garbage collector finds it alive.
    Where ``MAX_UNHURRIED_CONNECTIONS`` connections or fewer read all that much, none waits.
    """

    left: int = FRAMES_IN_TURN
    """Frames that may still be acted on in this turn: each connection takes off what it acts on."""
    takers: set[int] = attrs.field(factory=set)
    """The connections that acted in this turn, by their ``id()``."""
    _lot: ParkingLot = attrs.field(factory=ParkingLot)
    _goes_on: bool = False

    def begin_at_once(self) -> bool:
        """Begin the next turn now, once nothing is left of this one. Return False if ``wait`` has to come first."""
        if self._goes_on or len(self.takers) > MAX_UNHURRIED_CONNECTIONS:
            return False
        self.left = FRAMES_IN_TURN
        self.takers.clear()
        return True

    async def wait(self, frames: int) -> None:
        """Wait for a turn to act on so many frames, behind the connections that wait already."""
        if not self._goes_on:
            # Other tasks run first, then this one begins the next turn, also if it is cancelled: others may wait by
            # then.
            self._goes_on = True
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._begin()
            self.left -= frames
        elif await self._lot.park(frames):
            self._begin()

    def _begin(self) -> None:
        """Wake the connections of the next turn. If they fill it, the last of them begins the one after it."""
        lot, left = self._lot, FRAMES_IN_TURN
        while left > 0 and lot.first is not None:
            left -= lot.first.size
            # It gets the value for certain: no cancel comes between.
            lot.wake_one(left <= 0)
        self.left = left
        self._goes_on = left <= 0
        self.takers.clear()


def turns_of_run() -> Turns:
    try:
        return _TURNS.get()
    except LookupError:
        _TURNS.set(turns := Turns())
        return turns


_TURNS: trio.lowlevel.RunVar[Turns] = trio.lowlevel.RunVar("rsocket_trio.turns")


class NoLink:
    """Stands for the link of a connection without a transport; ``grown`` is called when something is queued."""

    __slots__ = ("_grown",)

    is_awake = is_paused = has_unread = False

    def __init__(self, grown: Callable[[], object] | None = None) -> None:
        self._grown = grown

    def wake(self) -> None:
        if self._grown is not None:
            self._grown()

    flush = wake

    def stalled_for(self, now: float) -> float:
        return 0.0

    def on_idle(self, *context: object) -> None:
        """Do nothing: no task runs, and nothing is read."""

    observe_progress = resume = abandon = stop = on_idle


@attrs.define(eq=False, repr=False, weakref_slot=False)
class Link:
    """Moves the frames of one transport. ``run`` reads in the task of its caller and calls synchronous code only.

    There is one writer at a time. The first writes are made by the task that calls ``flush``, at most
    ``DIRECT_WRITES`` of them. With more to send, or on ``wake``, a send task begins. It goes when there was nothing for
    long: ``on_idle``. While it ``is_awake`` it is the only writer, and finds by itself what is put into the outbox.
    While it waits, ``flush`` still writes a small frame that follows a read of one frame: where both sides take turns
    no other comes to leave with it. While the link ``is_paused`` it reads nothing, and ``resume`` makes it look
    again.
    """

    _transport: Transport
    _session: Session
    _owner: LinkOwner
    _first: Sequence[bytes] = ()
    _outbox: Outbox = attrs.field(init=False)
    _send_at_once: Callable[[Sequence[EncodedFrame]], bool] | None = attrs.field(init=False)
    _reading: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)
    _drained: ParkingLot = attrs.field(init=False, factory=ParkingLot)
    _nursery: trio.Nursery | None = attrs.field(init=False, default=None)
    _context: contextvars.Context | None = attrs.field(init=False, default=None)
    _writer: trio.lowlevel.Task | None = attrs.field(init=False, default=None)
    _broken: Exception | None = attrs.field(init=False, default=None)
    _refused_clients: RefusedClients | None = attrs.field(init=False, default=None)
    _stall_since: float | None = attrs.field(init=False, default=None)
    _progress_seen: tuple[int, int] = attrs.field(init=False, default=(0, 0))
    _at_once: int = attrs.field(init=False, default=DIRECT_WRITES)
    _reads: int = attrs.field(init=False, default=0)
    _writes: int = attrs.field(init=False, default=0)
    _leaving: bool = attrs.field(init=False, default=False)
    _lost: bool = attrs.field(init=False, default=False)
    _sending: bool = attrs.field(init=False, default=False)
    _writing: bool = attrs.field(init=False, default=False)
    _rests: bool = attrs.field(init=False, default=False)
    _lone_read: bool = attrs.field(init=False, default=False)
    _waits_turn: bool = attrs.field(init=False, default=False)
    _unfinished: bool = attrs.field(init=False, default=False)
    is_awake: bool = attrs.field(init=False, default=False)
    is_paused: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._outbox = self._session.outbox
        # An application's own transport may be one that knows nothing of this.
        self._send_at_once = getattr(self._transport, "send_at_once", None)

    def wake(self) -> None:
        """Wake the send task, or start it, after something was put into the outbox."""
        writer = self._writer
        if writer is not None:
            # Forgotten at once: of several tasks that wake it in one step, only the first reschedules it.
            self._writer = None
            self.is_awake = True
            trio.lowlevel.reschedule(writer)
        elif self._sending or self._lost or self._broken is not None:
            return
        elif self._nursery is not None and self._context is not None:
            self._sending = self.is_awake = True
            self._context.run(self._nursery.start_soon, self._send)

    def flush(self) -> None:
        """Write the frames here and now, or ``wake``. To be called where no session call is in progress."""
        outbox, send_at_once = self._outbox, self._send_at_once
        lone = self._lone_read and not outbox.bulk_size  # the send task copies no large frame
        if (
            send_at_once is None
            or not (lone or (self._at_once and not self._sending))
            or self.is_awake
            or self._nursery is None
            or (self._leaving or self._lost or self._broken is not None)
        ):
            self.wake()
            return
        # The send task waits, or there is none: this task is the only writer for as long as it does not await.
        if lone:
            self._lone_read = False
        else:
            self._at_once -= 1
        frames = outbox.take()
        if not frames:
            self._drained.wake_all()  # the store may have turned out to be full
            return
        try:
            self._unfinished = not send_at_once(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._break(error)
            return
        if self._session.attention:
            self._owner.after_write()
        if self._drained.first is not None:
            self._drained.wake_all()  # reading may pause for what has left now
        if self._unfinished or outbox.entries or outbox.has_urgent:
            self.wake()

    def on_idle(self) -> None:
        """Let the send task go, if it waits and has written nothing since the last call."""
        if not self._sending:
            self._at_once = DIRECT_WRITES
        if self._writes:
            self._writes = 0
        elif self._writer is not None:
            self._rests = True
            self.wake()

    def resume(self) -> None:
        """Check again whether reading must pause."""
        self._drained.wake_all()

    def stalled_for(self, now: float) -> float:
        """Return the seconds that half a frame, or a pause of reading, has lasted since it was observed first."""
        since = self._stall_since
        return 0.0 if since is None or self._has_moved else now - since

    def observe_progress(self, now: float) -> None:
        """Count a stall from ``now`` on, unless one lasts since an earlier call."""
        if self._stall_since is None or self._has_moved:
            self._stall_since = now
            self._progress_seen = self._reads, self._owner.progress

    @property
    def _has_moved(self) -> bool:
        """Return whether nothing stalls, or something was read or taken since the last ``observe_progress``."""
        owner = self._owner
        if not (self.is_paused or self._transport.mid_frame or self._session.is_mid_frame):
            return True
        return (self._reads, owner.progress) != self._progress_seen

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not acted on, as far as the transport can tell."""
        # An application's own transport may be one that knows nothing of this.
        return self._waits_turn or getattr(self._transport, "has_unread", False)

    def stop(self, refused_clients: RefusedClients | None = None) -> None:
        """Read no more: write what is queued, then close. A refused client gets time to close first."""
        self._refused_clients = refused_clients
        if not self._lost:  # else that has ended already, or is about to
            self._reading.cancel()

    def abandon(self) -> None:
        """Write nothing more, and close: the transport is dead, or of no more use."""
        self._lost = True
        self._reading.cancel()

    async def run(self, nursery: trio.Nursery, context: contextvars.Context) -> None:
        """Move frames until the connection stops the link or the transport is gone; then close the transport.

        The send task runs in this nursery, with this context. To be run where only the connection ends it, so that
        what is said last still goes out.
        """
        self._nursery, self._context = nursery, context
        if self._outbox:
            self.flush()
        transport, owner, turns = self._transport, self._owner, turns_of_run()
        try:
            # No coroutine of its own for the receive task: each on the way to a read costs a connection 250 bytes.
            with self._reading:
                # A session that goes on may have so much to answer that nothing more is to be read at first.
                reads = await self._wait_while_congested()
                if reads and self._first:
                    frames, self._first = self._first, ()
                    self._reads += 1
                    owner.after_read(frames)
                    del frames
                    reads = await self._wait_while_congested()
                while reads:
                    try:
                        frames = await transport.receive()
                    except RemoteProtocolError as error:
                        # Without its traceback, which would keep the frames that read for as long as the error is kept.
                        owner.on_broken(error.with_traceback(None))
                        break
                    except WrongProtocol as error:
                        self._lose(str(error), error)
                        break
                    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                        self._lose(f"the transport broke: {reason(error)}", error)
                        break
                    if not frames:
                        self._lose("the peer closed the transport", None)
                        break
                    if turns.left > 0 or turns.begin_at_once():
                        turns.left -= len(frames)
                        turns.takers.add(id(self))
                    else:
                        self._waits_turn = True
                        await turns.wait(len(frames))
                        self._waits_turn = False
                    if self._lost:
                        # It came just when the link was given up: the peer heard of a position before it, and sends it
                        # again.
                        break
                    self._reads += 1
                    self._lone_read = len(frames) == 1
                    looks = owner.after_read(frames)
                    del frames  # nothing of them is to live until the next ones come
                    if looks:
                        reads = await self._wait_while_congested()
            if self._broken is not None:
                self._lose(f"the transport broke: {reason(self._broken)}", self._broken)
            if not self._lost and (self._refused_clients is not None or not self._may_go()):
                with trio.move_on_after(CLOSE_TIMEOUT):
                    await self._say_goodbye()
        finally:
            self._lost = True
            done = self._transport.cut() and not self._writing
            self.wake()  # a send task that does not write has only to see that this is the end
            if not done:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT):
                    await self._transport.aclose()
                    # A write that was on its way ends with the transport.
                    await self._wait_sent()

    async def _wait_while_congested(self) -> bool:
        """Read nothing while too much waits already. Return whether anything has to be read then."""
        owner = self._owner
        while owner.is_congested and owner.ended is None:
            if self._broken is not None:
                return False
            if owner.is_stuck:
                self._lose("the store is full, and what would empty it is behind more than may be answered", None)
                return False
            self.is_paused = True
            owner.pause_reading()
            # Woken by ``resume``, once readers made room or handlers let go of requests, and by every write: replies
            # may have left. A write alone would not do: the peer may take it only after this side has read.
            await self._drained.park()
        if self.is_paused:
            self.is_paused = False
            owner.resume_reading()
        return not self._lost and owner.ended is None

    async def _send(self) -> None:
        transport, session, outbox = self._transport, self._session, self._outbox
        try:
            while not self._lost:
                frames = outbox.take()
                if not frames and not self._unfinished:
                    if self._leaving or self._rests:
                        break
                    if self._drained.first is not None:
                        # The store may have turned out to be full, and what reading pauses for to be another matter.
                        self._drained.wake_all()
                    # From here until ``wake`` queued frames are not found: the task that queues one calls ``wake``.
                    self._writer = trio.lowlevel.current_task()
                    self.is_awake = False
                    await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
                    continue
                self._writes += 1
                self._writing = True
                self._unfinished = self._lone_read = False
                await transport.send(frames)
                self._writing = False
                if session.attention:
                    self._owner.after_write()
                if self._drained.first is not None:
                    self._drained.wake_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._break(error)
        finally:
            self._sending = self._rests = self._writing = self.is_awake = False
            self._drained.wake_all()

    def _break(self, error: Exception) -> None:
        """Note that writing failed. Frames that the peer sent before are still read, unless reading pauses."""
        self._broken = error
        self._reading.deadline = trio.current_time() + READ_AFTER_BREAK_TIMEOUT
        self._drained.wake_all()

    def _abort_wait(self, _: object) -> trio.lowlevel.Abort:
        self._writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _lose(self, text: str, cause: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            if self._session.client and not self._reads and not isinstance(cause, WrongProtocol):
                # An application's own transport may be one that knows no URI.
                uri = getattr(self._transport, "silent_uri", "")
                text = f"{uri}{': ' if uri else ''}{text}, and {NO_FRAME}"
            lost = ConnectionLost(text)
            lost.__cause__ = cause
            self._owner.on_lost(lost)
        self.wake()

    def _may_go(self) -> bool:
        """Return whether nothing can get lost by closing here and now."""
        outbox = self._outbox
        return (
            outbox.is_acknowledged
            and not outbox
            and not self._unfinished
            and getattr(self._transport, "is_idle", False)
        )

    async def _say_goodbye(self) -> None:
        """Let the send task empty the outbox, then end the transport in order."""
        self._leaving = True
        await self._wait_sent()
        if not self._lost and self._refused_clients is not None:
            await self._refused_clients.wait_closed(self._transport)
        if not self._lost:
            try:
                await self._transport.finish()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                # The peer closed first: there is no end to announce.
                return

    async def _wait_sent(self) -> None:
        """Wait until the send task has nothing to do."""
        if self._outbox:
            self.wake()
        while self.is_awake:
            await self._drained.park()


def reason(error: BaseException) -> str:
    """Return the most telling text of a transport's exception: that of its cause, where there is one."""
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
