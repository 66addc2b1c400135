"""Who falls silent is taken for dead at exactly the lifetime that was agreed, by either side."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ConnectionLost, Keepalive, Responder
from tests.conformance import raw
from tests.reliability.timed import CALLS, SILENCE, stop_a_server

LIFETIME = 1.5
CLIENTS = 200


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


async def test_a_server_that_was_stopped_fails_every_waiting_call() -> None:
    failed = await stop_a_server()

    assert len(failed) == CALLS
    assert min(failed) >= SILENCE * 0.9
