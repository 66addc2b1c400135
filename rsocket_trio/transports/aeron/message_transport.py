"""Transport over Aeron: one message is one frame, in a session of its own in each direction."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio
from trio.lowlevel import checkpoint

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.limits import LARGEST_FRAME
from rsocket_trio.mux.framing import EncodedFrame, Framing, whole
from rsocket_trio.transports.aeron.duty_cycle import DutyCycle
from rsocket_trio.transports.aeron.media_driver import MediaDriver
from rsocket_trio.transports.aeron.publications import BACK_PRESSURED, NOT_CONNECTED, Publication, Subscription
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT

END = b""
"""The message that ends a direction, once: no frame is empty. A second one says that the end of the other direction has
come, so that its sender needs to repeat nothing any more."""
FAREWELL = 0.2
"""Seconds to wait for the second one."""


class AeronTransport(trio.abc.AsyncResource):
    """Frames as messages of Aeron. Made by the handshake, and closed by ``cut``.

    It reads when it is asked to receive: what is not received stays in Aeron's terms, and the peer's publication is
    pressed back. Cancelling ``receive`` loses nothing; after a cancelled ``send`` a part of the frames may be sent.
    """

    __slots__ = (
        "_acknowledged",
        "_blind",
        "_driver",
        "_duty",
        "_ended",
        "_is_open",
        "_largest",
        "_publication",
        "_ready",
        "_round",
        "_said_end",
        "_shown",
        "_subscription",
        "_unsent",
        "handshake",
    )

    is_message_based = True
    is_idle = False
    mid_frame = False

    def __init__(
        self,
        driver: MediaDriver,
        publication: Publication,
        subscription: Subscription,
        handshake: Handshake,
        *,
        blind: bool,
    ) -> None:
        self.handshake = handshake
        self._driver = driver
        self._duty: DutyCycle = driver.duty
        self._publication = publication
        self._subscription = subscription
        self._blind = blind
        self._largest = LARGEST_FRAME
        self._ready: list[bytes] = []
        self._shown = 0
        self._unsent: deque[bytes] = deque()
        self._said_end = False
        self._ended = False
        self._acknowledged = False
        self._round = -1
        self._is_open = True
        driver.acquire(blind=blind)

    @property
    def driver(self) -> MediaDriver:
        """Return the driver that it goes over."""
        return self._driver

    def limit(self, largest: int) -> None:
        """Refuse messages of more bytes."""
        self._largest = largest

    def use_framing(self, framing: Framing) -> None:
        """Do nothing: messages are frames."""

    async def peek(self) -> tuple[bytes, bool]:
        """Return the first message, at each further call with one more, and whether no more can come.

        ``receive`` delivers them again.
        """
        while self._shown == len(self._ready) and not self._ended:
            await self._duty.until(self._take, watched=self._subscription.received)
        ended = self._shown == len(self._ready)
        self._shown += not ended
        return b"".join(self._ready[: self._shown]), ended

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Add all frames, a message each, and wait while the peer is behind. Raise ``LocalProtocolError`` for one that
        is too large for the channel; nothing is sent then.
        """
        self._put(frames)
        await self._duty.until(self._offer)
        self._duty.push()

    def send_at_once(self, frames: Sequence[EncodedFrame]) -> bool:
        """Add all frames without waiting. Return False if some are left: they go first with the next ``send``."""
        if len(frames) == 1 and not self._unsent and type(frames[0]) is bytes:
            # Mostly so: nothing is queued for a frame that is taken.
            frame = frames[0]
            position = self._publication.offer(frame) if len(frame) <= self._publication.max_message else BACK_PRESSURED
            if position > 0:
                self._duty.push()
                return True
        self._put(frames)
        is_done = self._offer()
        self._duty.push()
        return is_done

    async def receive(self) -> Sequence[bytes]:
        """Return the next messages, at least one; an empty sequence once the peer has ended."""
        if not self._ready:
            if self._ended:
                await checkpoint()
                return ()
            await self._duty.until(self._take, watched=self._subscription.received)
        frames, self._ready = self._ready, []
        self._shown = 0
        return frames

    async def finish(self, code: int = 1000) -> None:
        """Send the end, then discard what comes until the peer does the same, at most 4 MiB.

        No task may be in ``send`` or ``receive`` meanwhile. The caller bounds the time.
        """
        discarded = 0
        try:
            self._say_end()
            await self._duty.until(self._offer)
            self._duty.push()
            while not self._ended and discarded < DISCARD_LIMIT:
                discarded += sum(map(len, await self.receive()))
            if self._ended and not self._subscription.is_lost:
                self._unsent.append(END)
                await self._duty.until(self._offer)
                self._duty.push()
                with trio.move_on_after(FAREWELL):
                    await self._duty.until(self._is_acknowledged)
        except (trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError):
            pass

    def cut(self) -> bool:
        """Close at once, and tell the peer if there is room for that. Return True."""
        if self._is_open:
            self._is_open = False
            driver = self._driver
            if driver.fault is None and self._publication.is_open and not self._said_end:
                self._unsent.clear()
                for _ in range(1 + self._ended):
                    self._publication.offer(END)
                self._duty.push()
            self._publication.close()
            self._subscription.close()
            self._duty.unwatch(self._take)  # nothing comes any more
            self._duty.push()
            driver.release(blind=self._blind)
        return True

    async def aclose(self) -> None:
        """Close at once."""
        self.cut()
        await checkpoint()

    def _put(self, frames: Sequence[EncodedFrame]) -> None:
        largest = self._publication.max_message
        messages = [whole(frame) for frame in frames]
        for message in messages:
            if len(message) > largest:
                raise LocalProtocolError(
                    f"frame of {len(message)} bytes, limit {largest}: an eighth of the channel's term-length, "
                    f"{self._publication.term_length}; set a larger one, or a smaller fragment_size"
                )
        self._unsent.extend(messages)

    def _say_end(self) -> None:
        if not self._said_end:
            self._said_end = True
            self._unsent.append(END)

    def _offer(self) -> bool:
        """Add what is unsent. Return whether nothing is left."""
        unsent, offer = self._unsent, self._publication.offer
        while unsent:
            position = offer(unsent[0])
            if position < 0:
                if position == BACK_PRESSURED:
                    return False
                raise self._refused(position)
            unsent.popleft()
        return True

    def _refused(self, position: int) -> trio.BrokenResourceError:
        driver = self._driver
        if driver.fault is not None:
            return trio.BrokenResourceError(driver.fault)
        peer = self.handshake.peer_address
        if position == NOT_CONNECTED:
            return trio.BrokenResourceError(f"the peer {peer} has gone, or was silent for {driver.timeout} s")
        return trio.BrokenResourceError(f"the publication to {peer} is over: Aeron's answer is {position}")

    def _take(self) -> bool:
        """Take messages that are here. Return whether there were any, or no more can come."""
        if self._ended:
            return True
        subscription, duty = self._subscription, self._duty
        messages = subscription.take()
        if not messages:
            if duty.rounds == self._round:
                return False
            # The client closes images in its own work only.
            self._round = duty.rounds
            if subscription.is_at_end:
                self._ended = True
            elif subscription.is_lost:
                raise self._refused(NOT_CONNECTED)
            return self._ended
        largest = self._largest
        taken = 0
        for message in messages:
            size = len(message)
            taken += size
            if not size:
                self._ended = True
                end = messages.index(END)
                self._acknowledged = END in messages[end + 1 :]
                del messages[end:]
                break
            if size > largest:
                raise RemoteProtocolError(f"message of {size} bytes, limit {largest}")
        duty.taken += taken
        if self._ready:
            self._ready += messages
        else:
            self._ready = messages
        return True

    def _is_acknowledged(self) -> bool:
        """Return whether the peer has our end, or is gone."""
        if not self._acknowledged:
            self._acknowledged = bool(self._subscription.take()) or self._subscription.is_lost
        return self._acknowledged or not self._publication.is_connected
