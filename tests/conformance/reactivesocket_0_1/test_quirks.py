"""What peers of the time did otherwise: accepted always where that only widens, by name where it changes something."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import Connection, Lease, Limits, Payload, Responder, open_connection_over, serve_stream
from rsocket_trio.rsocket.dialects import ALL
from tests.conformance.old_frames import RS01, UNSUPPORTED_SETUP, OldLog
from tests.conformance.raw import RawPeer, bare_server, client, server, settle

clause = pytest.mark.clause
W = RS01
WIDER = {"dialects": ALL}


@clause("DET-05", "RS01-SETUP-10", "QRK-01")
@pytest.mark.parametrize("version", [(0, 0), (0, 1), (0, 2)])
@pytest.mark.parametrize("options", [{}, WIDER], ids=["alone", "with all dialects"])
async def test_a_client_that_announces_its_neighbours_version_is_served(
    autojump_clock: object, version: tuple[int, int], options: Any
) -> None:
    async with bare_server(W, OldLog().responder, **options) as peer:
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
        got = await RawPeer(ours, W, client=False).receive()
        assert got.body[:4] == bytes(4)
    await trio.aclose_forcefully(ours)


@clause("RS01-SETUP-03", "QRK-06")
async def test_the_lease_flag_can_be_read_one_byte_too_low(autojump_clock: object) -> None:
    log = OldLog()

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
    async with bare_server(W, OldLog().responder, quirks=["low_setup_flags"]) as peer:
        await peer.send(W.frame("SETUP", 0x0020, 0, body))
        await peer.expect_failure(UNSUPPORTED_SETUP)


@clause("RS01-CH-01", "RS01-CH-02", "QRK-07")
async def test_a_channel_can_have_its_number_always(autojump_clock: object) -> None:
    def slotted(n: int, data: bytes, flags: str = "") -> bytes:
        return W.frame("REQUEST_CHANNEL", flags, 2, W.n(n) + data)

    async with server(W, OldLog().responder, quirks=["channel_slot"]) as peer:
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


@clause("RS01-HDR-08", "RS01-STR-01", "RS01-SUB-01", "QRK-15")
async def test_a_request_with_a_number_says_so_by_the_flag_that_go_needs(autojump_clock: object) -> None:
    async with client(W) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=5):
            assert await raw_bytes(peer) == bytes.fromhex("00000011 0006 0800 00000002 00000005 73")
        await peer.expect(W.cancel(2))
        async with connection.request_subscription(Payload(b"s", b"m"), initial_request_n=5):
            assert await raw_bytes(peer) == bytes.fromhex("00000016 0007 4800 00000004 00000005 00000005 6d 73")
        await peer.expect(W.cancel(4))
    async with client(W, fragment_size=64) as (connection, peer):
        async with connection.request_stream(bytes(60), initial_request_n=5):
            assert (await raw_bytes(peer))[:16] == bytes.fromhex("00000044 0006 2800 00000002 00000005")
            assert (await raw_bytes(peer))[:16] == bytes.fromhex("00000018 0006 0800 00000002 00000005")
        await peer.expect(W.cancel(2))


@clause("RS01-HDR-08", "RS01-STR-01", "RS01-SUB-01", "QRK-15")
@pytest.mark.parametrize("flags", [0x0000, 0x0800])
async def test_a_request_with_a_number_needs_no_flag_here(autojump_clock: object, flags: int) -> None:
    async with server(W, OldLog().responder) as peer:
        await peer.send(W.frame("REQUEST_STREAM", flags, 2, W.n(1) + b"5"))
        await peer.expect(W.item(2, b"tick 0"))
        await peer.send(W.frame("REQUEST_SUB", flags, 4, W.n(1) + b"5"))
        await peer.expect(W.item(4, b"tick 0"))


@clause("RS01-SETUP-03", "QRK-06")
@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, "0000"),
        ({"lease": True}, "2020"),
        ({"strict": True}, "1010"),
        ({"lease": True, "strict": True}, "3030"),
    ],
)
async def test_a_client_can_say_lease_and_strict_where_java_reads_them_too(
    autojump_clock: object, options: Any, flags: str
) -> None:
    for quirks, written in (((), int(flags, 16) & 0xFF00), (("low_setup_flags", "version_0_0"), int(flags, 16))):
        ours, theirs = trio.testing.memory_stream_pair()
        async with open_connection_over(theirs, dialect=W.name, quirks=quirks, **options):
            setup = await raw_bytes(RawPeer(ours, W, client=False))
            assert setup[4:8] == bytes.fromhex("0001") + written.to_bytes(2, "big")
            assert setup[12:16] == (bytes(4) if quirks else bytes.fromhex("00000001"))
        await trio.aclose_forcefully(ours)


@clause("RS01-UNX-13", "RS01-MP-01", "QRK-17")
@pytest.mark.parametrize("stream_id", [0, 2, 3, 2**32 - 1])
async def test_metadata_pushed_with_any_stream_id_is_taken_by_name(autojump_clock: object, stream_id: int) -> None:
    log = OldLog()
    async with server(W, log.responder, quirks=["metadata_push_on_streams"]) as peer:
        await peer.send(W.push(b"one", stream_id))
        await peer.expect_alive()
        assert log.seen == [("push", b"one")]
        await peer.send(W.stream(2, 1, b"5"))
        await peer.expect(W.item(2, b"tick 0"))
        await peer.send(W.push(b"two", 2), W.request_n(2, 1))
        await peer.expect(W.item(2, b"tick 1"))
        assert log.seen[-1] == ("push", b"two")
    async with client(W, log.responder, quirks=["metadata_push_on_streams"]) as (_, peer):
        await peer.send(W.push(b"three", stream_id))
        await settle()
        assert log.seen[-1] == ("push", b"three")


@clause("RS01-UNX-13", "QRK-17")
async def test_metadata_that_is_pushed_in_vain_is_logged_once_and_counted(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    responder, connections = Responder(), []

    @responder.setup
    def accept(setup: Any, connection: Connection) -> None:
        connections.append(connection)

    async with server(W, responder) as peer:
        await peer.send(W.push(b"x", 3), W.push(b"x", 5))
        await settle()
        assert connections[0].faults.peer_faults == 2
    (record,) = caplog.records
    text = "metadata pushed on stream 3 is ignored: reactivesocket/0.1 has it on stream 0"
    assert text in record.getMessage()


async def raw_bytes(peer: RawPeer) -> bytes:
    """One frame as it came, its length included."""
    with trio.fail_after(1):
        data = bytes(await peer.stream.receive_some(4))
        while len(data) < 4 or len(data) < int.from_bytes(data[:4], "big"):
            wanted = 4 if len(data) < 4 else int.from_bytes(data[:4], "big")
            data += bytes(await peer.stream.receive_some(wanted - len(data)))
    return data
