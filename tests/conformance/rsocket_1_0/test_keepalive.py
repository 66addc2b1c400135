"""KEEPALIVE: RSocket 1.0, and 0.2 where it says the same."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import (
    ConnectionLost,
    Keepalive,
    current_connection,
)
from tests.conformance.raw import (
    CONNECTION_ERROR,
    Log,
    Wire,
    ask,
    bare_server,
    both,
    cancel,
    client,
    ext,
    forget,
    frame,
    keepalive,
    parsed,
    payload,
    request_n,
    server,
    settle,
    stream,
)

clause = pytest.mark.clause


@both
@clause("RS10-KA-02", "RS02-KA-02", "RS10-KA-06", "RS02-KA-05", "RS10-KA-01", "RS02-KA-01")
async def test_a_client_sends_keepalive_at_the_interval_of_its_setup(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(2, 100)) as (_, peer):
        start = trio.current_time()
        for beat in range(1, 6):
            await peer.expect(keepalive())
            assert trio.current_time() - start == 2 * beat
            await peer.send(keepalive(respond=False))


@both
@clause("RS10-KA-02", "RS02-KA-02")
async def test_traffic_changes_nothing_about_the_interval(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(2, 100)) as (connection, peer):
        start = trio.current_time()
        await trio.sleep(1.5)
        await connection.fire_and_forget(b"x")
        await peer.send(keepalive(b"d"))
        assert {await peer.receive(), await peer.receive()} == {
            parsed(keepalive(b"d", respond=False)),
            parsed(forget(1, b"x")),
        }
        await peer.expect(keepalive())
        assert trio.current_time() - start == 2


@both
@clause("RS10-KA-02", "RS10-KA-03", "RS02-KA-02")
async def test_a_server_sends_keepalive_only_when_its_application_asks(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    seconds = []

    @log.responder.extension(1)
    def call_back(stream_id: int, body: bytes) -> None:
        trio.lowlevel.spawn_system_task(ping, current_connection())

    async def ping(connection: Any) -> None:
        seconds.append(await connection.ping())

    async with server(wire, log.responder) as peer:
        await peer.expect_silence(80)
        await peer.send(ext(1))
        await peer.expect(keepalive())
        await trio.sleep(1.5)
        await peer.send(keepalive(b"other data", respond=False))
        await settle()
        assert seconds == [1.5]


@both
@clause("RS10-KA-04", "RS02-KA-03")
@pytest.mark.parametrize("data", [b"", b"x", bytes(4096), bytes(range(256)) * 300], ids=len)
async def test_keepalive_is_answered_with_its_data_by_both_roles(
    autojump_clock: object, wire: Wire, data: bytes
) -> None:
    async with server(wire, Log().responder) as peer:
        await peer.send(keepalive(data))
        await peer.expect(keepalive(data, respond=False))
    async with client(wire) as (_, peer):
        await peer.send(keepalive(data))
        await peer.expect(keepalive(data, respond=False))


@both
@clause("RS10-KA-07", "RS10-UNX-02", "RS02-KA-06")
async def test_a_server_takes_a_client_for_dead_after_the_clients_lifetime(autojump_clock: object, wire: Wire) -> None:
    async with bare_server(wire, Log().responder) as peer:
        await peer.send(wire.setup(lifetime=3000))
        start = trio.current_time()
        await peer.expect_silence(2.999)
        await peer.expect_failure(CONNECTION_ERROR)
        assert trio.current_time() - start == pytest.approx(3)


@both
@clause("RS10-KA-07", "RS10-UNX-02", "RS02-KA-06")
async def test_a_client_takes_a_server_for_dead_after_its_own_lifetime(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(2, 5)) as (connection, peer):
        start = trio.current_time()
        with pytest.raises(ConnectionLost, match="silent"):
            await connection.request_response(b"x")
        assert trio.current_time() - start == 5
        await peer.expect(ask(1, b"x"), keepalive(), keepalive())
        await peer.expect_failure(CONNECTION_ERROR)


@both
@clause("RS10-KA-07", "RS02-KA-06")
@pytest.mark.parametrize("sign", [cancel(77), frame(0x2A, 0x200), forget(1), keepalive(respond=False)], ids=repr)
async def test_any_frame_is_a_sign_of_life(autojump_clock: object, wire: Wire, sign: bytes) -> None:
    async with bare_server(wire, Log().responder) as peer:
        await peer.send(wire.setup(lifetime=3000))
        for _ in range(4):
            await trio.sleep(2.9)
            await peer.send(sign)
        await peer.expect_alive()
        await peer.expect_silence(2.999)
        await peer.expect_failure(CONNECTION_ERROR)


@both
@clause("RS10-KA-07", "RS02-KA-06")
async def test_half_a_frame_is_no_sign_of_life(autojump_clock: object, wire: Wire) -> None:
    async with bare_server(wire, Log().responder) as peer:
        await peer.send(wire.setup(lifetime=3000))
        for _ in range(3):
            await trio.sleep(0.9)
            await peer.send_bytes(b"\x00")
        await trio.sleep(0.29)
        await peer.expect_silence(0)
        await peer.expect_failure(CONNECTION_ERROR)


@both
@clause("RS10-UNX-03", "RS10-UNX-04", "RS02-UNX-02")
async def test_a_stream_without_credit_may_stand_for_a_day(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as peer:
        await peer.send(stream(1, 1))
        await peer.expect(payload(1, b"tick 0"))
        for _ in range(24 * 60):
            await trio.sleep(60)
            await peer.send(keepalive(respond=False))
        await peer.expect_silence(1)
        await peer.send(request_n(1, 1))
        await peer.expect(payload(1, b"tick 1"))
