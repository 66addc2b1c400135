"""Streamux under load, and with peers that keep what they should give back."""

from __future__ import annotations

import random
from functools import partial

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import Channel, Connection, Limits, Responder, StreamuxOptions, open_connection_over, serve_stream
from tests.conformance import raw_streamux
from tests.conformance.raw_streamux import Mux, settle
from tests.each_row import ALL_CASES
from tests.memory import traced
from tests.reliability.streamux_storm import DONE, Side

CALLERS = 1000 if ALL_CASES else 300
"""Who give up at once."""
SEED = random.randrange(2**16)


# Ids of every width, watched from outside


class Watched(trio.abc.HalfCloseableStream):
    """A stream whose bytes are read along, in both directions, to see which request ids are in flight.

    ``reused`` are ids that were used again too early, ``most`` is how many were in flight at once.
    """

    def __init__(self, stream: trio.abc.HalfCloseableStream, mux: Mux) -> None:
        self.stream = stream
        self.mux = mux
        self.out = self.into = b""
        self.greeted = [5, 5]
        self.begun: set[int] = set()
        self.complete: set[int] = set()
        self.reused: list[int] = []
        self.most = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.out = self._chunks(0, self.out + bytes(data))
        await self.stream.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await self.stream.receive_some(max_bytes)
        self.into = self._chunks(1, self.into + data)
        return bytes(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()

    def _chunks(self, received: int, data: bytes) -> bytes:
        """Look at the whole chunks; the rest is kept."""
        start = min(self.greeted[received], len(data))
        self.greeted[received] -= start
        header_size = self.mux.header_size
        while start + header_size <= len(data):
            request_id, length, response, last = self.mux.parsed(data[start : start + header_size])
            if start + header_size + length > len(data):
                break
            start += header_size + length
            if received and response:
                if last or not length:  # answered, ping ack or cancel ack
                    self.begun.discard(request_id)
                    self.complete.discard(request_id)
            elif not received and not response and (length or last):  # cancels open nothing
                if request_id in self.complete:
                    self.reused.append(request_id)
                self.begun.add(request_id)
                self.most = max(self.most, len(self.begun))
                if last:
                    self.complete.add(request_id)
        return data[start:]


@pytest.mark.parametrize(
    ("id_bits", "count"),
    [(0, 100), (1, 150), (4, 600), (8, 1500), (14, 3000)] if ALL_CASES else [(1, 50), (4, 100), (8, 600)],
)
async def test_no_id_is_used_twice_whatever_its_width(id_bits: int, count: int, autojump_clock: MockClock) -> None:
    mux = Mux(id_bits, 8)
    widths = StreamuxOptions(qa=True, min_id=min(id_bits, 15), max_id=id_bits, rec_id=id_bits, max_len=8, rec_len=8)
    cap = 1 << id_bits
    print(f"seed {SEED}")
    sides = [Side(count, theirs=SEED + 1 - one, ours=SEED + one) for one in (0, 1)]
    ours, theirs = (Watched(stream, mux) for stream in trio.testing.memory_stream_pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, sides[1].responder, theirs, streamux=widths))
        sides[1].responder.setup(lambda setup, connection: nursery.start_soon(sides[1].storm, connection))
        allowed = attrs.evolve(widths, qa=False)
        async with open_connection_over(
            ours, dialect="streamux/1", responder=sides[0].responder, streamux=allowed
        ) as connection:
            await sides[0].storm(connection)
            assert (await connection.request_response(DONE)).data == b"well done"
            sides[0].report = sides[0].left(connection, answering=0)

    for side in sides:
        side.check()
    for watched in (ours, theirs):
        assert watched.reused == []
        assert watched.begun == set()
        assert min(cap, count // 2) <= watched.most <= cap


# Peers that keep what they should give back


async def test_a_peer_that_never_acks_locks_its_ids_and_nothing_grows(autojump_clock: MockClock) -> None:
    mux = Mux(2, 8)

    async with raw_streamux.client(mux) as (connection, peer):
        locked = []
        for _ in range(4):
            with trio.move_on_after(1):
                await connection.request_response(b"?")
            locked.append(await peer.expect_request(b"?"))
            await peer.expect(mux.cancel(locked[-1]))
        assert sorted(locked) == [0, 1, 2, 3]

        async def give_up() -> None:
            with trio.move_on_after(1) as request:
                await connection.request_response(b"!")
            with trio.move_on_after(1) as ping:
                await connection.ping()
            assert request.cancelled_caught
            assert ping.cancelled_caught

        async def give_up_together(callers: int) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(give_up)

        with traced() as memory:
            await give_up_together(CALLERS)  # what a table of so many once took is kept
            before = memory.kept()
            for _ in range(3):
                await give_up_together(CALLERS)
            assert memory.kept() - before < 64 * 1024  # eleven bytes a call
        await peer.expect_silence()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.request_response, b"at last")
            await settle()
            await peer.send(mux.cancel_ack(2))
            assert await peer.expect_request(b"at last") == 2
            await peer.send(mux.response(2, b"yes"))


@pytest.mark.parametrize("kept", ["one message", "many messages", "chunks"])
async def test_a_request_that_never_ends_costs_its_budget_and_the_others_go_on(
    kept: str, autojump_clock: MockClock
) -> None:
    mux, budget = Mux(10, 14), 200_000
    turns = 5000 if ALL_CASES else 1200
    limits = Limits(payload_size=budget) if kept == "one message" else Limits(reassembly_size=budget)
    options = StreamuxOptions(qa=True, message_budget=budget)
    log = raw_streamux.Log()
    if kept == "chunks":

        @log.responder.request_channel
        async def never_reads(channel: Channel) -> None:
            await trio.sleep_forever()

    chunk = bytes(2000)
    async with raw_streamux.server(log.responder, mux, limits=limits, streamux=options) as peer:
        await peer.send(*[mux.request(number, chunk, last=0) for number in range(1, 11)])
        await peer.expect_alive()
        await peer.send(*[mux.cancel(number) for number in range(1, 11)])
        await peer.expect(*[mux.cancel_ack(number) for number in range(1, 11)])
        with traced() as memory:
            for turn in range(turns):
                number = turn % 1000 + 1 if kept == "many messages" else 1
                await peer.send(mux.request(number, chunk, last=0))
                if turn % 100 == 0:
                    await peer.send(mux.request(0, b"still there?"))
                    await peer.expect(mux.response(0, b"still there?"))
            # The messages themselves, and what is known of those that were refused.
            assert memory.kept() < 2 * budget + (700_000 if kept == "many messages" else 0)
        await peer.expect_alive()


async def test_a_handler_that_waits_for_room_hears_of_a_cancel_that_comes_with_it(autojump_clock: MockClock) -> None:
    mux = Mux(4, 14)
    responder = Responder()
    accepted: list[Connection] = []
    heard: list[str] = []
    responder.setup(lambda setup, connection: accepted.append(connection))

    @responder.request_channel
    async def sends(channel: Channel) -> None:
        try:
            while True:
                await channel.send(bytes(10_000))
        except BaseException as error:
            heard.append(type(error).__name__)
            raise

    async with raw_streamux.server(responder, mux, slow=True, limits=Limits(outbox_size=50_000)) as peer:
        await peer.send(mux.request(1, b"go"))
        await settle()
        engine = accepted.pop()._engine
        engine.request_queue.wake_all()  # a write was done,
        engine.after_read([mux.cancel(1)])  # and before the handler runs this was read
        await settle()

    assert heard == ["Cancelled"]
