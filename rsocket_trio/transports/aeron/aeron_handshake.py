"""Connects to Aeron channels and listens on them: SETUP from the client, SETUP_COMPLETE from the server."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import attrs
import trio
from trio import sleep

from rsocket_trio.limits import Limits
from rsocket_trio.transports.aeron.channels import EXAMPLE, AeronChannel, address_of, resolved, with_port, written
from rsocket_trio.transports.aeron.media_driver import MAX_MANAGEMENT_IMAGES, MediaDriver, driver_of
from rsocket_trio.transports.aeron.publications import (
    AeronPublication,
    AeronSubscription,
    AeronTransport,
    ClientResource,
)
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.schemes import AnyListener, Endpoint, ListenOptions, parse_host_and_port

SERVER_MANAGEMENT = -1
"""The stream on which a server receives SETUPs."""
VERSION = 1
SETUP = 1
SETUP_COMPLETE = 2
HEADER = struct.Struct("<HIQII")
"""Version, kind, connection, stream, bytes of the channel behind it."""
HANDSHAKE_TIMEOUT = 5.0
"""Seconds until one who connects gives up, and until one who accepts gives a client up."""
MAX_HANDSHAKES = 128
"""Handshakes at a time. Beyond: SETUPs are dropped."""
MAX_REFUSED = 64
"""Publications to the stream of SETUPs that the driver is let refuse in a flood of them, before none are asked for."""
PAUSE = 1.0
"""Seconds without a subscription to that stream: the driver ignores a flood, and drops what it has made of it."""
ANCHOR = 0
"""A stream that nobody sends on: a subscription to it keeps the port meanwhile."""

logger = logging.getLogger("rsocket_trio")


@attrs.frozen
class SetupMessage:
    """A message of the handshake: ``stream`` is the one on which its sender receives, at ``channel``."""

    kind: int
    connection: int
    stream: int
    channel: str = ""

    @property
    def session(self) -> int:
        """Return the session of both publications: the low half of the connection's id, as Aeron's signed number."""
        return ((self.connection & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def encode_setup_message(message: SetupMessage) -> bytes:
    """Return the bytes of a message."""
    channel = message.channel.encode()
    return HEADER.pack(VERSION, message.kind, message.connection, message.stream, len(channel)) + channel


def decode_setup_message(data: bytes) -> SetupMessage:
    """Return a message from its bytes. Raise ``ValueError``."""
    if len(data) < HEADER.size:
        raise ValueError(f"a message of {len(data)} bytes, the shortest has {HEADER.size}")
    version, kind, connection, stream, length = HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"version {version}, known is {VERSION}")
    if len(data) != HEADER.size + length:
        raise ValueError(f"a channel of {length} bytes in a message of {len(data)}")
    if stream > 0x7FFFFFFF:
        raise ValueError(f"stream {stream}, the last is {0x7FFFFFFF}")
    return SetupMessage(kind, connection, stream, data[HEADER.size :].decode())


async def added(driver: MediaDriver, *resources: ClientResource) -> None:
    """Wait until the driver has added all of these. Raise ``OSError``.

    The driver adds them one behind the other: to wait for each before the next is asked for would take longer.
    """
    await driver.duty.until(lambda: all(resource.is_added() for resource in resources), hurried=True)


async def offered(driver: MediaDriver, publication: AeronPublication, message: SetupMessage) -> None:
    """Send a message once there is someone who receives it."""
    data = encode_setup_message(message)
    await driver.duty.until(lambda: publication.offer(data) > 0)


async def address_bound(driver: MediaDriver, subscription: AeronSubscription) -> str:
    """Return the address of a subscription over UDP, with the port that the system chose."""
    await driver.duty.until(lambda: bool(subscription.resolved_channel))
    return address_of(subscription.resolved_channel)


@attrs.define(eq=False)
class SetupRequest(trio.abc.AsyncResource):
    """A client whose SETUP a server has received. Answered by ``answered``, and closed by ``aclose``.

    ``tag`` names the socket of the server, and ``stream`` is the one to receive on. ``until_end`` is closed once the
    handshake is over.
    """

    driver: MediaDriver
    _channel: AeronChannel
    _tag: int
    _stream: int
    _setup: SetupMessage
    _scope: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)
    until_end: ExitStack = attrs.field(init=False, factory=ExitStack)
    _transport: AeronTransport | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.driver.acquire(blind=self._channel.is_ipc)
        self.until_end.callback(self.driver.release)

    async def answered(self) -> AeronTransport:
        """Finish the handshake. Return the connection. Raise ``HandshakeFailed``."""
        driver, channel, setup = self.driver, self._channel, self._setup
        self._scope.relative_deadline = HANDSHAKE_TIMEOUT
        try:
            with self._scope:
                # The client says where it is, and this side how it sends.
                peer = "" if channel.is_ipc else address_of(setup.channel)
                at = channel.at(channel.endpoint, setup.session, self._tag)
                with (
                    AeronSubscription(driver, at, self._stream) as receiving,
                    AeronPublication(driver, channel.to(peer, setup.session), setup.stream) as sending,
                ):
                    await added(driver, receiving, sending)
                    await offered(driver, sending, SetupMessage(SETUP_COMPLETE, setup.connection, self._stream))
                    await driver.duty.until(receiving.attach)
                self._transport = AeronTransport(driver, sending, receiving, Handshake("aeron", peer or "ipc"))
                return self._transport
        except (OSError, ValueError, trio.BrokenResourceError) as error:
            raise HandshakeFailed(str(error)) from error
        finally:
            self.until_end.close()
        raise HandshakeFailed("the client went during its handshake, or the server does")

    def close(self) -> None:
        """Close the connection, or give the handshake up, at once."""
        self._scope.cancel()
        if self._transport is not None:
            self._transport.cut()
        self.until_end.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


async def dial(endpoint: Endpoint, over: MediaDriver | None = None) -> AeronTransport:
    """Connect, over the driver that this run shares or another. Raise ``OSError`` and ``BrokenResourceError``."""
    channel = AeronChannel.of(endpoint)
    driver = driver_of(channel, start=False) if over is None else over
    driver.acquire(blind=channel.is_ipc)
    try:
        local = ""
        if not channel.is_ipc:
            address, family = await resolved(endpoint.host, endpoint.port)
            channel = attrs.evolve(channel, endpoint=written(*address))
            control = channel.parameters.get("control")
            if control is not None:
                local = written(*(await resolved(*parse_host_and_port(str(endpoint), control, EXAMPLE)))[0])
            else:
                # The address of this machine that the host is reached from.
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.connect(address)
                    local = written(probe.getsockname()[0], 0)
        with trio.move_on_after(HANDSHAKE_TIMEOUT), ExitStack() as opened:
            async with driver.duty.attended():
                transport = await _connected(driver, channel, local)
                opened.callback(transport.cut)
            opened.pop_all()
            return transport
    finally:
        driver.release()
    text = f"no answer within {HANDSHAKE_TIMEOUT:g} s: nobody listens there, or it is busy"
    raise ConnectionRefusedError(errno.ECONNREFUSED, text)


async def _connected(driver: MediaDriver, channel: AeronChannel, local: str) -> AeronTransport:
    """Connect as a client; ``local`` is the address to receive at. Raise ``OSError`` and ``BrokenResourceError``."""
    driver.streams += 2
    setup = SetupMessage(SETUP, secrets.randbits(64), driver.streams)
    messages: list[bytes] = []

    def has_answer() -> bool:
        messages.extend(receiving.take())
        return bool(messages)

    with (
        AeronSubscription(driver, channel.at(local, setup.session), setup.stream) as receiving,
        AeronPublication(driver, channel.to(channel.endpoint), SERVER_MANAGEMENT) as asking,
    ):
        await added(driver, receiving, asking)
        if not channel.is_ipc:
            local = await address_bound(driver, receiving)
        await offered(driver, asking, attrs.evolve(setup, channel=channel.address(local)))
        await driver.duty.until(receiving.attach)
        # The server sends nothing more before it has heard of the client's publication.
        await driver.duty.until(has_answer)
        try:
            [answer] = map(decode_setup_message, messages)
            if (answer.kind, answer.connection) != (SETUP_COMPLETE, setup.connection):
                raise ValueError("another message")
        except ValueError as error:
            text = f"the server's answer is no SETUP_COMPLETE to this connection: {error}"
            raise trio.BrokenResourceError(text) from error
        with AeronPublication(driver, channel.to(channel.endpoint, setup.session), answer.stream) as sending:
            await added(driver, sending)
            await driver.duty.until(lambda: sending.is_connected)
    asking.close()
    return AeronTransport(driver, sending, receiving, Handshake("aeron", "ipc" if channel.is_ipc else channel.endpoint))


@asynccontextmanager
async def attended(carrier: AeronTransport | SetupRequest, limits: Limits) -> AsyncIterator[AeronTransport]:
    """Keep driver and client of a connection going for the block, also while no task waits for them."""
    async with carrier.driver.duty.attended():
        transport = await carrier.answered() if isinstance(carrier, SetupRequest) else carrier
        transport.largest = limits.frame_size
        yield transport


async def listen(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[AnyListener]]:
    """Listen for SETUPs. Return the endpoint with its port, and the listener. Raise ``OSError``."""
    if "control" in AeronChannel.of(endpoint).parameters:
        raise OSError(errno.EINVAL, "control is where a client receives; a server receives at endpoint")
    if options.over is not None and not isinstance(options.over, MediaDriver):
        raise OSError(errno.EINVAL, f"over is a media driver, not {type(options.over).__name__}")
    listener = AeronListener(endpoint, options.over)
    await listener.open()
    return listener.endpoint, [listener]


class AeronListener(trio.abc.Listener[SetupRequest]):
    """Accepts connections whose SETUPs come on one channel. Once its driver is gone it listens over a new one."""

    def __init__(self, endpoint: Endpoint, over: MediaDriver | None) -> None:
        self.endpoint = endpoint
        self._over = over
        self._driver: MediaDriver | None = None
        self._channel = AeronChannel.of(endpoint)
        self._tag = 0
        self._setups: AeronSubscription | None = None
        self._refused = 0
        self._streams = -1
        self._handshakes: dict[int, SetupRequest] = {}
        """Those whose handshakes are under way, by the ids of their connections."""
        self._accepted: deque[SetupRequest] = deque()

    async def open(self) -> None:
        """Begin to listen. Raise ``OSError``."""
        channel = AeronChannel.of(self.endpoint)
        self._driver = driver = driver_of(channel, start=True) if self._over is None else self._over
        driver.acquire(blind=channel.is_ipc)
        try:
            if not channel.is_ipc:
                address, _ = await resolved(self.endpoint.host, self.endpoint.port)
                channel = attrs.evolve(channel, endpoint=written(*address))
            self._channel = channel
            self._tag = driver.library.api.aeron_next_correlation_id(driver.client)
            self._refused = driver.refused
            async with driver.duty.attended():
                self._setups = await self._subscribed(driver)
                if not channel.is_ipc:
                    port = (await address_bound(driver, self._setups)).rpartition(":")[2]
                    self.endpoint = with_port(self.endpoint, int(port))
        except BaseException as error:
            self._leave_driver()
            if isinstance(error, trio.BrokenResourceError):
                raise OSError(errno.EIO, str(error)) from error
            raise

    async def _subscribed(self, driver: MediaDriver) -> AeronSubscription:
        at = self._channel.at(self._channel.endpoint, tag=self._tag)
        with AeronSubscription(driver, at, SERVER_MANAGEMENT) as setups:
            await added(driver, setups)
        driver.management.add(setups)
        return setups

    async def accept(self) -> SetupRequest:
        """Return the next client. Raise ``OSError`` if the driver is gone, and nothing can be listened on anew."""
        while True:
            driver = self._driver
            if driver is None:
                raise trio.ClosedResourceError("the listener was closed")
            try:
                async with driver.duty.attended():
                    if self._setups is None or self._is_flooded(self._setups, driver):
                        await self._shed(driver)
                    await driver.duty.until(self._progress)
            except trio.BrokenResourceError as error:
                if self._over is not None:
                    raise OSError(errno.EIO, str(error)) from error
                logger.warning("%s: %s; listening anew", self.endpoint, str(error))
                # It holds the port, and nothing over it goes on.
                driver.close("it has ended")
                self._leave_driver()
                await self.open()
            if self._accepted:
                return self._accepted.popleft()

    def _leave_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        for request in tuple(self._handshakes.values()):
            request.close()
        self._accepted.clear()
        if self._setups is not None:
            self._setups.close()
            self._setups = None
        driver.release()

    async def aclose(self) -> None:
        """Accept no more; connections that were not accepted are closed."""
        self._leave_driver()
        await trio.lowlevel.checkpoint()

    def _progress(self) -> bool:
        """Take SETUPs. Return whether there is one to be accepted, or too many come."""
        driver, setups = self._driver, self._setups
        if driver is None or setups is None:
            raise trio.ClosedResourceError("the listener was closed")
        for data in setups.poll():
            self._begin(data, driver)
        return bool(self._accepted) or self._is_flooded(setups, driver)

    def _begin(self, data: bytes, driver: MediaDriver) -> None:
        """Accept the client that has sent a message, if it is a SETUP, and not too many handshakes are under way."""
        try:
            setup = decode_setup_message(data)
        except ValueError as error:
            logger.debug("aeron: a message is no SETUP: %s", error)
            return
        connection = setup.connection
        if setup.kind != SETUP or connection in self._handshakes:
            return
        if len(self._handshakes) >= MAX_HANDSHAKES:
            logger.debug("aeron: a SETUP was dropped: %d handshakes are under way", MAX_HANDSHAKES)
            return
        self._streams += 2
        request = SetupRequest(driver, self._channel, self._tag, self._streams, setup)
        request.until_end.callback(self._handshakes.pop, connection)
        self._handshakes[connection] = request
        self._accepted.append(request)

    def _is_flooded(self, setups: AeronSubscription, driver: MediaDriver) -> bool:
        """Return whether so many publish to the stream of SETUPs that others find no place."""
        return driver.refused - self._refused > MAX_REFUSED or setups.image_count >= MAX_MANAGEMENT_IMAGES

    async def _shed(self, driver: MediaDriver) -> None:
        """Ask for no SETUPs for a while. Handshakes and connections go on."""
        logger.warning("%s: a flood of publications; nobody is accepted for %g s", self.endpoint, PAUSE)
        with ExitStack() as kept:
            if not self._channel.is_ipc:
                anchor = AeronSubscription(driver, self._channel.at(self._channel.endpoint, ANCHOR, self._tag), ANCHOR)
                kept.callback(anchor.close)
                await added(driver, anchor)
            if self._setups is not None:
                self._setups.close()
            self._setups = None
            while self._setups is None:
                await sleep(PAUSE)
                self._refused = driver.refused
                try:
                    self._setups = await self._subscribed(driver)
                except OSError as error:
                    logger.warning("%s: nobody is accepted yet: %s", self.endpoint, error)
