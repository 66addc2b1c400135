"""Orders of events that no clause names by itself: bursts, budgets, answers that come before their questions end."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Canceled, Channel, Connection, Limits, Rejected, Responder, StreamuxOptions
from tests.conformance.raw_streamux import SMALL, WIDE, Log, Mux, client, server, settle
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


async def test_a_budget_lets_every_first_chunk_in_however_large(autojump_clock: object) -> None:
    async with server(counting(), WIDE, streamux=budget(10)) as peer:
        await peer.send(WIDE.request(1, bytes(1000)))
        await peer.expect(WIDE.response(1, b"1000", last=0), WIDE.ping_ack(1))


async def test_a_reader_that_keeps_up_is_not_refused_for_the_number_of_its_chunks(autojump_clock: object) -> None:
    async with server(counting(), SMALL, streamux=budget(6000)) as peer:
        await peer.send(b"".join(SMALL.request(1, b"fives", last=0) for _ in range(1000)), SMALL.ping(1))
        await peer.expect(SMALL.response(1, b"5000", last=0), SMALL.ping_ack(1))


async def test_a_request_refused_after_its_response_began_ends_the_session(autojump_clock: object) -> None:
    responder = Responder()

    @responder.request_channel
    async def slow(channel: Channel) -> None:
        await channel.send(b"begun")
        await trio.sleep(1)
        with pytest.raises(Rejected):
            async for _ in channel:
                pass
        raise Rejected("too fast")

    options = budget(100, encode_error=lambda error: error.data)
    async with server(responder, SMALL, streamux=options) as peer:
        await peer.send(SMALL.request(1, b"x", last=0))
        await peer.expect(SMALL.response(1, b"begun", last=0))
        await peer.send(*(SMALL.request(1, bytes(60), last=0) for _ in range(3)))
        await peer.expect_end()


async def test_send_hears_at_once_of_an_answer_that_is_complete_before_the_request(autojump_clock: object) -> None:
    told: list[object] = []

    async def ask(connection: Connection) -> None:
        async with connection.request_channel() as channel:
            try:
                while True:
                    await channel.send(bytes(10_000))
            except Canceled as error:
                told.append(str(error))
            told.extend([item.data async for item in channel])

    async with (
        client(WIDE, slow=True, limits=Limits(outbox_size=1)) as (connection, peer),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, connection)
        await settle()
        request_id = WIDE.parsed(await peer.read(WIDE.header_size))[0]
        await peer.send(WIDE.response(request_id, b"enough"))
        await settle()
        assert told == ["the peer wants no more items", b"enough"]
        nursery.cancel_scope.cancel()


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
