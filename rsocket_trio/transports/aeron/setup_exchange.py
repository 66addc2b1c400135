"""The handshake of a connection over Aeron: SETUP from the client, SETUP_COMPLETE from the server."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import Enum
from typing import Any

import attrs
import trio

from rsocket_trio.transports.aeron.channels import Channel, address_of
from rsocket_trio.transports.aeron.media_driver import MediaDriver
from rsocket_trio.transports.aeron.message_transport import AeronTransport
from rsocket_trio.transports.aeron.publications import (
    Publication,
    Subscription,
    add_publication,
    add_subscription,
)
from rsocket_trio.transports.base import Handshake

SERVER_MANAGEMENT = -1
"""The stream on which a server receives SETUPs."""
VERSION = 1
SETUP = 1
SETUP_COMPLETE = 2
HEADER = struct.Struct("<HIQI")
LENGTH = struct.Struct("<I")
LONGEST_CHANNEL = 1024
HANDSHAKE_TIMEOUT = 5.0
"""Seconds until one who connects gives up, and until one who accepts gives a client up."""


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
        low = self.connection & 0xFFFFFFFF
        return low - 0x100000000 if low & 0x80000000 else low


def encode_setup_message(message: SetupMessage) -> bytes:
    """Return the bytes of a message."""
    channel = message.channel.encode()
    return HEADER.pack(VERSION, message.kind, message.connection, message.stream) + LENGTH.pack(len(channel)) + channel


def decode_setup_message(data: bytes) -> SetupMessage:
    """Return a message from its bytes. Raise ``ValueError``."""
    start = HEADER.size + LENGTH.size
    if len(data) < start:
        raise ValueError(f"a message of {len(data)} bytes, the shortest has {start}")
    version, kind, connection, stream = HEADER.unpack_from(data)
    (length,) = LENGTH.unpack_from(data, HEADER.size)
    if version != VERSION:
        raise ValueError(f"version {version}, known is {VERSION}")
    if length > LONGEST_CHANNEL or len(data) != start + length:
        raise ValueError(f"a channel of {length} bytes in a message of {len(data)}, the longest has {LONGEST_CHANNEL}")
    if stream > 0x7FFFFFFF:
        raise ValueError(f"stream {stream}, the last is {0x7FFFFFFF}")
    return SetupMessage(kind, connection, stream, data[start:].decode())


class Progress(Enum):
    """The steps of a client in its handshake: each says what an error does that ends it after a time."""

    ADDING = "the media driver of this side has not added its channels within {0:g} s: it is busy"
    ASKING = "no answer within {0:g} s: nobody listens there"
    HEARD = "its media driver answers, but no server has within {0:g} s: it is busy"
    ANSWERED = "the server has answered, but the handshake has not ended within {0:g} s"


def connect(
    driver: MediaDriver, channel: Channel, local: str, connection: int, advance: Callable[[Progress], None]
) -> Generator[None, None, AeronTransport]:
    """Connect as a client, in as many steps as that takes; ``local`` is the address to receive at.

    ``advance`` is called with what has been reached.
    """
    opened: list[Publication | Subscription] = []
    try:
        driver.streams += 2
        setup = SetupMessage(SETUP, connection, driver.streams)
        receiving: Subscription
        asking: Publication
        receiving, asking = yield from _added(
            opened,
            add_subscription(driver, channel.at(local, setup.session), setup.stream),
            add_publication(driver, channel.to(channel.endpoint), SERVER_MANAGEMENT),
        )
        if not channel.is_ipc:
            while not (resolved := receiving.resolved_channel):
                yield
            local = address_of(resolved)
        advance(Progress.ASKING)
        yield from _offered(asking, encode_setup_message(attrs.evolve(setup, channel=channel.address(local))))
        advance(Progress.HEARD)
        while not receiving.attach():
            yield
        while not (messages := receiving.take()):
            yield
        answer = _answer_in(messages, connection)
        advance(Progress.ANSWERED)
        sending: Publication
        [sending] = yield from _added(
            opened, add_publication(driver, channel.to(channel.endpoint, setup.session), answer.stream)
        )
        while not sending.is_connected:
            yield
        asking.close()
        peer = "ipc" if channel.is_ipc else channel.endpoint
        transport = AeronTransport(driver, sending, receiving, Handshake("aeron", peer), blind=channel.is_ipc)
        opened.clear()
        return transport
    finally:
        close_all(opened)


def answer(
    driver: MediaDriver, channel: Channel, tag: int, stream: int, setup: SetupMessage
) -> Generator[None, None, AeronTransport]:
    """Accept as a server, in as many steps as that takes; ``stream`` is the one to receive on."""
    opened: list[Publication | Subscription] = []
    try:
        # The client says where it is, and this side how it sends.
        peer = "" if channel.is_ipc else address_of(setup.channel)
        receiving: Subscription
        sending: Publication
        receiving, sending = yield from _added(
            opened,
            add_subscription(driver, channel.at(channel.endpoint, setup.session, tag), stream),
            add_publication(driver, channel.to(peer, setup.session), setup.stream),
        )
        yield from _offered(sending, encode_setup_message(SetupMessage(SETUP_COMPLETE, setup.connection, stream)))
        while not receiving.attach():
            yield
        transport = AeronTransport(driver, sending, receiving, Handshake("aeron", peer or "ipc"), blind=channel.is_ipc)
        opened.clear()
        return transport
    finally:
        close_all(opened)


def close_all(opened: Iterable[Publication | Subscription]) -> None:
    """Close all publications and subscriptions."""
    for each in opened:
        each.close()


def _added(
    opened: list[Publication | Subscription], *adding: Generator[None, None, Any]
) -> Generator[None, None, list[Any]]:
    """Add objects, and keep them among those to close. Return them in order.

    The driver adds them one behind the other: to wait for each before the next is asked for would take longer.
    """
    added: dict[int, Any] = {}
    try:
        while True:
            for number, steps in enumerate(adding):
                if number not in added:
                    try:
                        next(steps)
                    except StopIteration as end:
                        added[number] = end.value
                        opened.append(end.value)
            if len(added) == len(adding):
                return [added[number] for number in range(len(adding))]
            yield
    finally:
        for steps in adding:
            steps.close()


def _offered(publication: Publication, message: bytes) -> Generator[None, None, None]:
    """Add a message once there is someone who receives it."""
    while publication.offer(message) < 0:
        yield


def _answer_in(messages: Sequence[bytes], connection: int) -> SetupMessage:
    """Return the server's answer to this connection. It sends nothing more before it has heard of it."""
    text = "the server's answer is no SETUP_COMPLETE"
    try:
        [data] = messages
        message = decode_setup_message(data)
    except ValueError as error:
        raise trio.BrokenResourceError(f"{text}: {error}") from error
    if message.kind != SETUP_COMPLETE or message.connection != connection:
        raise trio.BrokenResourceError(f"{text} to this connection")
    return message
