"""Publications and subscriptions of Aeron's client: added step by step, used, and closed once."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

import trio

from rsocket_trio.transports.aeron.media_driver import MAX_TERM_LENGTH, MediaDriver

NOT_CONNECTED = -1
BACK_PRESSURED = -2
ADMIN_ACTION = -3
FRAGMENTS = 256
"""Fragments of messages that one poll takes at most."""
MANAGEMENT_FRAGMENTS = 16
RECEIVER_POSITION = 5
"""The type of the counters with positions up to which a driver has received."""

Added = TypeVar("Added", "Publication", "Subscription")


class Publication:
    """A sequence of messages to those who subscribe to its channel, stream and session; nobody else adds to it."""

    __slots__ = ("_driver", "_null", "_offer", "_pointer", "channel", "max_message", "term_length")

    def __init__(self, driver: MediaDriver, pointer: Any, channel: str) -> None:
        self._driver = driver
        self._pointer = pointer
        self.channel = channel
        self._null = driver.library.ffi.NULL
        self._offer = driver.library.client.aeron_exclusive_publication_offer
        constants = driver.library.ffi.new("aeron_publication_constants_t *")
        driver.library.check(
            driver.library.client.aeron_exclusive_publication_constants(pointer, constants), f"no publication {channel}"
        )
        self.max_message: int = constants.max_message_length
        self.term_length: int = constants.term_buffer_length
        driver.resources.add(self)

    @property
    def is_open(self) -> bool:
        """Return whether it was not closed."""
        return self._pointer is not None

    @property
    def is_connected(self) -> bool:
        """Return whether anyone receives."""
        pointer = self._pointer
        return pointer is not None and self._driver.library.client.aeron_exclusive_publication_is_connected(pointer)

    def offer(self, message: bytes) -> int:
        """Add a message. Return a position, or one of Aeron's numbers below 0. Raise ``ClosedResourceError``."""
        pointer, null = self._pointer, self._null
        if pointer is None:
            raise trio.ClosedResourceError("the publication was closed")
        while True:
            position: int = self._offer(pointer, message, len(message), null, null)
            if position != ADMIN_ACTION:  # a new term began: the next try finds it
                return position

    def close(self) -> None:
        """Close it; the driver still answers those who missed something."""
        if self._pointer is not None:
            client, null = self._driver.library.client, self._driver.library.ffi.NULL
            client.aeron_exclusive_publication_close(self._pointer, null, null)
            self.lose()

    def lose(self) -> None:
        """Forget the object: it is gone already."""
        self._pointer = None
        self._driver.resources.discard(self)


class Subscription:
    """The messages of a channel and stream."""

    __slots__ = ("_assembler", "_driver", "_handler", "_image", "_length", "_pointer", "_poll", "channel", "received")

    def __init__(self, driver: MediaDriver, pointer: Any, channel: str) -> None:
        self._driver = driver
        self._pointer = pointer
        self.channel = channel
        self._image: Any = None
        self._assembler: Any = None
        self._handler: Any = None
        self._length = 0
        self.received: Any = None
        """Points to the position up to which the one publisher's messages are here; ``None`` if it is not known."""
        self._poll = driver.library.client.aeron_image_poll
        driver.resources.add(self)

    @property
    def image_count(self) -> int:
        """Return how many publications it receives."""
        count: int = self._driver.library.client.aeron_subscription_image_count(self._pointer)
        return count

    @property
    def resolved_channel(self) -> str:
        """Return the channel with the port that the system chose; empty while that is not known."""
        library = self._driver.library
        text = library.ffi.new("char[1024]")
        client = library.client
        length = client.aeron_subscription_try_resolve_channel_endpoint_port(self._pointer, text, len(text))
        return "" if length <= 0 else library.ffi.string(text).decode()

    def poll(self) -> list[bytes]:
        """Return messages of all publishers, each no longer than a fragment."""
        driver = self._driver
        if self._pointer is None:
            raise trio.ClosedResourceError("the subscription was closed")
        client, null = driver.library.client, driver.library.ffi.NULL
        client.aeron_subscription_poll(self._pointer, driver.on_message, null, MANAGEMENT_FRAGMENTS)
        messages, driver.received = driver.received, []
        return messages

    def attach(self) -> bool:
        """Find the one publisher, to read from it alone. Return whether there is one."""
        library = self._driver.library
        client, ffi = library.client, library.ffi
        if self._pointer is None:
            raise trio.ClosedResourceError("the subscription was closed")
        if not client.aeron_subscription_image_count(self._pointer):
            return False
        made = ffi.new("void **")
        library.check(
            client.aeron_image_fragment_assembler_create(made, self._driver.on_message, ffi.NULL), "no memory"
        )
        self._assembler = made[0]
        self._handler = ffi.addressof(client, "aeron_image_fragment_assembler_handler")
        self._image = client.aeron_subscription_image_at_index(self._pointer, 0)
        constants = ffi.new("aeron_image_constants_t *")
        library.check(client.aeron_image_constants(self._image, constants), "no image")
        self._length = constants.mtu_length
        if self._driver.is_embedded:
            self.received = self._position(constants.correlation_id)
        return True

    def _position(self, image: int) -> Any:
        """Return a pointer to the counter with the position of what a driver of this process has received."""
        library = self._driver.library
        reader = library.client.aeron_counters_reader(self._driver.client)
        with suppress(AttributeError):  # older clients don't look for counters
            found = library.client.aeron_counters_reader_find_by_type_id_and_registration_id(
                reader, RECEIVER_POSITION, image
            )
            if found >= 0:
                return library.client.aeron_counters_reader_addr(reader, found)
        return None  # over shared memory there is none

    def take(self) -> list[bytes]:
        """Return the next messages of the one publisher, whole, as a list that nobody else uses if there are any.

        Raise ``ClosedResourceError``.
        """
        driver = self._driver
        if self._image is None:
            raise trio.ClosedResourceError("the subscription was closed")
        fragments = self._poll(self._image, self._handler, self._assembler, FRAGMENTS)
        if not fragments:
            return []
        messages = driver.received
        if messages:
            driver.received = []
        else:
            driver.duty.taken += fragments * self._length  # of a message that goes on
        return messages

    @property
    def is_at_end(self) -> bool:
        """Return whether the publisher has closed, and everything was taken."""
        return self._image is not None and self._driver.library.client.aeron_image_is_end_of_stream(self._image)

    @property
    def is_lost(self) -> bool:
        """Return whether the publisher is gone: it was silent for too long, or has closed."""
        return self._image is None or self._driver.library.client.aeron_image_is_closed(self._image)

    def close(self) -> None:
        """Stop receiving."""
        if self._pointer is not None:
            client, null = self._driver.library.client, self._driver.library.ffi.NULL
            if self._image is not None:
                client.aeron_subscription_image_release(self._pointer, self._image)
            client.aeron_subscription_close(self._pointer, null, null)
            self.lose()

    def lose(self) -> None:
        """Forget the object: it is gone already."""
        self._pointer = self._image = self.received = None
        if self._assembler is not None:
            self._driver.library.client.aeron_image_fragment_assembler_delete(self._assembler)
            self._assembler = None
        self._driver.resources.discard(self)
        self._driver.management.discard(self)


def add_management(driver: MediaDriver, channel: str, stream: int) -> Generator[None, None, Subscription]:
    """Add a subscription to SETUPs, as ``add_subscription`` does."""
    subscription = yield from add_subscription(driver, channel, stream)
    driver.management.add(subscription)
    return subscription


def add_subscription(driver: MediaDriver, channel: str, stream: int) -> Generator[None, None, Subscription]:
    """Add a subscription, in as many steps as that takes. Raise ``OSError``."""
    library, null = driver.library, driver.library.ffi.NULL
    adding = library.ffi.new("void **")
    add = library.client.aeron_async_add_subscription
    library.check(add(adding, driver.client, channel.encode(), stream, null, null, null, null), channel)
    poll = library.client.aeron_async_add_subscription_poll
    return (yield from _finished(driver, adding, poll, channel, Subscription))


def add_publication(driver: MediaDriver, channel: str, stream: int) -> Generator[None, None, Publication]:
    """Add a publication, in as many steps as that takes. Raise ``OSError``."""
    library = driver.library
    adding = library.ffi.new("void **")
    add = library.client.aeron_async_add_exclusive_publication
    library.check(add(adding, driver.client, channel.encode(), stream), channel)
    poll = library.client.aeron_async_add_exclusive_publication_poll
    publication = yield from _finished(driver, adding, poll, channel, Publication)
    if publication.term_length > MAX_TERM_LENGTH:
        publication.close()
        raise OSError(errno.EINVAL, f"the term-length {publication.term_length} is above {MAX_TERM_LENGTH}")
    return publication


def _finished(
    driver: MediaDriver, adding: Any, poll: Callable[[Any, Any], int], channel: str, kind: type[Added]
) -> Generator[None, None, Added]:
    """Ask until the driver has answered. One who asks no more leaves the rest to the driver, which closes it then."""
    is_answered = False
    try:
        added = yield from _polled(driver, adding, poll, channel, kind)
        is_answered = True
    except OSError:
        is_answered = True
        raise
    finally:
        if not is_answered and driver.fault is None:
            driver.orphans.append(_polled(driver, adding, poll, channel, kind))
    return added


def _polled(
    driver: MediaDriver, adding: Any, poll: Callable[[Any, Any], int], channel: str, kind: type[Added]
) -> Generator[None, None, Added]:
    library = driver.library
    made = library.ffi.new("void **")
    while (answer := poll(made, adding[0])) == 0:
        yield
    library.check(answer, "")
    return kind(driver, made[0], channel)
