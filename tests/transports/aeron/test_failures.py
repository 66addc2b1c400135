"""Connections that end over Aeron: clear errors and nothing left, of killed peers and drivers and blocked loops."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from rsocket_trio import ConnectionLost, open_connection, serve
from rsocket_trio.transports.aeron import duty_cycle, library, media_driver, open_media_driver
from rsocket_trio.transports.aeron.channels import Channel, address_of
from rsocket_trio.transports.aeron.handshake import (
    SERVER_MANAGEMENT,
    SETUP,
    SETUP_COMPLETE,
    SetupMessage,
    added,
    decode_setup_message,
    dial,
    encode_setup_message,
)
from rsocket_trio.transports.aeron.media_driver import driver_of
from rsocket_trio.transports.aeron.publications import Publication, Subscription
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.schemes import parse_uri
from tests.rows import Rows
from tests.transports.aeron.echo_server import responder
from tests.transports.aeron.processes import echo_server, started
from tests.transports.pairs import transport_pair

UDP = "aeron:udp?endpoint=127.0.0.1:0"
SOON = 1
"""Seconds after which a peer counts as gone in these tests."""


@pytest.fixture(autouse=True)
def peers_are_soon_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_driver, "PEER_TIMEOUT", SOON)


async def test_a_server_that_is_killed_is_a_lost_connection(nursery: trio.Nursery) -> None:
    async with echo_server(UDP) as (process, bound), open_connection(bound) as connection:
        await connection.request_response(b"hello")
        process.kill()
        await connection.wait_closed()
        with pytest.raises(ConnectionLost, match=rf"the peer 127.0.0.1:\d+ has gone, or was silent for {SOON} s"):
            await connection.request_response(b"hello")


async def test_a_client_that_is_killed_ends_its_connection_at_the_server() -> None:
    (listener,) = await open_listeners([UDP])
    started_client, ended = trio.Event(), trio.Event()

    async def handle(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            assert await transport.receive() == [b"hello!"]
            await started_client.wait()
            process.kill()
            with pytest.raises(trio.BrokenResourceError, match=f"has gone, or was silent for {SOON} s"):
                await transport.receive()
        ended.set()

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(listener.serve, handle)
        async with started("talker.py", "client", bound) as (process, _):
            started_client.set()
            await ended.wait()
        nursery.cancel_scope.cancel()


async def test_a_driver_that_is_killed_ends_the_connections_over_it_and_is_replaced(directory: str) -> None:
    uri = f"aeron:ipc?directory={directory}"
    async with started("talker.py", "driver", directory) as (process, _), transport_pair(uri) as (client, server):
        process.kill()
        for transport in (client, server):
            with pytest.raises(trio.BrokenResourceError, match=f"the media driver in {directory} is gone"):
                await transport.receive()
        with pytest.raises(trio.BrokenResourceError, match="is gone"):
            await client.send([b"frames"])

    async with transport_pair(uri) as (client, server):
        await client.send([b"frames"])
        assert await server.receive() == [b"frames"]


async def test_a_blocked_loop_ends_connections_with_the_reason_and_the_server_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening(UDP) as bound:
        async with open_connection(bound) as connection:
            await connection.request_response(b"hello")
            time.sleep(SOON + 0.3)  # noqa: ASYNC251 - the loop is blocked
            with pytest.raises(ConnectionLost, match=f"the event loop was blocked for longer than {SOON} s"):
                await connection.request_response(b"hello")
        async with open_connection(bound) as connection:
            assert (await connection.request_response(b"hello")).data == b"hello"
    assert "listening anew" in caplog.text


async def test_a_blocked_loop_ends_transports_with_the_reason() -> None:
    async with transport_pair(UDP) as (client, server):
        time.sleep(SOON + 0.3)  # noqa: ASYNC251 - the loop is blocked
        with pytest.raises(trio.BrokenResourceError, match=f"the event loop was blocked for longer than {SOON} s"):
            await client.receive()
        with pytest.raises(trio.BrokenResourceError, match="the event loop was blocked"):
            await server.send([b"frames"])

    async with transport_pair(UDP) as (client, server):
        await client.send([b"frames"])
        assert await server.receive() == [b"frames"]


async def test_what_a_killed_process_left_is_removed_by_the_next_start() -> None:
    async with (
        started("talker.py", "driver", "") as (alive, kept),
        started("talker.py", "driver", "") as (process, left),
    ):
        process.kill()
        await process.wait()
        assert await trio.Path(left).exists()
        async with open_media_driver():
            assert not await trio.Path(left).exists()
            assert await trio.Path(kept).exists()
        assert alive.poll() is None
    async with open_media_driver():
        assert not await trio.Path(kept).exists()


async def test_a_server_takes_the_directory_of_a_killed_one_at_once(directory: str) -> None:
    uri = f"aeron:ipc?directory={directory}"
    async with echo_server(uri) as (process, _):
        process.kill()
        await process.wait()
        async with trio.open_nursery() as nursery:
            (bound,) = await nursery.start(serve, responder, uri)
            async with open_connection(bound) as connection:
                assert (await connection.request_response(b"hello")).data == b"hello"
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def listening(uri: str) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(serve, responder, uri)
        yield bound
        nursery.cancel_scope.cancel()


class Turns(trio.abc.Instrument):
    """Cancels a scope once its task has had so many turns."""

    def __init__(self, scope: trio.CancelScope, turns: int) -> None:
        self._scope = scope
        self._task = trio.lowlevel.current_task()
        self._turns = turns

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._turns -= 1
            if self._turns == 0:
                self._scope.cancel()


async def test_connecting_can_be_cancelled_at_every_step(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duty_cycle, "SPINS", 0)
    async with listening(uri) as bound:
        endpoint = parse_uri(bound)
        turns = 0
        cancelled = True
        while cancelled:
            turns += 1
            with trio.CancelScope() as scope:
                instrument = Turns(scope, turns)
                trio.lowlevel.add_instrument(instrument)
                try:
                    transport = await dial(endpoint)
                    transport.cut()
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            cancelled = scope.cancelled_caught
        async with open_connection(bound) as connection:
            assert (await connection.request_response(b"hello")).data == b"hello"
    assert turns >= 2


async def test_listening_can_be_cancelled_at_every_step(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duty_cycle, "SPINS", 0)
    turns = 0
    cancelled = True
    while cancelled:
        turns += 1
        with trio.CancelScope() as scope:
            instrument = Turns(scope, turns)
            trio.lowlevel.add_instrument(instrument)
            try:
                (listener,) = await open_listeners([uri])
                await listener.aclose()
            finally:
                trio.lowlevel.remove_instrument(instrument)
        cancelled = scope.cancelled_caught
    assert turns >= 2


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the seconds after which a client gives its handshake up."""
    return partial(monkeypatch.setattr, "rsocket_trio.transports.aeron.handshake.HANDSHAKE_TIMEOUT")


async def failure_of(uri: str) -> str:
    """Return what an error says of a server that can't be connected to, without its URI."""
    with pytest.raises(ConnectionLost) as caught:
        async with open_transport(uri):
            pass
    return str(caught.value).removeprefix(f"{uri}: ")


async def test_nobody_at_a_port_is_said_after_a_while(impatient: Callable[[float], None]) -> None:
    impatient(0.2)
    text = "no answer within 0.2 s: nobody listens there, or it is busy"
    assert await failure_of("aeron:udp?endpoint=127.0.0.1:1") == text
    assert await failure_of("aeron:udp?endpoint=127.0.0.1:1") == text


@asynccontextmanager
async def answering(*answers: SetupMessage) -> AsyncIterator[str]:
    """A server that answers one SETUP by these messages, each with the id of its connection added to its own, and no
    more. Provide its URI.
    """
    async with open_media_driver() as driver, trio.open_nursery() as nursery:
        setups = Subscription(driver, UDP, SERVER_MANAGEMENT)
        await added(driver, setups)
        await driver.duty.until(lambda: bool(setups.resolved_channel))

        async def answer() -> None:
            asked: list[SetupMessage] = []

            def is_asked() -> bool:
                asked.extend(map(decode_setup_message, setups.poll()))
                return bool(asked)

            await driver.duty.until(is_asked)
            [setup] = asked
            channel = f"{setup.channel}|session-id={setup.session}"
            sending = Publication(driver, channel, setup.stream)
            await added(driver, sending)
            for message in answers:
                data = encode_setup_message(attrs.evolve(message, connection=setup.connection ^ message.connection))
                await driver.duty.until(lambda data=data: sending.offer(data) > 0)  # type: ignore[misc]

        nursery.start_soon(answer)
        yield f"aeron:udp?endpoint={address_of(setups.resolved_channel)}"


async def test_an_answer_that_is_none_is_a_lost_connection() -> None:
    with Rows() as row:
        for message in (SetupMessage(SETUP, 0, 1), SetupMessage(SETUP_COMPLETE, 1, 1)):
            with row(message):
                async with answering(message) as uri:
                    assert await failure_of(uri) == "the server's answer is no SETUP_COMPLETE to this connection"


async def test_the_address_of_a_client_may_be_a_name() -> None:
    async with listening(UDP) as bound, open_connection(f"{bound}|control=localhost:0") as connection:
        assert (await connection.request_response(b"hello")).data == b"hello"


async def test_the_time_of_connecting_is_that_of_the_caller_where_it_is_shorter() -> None:
    uri = "aeron:udp?endpoint=127.0.0.1:1"
    with pytest.raises(ConnectionLost, match=r"^aeron:.*127\.0\.0\.1:1: not connected within 0\.2 s$"):
        async with open_connection(uri, connect_timeout=0.2):
            pass
    async with open_media_driver() as driver:
        with pytest.raises(ConnectionLost, match=r"^aeron:.*127\.0\.0\.1:1: not connected within 0\.2 s$"):
            async with open_connection(uri, over=driver, connect_timeout=0.2):
                pass


async def test_a_host_without_an_address_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLost, match=r"aeron:udp\?endpoint=nowhere.invalid:7: "):
        async with open_transport("aeron:udp?endpoint=nowhere.invalid:7"):
            pass


async def test_a_port_that_is_taken_is_an_error_of_listening_and_leaves_nothing() -> None:
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as taken:
        await taken.bind(("127.0.0.1", 0))
        uri = f"aeron:udp?endpoint=127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=r"cannot listen on aeron:.*: address already in use"):
            await open_listeners([uri])


@pytest.fixture
def driver_of_the_future(tmp_path: Path) -> Path:
    """The directory of a driver that lives, and has files of another layout."""
    length = 1024
    heard = struct.pack("=q", int(time.time() * 1000))
    (tmp_path / "cnc.dat").write_bytes(struct.pack("=ii", 3 << 16, length).ljust(length, b"\0") + heard)
    return tmp_path


async def test_a_driver_of_another_layout_is_refused_by_its_version(driver_of_the_future: Path) -> None:
    text = rf"the media driver in {driver_of_the_future} has files of layout 3\.0\.0, known is 0\.2"
    uri = f"aeron:ipc?directory={driver_of_the_future}"
    with pytest.raises(ConnectionLost, match=text):
        async with open_transport(uri):
            pass
    with pytest.raises(OSError, match=text):
        await open_listeners([uri])


async def test_a_library_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"no library")
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(wrong))
    with pytest.raises(ConnectionLost, match=rf"the Aeron library {wrong} can't be opened"):
        async with open_transport("aeron:udp?endpoint=127.0.0.1:1"):
            pass
    with pytest.raises(OSError, match=rf"cannot listen on aeron:.*{wrong}"):
        await serve(responder, UDP)
    with pytest.raises(OSError, match=r"libc.so.6 is no Aeron library with a driver: it has no aeron_driver_init"):
        async with open_media_driver(library="libc.so.6"):
            pass


async def test_without_any_library_all_places_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_places", lambda: iter(["libnone.so", "libnothing.so"]))
    library._open.cache_clear()
    try:
        with pytest.raises(
            ConnectionLost, match=r"no Aeron library: .*RSOCKET_TRIO_AERON_LIBRARY.*libnone.so, libnothing.so"
        ):
            async with open_transport("aeron:udp?endpoint=127.0.0.1:1"):
                pass
    finally:
        library._open.cache_clear()


async def test_a_program_without_connections_has_no_driver(uri: str) -> None:
    async with transport_pair(uri) as (client, _):
        driver = client.driver  # type: ignore[attr-defined]
        assert driver.users == 3
    assert driver.fault is not None
    with pytest.raises(ConnectionRefusedError, match="no media driver runs in /nowhere"):
        driver_of(Channel.of(parse_uri("aeron:ipc?directory=/nowhere")), start=False)
