"""Connects to Aeron channels, and keeps connections going."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from rsocket_trio.limits import Limits
from rsocket_trio.transports.aeron.channels import EXAMPLE, Channel, resolved, written
from rsocket_trio.transports.aeron.media_driver import MediaDriver, driver_of
from rsocket_trio.transports.aeron.message_transport import AeronTransport
from rsocket_trio.transports.aeron.setup_exchange import HANDSHAKE_TIMEOUT, Progress, connect
from rsocket_trio.transports.schemes import ConnectOptions, Endpoint, parse_host_and_port

MAX_ANSWERED = 1024
"""Servers of which a run remembers at most that they, or their drivers, have ever answered."""
SILENT = "no answer within {0:g} s, though a server has answered there before: it is busy, or has gone"

_ANSWERED: trio.lowlevel.RunVar[dict[str, None]] = trio.lowlevel.RunVar("Aeron servers that have answered")


async def dial(endpoint: Endpoint) -> AeronTransport:
    """Connect, over the driver that this run shares. Raise ``OSError`` and ``BrokenResourceError``."""
    return await _dial(endpoint, driver_of(Channel.of(endpoint), start=False))


async def _dial(endpoint: Endpoint, driver: MediaDriver) -> AeronTransport:
    channel = Channel.of(endpoint)
    driver.acquire(blind=channel.is_ipc)
    reached = Progress.ADDING

    def advance(progress: Progress) -> None:
        nonlocal reached
        reached = progress

    try:
        local = ""
        if not channel.is_ipc:
            address, family = await resolved(endpoint.host, endpoint.port)
            if channel.control is None:
                local = f"{_local_host(family, address)}:0"
            else:
                control, _ = await resolved(*parse_host_and_port(str(endpoint), channel.control, EXAMPLE))
                local = written(*control)
            channel = attrs.evolve(channel, endpoint=written(*address))
        with trio.move_on_after(HANDSHAKE_TIMEOUT):
            steps = connect(driver, channel, local, secrets.randbits(64), advance)
            return await driver.duty.complete(steps, AeronTransport.cut)
    finally:
        has_answered = _remember(channel.endpoint or driver.directory, reached in (Progress.HEARD, Progress.ANSWERED))
        driver.release(blind=channel.is_ipc)
    if reached is not Progress.ASKING:
        raise TimeoutError(errno.ETIMEDOUT, reached.value.format(HANDSHAKE_TIMEOUT))
    if has_answered:
        raise TimeoutError(errno.ETIMEDOUT, SILENT.format(HANDSHAKE_TIMEOUT))
    raise ConnectionRefusedError(errno.ECONNREFUSED, reached.value.format(HANDSHAKE_TIMEOUT))


def _remember(server: str, answers: bool) -> bool:
    """Note that a server, or its driver, answers, if it does. Return whether it ever did."""
    try:
        answered = _ANSWERED.get()
    except LookupError:
        answered = {}
        _ANSWERED.set(answered)
    if answers:
        answered[server] = None
        if len(answered) > MAX_ANSWERED:
            del answered[next(iter(answered))]
    return server in answered


@asynccontextmanager
async def opened(endpoint: Endpoint, options: ConnectOptions, driver: MediaDriver) -> AsyncIterator[AeronTransport]:
    """Open a connection over a given driver for the block."""
    if Channel.of(endpoint).directory is not None:
        raise ValueError(f"{endpoint}: it names the directory of another driver than that of over")
    with options.time_limit.step("not connected", looks_up=True):
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


def _local_host(family: int, address: tuple[str, int]) -> str:
    """Return the address of this machine that a host is reached from, as it is written in a channel."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return written(probe.getsockname()[0])
