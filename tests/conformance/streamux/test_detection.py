"""One server, all dialects: a Streamux peer is told by five bytes, at any cut and over messages, and nobody else is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio_websocket

from rsocket_trio import Limits, serve, serve_stream
from rsocket_trio.connection.protocols import ALL, detect_protocol, name_of
from rsocket_trio.rsocket.detection import UNDECIDED
from rsocket_trio.transports.memory import memory_pair
from tests.conformance import old_frames, raw
from tests.conformance.raw_streamux import SERVER_SAYS, SMALL, WIDE, Log, Mux, RawMux, bare_server, initialize, settle

clause = pytest.mark.clause
ANY_ID, ANY_LENGTH = (0, 29, 14), (1, 24, 16)
BEGINS = {
    "all wishes": initialize((0, 29, 31), (1, 30, 31)),
    "the least": initialize((0, 0, 0), (1, 1, 1)),
    "the most": initialize((15, 29, 29), (15, 30, 30)),
    "a quick init": initialize(ANY_ID, ANY_LENGTH, request=1),
    "one that allows a quick init": initialize(ANY_ID, ANY_LENGTH, allow=1),
    "one that fails": initialize((0, 31, 30), (0, 31, 1), request=1, allow=1),
    "5/9": SMALL.says,
}
begins = pytest.mark.parametrize("says", BEGINS.values(), ids=list(BEGINS))
over = pytest.mark.parametrize("message", [False, True], ids=["bytes", "messages"])

NO = {
    "version 0": initialize(ANY_ID, ANY_LENGTH, version=0),
    "version 2": initialize(ANY_ID, ANY_LENGTH, version=2),
    "version 255": initialize(ANY_ID, ANY_LENGTH, version=255),
    "the lower reserved bit": initialize(ANY_ID, ANY_LENGTH, reserved=1),
    "the upper reserved bit": initialize(ANY_ID, ANY_LENGTH, reserved=2),
    "no lengths at all": initialize((0, 29, 0), (0, 0, 0)),
    "a frame of 64 KiB": (65536).to_bytes(3, "big") + bytes(2),
    "a frame of 128 KiB less one": (131071).to_bytes(3, "big") + bytes(2),
}
no = pytest.mark.parametrize("says", NO.values(), ids=list(NO))


def found(data: bytes, *, message: bool, ended: bool = False) -> str | None:
    """The name of what was found, ``"?"`` as long as it is not."""
    result = detect_protocol(data, message=message, ended=ended)
    if result is None:
        return None
    return "?" if result is UNDECIDED else name_of(result)


# The decision


@begins
@over
@clause("DET-01")
def test_five_bytes_decide_and_no_fewer(says: bytes, message: bool) -> None:
    assert [found(says[:cut], message=message) for cut in range(1, 6)] == ["?"] * 4 + ["streamux/1"]
    assert found(b"", message=False) == "?"
    assert found(says + b"whatever follows", message=message) == "streamux/1"
    assert found(says, message=message, ended=True) == "streamux/1"


@begins
@clause("DET-01")
def test_fewer_bytes_and_the_end_are_nobody(says: bytes) -> None:
    assert {found(says[:cut], message=False, ended=True) for cut in range(5)} == {None}


@no
@over
@clause("DET-01")
def test_bytes_that_are_close_are_not_taken_for_it(says: bytes, message: bool) -> None:
    for rest in (b"", bytes(16), b"\xff" * 16, SMALL.request(1, b"hi")):
        assert found(says + rest, message=message) != "streamux/1"


@clause("DET-01")
def test_the_second_byte_may_decide_already() -> None:
    for first, second in ((1, 0x40), (1, 0x80), (1, 0xC0), (1, 0xFF), (2, 0), (0xFF, 0)):
        for last in range(256):
            assert found(bytes([first, second, 0xEB, last, 0x10]), message=False) != "streamux/1"


@clause("DET-01")
def test_any_bit_of_a_length_is_enough() -> None:
    for bit in range(16):
        data = b"\x01\x00\x00" + (1 << bit).to_bytes(2, "big")
        assert found(data, message=False) == "streamux/1"


@clause("DET-01", "DET-02")
@pytest.mark.parametrize("size", [65536, 65537, 70_000, 131_071, 2**22 - 1])
def test_a_large_frame_of_1_0_is_no_initialize_message(size: int) -> None:
    setup = raw.setup()
    frame = size.to_bytes(3, "big") + setup
    seen = [found(frame[:cut], message=False) for cut in range(1, 14)]
    assert "streamux/1" not in seen
    assert seen[-1] == "rsocket/1.0"


# On a shared port


@clause("DET-01")
@pytest.mark.parametrize("mux", [SMALL, WIDE, Mux(0, 6)], ids=str)
@pytest.mark.parametrize("cut", range(1, 8))
async def test_a_peer_is_served_wherever_its_first_bytes_are_cut(autojump_clock: object, mux: Mux, cut: int) -> None:
    said = mux.says + mux.request(0, b"hi")
    async with bare_server(Log().responder, mux, dialects=ALL) as peer:
        await peer.send(said[:cut])
        if cut < 5:
            # Who it is that speaks is not known: nothing is said.
            await peer.expect_silence(5)
        await settle()
        await peer.send(said[cut:])
        await peer.expect(SERVER_SAYS, mux.response(0, b"hi"))
        await peer.expect_alive()


@clause("DET-01")
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6, 7, 100])
async def test_a_peer_is_served_piece_by_piece(autojump_clock: object, step: int) -> None:
    said = SMALL.says + SMALL.request(1, b"hi") + SMALL.ping(2)
    async with bare_server(Log().responder, dialects=ALL) as peer:
        for start in range(0, len(said), step):
            await peer.send(said[start : start + step])
            await settle()
        await peer.expect(SERVER_SAYS)
        await peer.expect_in_any_order(SMALL.response(1, b"hi"), SMALL.ping_ack(2))


@clause("DET-01", "DET-07")
@pytest.mark.parametrize("cut", range(1, 5))
async def test_who_goes_before_the_fifth_byte_is_no_fault(autojump_clock: object, cut: int) -> None:
    log = Log()
    async with bare_server(log.responder, dialects=ALL) as peer:
        await peer.send(SMALL.says[:cut])
        await peer.say_no_more()
        await peer.expect_end()
    assert log.seen == []


@clause("DET-01")
@pytest.mark.parametrize("cut", range(5))
async def test_who_says_too_little_in_time_is_closed(autojump_clock: object, cut: int) -> None:
    async with bare_server(Log().responder, dialects=ALL) as peer:
        await peer.send(SMALL.says[:cut])
        await peer.expect_silence(9)
        await peer.expect_end()


@no
@clause("DET-01", "DET-07")
@pytest.mark.parametrize("step", [1, 100])
async def test_who_is_close_is_not_answered_as_if_it_were_one(autojump_clock: object, says: bytes, step: int) -> None:
    log = Log()
    said = says + SMALL.request(1, b"hi") * 10
    async with bare_server(log.responder, dialects=ALL) as peer:
        for start in range(0, len(said), step):
            try:
                await peer.send(said[start : start + step])
            except trio.BrokenResourceError:
                break
            await settle()
        answer = b""
        with trio.fail_after(12):
            while piece := await peer.stream.receive_some():
                answer += piece
    assert log.seen == []
    # Either nothing, or in the layout of 1.0: an ERROR on stream 0.
    assert answer == b"" or answer[3:10] == raw.error(0, raw.INVALID_SETUP)[:7]


@clause("DET-01", "DET-02")
async def test_a_client_of_1_0_with_a_large_setup_is_served(autojump_clock: object) -> None:
    limits = Limits(setup_size=100_000)
    async with raw.bare_server(raw.RS10, raw.Log().responder, dialects=ALL, limits=limits) as peer:
        setup = raw.prefixed(raw.setup(data=bytes(70_000)))
        assert setup[0] == 1
        for cut in (1, 2, 3, 4, 5):
            await peer.send_bytes(setup[cut - 1 : cut])
            await settle()
        await peer.send_bytes(setup[5:])
        await peer.send(raw.ask(1, b"hi"))
        await peer.expect(raw.payload(1, b"hi", raw.N | raw.C))


@clause("DET-01", "DET-07")
async def test_where_it_is_not_served_a_peer_is_closed_without_a_word(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    others = [name for name in ALL if name != "streamux/1"]
    async with bare_server(Log().responder, dialects=others) as peer:
        await peer.send(SMALL.says, SMALL.request(1, b"hi"))
        await peer.expect_end()
    (record,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert SMALL.says.hex() in record.getMessage()


# Over messages


def cuts(said: bytes, size: int) -> Iterator[bytes]:
    return (said[start : start + size] for start in range(0, len(said), size))


@clause("DET-09")
@pytest.mark.parametrize("dialects", [ALL, ("streamux/1",)], ids=["all dialects", "one dialect"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 100])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
async def test_in_memory_messages_have_no_borders(
    autojump_clock: object, dialects: tuple[str, ...], size: int, at_once: bool
) -> None:
    ours, theirs = memory_pair()
    said = list(cuts(SMALL.says + SMALL.request(1, b"hi"), size))
    wanted = SERVER_SAYS + SMALL.response(1, b"hi")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, Log().responder, theirs, dialects=dialects))
        for batch in [said] if at_once else [[one] for one in said]:
            await ours.send(batch)
            await settle()
        heard = b""
        with trio.fail_after(5):
            while len(heard) < len(wanted):
                heard += b"".join(await ours.receive())
        assert heard == wanted
        ours.close()


@clause("DET-09")
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_websocket_messages_have_no_borders(size: int) -> None:
    wanted = SERVER_SAYS + SMALL.response(1, b"hi")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, Log().responder, ["ws://127.0.0.1:0"])
            async with trio_websocket.open_websocket_url(uri) as socket:
                for message in cuts(SMALL.says + SMALL.request(1, b"hi"), size):
                    await socket.send_message(message)
                heard = b""
                while len(heard) < len(wanted):
                    answer = await socket.get_message()
                    assert isinstance(answer, bytes)
                    heard += answer
                assert heard == wanted
            nursery.cancel_scope.cancel()


# Everybody at once


@clause("DET-01", "DET-02", "DET-03", "DET-05", "DET-06")
async def test_peers_of_all_kinds_are_served_on_one_port_at_once() -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, raw.Log().responder, ["tcp://127.0.0.1:0"])

            async def dial() -> trio.SocketStream:
                return await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2]))

            muxes = [RawMux(await dial(), mux) for mux in (SMALL, WIDE, Mux(0, 6))]
            others = [(wire, raw.RawPeer(await dial())) for wire in (raw.RS10, raw.RS02)]
            olds = [raw.RawPeer(await dial(), old, client=True) for old in old_frames.OLD]
            for peer in muxes:
                await peer.send(peer.mux.says)
            for wire, rsocket in others:
                await rsocket.send(wire.setup())
            for old in olds:
                await old.send(old.wire.setup())
            for peer in muxes:
                await peer.expect(SERVER_SAYS)
                await peer.expect_alive()
                await peer.send(peer.mux.request(0, b"hi"))
                await peer.expect(peer.mux.response(0, b"hi"))
            for _, rsocket in others:
                await rsocket.expect_alive()
            for old in olds:
                await old.expect_alive()
            for end in [
                *(peer.stream for peer in muxes),
                *(rsocket.stream for _, rsocket in others),
                *(old.stream for old in olds),
            ]:
                await end.aclose()
            nursery.cancel_scope.cancel()
