"""What connected sessions keep together is bounded: those wait that keep most, and go on when there is less."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import trio
import trio.testing

from rsocket_trio import Payload, Responder
from tests.conformance.raw import (
    KEEPALIVE,
    RS02,
    RS10,
    F,
    Log,
    N,
    RawPeer,
    Wire,
    ask,
    cancel,
    keepalive,
    payload,
    stream,
)
from tests.conformance.resuming import begin, cut, expect_refused, resume, resume_ok, server, with_options
from tests.each_row import each_row

ITEM = 994
"""Bytes of an item whose frame has a thousand."""
FRAME = 1000
ENDLESS = 2**31 - 1
LIVE = 1_000_000
OPTIONS = with_options(store_bytes=4 * LIVE, live_bytes=LIVE)


def endless() -> Responder:
    responder = Responder()

    @responder.request_stream
    async def items(request: Payload) -> AsyncIterator[bytes]:
        while True:
            yield bytes(ITEM)

    return responder


@attrs.define
class Reader:
    """A client that reads all, and says how far it got only when it is told to, or asked and ``honest``."""

    peer: RawPeer
    honest: bool = False
    came: int = 0
    asked: int = 0

    async def read(self, enough: int = ENDLESS) -> None:
        """Take what comes until nothing does, or this is enough."""
        while self.came < enough:
            with trio.move_on_after(1) as scope:
                got = await self.peer.receive()
            if scope.cancelled_caught:
                return
            if got.type == KEEPALIVE:
                self.asked += 1
                if self.honest:
                    await self.say()
            else:
                self.came += 6 + len(got.body)

    async def say(self) -> None:
        """Say how far it got."""
        await self.peer.send(keepalive(respond=False, position=self.came))


async def hang_on(*readers: Reader, enough: int = ENDLESS) -> None:
    """Let all of these read at once until nothing comes, or each has enough."""
    async with trio.open_nursery() as nursery:
        for reader in readers:
            nursery.start_soon(reader.read, enough)


async def test_senders_of_the_session_that_keeps_most_wait_and_others_do_not(autojump_clock: object) -> None:
    async with server(RS10, endless(), OPTIONS) as harbour:
        greedy = Reader(await begin(harbour, RS10, b"greedy"))
        await greedy.peer.send(stream(1, ENDLESS))
        await greedy.read()
        assert 0.8 * LIVE < greedy.came <= LIVE
        assert greedy.asked == 1  # how far it is

        honest = Reader(await begin(harbour, RS10, b"honest"), honest=True)
        await honest.peer.send(stream(1, 5_000))
        await honest.read()
        assert honest.came == 5_000 * FRAME

        await greedy.peer.send(keepalive())  # it is connected, and not ended for anything
        assert (await greedy.peer.receive()).type == KEEPALIVE


@each_row("how", ["says how far it got", "leaves", "is cut off", "ends"])
async def test_senders_go_on_once_another_session_keeps_less(how: str, autojump_clock: object) -> None:
    async with server(RS10, endless(), OPTIONS) as harbour:
        first, second = Reader(await begin(harbour, RS10, b"1")), Reader(await begin(harbour, RS10, b"2"))
        for reader in (first, second):
            await reader.peer.send(stream(1, ENDLESS))
        await hang_on(first, second)
        assert 0.9 * LIVE < first.came + second.came <= LIVE
        before = second.came

        if how == "says how far it got":
            await first.peer.send(cancel(1))
            await first.say()
        elif how == "leaves":
            await first.peer.stream.aclose()
        elif how == "is cut off":
            await cut(first.peer)
        else:
            await first.peer.send_bytes(b"\0\0\6\0\0\0\0\0\0")  # a frame of a type that there is not
        await second.read()
        assert 0.8 * LIVE < second.came <= LIVE
        assert second.came > before


async def test_however_many_there_are_they_keep_no_more_together(autojump_clock: object) -> None:
    async with server(RS10, endless(), OPTIONS) as harbour:
        readers = [Reader(await begin(harbour, RS10, b"%d" % number)) for number in range(20)]
        for reader in readers:
            await reader.peer.send(stream(1, ENDLESS))
            await reader.read()
        await hang_on(*readers)
        assert 0.9 * LIVE < sum(reader.came for reader in readers) <= LIVE + len(readers) * FRAME
        assert min(reader.came for reader in readers) >= 1

        for reader in readers:
            reader.honest = True
            await reader.say()
        await hang_on(*readers, enough=LIVE)
        assert min(reader.came for reader in readers) >= LIVE


@each_row("wire", [RS10, RS02], ids=["1.0", "0.2"])
@each_row("size, kept", [(49_000, True), (51_000, False)])
async def test_a_token_counts_while_its_client_is_away(
    autojump_clock: object, wire: Wire, size: int, kept: bool
) -> None:
    first, second = b"1" * size, b"2" * size
    async with server(wire, Log().responder, with_options(sessions_bytes=100_000)) as harbour:
        for token in (first, second):
            peer = await begin(harbour, wire, token)
            await peer.expect_alive()
            await cut(peer)
        if kept:
            peer = await harbour.peer()
            await peer.send(resume(wire, first))
            await peer.expect(resume_ok(0))
        else:
            await expect_refused(harbour, resume(wire, first))
        peer = await harbour.peer()
        await peer.send(resume(wire, second))
        await peer.expect(resume_ok(0))


async def test_pieces_of_payloads_that_are_not_whole_count_while_their_client_is_away(autojump_clock: object) -> None:
    async with server(RS10, Log().responder, with_options(sessions_bytes=100_000)) as harbour:
        sent = [ask(1, b"ab", F), *[payload(1, b"cd", N | F)] * 200]
        for token in (b"first", b"second"):
            peer = await begin(harbour, RS10, token)
            await peer.send(*sent, keepalive())
            assert (await peer.receive()).type == KEEPALIVE
            await cut(peer)
        await expect_refused(harbour, resume(RS10, b"first"))
        peer = await harbour.peer()
        await peer.send(resume(RS10, b"second"))
        await peer.expect(resume_ok(sum(map(len, sent))))


async def test_items_of_one_byte_that_are_queued_count_while_their_client_is_away(autojump_clock: object) -> None:
    responder = Responder()

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(1)
            yield b"."

    async with server(RS10, responder, with_options(sessions_bytes=100_000, session_seconds=10_000)) as harbour:
        for token in (b"quick", b"late"):
            peer = await begin(harbour, RS10, token)
            await peer.send(stream(1, ENDLESS))
            await trio.sleep(0.5)
            await cut(peer)
            await trio.sleep(300)
        await expect_refused(harbour, resume(RS10, b"quick"))
        peer = await harbour.peer()
        await peer.send(resume(RS10, b"late"))
        await peer.expect(resume_ok(len(stream(1, ENDLESS))))


async def test_who_would_rather_give_up_than_stall_gives_up_here_as_well(autojump_clock: object) -> None:
    options = attrs.evolve(OPTIONS, give_up_when_full=True)
    async with server(RS10, endless(), options) as harbour:
        reader = Reader(await begin(harbour, RS10))
        await reader.peer.send(stream(1, 5_000))
        await reader.read()
        assert (reader.came, reader.asked) == (5_000 * FRAME, 1)
        await cut(reader.peer)
        await expect_refused(harbour, resume(RS10))
