"""Transport over Aeron: one message is one frame, in a session of its own in each direction."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio
from trio.lowlevel import checkpoint

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.limits import MAX_FRAME_BYTES
from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.transports.aeron.media_driver import MediaDriver
from rsocket_trio.transports.aeron.publications import (
    BACK_PRESSURED,
    NOT_CONNECTED,
    AeronPublication,
    AeronSubscription,
)
from rsocket_trio.transports.base import Handshake, MessageTransport
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT

END = b""
"""The message that ends a direction: no frame is empty."""


class AeronTransport(MessageTransport, trio.abc.AsyncResource):
    """Frames as messages of Aeron. Made by the handshake, and closed by ``cut``.

    It reads when it is asked to receive: what is not received stays in Aeron's terms, and the peer's publication is
    pressed back. Cancelling ``receive`` loses nothing; after a cancelled ``send`` a part of the frames may be sent.
    """

    def __init__(
        self,
        driver: MediaDriver,
        publication: AeronPublication,
        subscription: AeronSubscription,
        handshake: Handshake,
    ) -> None:
        super().__init__(handshake)
        self.driver = driver
        self._publication = publication
        self._subscription = subscription
        self.largest = MAX_FRAME_BYTES
        """Bytes of the largest message that is received."""
        self._ready: list[bytes] = []
        self._unsent: deque[bytes] = deque()
        self._has_sent_end = False
        self._ended = False
        self._is_open = True
        driver.acquire()

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Add all frames, a message each, and wait while the peer is behind. Raise ``LocalProtocolError`` for one that
        is too large for the channel; nothing is sent then.
        """
        self._put(frames)
        await self._flush()

    def send_at_once(self, frames: Sequence[EncodedFrame]) -> bool:
        """Add all frames without waiting. Return False if some are left: they go first with the next ``send``."""
        if len(frames) == 1 and not self._unsent and type(frames[0]) is bytes:
            # Mostly so: nothing is queued for a frame that is taken.
            frame = frames[0]
            position = self._publication.offer(frame) if len(frame) <= self._publication.max_message else BACK_PRESSURED
            if position > 0:
                self.driver.duty.push()
                return True
        self._put(frames)
        is_done = self._offer()
        self.driver.duty.push()
        return is_done

    async def _take(self) -> list[bytes]:
        if self._ended:
            await checkpoint()
            return []
        await self.driver.duty.until(self._read, watched=self._subscription.received)
        ready, self._ready = self._ready, []
        return ready

    async def finish(self, code: int = 1000) -> None:
        """Send the end, then discard what comes until the peer does the same, at most 4 MiB.

        No task may be in ``send`` or ``receive`` meanwhile. The caller bounds the time.
        """
        discarded = 0
        try:
            if not self._has_sent_end:
                self._has_sent_end = True
                self._unsent.append(END)
            await self._flush()
            while not self._ended and discarded < DISCARD_LIMIT:
                discarded += sum(map(len, await self._take()))
        except (trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError):
            pass

    def cut(self) -> bool:
        """Close at once, and tell the peer if there is room for that. Return True."""
        if self._is_open:
            self._is_open = False
            driver = self.driver
            if driver.takes_more and self._publication.is_connected and not self._has_sent_end:
                self._unsent.clear()
                self._publication.offer(END)
                self.driver.duty.push()
            self._publication.close()
            self._subscription.close()
            self.driver.duty.push()
            driver.release()
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

    async def _flush(self) -> None:
        """Wait until all that is unsent was added, and have the driver send it."""
        await self.driver.duty.until(self._offer)
        self.driver.duty.push()

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
        driver = self.driver
        if driver.duty.fault is not None:
            return trio.BrokenResourceError(driver.duty.fault)
        peer = self.handshake.peer_address
        if position == NOT_CONNECTED:
            return trio.BrokenResourceError(f"the peer {peer} has gone, or was silent for {driver.timeout} s")
        return trio.BrokenResourceError(f"the publication to {peer} is over: Aeron's answer is {position}")

    def _read(self) -> bool:
        """Take messages that are here. Return whether there were any, or no more can come."""
        messages = self._subscription.take()
        if not messages:
            if self._subscription.is_lost:
                raise self._refused(NOT_CONNECTED)
            return False
        for number, message in enumerate(messages):
            size = len(message)
            self.driver.duty.taken += size
            if not size:
                self._ended = True
                del messages[number:]
                break
            if size > self.largest:
                raise RemoteProtocolError(f"message of {size} bytes, limit {self.largest}")
        self._ready += messages
        return True
