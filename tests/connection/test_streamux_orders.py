"""The first bytes of Streamux, and orders of events that no clause names by itself."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Channel, Limits, Responder, StreamuxOptions
from rsocket_trio.connection.protocols import detect_protocol, name_of
from rsocket_trio.rsocket.detection import UNDECIDED
from tests.conformance.raw_streamux import SMALL, Log, Mux, server, settle
from tests.each_row import each_row

clause = pytest.mark.clause
BURST = 100
"""More channels than handlers begin at once."""
BURSTING = Mux(8, 10)


def budget(size: int, **others: object) -> StreamuxOptions:
    return StreamuxOptions(qa=True, message_budget=size, **others)  # type: ignore[arg-type]


def counting() -> Responder:
    """Takes a request by the chunk, and says how much came."""
    responder = Responder()

    @responder.request_channel
    async def count(channel: Channel) -> None:
        await channel.send(b"%d" % sum([len(item.data) async for item in channel]))

    return responder


@clause("SMX-CAN-03")
async def test_a_channel_cancelled_before_its_handler_began_leaves_nothing_behind(autojump_clock: object) -> None:
    options = budget(1000)
    limits = Limits(inbox_size=BURST * 300)  # less than what the bursts bring in sum
    async with server(counting(), BURSTING, streamux=options, limits=limits) as peer:
        for _ in range(5):
            await peer.send(b"".join(BURSTING.request(one, bytes(200), last=0) for one in range(BURST)))
            await peer.send(b"".join(BURSTING.cancel(one) for one in range(BURST)))
            await peer.expect(b"".join(BURSTING.cancel_ack(one) for one in range(BURST)))
        await peer.send(BURSTING.request(7, b"a", last=0), BURSTING.request(7, b"bc"))
        await peer.expect(BURSTING.response(7, b"3", last=0), BURSTING.ping_ack(7))


@clause("SMX-SPU-04", "SMX-SPU-05")
@each_row("step", [1, 100])
async def test_the_tail_of_a_live_id_that_was_used_again_is_no_request(autojump_clock: object, step: int) -> None:
    log = Log()
    async with server(log.responder, streamux=StreamuxOptions(qa=True, spurious="report")) as peer:
        await peer.send(SMALL.request(5, b"wait"))
        again = SMALL.request(5, b"delete all", last=0)
        for start in range(0, len(again), step):
            await peer.send(again[start : start + step])
            await settle()
        await peer.send(SMALL.request(5, b" but this"))
        await settle()
        assert log.seen == [b"wait"]
        await peer.send(SMALL.cancel(5), SMALL.request(5, b"anew"))
        await peer.expect(SMALL.cancel_ack(5), SMALL.response(5, b"anew"))


async def test_handlers_that_go_on_behind_their_response_count_as_requests(autojump_clock: object) -> None:
    responder, begun = Responder(), []

    @responder.request_channel
    async def tidy(channel: Channel) -> None:
        async for _ in channel:
            pass
        await channel.send_eof()
        begun.append(1)
        await trio.sleep_forever()

    async with server(responder, limits=Limits(streams=5)) as peer:
        for one in range(6):
            await peer.send(SMALL.request(one, b"x"))
            await settle()
        await peer.expect(b"".join(SMALL.ping_ack(one) for one in range(5)))
        await peer.expect_end()
    assert len(begun) == 5


BEGINS = {
    "wildcards": "01 00 ef e7 df",
    "the least": "01 00 00 04 21",
    "the most": "01 0f ef 7f de",
    "a quick init": "01 20 eb 87 10",
    "one that is allowed": "01 10 eb 87 10",
    "what no peer may offer": "01 30 ff c3 e1",
}
OTHERS = {
    "version 0": "00 00 eb 87 10",
    "version 2": "02 00 eb 87 10",
    "the lower reserved bit": "01 40 eb 87 10",
    "the upper reserved bit": "01 80 eb 87 10",
    "no lengths at all": "01 00 e8 00 00",
    "a frame of 64 KiB": "01 00 00 00 00",
    "a frame of 128 KiB less one": "01 ff ff 00 00",
}
over = each_row("message", [False, True], ids=["bytes", "messages"])


def found(data: bytes, *, message: bool, ended: bool = False) -> str | None:
    """The name of what was found, ``?`` as long as it is not."""
    result = detect_protocol(data, message=message, ended=ended)
    if result is None:
        return None
    return "?" if result is UNDECIDED else name_of(result)


@each_row("begins", BEGINS.values(), ids=list(BEGINS))
@over
@pytest.mark.clause("DET-01", "DET-09")
def test_five_bytes_decide_and_no_fewer(begins: str, message: bool) -> None:
    says = bytes.fromhex(begins)
    assert [found(says[:cut], message=message) for cut in range(1, 6)] == ["?"] * 4 + ["streamux/1"]
    assert found(says + b"whatever follows", message=message) == "streamux/1"
    assert found(says, message=message, ended=True) == "streamux/1"
    assert {found(says[:cut], message=False, ended=True) for cut in range(5)} == {None}


@each_row("begins", OTHERS.values(), ids=list(OTHERS))
@over
@pytest.mark.clause("DET-01")
def test_bytes_that_are_close_are_not_taken_for_it(begins: str, message: bool) -> None:
    for rest in (b"", bytes(16), b"\xff" * 16):
        assert found(bytes.fromhex(begins) + rest, message=message) != "streamux/1"


@pytest.mark.clause("DET-01")
def test_any_bit_of_a_length_is_enough() -> None:
    for bit in range(16):
        assert found(b"\x01\x00\x00" + (1 << bit).to_bytes(2, "big"), message=False) == "streamux/1"


@pytest.mark.clause("DET-01", "DET-02")
@each_row("size", [65536, 65537, 70_000, 131_071, 2**22 - 1])
def test_a_large_frame_of_1_0_is_no_initialize_message(size: int) -> None:
    frame = size.to_bytes(3, "big") + bytes.fromhex("00000000 0400 0001 0000")
    seen = [found(frame[:cut], message=False) for cut in range(1, 14)]
    assert "streamux/1" not in seen
    assert seen[-1] == "rsocket/1.0"
