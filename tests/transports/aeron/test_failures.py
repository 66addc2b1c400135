"""Connections that end over Aeron: clear errors and nothing left, of killed peers and drivers and blocked loops."""

from __future__ import annotations

import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from rsocket_trio import ConnectionLost, open_connection, serve
from rsocket_trio.transports.aeron import duty_cycle, media_driver, open_media_driver
from rsocket_trio.transports.aeron.aeron_handshake import dial
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.schemes import parse_uri
from tests.reliability.cancelling import CancelAtStep
from tests.serving import running_server
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
        async with started("client", bound) as (process, _):
            started_client.set()
            await ended.wait()
        nursery.cancel_scope.cancel()


async def test_a_driver_that_is_killed_ends_the_connections_over_it_and_is_replaced(directory: str) -> None:
    uri = f"aeron:ipc?directory={directory}"
    async with started("driver", directory) as (process, _), transport_pair(uri) as (client, server):
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
    async with running_server(responder, UDP) as bound:
        async with open_connection(bound) as connection:
            await connection.request_response(b"hello")
            time.sleep(SOON + 0.3)  # noqa: ASYNC251 - the loop is blocked
            with pytest.raises(ConnectionLost, match=f"the event loop was blocked for longer than {SOON} s"):
                await connection.request_response(b"hello")
        async with open_connection(bound) as connection:
            assert (await connection.request_response(b"hello")).data == b"hello"
    assert "listening anew" in caplog.text


async def test_what_a_killed_process_left_is_removed_by_the_next_start() -> None:
    async with (
        started("driver", "") as (alive, kept),
        started("driver", "") as (process, left),
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


async def cancel_anywhere(run: Callable[[], Awaitable[None]]) -> None:
    """Run this again and again, cancelled at one step after the other."""
    step = 0
    while True:
        cancelling = CancelAtStep(step, before=False)
        await cancelling.run(run)
        if cancelling.taken < step:
            break
        step += 1
    assert step >= 2


async def test_connecting_can_be_cancelled_at_every_step(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duty_cycle, "SPINS", 0)
    async with running_server(responder, uri) as bound:

        async def connect() -> None:
            (await dial(parse_uri(bound))).cut()

        await cancel_anywhere(connect)
        async with open_connection(bound) as connection:
            assert (await connection.request_response(b"hello")).data == b"hello"


async def test_listening_can_be_cancelled_at_every_step(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duty_cycle, "SPINS", 0)

    async def listen() -> None:
        (listener,) = await open_listeners([uri])
        await listener.aclose()

    await cancel_anywhere(listen)


async def failure_of(uri: str) -> str:
    """Return what an error says of a server that can't be connected to, without its URI."""
    with pytest.raises(ConnectionLost) as caught:
        async with open_transport(uri):
            pass
    return str(caught.value).removeprefix(f"{uri}: ")


async def test_nobody_at_a_port_is_said_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsocket_trio.transports.aeron.aeron_handshake.HANDSHAKE_TIMEOUT", 0.2)
    text = "no answer within 0.2 s: nobody listens there, or it is busy"
    assert await failure_of("aeron:udp?endpoint=127.0.0.1:1") == text


async def test_a_port_that_is_taken_is_an_error_of_listening_and_leaves_nothing() -> None:
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as taken:
        await taken.bind(("127.0.0.1", 0))
        uri = f"aeron:udp?endpoint=127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=r"cannot listen on aeron:.*: address already in use"):
            await open_listeners([uri])


async def test_a_driver_of_another_layout_is_refused_by_its_version(tmp_path: Path) -> None:
    length = 1024
    heard = struct.pack("=q", int(time.time() * 1000))
    (tmp_path / "cnc.dat").write_bytes(struct.pack("=ii", 3 << 16, length).ljust(length, b"\0") + heard)
    text = rf"the media driver in {tmp_path} has files of layout 3\.0\.0, known is 0\.2"
    uri = f"aeron:ipc?directory={tmp_path}"
    with pytest.raises(ConnectionLost, match=text):
        async with open_transport(uri):
            pass
    with pytest.raises(OSError, match=text):
        await open_listeners([uri])


async def test_a_library_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"no library")
    monkeypatch.setenv(media_driver.LIBRARY_VARIABLE, str(wrong))
    with pytest.raises(ConnectionLost, match=rf"the Aeron library {wrong} can't be opened"):
        async with open_transport("aeron:udp?endpoint=127.0.0.1:1"):
            pass
    with pytest.raises(OSError, match=rf"cannot listen on aeron:.*{wrong}"):
        await serve(responder, UDP)
    with pytest.raises(OSError, match=r"libc.so.6 is no Aeron library with a driver: it has no aeron_driver_init"):
        async with open_media_driver(library="libc.so.6"):
            pass
