"""One server, all dialects: clients of 0.0 and 0.1 are told by their first bytes, at any cut, and so is noise."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import trio

from rsocket_trio import Responder, serve_stream
from rsocket_trio.rsocket.dialects import ALL
from rsocket_trio.transports.memory import memory_pair
from tests.conformance.old_frames import INVALID_SETUP, OLD, RS00, RS01, OldLog, OldWire, both
from tests.conformance.raw import PROBE, RawPeer, bare_server, settle

clause = pytest.mark.clause
HTTP = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@both
@clause("DET-05", "DET-06", "DET-07")
@pytest.mark.parametrize("cut", range(1, 21))
async def test_a_client_is_served_wherever_its_first_bytes_are_cut(
    autojump_clock: object, old: OldWire, cut: int
) -> None:
    async with bare_server(old, OldLog().responder, dialects=ALL) as peer:
        data = old.prefixed(old.setup(), old.ask(2, b"x"))
        await peer.send_bytes(data[:cut])
        await settle()
        await trio.sleep(1)
        await peer.send_bytes(data[cut:])
        await peer.expect(old.item(2, b"x", "C"))
        await peer.expect_alive()


@both
@clause("DET-05", "DET-06")
async def test_a_client_is_served_byte_by_byte_and_all_at_once(autojump_clock: object, old: OldWire) -> None:
    data = old.prefixed(old.setup(), old.ask(2, b"x"))
    for step in (1, 2, 3, 5, 7, len(data)):
        async with bare_server(old, OldLog().responder, dialects=ALL) as peer:
            for start in range(0, len(data), step):
                await peer.send_bytes(data[start : start + step])
                await settle()
            await peer.expect(old.item(2, b"x", "C"))


@both
@clause("DET-09")
async def test_over_messages_there_is_no_length_to_look_at(autojump_clock: object, old: OldWire) -> None:
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, OldLog().responder, theirs, dialects=ALL))
        await ours.send([old.setup(), old.ask(2, PROBE)])
        assert list(await ours.receive()) == [old.item(2, PROBE, "C")]
        ours.close()


@both
@clause("DET-07")
@pytest.mark.parametrize("message", [False, True], ids=["bytes", "messages"])
async def test_a_dialect_that_is_not_enabled_gets_its_own_refusal(
    autojump_clock: object, old: OldWire, message: bool
) -> None:
    others = [name for name in ALL if name != old.name]
    if message:
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_stream, OldLog().responder, theirs, dialects=others))
            await ours.send([old.setup()])
            (answer,) = await ours.receive()
            assert answer.startswith(old.refusal(INVALID_SETUP))
            assert list(await ours.receive()) == []
            ours.close()
        return
    async with bare_server(old, OldLog().responder, dialects=others) as peer:
        await peer.send(old.setup(), old.ask(2))
        await peer.expect_failure(INVALID_SETUP)


@clause("DET-07", "RS01-SETUP-10")
@pytest.mark.parametrize("version", [(0, 3), (1, 0), (3, 0)])
@pytest.mark.parametrize("flags", [0, 0x0020, 0x2000])
async def test_the_layout_of_0_1_with_another_version_is_refused_in_it(
    autojump_clock: object, version: tuple[int, int], flags: int
) -> None:
    async with bare_server(RS01, OldLog().responder, dialects=ALL) as peer:
        await peer.send(RS01.frame("SETUP", flags, 0, RS01.setup(version=version)[8:]))
        await peer.expect_failure(INVALID_SETUP)


NOISE = {
    "HTTP": HTTP,
    "TLS": bytes.fromhex("16030102000100 01fc0303") + bytes(20),
    "zeroes": bytes(40),
    "ones": b"\xff" * 40,
    "0.0 of version 1": RS00.prefixed(RS00.setup(version=(1, 0))),
    "0.0 on a stream": RS00.prefixed(RS00.setup(stream_id=1)),
    "another first frame of 0.0": RS00.prefixed(RS00.ask(2, b"some data here")),
    "0.1 on a stream": RS01.prefixed(RS01.setup(stream_id=2)),
    "KEEPALIVE of 0.1": RS01.prefixed(RS01.keepalive(b"some data here")),
}


@clause("DET-07")
@pytest.mark.parametrize("data", NOISE.values(), ids=NOISE)
@pytest.mark.parametrize("step", [1, 1000])
async def test_bytes_that_fit_nothing_are_closed_without_an_answer(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, data: bytes, step: int
) -> None:
    log = OldLog()
    async with bare_server(RS01, log.responder, dialects=ALL) as peer:
        for start in range(0, len(data), step):
            try:
                await peer.send_bytes(data[start : start + step])
            except trio.BrokenResourceError:
                break
            await settle()
        await peer.expect_end()
    assert log.seen == []
    (record,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert data[:4].hex() in record.getMessage()


@both
@clause("DET-07")
@pytest.mark.parametrize("cut", [1, 3, 4, 8, 15])
async def test_a_client_that_goes_before_it_can_be_told_is_no_fault(
    autojump_clock: object, old: OldWire, cut: int
) -> None:
    async with bare_server(old, OldLog().responder, dialects=ALL) as peer:
        await peer.send_bytes(old.prefixed(old.setup())[:cut])
        await peer.stream.aclose()


@clause("DET-07")
async def test_who_says_too_little_in_time_is_closed(autojump_clock: object) -> None:
    async with bare_server(RS00, OldLog().responder, dialects=ALL) as peer:
        await peer.send_bytes(RS00.prefixed(RS00.setup())[:15])
        await peer.expect_silence(9)
        with trio.fail_after(2):
            assert await peer.stream.receive_some() == b""


@clause("DET-07")
async def test_noise_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    from rsocket_trio import serve

    async with trio.open_nursery() as nursery:
        (uri,) = await nursery.start(serve, OldLog().responder, ["tcp://127.0.0.1:0"])
        port = int(uri.rpartition(":")[2])
        for number in range(5):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(b"GET /%d HTTP/1.1" % number)
            with trio.fail_after(5):
                assert await stream.receive_some() == b""
            await stream.aclose()
        nursery.cancel_scope.cancel()
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert b"GET /0 HTTP".hex() in warnings[0]


@clause("DET-08")
async def test_with_one_dialect_nothing_is_told_apart(autojump_clock: object) -> None:
    for old in OLD:
        async with bare_server(old, Responder()) as peer:
            await peer.send_bytes(HTTP)
            await peer.expect_failure(INVALID_SETUP)


@clause("DET-05", "DET-06")
async def test_clients_of_both_are_served_on_one_port_at_once() -> None:
    from rsocket_trio import serve

    async with trio.open_nursery() as nursery:
        (uri,) = await nursery.start(serve, OldLog().responder, ["tcp://127.0.0.1:0"])
        port = int(uri.rpartition(":")[2])
        peers = [RawPeer(await trio.open_tcp_stream("127.0.0.1", port), old, client=True) for old in OLD]
        for peer in peers:
            await peer.send(peer.wire.setup())
        for peer in peers:
            await peer.expect_alive()
        for peer in peers:
            await peer.stream.aclose()
        nursery.cancel_scope.cancel()
