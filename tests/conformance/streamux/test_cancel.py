"""Cancel and its ack: ids that are locked, work that stops, chunks that are removed, and a peer that never acks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from rsocket_trio import Canceled
from tests.conformance.raw_streamux import (
    BULK,
    LARGE,
    SMALL,
    Chunk,
    Log,
    Mux,
    Talk,
    asked,
    client,
    server,
    settle,
    widths,
)

clause = pytest.mark.clause


# By the requester


@widths
@clause("SMX-CAN-01", "SMX-OOB-02")
async def test_a_call_that_is_left_cancels_by_its_id(autojump_clock: object, mux: Mux) -> None:
    async with client(mux) as (connection, peer):
        with trio.move_on_after(1) as scope:
            await connection.request_response(b"q")
        assert scope.cancelled_caught
        request_id = await peer.expect_request(b"q")
        await peer.expect(mux.cancel(request_id))
        await peer.expect_silence()


@clause("SMX-CAN-01", "SMX-CAN-02")
async def test_a_channel_that_is_left_cancels_by_its_id(autojump_clock: object) -> None:
    mux = Mux(0, 6)
    async with client(mux) as (connection, peer):
        with trio.move_on_after(1):
            async with connection.request_channel(b"a"):
                await trio.sleep_forever()
        await peer.expect(mux.request(0, b"a", last=0), mux.cancel(0))
        # A channel that has not said a word has nothing to cancel, but has to wait for the id.
        with trio.move_on_after(1) as scope:
            async with connection.request_channel():
                pytest.fail("the id is locked")
        assert scope.cancelled_caught
        await peer.send(mux.cancel_ack(0))
        async with connection.request_channel():
            await settle()
        await peer.expect_silence()


@clause("SMX-CAN-01", "SMX-CAN-02", "SMX-CAN-07", "SMX-SPU-01", "SMX-FLD-02")
@pytest.mark.parametrize(
    "late",
    [
        lambda mux: [],
        lambda mux: [mux.response(0, b"late")],
        lambda mux: [mux.response(0, b"la", last=0), mux.response(0, b"te", last=0)],
        lambda mux: [mux.response(0, b"la", last=0), mux.ping_ack(0), mux.response(0, b"x" * 63)],
        lambda mux: [mux.ping_ack(0)],
    ],
    ids=["nothing", "one chunk", "a part", "a whole one", "empty"],
)
async def test_the_id_stays_locked_until_the_ack_whatever_comes(
    autojump_clock: object, late: Callable[[Mux], list[bytes]]
) -> None:
    mux = Mux(0, 6)
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await connection.request_response(b"first")
        await peer.expect_request(b"first")
        await peer.expect(mux.cancel(0))
        nursery.start_soon(asked, connection, b"second", answers)
        for chunk in late(mux):
            # Byte by byte, so that a chunk is discarded as it comes.
            for byte in chunk:
                await peer.send(bytes([byte]))
                await settle()
        await peer.expect_silence()
        await peer.send(mux.cancel_ack(0))
        assert await peer.expect_request(b"second") == 0
        await peer.send(mux.response(0, b"answer"))
    assert answers == [b"answer"]
    assert connection.faults.peer_faults == 0


@clause("SMX-CAN-02")
async def test_the_example_of_the_document_is_followed(autojump_clock: object) -> None:
    mux = SMALL
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:

        async def ask() -> int:
            nursery.start_soon(asked, connection, b"q", answers)
            request_id = await peer.expect_request(b"q")
            await peer.send(mux.response(request_id, b"a"))
            return request_id

        while await ask() != 18:
            pass
        with trio.move_on_after(1) as scope:
            await connection.request_response(b"times out")
        assert scope.cancelled_caught
        await peer.expect(mux.request(19, b"times out"), mux.cancel(19))
        await peer.send(mux.response(19, b"too late"))
        assert {await ask() for _ in range(31)} == set(range(32)) - {19}
        await peer.send(mux.cancel_ack(19))
        assert {await ask() for _ in range(32)} == set(range(32))
    assert set(answers) == {b"a"}


@clause("SMX-CAN-06", "SMX-OOB-01", "SMX-OOB-05")
async def test_chunks_of_a_cancelled_request_that_still_wait_are_removed(autojump_clock: object) -> None:
    answers: list[bytes] = []
    async with client(BULK, slow=True) as (connection, peer), trio.open_nursery() as nursery:
        with trio.move_on_after(1) as scope:
            await connection.request_response(bytes(LARGE))
        assert scope.cancelled_caught
        first = await peer.receive()
        assert first == Chunk(first.id, 0, 0, bytes(BULK.most))
        await peer.expect(BULK.cancel(first.id))
        await peer.expect_silence()
        await peer.send(BULK.cancel_ack(first.id))
        nursery.start_soon(asked, connection, b"next", answers)
        await peer.send(BULK.response(await peer.expect_request(b"next"), b"x"))
    assert answers == [b"x"]


@clause("SMX-CAN-06")
async def test_a_request_of_which_nothing_has_left_is_not_cancelled_but_forgotten(autojump_clock: object) -> None:
    mux = Mux(1, 16)
    answers: list[bytes] = []
    async with client(mux, slow=True) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, bytes(mux.most), answers)
        await settle()
        with trio.move_on_after(1):
            await connection.request_response(b"never said")
        nursery.start_soon(asked, connection, b"third", answers)
        first = await peer.receive()
        third = await peer.expect_request(b"third")
        assert first.id != third
        await peer.send(mux.response(third, b"c"))
        await settle()
        await peer.send(mux.response(first.id, b"a"))
    assert answers == [b"c", b"a"]


# A peer that never acks


@clause("SMX-CAN-02", "SMX-FLD-07")
async def test_with_a_peer_that_never_acks_calls_wait_and_nothing_grows(autojump_clock: object) -> None:
    mux = Mux(1, 6)
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        for data in (b"1", b"2"):
            with trio.move_on_after(1):
                await connection.request_response(data)
            await peer.expect(mux.cancel(await peer.expect_request(data)))
        table = connection._engine.session.table  # type: ignore[attr-defined]
        for _ in range(200):
            with trio.move_on_after(1) as scope:
                await connection.request_response(b"3")
            assert scope.cancelled_caught
            with trio.move_on_after(1) as scope:
                await connection.ping()
            assert scope.cancelled_caught
        assert len(table.mine) == 2
        await peer.expect_silence(3600)
        await peer.expect_alive()
        assert connection.status == "open"
        answers: list[bytes] = []
        nursery.start_soon(asked, connection, b"4", answers)
        await peer.send(mux.cancel_ack(1))
        assert await peer.expect_request(b"4") == 1
        await peer.send(mux.response(1, b"a"))
    assert answers == [b"a"]


# By the server


@widths
@clause("SMX-CAN-03", "SMX-OOB-02")
async def test_a_cancel_stops_the_handler_before_it_is_acked(autojump_clock: object, mux: Mux) -> None:
    log = Log()
    async with server(log.responder, mux) as peer:
        await peer.send(mux.request(0, b"wait"))
        await settle()
        assert log.seen == [b"wait"]
        await peer.send(mux.cancel(0))
        await peer.expect(mux.cancel_ack(0))
        await settle()
        assert log.seen == [b"wait", "cancelled"]
        await peer.send(mux.request(0, b"again"))
        await peer.expect(mux.response(0, b"again"))


@clause("SMX-CAN-03", "SMX-CAN-05", "SMX-OOB-05")
async def test_a_response_that_has_begun_stops_between_chunks_without_termination(autojump_clock: object) -> None:
    async with server(Log().responder, BULK, slow=True) as peer:
        await peer.send(BULK.request(1, b"large %d" % LARGE))
        begun = await peer.read(10)
        assert BULK.parsed(begun[:3]) == (1, BULK.most, 1, 0)
        await peer.send(BULK.cancel(1))
        await settle()
        await peer.read(BULK.most - 7)
        await peer.expect(BULK.cancel_ack(1))
        await peer.expect_alive(2)
        await peer.send(BULK.request(1, b"again"))
        await peer.expect(BULK.response(1, b"again"))


@clause("SMX-CAN-03")
async def test_a_whole_response_that_still_waits_is_removed(autojump_clock: object) -> None:
    async with server(Log().responder, BULK, slow=True) as peer:
        await peer.send(BULK.request(1, b"large %d" % BULK.most))
        await peer.read(10)
        await peer.send(BULK.request(2, b"queued"))
        await settle()
        await peer.send(BULK.cancel(2))
        await settle()
        await peer.read(BULK.most - 7)
        await peer.expect(BULK.cancel_ack(2))
        await peer.expect_silence()


@widths
@clause("SMX-CAN-04", "SMX-SPU-02")
async def test_a_cancel_of_nothing_is_acked(autojump_clock: object, mux: Mux) -> None:
    highest = (1 << mux.id_bits) - 1
    async with server(Log().responder, mux) as peer:
        await peer.send(mux.cancel(highest))
        await peer.expect(mux.cancel_ack(highest))
        # One that was answered already, twice.
        await peer.send(mux.request(0, b"done"))
        await peer.expect(mux.response(0, b"done"))
        await peer.send(mux.cancel(0), mux.cancel(0))
        await peer.expect(mux.cancel_ack(0), mux.cancel_ack(0))
        await peer.expect_alive()
    async with client(mux) as (connection, peer):
        await peer.send(mux.cancel(highest))
        await peer.expect(mux.cancel_ack(highest))
        assert connection.faults.peer_faults == 0


# A response that ends before its request


@clause("SMX-MSG-09", "SMX-CAN-06", "SMX-CAN-02")
async def test_an_early_response_is_taken_and_the_rest_of_the_request_cancelled(autojump_clock: object) -> None:
    answers: list[bytes] = []
    async with client(BULK, slow=True) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, bytes(LARGE), answers)
        request_id = BULK.parsed(await peer.read(BULK.header_size))[0]
        await peer.send(BULK.response(request_id, b"enough"))
        await settle()
        assert answers == [b"enough"]
        await peer.read(BULK.most)
        await peer.expect(BULK.cancel(request_id))
        await peer.expect_silence()
        await peer.send(BULK.cancel_ack(request_id))


@clause("SMX-MSG-09")
async def test_a_channel_whose_response_ends_early_cancels(autojump_clock: object) -> None:
    async with client() as (connection, peer):
        async with connection.request_channel(b"a") as channel:
            request_id = await peer.expect_request(b"a", last=0)
            await peer.send(SMALL.response(request_id, b"b", last=0), SMALL.response(request_id, b"c"))
            assert [item.data async for item in channel] == [b"b", b"c"]
            await peer.expect(SMALL.cancel(request_id))
            with pytest.raises(Canceled):
                await channel.send(b"more")
        await peer.send(SMALL.cancel_ack(request_id))
        await peer.expect_alive()
        assert connection.faults.peer_faults == 0


@clause("SMX-MSG-09", "SMX-CAN-04")
@pytest.mark.parametrize("ends", ["cancel", "termination"])
@pytest.mark.parametrize("step", [1, 100])
async def test_a_handler_may_answer_before_the_request_is_complete(
    autojump_clock: object, ends: str, step: int
) -> None:
    talk = Talk()
    async with server(talk.responder) as peer:
        await peer.send(SMALL.request(5, b"leave", last=0))
        await peer.expect(SMALL.response(5, b"bye", last=0), SMALL.ping_ack(5))
        # What still comes of it is dropped, however it is cut.
        rest = SMALL.request(5, b"more", last=0) + SMALL.request(5, b"and more", last=0)
        rest += SMALL.cancel(5) if ends == "cancel" else SMALL.request(5, b"the last")
        for start in range(0, len(rest), step):
            await peer.send(rest[start : start + step])
            await settle()
        if ends == "cancel":
            await peer.expect(SMALL.cancel_ack(5))
        await peer.expect_alive()
        assert talk.seen == [b"leave"]
        await peer.send(SMALL.request(5, b"new"))
        await peer.expect(SMALL.response(5, b"<new>", last=0), SMALL.ping_ack(5))
