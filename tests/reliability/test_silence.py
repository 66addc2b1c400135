"""Who falls silent is taken for dead at exactly the lifetime that was agreed, by either side."""

from __future__ import annotations

import signal
import time

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ConnectionLost, Keepalive, Responder, open_connection, serve
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.reliability.processes import server_process

LIFETIME = 1.5
CLIENTS = 200


async def test_two_hundred_silent_clients_are_all_closed_soon_after_their_lifetime() -> None:
    lasted: list[float] = []

    async def fall_silent(port: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(raw.prefixed(raw.setup(keepalive=500, lifetime=1500)))
            started = time.monotonic()
            while await stream.receive_some():
                pass
            lasted.append(time.monotonic() - started)

    async with trio.open_nursery() as nursery:
        (uri,) = await nursery.start(serve, Responder(), ["tcp://127.0.0.1:0"])
        with trio.fail_after(10):
            async with trio.open_nursery() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(fall_silent, int(uri.rpartition(":")[2]))
        nursery.cancel_scope.cancel()

    assert len(lasted) == CLIENTS
    assert min(lasted) >= LIFETIME - 0.1  # both clocks begin a little apart
    assert max(lasted) <= 2.2


async def test_a_silent_client_is_told_at_exactly_its_lifetime(autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder()) as peer:
        await peer.send(raw.setup(lifetime=1500))
        started = trio.current_time()
        assert b"no frame came for 1.5 s" in await peer.expect_error(0, raw.CONNECTION_ERROR)
        assert trio.current_time() - started == pytest.approx(LIFETIME)


async def test_any_frame_is_life_and_bytes_are_not(autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder()) as peer:
        await peer.send(raw.setup(lifetime=1500))
        await trio.sleep(1)
        await peer.send(raw.request_n(99, 1))  # even one that means nothing
        started = trio.current_time()
        whole = raw.prefixed(raw.keepalive(b"never whole"))
        for byte in whole[:14]:
            await trio.sleep(0.1)
            await peer.send_bytes(bytes([byte]))
        await peer.expect_error(0, raw.CONNECTION_ERROR)
        assert trio.current_time() - started == pytest.approx(LIFETIME)


@pytest.mark.parametrize("wait", ["request", "item", "send", "ping"])
async def test_a_silent_server_fails_every_waiting_call_at_exactly_the_lifetime(
    wait: str, autojump_clock: MockClock
) -> None:
    async with raw.client(raw.RS10, keepalive=Keepalive(interval=0.5, max_lifetime=LIFETIME)) as (connection, _):
        started = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"silent: no frame came for 1\.5 s"):  # noqa: PT012
            if wait == "request":
                await connection.request_response()
            elif wait == "ping":
                await connection.ping()
            else:
                async with connection.request_channel() as channel:
                    await (anext(channel) if wait == "item" else channel.send(b"x"))
        assert trio.current_time() - started == pytest.approx(LIFETIME)


async def test_the_client_beats_once_an_interval_and_two_live_sides_live_on(autojump_clock: MockClock) -> None:
    async with connected_pair(keepalive=Keepalive(interval=20, max_lifetime=90)) as pair:
        await trio.sleep(1000.5)
        assert (pair.client.status, pair.server.status) == ("open", "open")
        assert pair.client_said.count(raw.KEEPALIVE) == 50
        assert pair.server_said.count(raw.KEEPALIVE) == 50
        await settle()


async def test_a_server_that_was_stopped_fails_every_waiting_call_in_time() -> None:
    failed: list[float] = []
    async with server_process() as (uri, process):
        async with open_connection(uri, keepalive=Keepalive(interval=0.3, max_lifetime=1.0)) as connection:
            await connection.ping()
            process.send_signal(signal.SIGSTOP)
            started = time.monotonic()

            async def call() -> None:
                with pytest.raises(ConnectionLost, match="silent"):
                    await connection.request_response()
                failed.append(time.monotonic() - started)

            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    for _ in range(32):
                        nursery.start_soon(call)
        process.send_signal(signal.SIGCONT)

    assert len(failed) == 32
    assert max(failed) <= 1.0 * 1.1 + 0.5
