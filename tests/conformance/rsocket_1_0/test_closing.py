"""Errors on stream 0, and closing: RSocket 1.0, and 0.2 where it says the same."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    ConnectionClosed,
    ConnectionLost,
    current_connection,
)
from tests.conformance.raw import (
    APPLICATION_ERROR,
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    REJECTED,
    C,
    Log,
    N,
    Wire,
    ask,
    both,
    client,
    complete,
    error,
    ext,
    forget,
    payload,
    request_n,
    server,
    settle,
    stream,
)

clause = pytest.mark.clause


@both
@clause("RS10-ERR-08", "RS02-ERR-06", "RS10-ERR-06")
async def test_a_connection_error_fails_what_is_open_at_once(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(ask(1, b"wait"))
        await settle()
        await peer.send(error(0, CONNECTION_ERROR, b"bye"))
        await peer.expect_end()
        assert log.seen[-1] == "cancelled"
    async with client(wire) as (connection, peer), connection.request_stream(b"s") as items:
        await peer.receive()
        await peer.send(error(0, CONNECTION_ERROR, b"bye"))
        with pytest.raises(ConnectionLost, match="bye"):
            await anext(items)
        await peer.expect_end()


@both
@clause("ALL-RCT-13", "RS10-ERR-02", "RS02-ERR-02")
async def test_error_text_that_is_no_utf_8_is_handed_over_with_replacement(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer), trio.open_nursery() as nursery:

        async def request() -> None:
            with pytest.raises(ApplicationError) as caught:
                await connection.request_response(b"x")
            assert caught.value.text == "�\x00�"
            assert caught.value.data == b"\xff\x00\xfe"

        nursery.start_soon(request)
        await peer.receive()
        await peer.send(error(1, APPLICATION_ERROR, b"\xff\x00\xfe"))


@both
@clause("RS10-ERR-09", "RS02-ERR-07", "RS02-ERR-08")
async def test_after_connection_close_open_streams_end_new_ones_are_rejected_and_the_last_one_closes(
    autojump_clock: object,
    wire: Wire,
) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(stream(1, 1, b"3"))
        await peer.expect(payload(1, b"tick 0"))
        await peer.send(error(0, CONNECTION_CLOSE, b"soon"))
        await peer.expect_alive()
        await peer.send(ask(3, b"new"))
        await peer.expect_error(3, REJECTED)
        await peer.send(forget(5, b"new"))
        await peer.expect_silence(60)
        await peer.send(request_n(1, 5))
        await peer.expect(payload(1, b"tick 1"), payload(1, b"tick 2"), complete(1))
        await peer.expect_end()
    assert log.seen == [("stream", b"3", None)]


@both
@clause("RS10-ERR-09", "RS02-ERR-07", "RS02-ERR-08")
async def test_a_client_that_hears_connection_close_starts_nothing_and_lets_what_is_open_finish(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=5) as items:
            await peer.receive()
            await peer.send(error(0, CONNECTION_CLOSE))
            await settle()
            with pytest.raises(ConnectionClosed):
                await connection.request_response(b"new")
            await peer.send(payload(1, b"a"), payload(1, b"b", N | C))
            assert [item.data async for item in items] == [b"a", b"b"]
        await peer.expect_end()
        with pytest.raises(ConnectionClosed):
            await connection.fire_and_forget(b"new")


@both
@clause("RS10-ERR-09", "RS02-ERR-07")
async def test_a_side_that_drains_waits_for_open_streams_then_says_connection_close(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as (connection, peer):
        async with trio.open_nursery() as nursery, connection.request_stream(b"s", initial_request_n=5) as items:
            await peer.receive()
            nursery.start_soon(connection.drain)
            await settle()
            await peer.send(ask(2, b"new"))
            await peer.expect_error(2, REJECTED)
            await peer.send(payload(1, b"a", N | C))
            assert [item.data async for item in items] == [b"a"]
        await peer.expect_failure(CONNECTION_CLOSE)


@both
@clause("RS10-ERR-09", "RS02-ERR-07")
async def test_connection_close_comes_after_the_end_of_the_streams_that_did_not_finish(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()

    @log.responder.extension(1)
    def drain(stream_id: int, body: bytes) -> None:
        trio.lowlevel.spawn_system_task(current_connection().drain)

    async with server(wire, log.responder) as peer:
        await peer.send(ask(1, b"wait"), stream(3, 1), ext(1))
        await peer.expect(payload(3, b"tick 0"))
        await trio.sleep(10)
        got = [await peer.receive() for _ in range(3)]
        assert sorted(one.stream_id for one in got[:2]) == [1, 3]
        assert (got[2].stream_id, got[2].error_code) == (0, CONNECTION_CLOSE)
        await peer.expect_end()


@both
@clause("RS10-ERR-09", "RS02-ERR-07")
async def test_connection_close_can_be_announced_first(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer):
        async with trio.open_nursery() as nursery, connection.request_stream(b"s", initial_request_n=5) as items:
            await peer.receive()
            nursery.start_soon(lambda: connection.drain(announce=True))
            await peer.expect_error(0, CONNECTION_CLOSE)
            await peer.send(payload(1, b"a", N | C))
            assert [item.data async for item in items] == [b"a"]
        await peer.expect_end()
