"""What strangers can have a driver make, clients that go in their handshake, and that others connect all the same."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from qa.attacks.aeron import setup_frames
from rsocket_trio import ConnectionLost, Payload, open_connection, serve
from rsocket_trio.transports.aeron import MediaDriver, aeron_handshake, media_driver, open_media_driver
from rsocket_trio.transports.aeron.aeron_handshake import (
    SERVER_MANAGEMENT,
    SETUP,
    SETUP_COMPLETE,
    SetupMessage,
    added,
    encode_setup_message,
)
from rsocket_trio.transports.aeron.publications import AeronPublication
from tests.rows import Rows
from tests.serving import until
from tests.transports.aeron.echo_server import responder

UDP = "aeron:udp?endpoint=127.0.0.1:0"
KIB = 1024
MIB = 1024 * KIB
PAGE = 4096
TURNS = 16
"""Turns of a driver after which its receiver knows of a subscription that its client has."""


@asynccontextmanager
async def served(uri: str = UDP) -> AsyncIterator[tuple[MediaDriver, str]]:
    """A server over a driver of its own. Provide the driver and the server's URI."""
    async with open_media_driver() as driver, trio.open_nursery() as servers:
        (bound,) = await servers.start(lambda task_status: serve(responder, uri, over=driver, task_status=task_status))
        heard_of(driver)
        yield driver, bound
        servers.cancel_scope.cancel()


def heard_of(driver: MediaDriver) -> None:
    """Have the receiver of a driver hear of all subscriptions: what comes before is ignored."""
    for _ in range(TURNS):
        driver.drive()


def publish(uri: str, count: int, term_length: int, stream: int = -1) -> None:
    """Send a server SETUPs of publications with this term length."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", int(uri.rpartition(":")[2])))
        for frame in setup_frames(count, term_length, stream):
            stranger.send(frame)


def images_of(driver: MediaDriver) -> list[int]:
    """Return the bytes that each file of a received publication seems to have."""
    return [path.stat().st_size for path in (Path(driver.directory) / "images").iterdir()]


async def ask(uri: str) -> None:
    async with open_connection(uri) as connection:
        assert (await connection.request_response(b"hello")).data == b"hello"


async def test_a_publication_whose_terms_are_too_long_is_not_received(capfd: pytest.CaptureFixture[str]) -> None:
    async with served() as (driver, uri):
        refused = 0
        with Rows() as row:
            for term_length in (128 * KIB, 16 * MIB, 1024 * MIB):
                with row(f"terms of {term_length} bytes"):
                    publish(uri, 5, term_length)
                    refused += 5
                    await until(lambda expected=refused: driver.refused == expected)  # type: ignore[misc]
                    await until(lambda: images_of(driver) == [])
        publish(uri, 1, 64 * KIB)
        await until(lambda: images_of(driver) != [])
        assert images_of(driver) == [3 * 64 * KIB + PAGE]
        await ask(uri)
        assert driver.refused == refused
    assert capfd.readouterr().err == ""


async def test_terms_of_frames_may_be_as_long_as_the_largest_frame_needs() -> None:
    async with served() as (driver, uri):
        await ask(f"{uri}|term-length=128m")
        assert driver.refused == 0
        with pytest.raises(ConnectionLost, match=r"the term-length 268435456 is above 134217728"):
            await ask(f"{uri}|term-length=256m")


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many publications as a driver receives on a stream of handshakes."""
    monkeypatch.setattr(media_driver, "MAX_MANAGEMENT_IMAGES", 6)
    monkeypatch.setattr(aeron_handshake, "MAX_MANAGEMENT_IMAGES", 6)
    monkeypatch.setattr(aeron_handshake, "PAUSE", 0.1)
    return 6


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Have a server pause after few refusals until this is set."""
    over = trio.Event()
    monkeypatch.setattr(aeron_handshake, "MAX_REFUSED", 3)
    monkeypatch.setattr(aeron_handshake, "sleep", lambda seconds: over.wait())
    return over


async def test_no_more_publications_are_received_than_may_be_and_others_connect_soon(
    few_at_a_time: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (driver, uri):
        publish(uri, 100, 64 * KIB)
        await until(lambda: "a flood of publications; nobody is accepted for 0.1 s" in caplog.text)
        assert 0 < len(images_of(driver)) <= few_at_a_time
        await ask(uri)
    assert caplog.text.count("a flood of publications") == 1


async def test_a_server_keeps_its_port_and_its_connections_in_a_flood(long_pause: trio.Event) -> None:
    async with served() as (driver, uri), open_connection(uri) as connection:
        publish(uri, 4, 128 * KIB)
        await until(lambda: len(driver.management) == 0)
        with pytest.raises(OSError, match="address already in use"):
            await serve(responder, uri)
        assert (await connection.request_response(b"hello")).data == b"hello"
        assert len(driver.management) == 0
        long_pause.set()
        await until(lambda: len(driver.management) == 1)
        await ask(uri)


@pytest.mark.usefixtures("long_pause")
async def test_a_listener_can_be_closed_in_a_flood() -> None:
    async with open_media_driver() as driver:
        async with trio.open_nursery() as servers:
            (bound,) = await servers.start(
                lambda task_status: serve(responder, UDP, over=driver, task_status=task_status)
            )
            heard_of(driver)
            publish(bound, 4, 128 * KIB)
            await until(lambda: len(driver.management) == 0)
            servers.cancel_scope.cancel()
        assert driver.resources == set()
        assert driver.duty.hurried == 0


IPC = "aeron:ipc"


async def published(driver: MediaDriver, stream: int) -> AeronPublication:
    publication = AeronPublication(driver, IPC, stream)
    await added(driver, publication)
    await driver.duty.until(lambda: publication.is_connected)
    return publication


async def test_what_is_no_setup_is_ignored() -> None:
    async with served(IPC) as (driver, _):
        publication = await published(driver, SERVER_MANAGEMENT)
        for data in (b"", b"x", bytes(22), encode_setup_message(SetupMessage(SETUP_COMPLETE, 1, 2, IPC))):
            assert publication.offer(data) > 0
        publication.close()
        async with open_connection(IPC, over=driver) as connection:
            assert await connection.request_response(b"hello") == Payload(b"hello")


async def test_of_too_many_handshakes_some_are_dropped_and_those_whose_clients_go_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(aeron_handshake, "MAX_HANDSHAKES", 2)
    monkeypatch.setattr(aeron_handshake, "HANDSHAKE_TIMEOUT", 0.2)
    caplog.set_level("DEBUG", "rsocket_trio")
    async with served(IPC) as (driver, _):
        publication = await published(driver, SERVER_MANAGEMENT)
        objects = len(driver.resources)
        for number in range(5):
            publication.offer(encode_setup_message(SetupMessage(SETUP, number, 40 + number, IPC)))
        await driver.duty.until(lambda: len(driver.resources) == objects + 4)
        assert caplog.text.count("a SETUP was dropped: 2 handshakes are under way") == 3
        await driver.duty.until(lambda: len(driver.resources) == objects)
        assert driver.duty.hurried == 0
        publication.close()
