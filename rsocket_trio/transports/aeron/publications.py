"""Publications and subscriptions of Aeron's client, each closed once, and the transport of frames over one of each."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import trio
from trio.lowlevel import checkpoint

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.limits import MAX_FRAME_BYTES
from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.transports.aeron.media_driver import MAX_TERM_LENGTH, MediaDriver
from rsocket_trio.transports.base import Handshake, MessageTransport
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT

NOT_CONNECTED = -1
BACK_PRESSURED = -2
ADMIN_ACTION = -3
MAX_FRAGMENTS = 256
"""Fragments of messages that one poll takes at most."""
MIN_FRAGMENT = 1408
"""Bytes of a fragment of a message that goes on, as Aeron cuts them by default."""
RECEIVER_POSITION = 5
"""The type of the counters with positions up to which a driver has received."""


class ClientResource:
    """An object of Aeron's client. The driver is asked for it when this is made, and answers after some steps.

    A block that fails closes it.
    """

    __slots__ = ("_adding", "_driver", "_pointer", "channel")

    kind: ClassVar[str]
    """Its part of the names of Aeron's functions."""

    def __init__(self, driver: MediaDriver, channel: str, stream: int) -> None:
        """Ask for it. Raise ``OSError``."""
        library = driver.library
        self._driver = driver
        self._pointer: object = None
        self._adding: Any = library.ffi.new("void **")
        self.channel = channel
        handlers = [library.ffi.NULL] * 4 if self.kind == "subscription" else []
        add = getattr(library.api, f"aeron_async_add_{self.kind}")
        library.check(add(self._adding, driver.client, channel.encode(), stream, *handlers), channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close()

    def is_added(self) -> bool:
        """Return whether the driver has added it. Raise ``OSError`` if it refuses."""
        if self._adding is not None:
            library = self._driver.library
            added = library.ffi.new("void **")
            answer = getattr(library.api, f"aeron_async_add_{self.kind}_poll")(added, self._adding[0])
            if answer == 0:
                return False
            self._adding = None
            library.check(answer, "")
            self._pointer = added[0]
            self._driver.resources.add(self)
            self._begin()
        return True

    def _begin(self) -> None:
        """Prepare the use of what was added. Raise ``OSError``."""

    def close(self) -> None:
        """Close it. One that was not added yet is left to the driver, which closes it then."""
        if self._pointer is not None:
            library = self._driver.library
            getattr(library.api, f"aeron_{self.kind}_close")(self._pointer, library.ffi.NULL, library.ffi.NULL)
            self.lose()
        elif self._adding is not None and self._driver.duty.fault is None:
            self._driver.orphans.add(self)

    def lose(self) -> None:
        """Forget the object: it is gone already."""
        self._pointer = None
        self._driver.resources.discard(self)


class AeronPublication(ClientResource):
    """A sequence of messages to those who subscribe to its channel, stream and session; nobody else adds to it."""

    __slots__ = ("_null", "_offer", "max_message", "term_length")

    kind = "exclusive_publication"

    def __init__(self, driver: MediaDriver, channel: str, stream: int) -> None:
        super().__init__(driver, channel, stream)
        self._null = driver.library.ffi.NULL
        self._offer = driver.library.api.aeron_exclusive_publication_offer
        self.max_message = 0
        self.term_length = 0

    def _begin(self) -> None:
        library = self._driver.library
        constants = library.ffi.new("aeron_publication_constants_t *")
        get = library.api.aeron_exclusive_publication_constants
        library.check(get(self._pointer, constants), f"no publication {self.channel}")
        self.max_message = constants.max_message_length
        self.term_length = constants.term_buffer_length
        if self.term_length > MAX_TERM_LENGTH:
            raise OSError(errno.EINVAL, f"the term-length {self.term_length} is above {MAX_TERM_LENGTH}")

    @property
    def is_connected(self) -> bool:
        """Return whether anyone receives."""
        pointer = self._pointer
        return pointer is not None and self._driver.library.api.aeron_exclusive_publication_is_connected(pointer)

    def offer(self, message: bytes) -> int:
        """Add a message; the driver still repeats it after a close.

        Return a position, or one of Aeron's numbers below 0. Raise ``ClosedResourceError``.
        """
        pointer, null = self._pointer, self._null
        if pointer is None:
            raise trio.ClosedResourceError("the publication was closed")
        while True:
            position: int = self._offer(pointer, message, len(message), null, null)
            if position != ADMIN_ACTION:  # a new term began: the next try finds it
                return position


class AeronSubscription(ClientResource):
    """The messages of a channel and stream."""

    __slots__ = ("_assembler", "_handler", "_image", "_poll", "received")

    kind = "subscription"

    def __init__(self, driver: MediaDriver, channel: str, stream: int) -> None:
        super().__init__(driver, channel, stream)
        self._image: object = None
        self._assembler: object = None
        self._handler: object = None
        self.received: Sequence[int] | None = None
        """Points to the position up to which the one publisher's messages are here; ``None`` if it is not known."""
        self._poll = driver.library.api.aeron_image_poll

    def close(self) -> None:
        if self._image is not None:
            self._driver.library.api.aeron_subscription_image_release(self._pointer, self._image)
        super().close()

    def lose(self) -> None:
        super().lose()
        self._image = self.received = None
        if self._assembler is not None:
            self._driver.library.api.aeron_image_fragment_assembler_delete(self._assembler)
            self._assembler = None
        self._driver.management.discard(self)

    @property
    def image_count(self) -> int:
        """Return how many publications it receives."""
        count: int = self._driver.library.api.aeron_subscription_image_count(self._pointer)
        return count

    @property
    def resolved_channel(self) -> str:
        """Return the channel with the port that the system chose; empty while that is not known."""
        library = self._driver.library
        text = library.ffi.new("char[1024]")
        resolve = library.api.aeron_subscription_try_resolve_channel_endpoint_port
        length = resolve(self._pointer, text, len(text))
        return "" if length <= 0 else library.text(text)

    def poll(self) -> list[bytes]:
        """Return messages of all publishers, each no longer than a fragment. Raise ``ClosedResourceError``."""
        driver = self._driver
        if self._pointer is None:
            raise trio.ClosedResourceError("the subscription was closed")
        client, null = driver.library.api, driver.library.ffi.NULL
        client.aeron_subscription_poll(self._pointer, driver.on_message, null, MAX_FRAGMENTS)
        messages, driver.received = driver.received, []
        return messages

    def attach(self) -> bool:
        """Find the one publisher, to read from it alone. Return whether there is one."""
        library = self._driver.library
        client, ffi = library.api, library.ffi
        if self._pointer is None:
            raise trio.ClosedResourceError("the subscription was closed")
        if not client.aeron_subscription_image_count(self._pointer):
            return False
        made = ffi.new("void **")
        create = client.aeron_image_fragment_assembler_create
        library.check(create(made, self._driver.on_message, ffi.NULL), "no memory")
        self._assembler = made[0]
        self._handler = ffi.addressof(client, "aeron_image_fragment_assembler_handler")
        self._image = client.aeron_subscription_image_at_index(self._pointer, 0)
        if self._driver.is_embedded:
            constants = ffi.new("aeron_image_constants_t *")
            library.check(client.aeron_image_constants(self._image, constants), "no image")
            reader = client.aeron_counters_reader(self._driver.client)
            find = client.aeron_counters_reader_find_by_type_id_and_registration_id
            counter = find(reader, RECEIVER_POSITION, constants.correlation_id)
            if counter >= 0:  # over shared memory there is none
                self.received = client.aeron_counters_reader_addr(reader, counter)
        return True

    def take(self) -> list[bytes]:
        """Return the next messages of the one publisher, whole, as a list that nobody else uses if there are any.

        Raise ``ClosedResourceError``.
        """
        driver = self._driver
        if self._image is None:
            raise trio.ClosedResourceError("the subscription was closed")
        fragments = self._poll(self._image, self._handler, self._assembler, MAX_FRAGMENTS)
        if not fragments:
            return []
        messages = driver.received
        if messages:
            driver.received = []
        else:
            driver.duty.taken += fragments * MIN_FRAGMENT  # of a message that goes on
        return messages

    @property
    def is_lost(self) -> bool:
        """Return whether the publisher is gone: it was silent for too long, or has closed."""
        return self._image is None or self._driver.library.api.aeron_image_is_closed(self._image)


END = b""
"""The message that ends a direction: no frame is empty."""


class AeronTransport(MessageTransport, trio.abc.AsyncResource):
    """Frames as messages of Aeron. Made by the handshake, and closed by ``cut``.

    It reads when it is asked to receive: what is not received stays in Aeron's terms, and the peer's publication is
    pressed back. Cancelling ``receive`` loses nothing; after a cancelled ``send`` a part of the frames may be sent.
    """

    def __init__(
        self, driver: MediaDriver, publication: AeronPublication, subscription: AeronSubscription, handshake: Handshake
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
        """Close at once, and tell the peer if there is room for that."""
        if self._is_open:
            self._is_open = False
            driver = self.driver
            if driver.duty.fault is None and self._publication.is_connected and not self._has_sent_end:
                self._unsent.clear()
                self._publication.offer(END)
                self.driver.duty.push()
            self._publication.close()
            self._subscription.close()
            self.driver.duty.push()
            driver.release()
        return True

    async def aclose(self) -> None:
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
