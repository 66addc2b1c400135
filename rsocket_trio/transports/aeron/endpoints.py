"""Connects to and listens on Aeron channels."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from rsocket_trio.limits import Limits
from rsocket_trio.transports.aeron.channels import Channel, address_of, with_port
from rsocket_trio.transports.aeron.directories import DIRECTORY_VARIABLE
from rsocket_trio.transports.aeron.media_driver import MediaDriver, directory_of_ipc, shared_driver
from rsocket_trio.transports.aeron.message_transport import AeronTransport
from rsocket_trio.transports.aeron.publications import Subscription, add_subscription
from rsocket_trio.transports.aeron.setup_exchange import (
    SERVER_MANAGEMENT,
    SETUP,
    answer,
    connect,
    decode_setup_message,
)
from rsocket_trio.transports.schemes import AnyListener, ConnectOptions, Endpoint, ListenOptions

HANDSHAKE_TIMEOUT = 5.0
"""Seconds until one who connects takes it that nobody listens, and until one who accepts gives a client up."""
HANDSHAKES = 128
"""Handshakes at a time. Beyond: SETUPs are dropped."""

logger = logging.getLogger("rsocket_trio")


async def dial(endpoint: Endpoint) -> AeronTransport:
    """Connect, over the driver that this run shares. Raise ``OSError`` and ``BrokenResourceError``."""
    return await _dial(endpoint, _driver_of(Channel.of(endpoint), start=False))


async def _dial(endpoint: Endpoint, driver: MediaDriver) -> AeronTransport:
    channel = Channel.of(endpoint)
    driver.acquire(blind=channel.is_ipc)
    try:
        local = ""
        if not channel.is_ipc:
            address, family = await _resolved(endpoint.host, endpoint.port)
            local = channel.control or f"{_local_host(family, address)}:0"
            channel = attrs.evolve(channel, endpoint=_text(*address))
        with trio.move_on_after(HANDSHAKE_TIMEOUT):
            return await driver.duty.complete(connect(driver, channel, local, secrets.randbits(64)))
    finally:
        driver.release(blind=channel.is_ipc)
    raise ConnectionRefusedError(errno.ECONNREFUSED, f"no answer within {HANDSHAKE_TIMEOUT:g} s: nobody listens there")


@asynccontextmanager
async def opened(endpoint: Endpoint, options: ConnectOptions, driver: MediaDriver) -> AsyncIterator[AeronTransport]:
    """Open a connection over a given driver for the block."""
    if Channel.of(endpoint).directory is not None:
        raise ValueError(f"{endpoint}: it names the directory of another driver than that of over")
    transport = await _dial(endpoint, driver)
    try:
        async with attended(transport, options.limits):
            yield transport
    finally:
        transport.cut()


@asynccontextmanager
async def attended(transport: AeronTransport, limits: Limits) -> AsyncIterator[AeronTransport]:
    """Keep driver and client of a connection going for the block, also while no task waits for them."""
    transport.limit(limits.frame_size)
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.driver.duty.attend)
        try:
            yield transport
        except BaseException as exc:
            # Kept until the nursery has ended: raised inside it would leave in a group.
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


async def listen(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[AnyListener]]:
    """Listen for SETUPs. Return the endpoint with its port, and the listener. Raise ``OSError``."""
    channel = Channel.of(endpoint)
    if channel.control is not None:
        raise OSError(errno.EINVAL, "control is where a client receives; a server receives at endpoint")
    driver = _driver_of(channel, start=True) if options.over is None else options.over
    if not isinstance(driver, MediaDriver):
        raise OSError(errno.EINVAL, "over is no media driver")
    driver.acquire(blind=channel.is_ipc)
    try:
        if not channel.is_ipc:
            address, _ = await _resolved(endpoint.host, endpoint.port)
            channel = attrs.evolve(channel, endpoint=_text(*address))
        name = _hold_name(driver) if channel.is_ipc else None
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
        await duty.until(self._progress)
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

    def _leave(self, connection: int) -> None:
        """End a handshake."""
        _, steps = self._handshakes.pop(connection)
        steps.close()
        self._driver.duty.hurried -= 1


def _driver_of(channel: Channel, *, start: bool) -> MediaDriver:
    """Return the driver that a channel is for: that of its directory, of ``AERON_DIR``, or one of this process."""
    directory = channel.directory or os.environ.get(DIRECTORY_VARIABLE) or None
    if directory is None and channel.is_ipc:
        directory = directory_of_ipc()
    return shared_driver(directory, start=start)


async def _resolved(host: str, port: int) -> tuple[tuple[str, int], int]:
    """Return the first address of a host, and its family. Aeron would stop the loop while it resolves names."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, _, _, _, address = found[0]
    return (str(address[0]), int(address[1])), family


def _local_host(family: int, address: tuple[str, int]) -> str:
    """Return the address of this machine that a host is reached from, as it is written in a channel."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return _text(probe.getsockname()[0])


def _text(host: str, port: int | None = None) -> str:
    """Return an address as it is written in a channel."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def _port(subscription: Subscription) -> Generator[None, None, int]:
    """Return the port of a subscription, once it is bound."""
    while not (resolved := subscription.resolved_channel):
        yield
    return int(address_of(resolved).rpartition(":")[2])


def _hold_name(driver: MediaDriver) -> socket.socket | None:
    """Hold the place of the one server that a driver has over IPC. Raise ``OSError`` if another holds it.

    Over UDP the port does that. ``None`` where the system has no names of sockets without files.
    """
    if sys.platform != "linux":
        return None
    name = hashlib.sha256(os.path.realpath(driver.directory).encode()).hexdigest()
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0rsocket-trio-aeron-{name}")
    except OSError:
        holder.close()
        raise
    return holder
