"""The send and receive tasks over one transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from rsocket_trio.connection.waiting import Parking
from rsocket_trio.errors import ConnectionLost, RemoteProtocolError
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.transports.base import Transport

LEAVING = 1.0
"""Seconds that what is queued gets to be written, and the peer to close, before the transport is cut."""


class Rules(Protocol):
    """What a link asks of the connection that it serves. None of these waits."""

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read."""
        ...

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame is here that the transport knows nothing of."""
        ...

    @property
    def progress(self) -> int:
        """Grows while what was received is taken by its readers."""
        ...

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Whole frames came."""
        ...

    def on_broken(self, error: RemoteProtocolError) -> None:
        """The transport can't find the next frame."""
        ...

    def on_lost(self, error: ConnectionLost) -> None:
        """The transport is gone."""
        ...

    def on_written(self) -> None:
        """Something left the outbox."""
        ...


class Link:
    """One transport's two tasks. The receive task calls synchronous code only; the send task is the only writer."""

    def __init__(self, transport: Transport, outbox: Outbox, rules: Rules, first: Sequence[bytes] = ()) -> None:
        self._transport = transport
        self._outbox = outbox
        self._rules = rules
        self._writer: trio.lowlevel.Task | None = None
        self._leaving = False
        self._lost = False
        self._first = first
        self._reading = trio.CancelScope()
        self._drained = Parking()
        self._sent = trio.Event()
        self._reads = self._progress_seen = 0
        self._paused = False
        self._stall_since: float | None = None

    def wake(self) -> None:
        """Something was put into the outbox."""
        writer = self._writer
        if writer is not None:
            self._writer = None
            trio.lowlevel.reschedule(writer)

    def resume(self) -> None:
        """What reading paused for may be over."""
        self._drained.wake_all()

    def stalled_for(self, now: float) -> float:
        """Seconds that half a frame, or a pause of reading, has lasted, as seen from one call to the next."""
        stalled = self._paused or self._transport.mid_frame or self._rules.is_mid_frame
        progress = self._reads + self._rules.progress
        if not stalled or self._stall_since is None or progress != self._progress_seen:
            self._stall_since = now
        self._progress_seen = progress
        return now - self._stall_since

    def stop(self) -> None:
        """Read no more: write what is queued, then close."""
        self._reading.cancel()

    def abandon(self) -> None:
        """The transport is dead, or of no more use: write nothing more, and close."""
        self._lost = True
        self._reading.cancel()

    async def run(self) -> None:
        """Move frames until the connection stops the link or the transport is gone; then close the transport.

        To be run in a shielded scope: only the connection ends it, so that what is said last still goes out.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                with self._reading:
                    await self._receive()
                if not self._lost:
                    with trio.move_on_after(LEAVING):
                        await self._say_goodbye()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVING):
                await self._transport.aclose()

    async def _receive(self) -> None:
        transport, rules = self._transport, self._rules
        if self._first:
            frames, self._first = self._first, ()
            rules.on_frames(frames)
        while not rules.is_over:
            try:
                frames = await transport.receive()
            except RemoteProtocolError as error:
                rules.on_broken(error)
                return
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._lose(f"the transport broke: {reason(error)}", error)
                return
            if not frames:
                self._lose("the peer closed the transport", None)
                return
            if self._lost:
                # It came just when the link was given up: the peer heard of a position before it, and sends it again.
                return
            self._reads += 1
            rules.on_frames(frames)
            del frames  # nothing of them is to live until the next ones come
            while rules.is_congested and not rules.is_over:
                self._paused = True
                await self._drained.park()
            self._paused = False

    async def _send(self) -> None:
        transport, outbox, rules = self._transport, self._outbox, self._rules
        try:
            while not self._lost:
                frames = outbox.take()
                if not frames:
                    if self._leaving:
                        break
                    await self._wait_for_frames()
                    continue
                await transport.send(frames)
                rules.on_written()
                if self._drained:
                    self._drained.wake_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._lose(f"the transport broke: {reason(error)}", error)
            self._reading.cancel()
        finally:
            self._sent.set()
            self._drained.wake_all()

    async def _wait_for_frames(self) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._writer = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _lose(self, text: str, cause: Exception | None) -> None:
        self._lost = True
        lost = ConnectionLost(text)
        lost.__cause__ = cause
        self._rules.on_lost(lost)
        self.wake()

    async def _say_goodbye(self) -> None:
        """Let the send task empty the outbox, then end the transport in order."""
        self._leaving = True
        self.wake()
        await self._sent.wait()
        if not self._lost:
            await self._finish()

    async def _finish(self) -> None:
        try:
            await self._transport.finish()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The peer was quicker; there is nobody left to be polite to.
            return


def reason(error: BaseException) -> str:
    """The most telling text of a transport's exception: that of its cause, where there is one."""
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
