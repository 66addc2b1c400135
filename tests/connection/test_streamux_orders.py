"""Orders of events that no clause names by itself: bursts, budgets, answers that come before their questions end."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Channel, Limits, Responder, StreamuxOptions
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
