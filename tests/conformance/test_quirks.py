"""What peers of the time did otherwise: accepted always where that only widens, by name where it changes something."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import Lease, Limits, Payload, Responder, open_connection_over, serve_stream
from rsocket_trio.rsocket.dialects import ALL
from tests.conformance.raw32 import (
    RS01,
    UNSUPPORTED_SETUP,
    Log,
    Peer,
    bare_server,
    client,
    server,
    settle,
)

clause = pytest.mark.clause
W = RS01
WIDER = {"dialects": ALL}


@clause("DET-05", "RS01-SETUP-10", "QRK-01")
@pytest.mark.parametrize("version", [(0, 0), (0, 1), (0, 2)])
@pytest.mark.parametrize("options", [{}, WIDER], ids=["alone", "with all dialects"])
async def test_a_client_that_announces_its_neighbours_version_is_served(
    autojump_clock: object, version: tuple[int, int], options: Any
) -> None:
    async with bare_server(W, Log().responder, **options) as peer:
        await peer.send(W.setup(version=version), W.ask(2, b"x"))
        await peer.expect(W.item(2, b"x", "C"))


@clause("RS01-SEQ-01", "RS01-SID-05")
async def test_an_id_can_be_used_again_once_its_request_was_too_large(autojump_clock: object) -> None:
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    async with bare_server(W, responder, limits=Limits(payload_size=100)) as peer:
        await peer.send(W.setup(), W.ask(2, bytes(80), "F"), W.ask(2, bytes(80)))
        answer = await peer.receive()
        assert answer.stream_id == 2
        await peer.send(W.ask(2, b"again"))
        await peer.expect(W.item(2, b"again", "C"))


@clause("RS01-SETUP-10", "QRK-02")
async def test_a_client_can_say_version_0_0(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_connection_over(theirs, dialect=W.name, quirks=("version_0_0",)):
        got = await Peer(W, ours, client=False).receive()
        assert got.body[:4] == bytes(4)
    await trio.aclose_forcefully(ours)


@clause("RS01-SETUP-03", "QRK-06")
async def test_the_lease_flag_can_be_read_one_byte_too_low(autojump_clock: object) -> None:
    log = Log()

    @log.responder.lease
    async def policy(setup: Any) -> Any:
        yield Lease(1, 1)

    body = W.setup()[8:]
    async with bare_server(W, log.responder, quirks=["low_setup_flags"]) as peer:
        await peer.send(W.frame("SETUP", 0x0020, 0, body))
        await peer.expect(W.lease(1, 1))
    async with bare_server(W, log.responder) as peer:
        await peer.send(W.frame("SETUP", 0x0020, 0, body))
        await peer.expect_alive()
    async with bare_server(W, Log().responder, quirks=["low_setup_flags"]) as peer:
        await peer.send(W.frame("SETUP", 0x0020, 0, body))
        await peer.expect_refusal(UNSUPPORTED_SETUP)


@clause("RS01-CH-01", "RS01-CH-02", "QRK-07")
async def test_a_channel_can_have_its_number_always(autojump_clock: object) -> None:
    def slotted(n: int, data: bytes, flags: str = "") -> bytes:
        return W.frame("REQUEST_CHANNEL", flags, 2, W.n(n) + data)

    async with server(W, Log().responder, quirks=["channel_slot"]) as peer:
        await peer.send(slotted(1, b"hi"))
        await peer.expect(W.request_n(2, 4))
        await peer.send(slotted(0, b"back"))
        await peer.expect(W.item(2, b"back"))
        await peer.send(slotted(2, b"back"))
        await settle()
        got = [await peer.receive(), await peer.receive()]
        assert W.parsed(W.item(2, b"back")) in got
    async with (
        client(W, quirks=["channel_slot"]) as (connection, peer),
        connection.request_channel(b"c", initial_request_n=7) as channel,
    ):
        assert (await peer.receive()).body == W.n(7) + b"c"
        await peer.send(W.request_n(2, 1))
        await channel.send(b"item")
        assert (await peer.receive()).body == W.n(0) + b"item"


async def test_a_quirk_that_nobody_knows_is_refused_before_anything_happens(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(ValueError, match="the known ones are channel_slot, client_ids_odd"):
        await serve_stream(Responder(), theirs, quirks=["odd"])
    with pytest.raises(ValueError, match=r"quirk 'version_0_0' of rsocket/1.0: the known ones are ignores_credit"):
        async with open_connection_over(theirs, quirks=["version_0_0"]):
            pass
    with pytest.raises(ValueError, match=r"quirk 'version_0_0' of rsocket/1.0: the known ones are ignores_credit"):
        await serve_stream(Responder(), theirs, dialects=["rsocket/1.0"], quirks=["version_0_0"])
    await trio.aclose_forcefully(ours)


@clause("RS01-KA-06", "QRK-08")
@pytest.mark.parametrize("data", [b"", b"something else"])
async def test_a_keepalive_that_echoes_nothing_is_an_answer(autojump_clock: object, data: bytes) -> None:
    async with client(W) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(connection.ping)
        await peer.expect(W.keepalive())
        await peer.send(W.keepalive(data, ""))
