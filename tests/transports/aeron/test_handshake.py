"""The handshake over a real driver: what others publish on its streams, clients that go, floods of SETUPs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from rsocket_trio import Payload, open_connection, serve
from rsocket_trio.transports.aeron import MediaDriver, handshake, open_media_driver
from rsocket_trio.transports.aeron.handshake import (
    SERVER_MANAGEMENT,
    SETUP,
    SETUP_COMPLETE,
    SetupMessage,
    added,
    decode_setup_message,
    encode_setup_message,
)
from rsocket_trio.transports.aeron.publications import Publication, Subscription
from tests.transports.aeron.echo_server import responder

IPC = "aeron:ipc"


@pytest.fixture
async def driver(nursery: trio.Nursery) -> AsyncIterator[MediaDriver]:
    """A driver with a server."""
    async with open_media_driver() as found, trio.open_nursery() as servers:
        await servers.start(lambda task_status: serve(responder, IPC, over=found, task_status=task_status))
        yield found
        servers.cancel_scope.cancel()


async def published(driver: MediaDriver, stream: int) -> Publication:
    publication = Publication(driver, IPC, stream)
    await added(driver, publication)
    await driver.duty.until(lambda: publication.is_connected)
    return publication


@asynccontextmanager
async def subscribed(driver: MediaDriver, stream: int) -> AsyncIterator[Subscription]:
    subscription = Subscription(driver, IPC, stream)
    await added(driver, subscription)
    yield subscription
    subscription.close()


async def test_what_is_no_setup_is_ignored(driver: MediaDriver) -> None:
    publication = await published(driver, SERVER_MANAGEMENT)
    for data in (b"", b"x", bytes(22), encode_setup_message(SetupMessage(SETUP_COMPLETE, 1, 2, IPC))):
        assert publication.offer(data) > 0
    publication.close()
    async with open_connection(IPC, over=driver) as connection:
        assert await connection.request_response(b"hello") == Payload(b"hello")


async def test_a_setup_is_answered_with_the_servers_stream(driver: MediaDriver) -> None:
    publication = await published(driver, SERVER_MANAGEMENT)
    async with subscribed(driver, 40) as frames:
        publication.offer(encode_setup_message(SetupMessage(SETUP, 77, 40, IPC)))
        data: list[bytes] = []

        def arrived() -> bool:
            data.extend(frames.poll())
            return bool(data)

        await driver.duty.until(arrived)
        [answer] = map(decode_setup_message, data)
        assert (answer.kind, answer.connection, answer.stream % 2, answer.channel) == (SETUP_COMPLETE, 77, 1, "")
    publication.close()


async def test_a_client_that_goes_during_its_handshake_is_forgotten(
    driver: MediaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT", 0.1)
    publication = await published(driver, SERVER_MANAGEMENT)
    objects = len(driver.resources)
    for number in range(5):
        publication.offer(encode_setup_message(SetupMessage(SETUP, number, 40 + number, IPC)))
    await driver.duty.until(lambda: len(driver.resources) > objects)
    await driver.duty.until(lambda: len(driver.resources) == objects)
    assert driver.duty.hurried == 0
    publication.close()


async def test_too_many_handshakes_at_a_time_are_dropped(
    driver: MediaDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshake, "MAX_HANDSHAKES", 2)
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT", 0.2)
    caplog.set_level("DEBUG", "rsocket_trio")
    publication = await published(driver, SERVER_MANAGEMENT)
    objects = len(driver.resources)
    for number in range(5):
        publication.offer(encode_setup_message(SetupMessage(SETUP, number, 40 + number, IPC)))
    await driver.duty.until(lambda: len(driver.resources) == objects + 4)
    assert caplog.text.count("a SETUP was dropped: 2 handshakes are under way") == 3
    await driver.duty.until(lambda: len(driver.resources) == objects)
    publication.close()


async def test_a_peer_that_closes_its_publication_without_an_end_is_lost(driver: MediaDriver) -> None:
    async with open_connection(IPC, over=driver) as connection:
        await connection.request_response(b"hello")
        ours = [each for each in driver.resources if isinstance(each, Publication)]
        for publication in ours:
            publication.close()
        await connection.wait_closed()
