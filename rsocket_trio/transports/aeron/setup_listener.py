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
from rsocket_trio.transports.aeron.media_driver import MediaDriver, driver_of
from rsocket_trio.transports.aeron.message_transport import AeronTransport
from rsocket_trio.transports.aeron.publications import Subscription, add_subscription
from rsocket_trio.transports.aeron.setup_exchange import (
    HANDSHAKE_TIMEOUT,
    SERVER_MANAGEMENT,
    SETUP,
    answer,
    decode_setup_message,
)
from rsocket_trio.transports.schemes import AnyListener, Endpoint, ListenOptions

HANDSHAKES = 128
"""Handshakes at a time. Beyond: SETUPs are dropped."""

logger = logging.getLogger("rsocket_trio")


async def listen(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[AnyListener]]:
    """Listen for SETUPs. Return the endpoint with its port, and the listener. Raise ``OSError``."""
    channel = Channel.of(endpoint)
    if channel.control is not None:
        raise OSError(errno.EINVAL, "control is where a client receives; a server receives at endpoint")
    driver = driver_of(channel, start=True) if options.over is None else options.over
    if not isinstance(driver, MediaDriver):
        raise OSError(errno.EINVAL, "over is no media driver")
    driver.acquire(blind=channel.is_ipc)
    try:
        if not channel.is_ipc:
            address, _ = await resolved(endpoint.host, endpoint.port)
            channel = attrs.evolve(channel, endpoint=written(*address))
        name = hold_ipc(driver.directory) if channel.is_ipc else None
        try:
            tag = driver.library.client.aeron_next_correlation_id(driver.client)
            adding = add_subscription(driver, channel.at(channel.endpoint, tag=tag), SERVER_MANAGEMENT)
            setups = await driver.duty.complete(adding)
            bound = endpoint
            if not channel.is_ipc:
                bound = with_port(endpoint, await driver.duty.complete(_port(setups)))
            return bound, [AeronListener(driver, channel, tag, setups, name)]
        except BaseException:
            if name is not None:
                name.close()
            raise
    except BaseException:
        driver.release(blind=channel.is_ipc)
        raise


class AeronListener(trio.abc.Listener[AeronTransport]):
    """Accepts connections whose SETUPs come on one channel."""

    def __init__(
        self, driver: MediaDriver, channel: Channel, tag: int, setups: Subscription, name: socket.socket | None
    ) -> None:
        self._driver = driver
        self._channel = channel
        self._tag = tag
        self._setups = setups
        self._name = name
        self._streams = -1
        self._handshakes: dict[int, tuple[float, Generator[None, None, AeronTransport]]] = {}
        self._accepted: list[AeronTransport] = []
        self._is_open = True
        self._round = -1

    async def accept(self) -> AeronTransport:
        """Return the next connection. Raise ``BrokenResourceError`` once driver or client are gone."""
        duty = self._driver.duty
        await duty.until(self._progress, is_patient=True)
        return self._accepted.pop(0)

    async def aclose(self) -> None:
        """Accept no more; connections that were not accepted are closed."""
        if self._is_open:
            self._is_open = False
            for connection in tuple(self._handshakes):
                self._leave(connection)
            for transport in self._accepted:
                transport.cut()
            self._accepted.clear()
            self._setups.close()
            if self._name is not None:
                self._name.close()
            self._driver.release(blind=self._channel.is_ipc)
        await trio.lowlevel.checkpoint()

    def _progress(self) -> bool:
        """Take SETUPs, and go on with all handshakes. Return whether a connection is there to be accepted."""
        if not self._handshakes and self._round == self._driver.duty.rounds:
            return bool(self._accepted)
        self._round = self._driver.duty.rounds
        for data in self._setups.poll():
            self._begin(data)
        now = trio.current_time()
        for connection, (deadline, steps) in tuple(self._handshakes.items()):
            try:
                next(steps)
            except StopIteration as end:
                self._accepted.append(end.value)
                self._leave(connection)
            except (OSError, ValueError, trio.BrokenResourceError) as error:
                logger.debug("aeron: a client was turned away: %s", error)
                self._leave(connection)
            else:
                if now >= deadline:
                    logger.debug("aeron: a client went during its handshake")
                    self._leave(connection)
        return bool(self._accepted)

    def _begin(self, data: bytes) -> None:
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
        steps = answer(self._driver, self._channel, self._tag, self._streams, setup)
        self._handshakes[setup.connection] = (trio.current_time() + HANDSHAKE_TIMEOUT, steps)
        self._driver.duty.hurried += 1
        self._driver.duty.hurry()

    def _leave(self, connection: int) -> None:
        """End a handshake."""
        _, steps = self._handshakes.pop(connection)
        steps.close()
        self._driver.duty.hurried -= 1


def _port(subscription: Subscription) -> Generator[None, None, int]:
    """Return the port of a subscription, once it is bound."""
    while not (channel := subscription.resolved_channel):
        yield
    return int(address_of(channel).rpartition(":")[2])
