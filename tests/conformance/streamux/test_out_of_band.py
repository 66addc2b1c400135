"""Out-of-band messages: pings and what overtakes what, in both roles."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Connection, Setup
from tests.conformance.raw_streamux import BULK, LARGE, SMALL, Chunk, Log, Mux, asked, client, server, settle, widths

clause = pytest.mark.clause


@widths
@clause("SMX-OOB-03", "SMX-OOB-02", "SMX-OOB-04")
async def test_a_ping_is_answered_by_its_id_while_handlers_are_busy(autojump_clock: object, mux: Mux) -> None:
    highest = (1 << mux.id_bits) - 1
    async with server(Log().responder, mux) as peer:
        if highest:
            await peer.send(mux.request(0, b"wait"))
        started = trio.current_time()
        for request_id in {highest, min(highest, 5)} - {0} or {0}:
            await peer.expect_alive(request_id)
        await peer.send(mux.ping(highest), mux.ping(highest))
        await peer.expect(mux.ping_ack(highest), mux.ping_ack(highest))
        assert trio.current_time() == started


@clause("SMX-OOB-03")
async def test_a_ping_is_answered_while_the_application_considers_the_client(autojump_clock: object) -> None:
    log = Log()

    @log.responder.setup
    async def considers(setup: Setup, connection: Connection) -> None:
        await trio.sleep(100)

    async with server(log.responder) as peer:
        await peer.send(SMALL.request(1, b"early"))
        await peer.expect_alive(2)
        assert log.seen == []


@clause("SMX-OOB-03")
async def test_a_client_answers_pings_too(autojump_clock: object) -> None:
    async with client() as (_, peer):
        await peer.expect_alive(31)
        await peer.expect_alive(0)


@widths
@clause("SMX-OOB-02", "SMX-OOB-04")
async def test_a_ping_ends_with_the_ack_of_its_id(autojump_clock: object, mux: Mux) -> None:
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        took: list[float] = []

        async def ping() -> None:
            took.append(await connection.ping())

        nursery.start_soon(ping)
        request_id, *rest = await peer.receive()
        assert rest == [0, 1, b""]
        await peer.expect_silence(3)
        await peer.send(mux.ping_ack(request_id))
    assert took == [3]


@clause("SMX-OOB-04", "SMX-NEG-08")
async def test_without_id_bits_pings_and_requests_wait_for_each_other(autojump_clock: object) -> None:
    mux = Mux(0, 6)
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"1", answers)
        await peer.expect_request(b"1")
        nursery.start_soon(connection.ping)
        await settle()
        nursery.start_soon(asked, connection, b"2", answers)
        await peer.expect_silence()
        await peer.send(mux.response(0, b"a"))
        await peer.expect(mux.ping(0))
        await peer.expect_silence()
        await peer.send(mux.ping_ack(0))
        assert await peer.expect_request(b"2") == 0
        await peer.send(mux.response(0, b"b"))
    assert answers == [b"a", b"b"]


@clause("SMX-OOB-04", "SMX-FLD-02")
async def test_a_ping_that_is_not_answered_keeps_its_id(autojump_clock: object) -> None:
    mux = Mux(2, 6)
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await connection.ping()
        taken = (await peer.receive()).id
        for _ in range(8):
            nursery.start_soon(asked, connection, b"q", answers)
            request_id = await peer.expect_request(b"q")
            assert request_id != taken
            await peer.send(mux.response(request_id, b"a"))
        # The late ack hits nobody, and frees the id.
        await peer.send(mux.ping_ack(taken))
        await settle()
        for _ in range(4):
            nursery.start_soon(asked, connection, b"q", answers)
        ids = [await peer.expect_request(b"q") for _ in range(4)]
        assert taken in ids
        await peer.send(*(mux.response(request_id, b"a") for request_id in ids))
    assert answers == [b"a"] * 12


@clause("SMX-OOB-01", "SMX-OOB-05", "SMX-OOB-03")
async def test_a_ping_ack_goes_before_the_chunks_that_wait_and_not_into_one(autojump_clock: object) -> None:
    async with server(Log().responder, BULK, slow=True) as peer:
        await peer.send(BULK.request(1, b"large %d" % LARGE), BULK.request(2, b"large %d" % LARGE))
        begun = await peer.read(10)
        assert BULK.parsed(begun[:3])[1:] == (BULK.most, 1, 0)
        await peer.send(BULK.ping(7))
        await settle()
        assert await peer.read(BULK.most - 7) == bytes(BULK.most - 7)
        await peer.expect(BULK.ping_ack(7))
        left = {1: LARGE, 2: LARGE}
        left[BULK.parsed(begun[:3])[0]] -= BULK.most
        while any(left.values()):
            got = await peer.receive()
            left[got.id] -= len(got.data)
            assert (got.response, got.last) == (1, not left[got.id])


@clause("SMX-OOB-01", "SMX-OOB-05")
async def test_a_ping_goes_before_the_chunks_that_wait(autojump_clock: object) -> None:
    answers: list[bytes] = []
    async with client(BULK, slow=True) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, bytes(LARGE), answers)
        request_id, length, *rest = BULK.parsed(await peer.read(BULK.header_size))
        assert (length, rest) == (BULK.most, [0, 0])
        nursery.start_soon(connection.ping)
        await settle()
        await peer.read(BULK.most)
        ping = await peer.receive()
        assert ping == Chunk(ping.id, 0, 1, b"")
        assert ping.id != request_id
        await peer.send(BULK.ping_ack(ping.id))
        for last in (0, 0, 0, 1):
            got = await peer.receive()
            assert (got.id, got.response, got.last) == (request_id, 0, last)
        await peer.send(BULK.response(request_id, b"done"))
    assert answers == [b"done"]


@clause("SMX-OOB-01", "SMX-OOB-05", "SMX-CAN-06")
async def test_a_cancel_goes_before_the_chunks_of_others_that_wait(autojump_clock: object) -> None:
    answers: list[bytes] = []
    scope = trio.CancelScope()

    async def ask_and_leave() -> None:
        with scope:
            await connection.request_response(b"y" * LARGE)

    async with client(BULK, slow=True) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"x" * LARGE, answers)
        nursery.start_soon(ask_and_leave)
        sizes: dict[int, int] = {}
        letters: dict[bytes, int] = {}
        while len(sizes) < 2:
            got = await peer.receive()
            letters[got.data[:1]] = got.id
            sizes[got.id] = sizes.get(got.id, 0) + len(got.data)
        # The chunk after those is being written.
        being_written = BULK.parsed(await peer.read(BULK.header_size))
        scope.cancel()
        await settle()
        await peer.read(being_written[1])
        sizes[being_written[0]] += being_written[1]
        await peer.expect(BULK.cancel(letters[b"y"]))
        while sizes[letters[b"x"]] < LARGE:
            got = await peer.receive()
            assert got.id == letters[b"x"]
            sizes[got.id] += len(got.data)
        await peer.send(BULK.cancel_ack(letters[b"y"]), BULK.response(letters[b"x"], b"done"))
    assert answers == [b"done"]
