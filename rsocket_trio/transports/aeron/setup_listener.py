"""Listens for SETUPs on Aeron channels, and accepts connections."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Generator, Sequence

import attrs
import trio

from rsocket_trio.transports.aeron.channels import Channel, address_of, resolved, with_port, written
from rsocket_trio.transports.aeron.directories import hold_ipc
from rsocket_trio.transports.aeron.media_driver import MAX_MANAGEMENT_IMAGES, MediaDriver, driver_of
from rsocket_trio.transports.aeron.message_transport import AeronTransport
from rsocket_trio.transports.aeron.publications import Subscription, add_management, add_subscription
from rsocket_trio.transports.aeron.setup_exchange import (
    HANDSHAKE_TIMEOUT,
    SERVER_MANAGEMENT,
    SETUP,
    answer,
    close_all,
    decode_setup_message,
)
from rsocket_trio.transports.schemes import AnyListener, Endpoint, ListenOptions

HANDSHAKES = 128
"""Handshakes at a time. Beyond: SETUPs are dropped."""
MAX_REFUSED = 64
"""Publications to the stream of SETUPs that the driver is let refuse in a flood of them, before none are asked for."""
PAUSE = 1.0
"""Seconds without a subscription to that stream: the driver ignores a flood, and drops what it has made of it."""
ANCHOR = 0
"""A stream that nobody sends on: a subscription to it keeps the port meanwhile."""

logger = logging.getLogger("rsocket_trio")


async def listen(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[AnyListener]]:
    """Listen for SETUPs. Return the endpoint with its port, and the listener. Raise ``OSError``."""
    if Channel.of(endpoint).control is not None:
        raise OSError(errno.EINVAL, "control is where a client receives; a server receives at endpoint")
    if options.over is not None and not isinstance(options.over, MediaDriver):
        raise OSError(errno.EINVAL, f"over is a media driver, not {type(options.over).__name__}")
    listener = AeronListener(endpoint, options.over)
    await listener.open()
    return listener.endpoint, [listener]


class AeronListener(trio.abc.Listener[AeronTransport]):
    """Accepts connections whose SETUPs come on one channel. Once its driver is gone it listens over a new one."""

    def __init__(self, endpoint: Endpoint, over: MediaDriver | None) -> None:
        self.endpoint = endpoint
        self._over = over
        self._driver: MediaDriver | None = None
        self._channel = Channel.of(endpoint)
        self._tag = 0
        self._setups: Subscription | None = None
        self._refused = 0
        self._shedding: Generator[None, None, None] | None = None
        self._name: socket.socket | None = None
        self._streams = -1
        self._handshakes: dict[int, tuple[float, Generator[None, None, AeronTransport]]] = {}
        self._accepted: list[AeronTransport] = []
        self._round = -1

    async def open(self) -> None:
        """Begin to listen. Raise ``OSError``."""
        channel = Channel.of(self.endpoint)
        self._driver = driver = driver_of(channel, start=True) if self._over is None else self._over
        driver.acquire(blind=channel.is_ipc)
        try:
            if not channel.is_ipc:
                address, _ = await resolved(self.endpoint.host, self.endpoint.port)
                channel = attrs.evolve(channel, endpoint=written(*address))
            elif self._name is None:
                self._name = hold_ipc(driver.directory)
            self._channel = channel
            self._tag = driver.library.client.aeron_next_correlation_id(driver.client)
            self._refused = driver.refused
            self._setups = await driver.duty.complete(self._subscribe(driver), Subscription.close)
            if not channel.is_ipc:
                self.endpoint = with_port(self.endpoint, await driver.duty.complete(_port(self._setups)))
        except trio.BrokenResourceError as error:
            self._leave_driver()
            raise OSError(errno.EIO, str(error)) from error
        except BaseException:
            self._leave_driver()
            raise

    def _subscribe(self, driver: MediaDriver) -> Generator[None, None, Subscription]:
        """Subscribe to the stream of SETUPs."""
        return add_management(driver, self._channel.at(self._channel.endpoint, tag=self._tag), SERVER_MANAGEMENT)

    async def accept(self) -> AeronTransport:
        """Return the next connection. Raise ``OSError`` if the driver is gone, and nothing can be listened on anew."""
        while True:
            assert self._driver is not None
            try:
                await self._driver.duty.until(self._progress, is_patient=True)
            except trio.BrokenResourceError as error:
                if self._over is not None:
                    raise OSError(errno.EIO, str(error)) from error
                logger.warning("%s: %s; listening anew", self.endpoint, str(error))
                # It holds the port, and nothing over it goes on.
                self._driver.close("it has ended")
                self._leave_driver(keeps_name=True)
                await self.open()
            else:
                return self._accepted.pop(0)

    def _leave_driver(self, *, keeps_name: bool = False) -> None:
        """Close what this has of the driver."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        for connection in tuple(self._handshakes):
            self._leave(connection, driver)
        for transport in self._accepted:
            transport.cut()
        self._accepted.clear()
        if self._shedding is not None:
            self._shedding.close()
            self._shedding = None
        if self._setups is not None:
            self._setups.close()
            self._setups = None
        if self._name is not None and not keeps_name:
            self._name.close()
            self._name = None
        driver.release(blind=self._channel.is_ipc)

    async def aclose(self) -> None:
        """Accept no more; connections that were not accepted are closed."""
        self._leave_driver()
        await trio.lowlevel.checkpoint()

    def _progress(self) -> bool:
        """Take SETUPs, and go on with all handshakes. Return whether a connection is there to be accepted."""
        driver = self._driver
        if driver is None:
            raise trio.ClosedResourceError("the listener was closed")
        if not self._handshakes and self._round == driver.duty.rounds:
            return bool(self._accepted)
        self._round = driver.duty.rounds
        if self._setups is not None:
            for data in self._setups.poll():
                self._begin(data, driver)
            if self._shedding is None and self._is_flooded(self._setups, driver):
                self._shedding = self._shed(self._setups, driver)
        if self._shedding is not None and next(self._shedding, True):
            self._shedding = None
        now = trio.current_time()
        for connection, (deadline, steps) in tuple(self._handshakes.items()):
            try:
                next(steps)
            except StopIteration as end:
                self._accepted.append(end.value)
                self._leave(connection, driver)
            except (OSError, ValueError, trio.BrokenResourceError) as error:
                logger.debug("aeron: a client was turned away: %s", error)
                self._leave(connection, driver)
            else:
                if now >= deadline:
                    logger.debug("aeron: a client went during its handshake")
                    self._leave(connection, driver)
        return bool(self._accepted)

    def _begin(self, data: bytes, driver: MediaDriver) -> None:
        """Begin the handshake that a message asks for, if it is a SETUP, and not too many are under way."""
        try:
            setup = decode_setup_message(data)
        except ValueError as error:
            logger.debug("aeron: a message is no SETUP: %s", error)
            return
        if setup.kind != SETUP or setup.connection in self._handshakes:
            return
        if len(self._handshakes) + len(self._accepted) >= HANDSHAKES:
            logger.debug("aeron: a SETUP was dropped: %d handshakes are under way", HANDSHAKES)
            return
        self._streams += 2
        steps = answer(driver, self._channel, self._tag, self._streams, setup)
        self._handshakes[setup.connection] = (trio.current_time() + HANDSHAKE_TIMEOUT, steps)
        driver.duty.hurried += 1
        driver.duty.hurry()

    def _is_flooded(self, setups: Subscription, driver: MediaDriver) -> bool:
        """Return whether so many publish to the stream of SETUPs that others find no place."""
        return driver.refused - self._refused > MAX_REFUSED or setups.image_count >= MAX_MANAGEMENT_IMAGES

    def _shed(self, setups: Subscription, driver: MediaDriver) -> Generator[None, None, None]:
        """Ask for no SETUPs for a while. Handshakes and connections go on."""
        logger.warning("%s: a flood of publications; nobody is accepted for %g s", self.endpoint, PAUSE)
        channel = self._channel
        kept: list[Subscription] = []
        try:
            if not channel.is_ipc:
                port = channel.at(channel.endpoint, ANCHOR, self._tag)
                kept.append((yield from add_subscription(driver, port, ANCHOR)))
            setups.close()
            self._setups = None
            while self._setups is None:
                paused_at = trio.current_time()
                while trio.current_time() - paused_at < PAUSE:
                    yield
                self._refused = driver.refused
                try:
                    self._setups = yield from self._subscribe(driver)
                except OSError as error:
                    logger.warning("%s: nobody is accepted yet: %s", self.endpoint, error)
        finally:
            close_all(kept)

    def _leave(self, connection: int, driver: MediaDriver) -> None:
        """End a handshake."""
        _, steps = self._handshakes.pop(connection)
        steps.close()
        driver.duty.hurried -= 1


def _port(subscription: Subscription) -> Generator[None, None, int]:
    """Return the port of a subscription, once it is bound."""
    while not (channel := subscription.resolved_channel):
        yield
    return int(address_of(channel).rpartition(":")[2])
