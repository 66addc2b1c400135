"""How handlers run: their forms, generators driven so that a yield is a send, plain functions inline, cancellation."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    Limits,
    Payload,
    Responder,
    Setup,
)
from rsocket_trio.connection.sender import ITEMS_PER_TURN
from rsocket_trio.payload import PayloadLike, as_payload
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.each_row import each_row

# The five rows in which ``yield x`` has to mean ``await out.send(x)``.


async def test_a_timeout_around_yields_ends_the_block_and_the_handler_goes_on(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        with trio.move_on_after(2.5):
            while True:
                yield b"tick"
                await trio.sleep(1)
        yield b"last word"

    async with connected_pair(responder) as pair, pair.client.request_stream() as items:
        assert [item.data async for item in items] == [b"tick"] * 3 + [b"last word"]


async def test_a_nursery_around_yields_whose_task_fails_raises_that_and_no_generator_exit(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()

    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("in the background")

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            while True:
                yield b"tick"
                await trio.sleep(0.4)

    async with connected_pair(responder) as pair:
        got: list[bytes] = []
        async with pair.client.request_stream() as items:
            with pytest.raises(ApplicationError, match="internal error"):  # noqa: PT012
                async for item in items:
                    got.append(item.data)
        assert got == [b"tick"] * 3

    (record,) = caplog.records
    assert record.exc_info is not None
    group = record.exc_info[1]
    assert isinstance(group, ExceptionGroup)
    assert [type(error) for error in group.exceptions] == [ValueError]


async def test_a_nursery_around_yields_ends_quietly_when_the_peer_cancels(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                while True:
                    yield b"tick"
        finally:
            ended.append("handler")

    async with connected_pair(responder) as pair:
        async with pair.client.request_stream(initial_request_n=1) as items:
            await anext(items)
        await settle()
        assert ended == ["handler"]
        assert await pair.client.ping() == 0

    assert caplog.records == []


# Forms


async def test_items_of_every_kind_arrive_in_the_order_of_their_yields(autojump_clock: MockClock) -> None:
    kinds: list[PayloadLike] = [
        *(b"a", b"b", Payload(b"c"), Payload(b"d", b"metadata"), "text", b"", bytearray(b"e"), memoryview(b"f")),
        *(b"large" * 2000, b"g", b"larger" * 20_000, b"h", Payload(b"", b""), b"i"),
    ]
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[PayloadLike]:
        for _ in range(30):
            for kind in kinds:
                yield kind

    async with connected_pair(responder) as pair, pair.client.request_stream(b"") as items:
        assert [item async for item in items] == [as_payload(kind) for kind in kinds] * 30


async def test_a_yield_of_something_else_raises_there_and_the_stream_goes_on(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[object]:
        yield b"a"
        yield b"b"
        try:
            yield object()
        except TypeError as error:
            yield str(error)

    async with connected_pair(responder) as pair, pair.client.request_stream(b"") as items:
        got = [item.text async for item in items]

    assert got[:2] == ["a", "b"]
    assert "stream: object can't be encoded as application/json" in got[2]


async def test_a_handler_that_never_waits_lets_others_run(autojump_clock: MockClock) -> None:
    made = 0
    seen: list[int] = []
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(2000):
            made += 1
            yield b"item"

    async def look() -> None:
        while made < 2000:
            seen.append(made)
            await trio.lowlevel.checkpoint()

    async with (
        connected_pair(responder) as pair,
        pair.client.request_stream(b"", initial_request_n=10_000) as items,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(look)
        assert len([item async for item in items]) == 2000

    assert max(later - earlier for earlier, later in pairwise(seen)) <= 2 * ITEMS_PER_TURN


async def test_each_yield_waits_for_credit(autojump_clock: MockClock) -> None:
    responder = Responder()
    yielded: list[int] = []

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"%d" % number
            yielded.append(number)

    async with (
        connected_pair(responder) as pair,
        pair.client.request_stream(initial_request_n=3, refill=False) as items,
    ):
        await settle()
        assert yielded == [0, 1, 2]
        assert [(await anext(items)).data for _ in range(3)] == [b"0", b"1", b"2"]
        await trio.sleep(1)
        assert yielded == [0, 1, 2]
        items.request_n(2)
        await settle()
        assert yielded == [0, 1, 2, 3, 4]

    assert pair.client_said.credit == [2]


# Cancellation


async def test_a_cancel_before_the_first_step_keeps_the_handler_from_being_called(autojump_clock: MockClock) -> None:
    responder = Responder()
    called: list[str] = []

    @responder.request_response
    async def one(request: Payload) -> bytes:
        called.append("response")
        return b""

    @responder.request_response("inline")
    def at_once(request: Payload) -> bytes:
        called.append("inline")
        return b""

    @responder.request_stream
    async def many(request: Payload) -> AsyncIterator[bytes]:
        called.append("stream")
        yield b""

    @responder.request_channel
    async def both(channel: Channel) -> None:
        called.append("channel")

    routing = b"message/x.rsocket.routing.v0"
    async with raw.bare_server(raw.RS10, responder) as peer:
        await peer.send(raw.setup(metadata_mime=routing))
        inline = raw.frame(raw.REQUEST_RESPONSE, raw.M, 9, raw.sized(b"\x06inline"))
        for request in (raw.ask(1), raw.stream(3, 1), raw.channel(5, 1), inline):
            stream_id = int.from_bytes(request[:4], "big")
            await peer.send(request, raw.cancel(stream_id))
        await settle()
        assert called == []
        await peer.send(raw.ask(7))
        assert (await peer.receive()).stream_id == 7

    assert called == ["response"]


@each_row("before", [False, True], ids=["new tasks", "pooled tasks"])
async def test_a_cancel_hits_its_own_request_only(before: bool, autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[bytes] = []

    @responder.request_response
    async def wait(request: Payload) -> bytes:
        try:
            await trio.sleep(1)
        except BaseException:
            ended.append(request.data)
            raise
        return request.data

    async with raw.server(raw.RS10, responder) as peer:
        if before:
            await peer.send(raw.ask(101), raw.ask(103), raw.ask(105))
            for _ in range(3):
                await peer.receive()
        await peer.send(raw.ask(1, b"1"), raw.ask(3, b"3"), raw.ask(5, b"5"))
        await settle()
        await peer.send(raw.cancel(3))
        assert {(await peer.receive()).body, (await peer.receive()).body} == {b"1", b"5"}
        # A CANCEL for what has ended changes nothing, whoever runs in that task now.
        await peer.send(raw.ask(7, b"7"), raw.cancel(1), raw.cancel(5), raw.cancel(3))
        assert (await peer.receive()).body == b"7"

    assert ended == [b"3"]


async def test_a_handler_that_fails_while_it_is_cancelled_is_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while dying")

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.ask(1))
        await settle()
        await peer.send(raw.cancel(1))
        await peer.expect_alive()

    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "while dying" in caplog.text


# The receive task never waits for a handler.


async def test_a_stuck_handler_delays_no_keepalive(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def stuck(request: Payload) -> bytes:
        with trio.CancelScope(shield=True):
            await trio.sleep(30)
        return b""

    @responder.metadata_push
    async def stuck_too(metadata: bytes) -> None:
        await trio.sleep(30)

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await trio.sleep(30)

    async with raw.server(raw.RS10, responder) as peer:
        await peer.expect_alive(b"in the gate")
        await trio.sleep(31)
        await peer.send(raw.ask(1), raw.RS10.push(b"x"))
        await peer.expect_alive(b"beside handlers")


async def test_an_inline_answer_above_the_outbox_mark_waits_and_the_reader_does_not(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    def bulk(request: Payload) -> bytes:
        return bytes(600_000)

    limits = Limits(outbox_size=1_000_000)
    done: list[int] = []

    async def ask(connection: Connection) -> None:
        done.append(len((await connection.request_response()).data))

    async with connected_pair(responder, server_limits=limits) as pair:
        pair.server_wire.hold()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask, pair.client)
            await settle()
            outbox = pair.server._engine.session.outbox
            assert outbox.size <= 1_000_000 + 600_000
            # Keepalives are still read, and pushed metadata too.
            read = pair.server._engine.session
            await pair.client.metadata_push(b"x")
            await settle()
            assert pair.server.faults.dropped == 1
            assert not read.is_congested
            pair.server_wire.release()

    assert done == [600_000] * 8


async def test_a_waiting_task_keeps_no_call_alive(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def typed(text: str) -> str:
        return "answer"

    async with connected_pair(responder, data_mime="text/plain") as pair:
        await pair.client.request_response(b"marked in a call" + bytes(100))
        await settle()
        assert payloads_with(b"marked") == 0


def payloads_with(beginning: bytes) -> int:
    """Return how many payloads live whose data begins like this."""
    import gc

    return sum(type(one) is Payload and one.data.startswith(beginning) for one in gc.get_objects())
