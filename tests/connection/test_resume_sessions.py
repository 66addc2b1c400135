"""Sessions that can be resumed, with the other side made of bytes: errors, handlers, and what is kept of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from rsocket_trio import (
    ConnectionLost,
    Keepalive,
    Limits,
    Payload,
    Rejected,
    RejectedResume,
    Responder,
    ResumeOptions,
    open_connection_over,
    serve,
)
from rsocket_trio.server.session_registry import STREAM_BYTES
from rsocket_trio.testing import SimulatedNetwork
from rsocket_trio.transports.byte_stream import FIRST_READ_SIZE
from tests.conformance.raw import (
    CONNECTION_ERROR,
    ERROR,
    INVALID,
    KEEPALIVE,
    REJECTED_RESUME,
    RS02,
    RS10,
    Log,
    RawPeer,
    S,
    Wire,
    ask,
    both,
    cancel,
    error,
    keepalive,
    payload,
    prefixed,
    request_n,
    settle,
    stream,
)
from tests.conformance.resuming import (
    STREAM,
    TICK,
    begin,
    client,
    come_back,
    cut,
    expect_refused,
    position_of,
    resume,
    resume_ok,
    server,
    tick,
    with_options,
)
from tests.each_row import each_row

UNCOUNTED = "does not count what it receives"


# A client


@both
@pytest.mark.parametrize("heard", [True, False])
async def test_a_refusal_is_raised_and_logged_and_says_what_to_do(
    autojump_clock: object, wire: Wire, heard: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with client(wire) as side:
        if heard:
            await side.peer.send(keepalive(respond=False))
            await settle()
        peer = await side.asked(got=0)
        await peer.send(error(0, REJECTED_RESUME, b"unknown resume token"))
        await peer.expect_end()
        await settle()
        with pytest.raises(RejectedResume, match=r"unknown resume token: .*open a new connection") as refusal:
            await side.connection.fire_and_forget(b"more")
        assert ("nothing ever came from the server" in str(refusal.value)) is not heard
        assert refusal.value.data == b"unknown resume token"
        assert "unknown resume token" in caplog.messages[-1]
        assert (side.connection.status, side.connection.faults.peer_faults) == ("closed", 0)


@both
async def test_a_server_that_did_not_count_loses_the_connection_and_no_item(
    autojump_clock: object, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []
    outcome: list[str] = []
    async with client(wire) as side, trio.open_nursery() as nursery:
        nursery.start_soon(collect, side.connection, got, outcome)
        await side.peer.expect(stream(1, 9, b"count"))
        await side.peer.send(payload(1, b"0"), payload(1, b"1"))
        await settle()
        peer = await side.asked(got=14)
        await peer.send(resume_ok(0), payload(1, b"3"))
        assert UNCOUNTED.encode() in await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(2)

        assert got == [b"0", b"1"]
        assert outcome == [str(outcome[0])]
        assert "position 0" in outcome[0]
        assert UNCOUNTED in outcome[0]
        assert (side.connection.status, side.connection.faults.peer_faults) == ("closed", 1)
        [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
        assert UNCOUNTED in warning.getMessage()
        with pytest.raises(ConnectionLost, match=UNCOUNTED):
            await side.connection.request_response(b"x")


async def collect(connection: Any, got: list[bytes], outcome: list[str]) -> None:
    try:
        async with connection.request_stream(b"count", initial_request_n=9) as items:
            async for item in items:
                got.append(item.data)
    except ConnectionLost as lost:
        outcome.append(str(lost))


@pytest.mark.clause("RS10-RSM-23", "RS02-RSM-22")
async def test_tokens_cannot_be_guessed(autojump_clock: object) -> None:
    tokens = set()
    for _ in range(20):
        async with client(RS10) as side:
            tokens.add(side.token)
    assert ({len(token) for token in tokens}, len(tokens)) == ({16}, 20)
    for place in range(16):
        assert len({token[place] for token in tokens}) > 5


# A server


@each_row(("wire", "flags"), [(RS10, 0), (RS02, S)])
@pytest.mark.clause("RS10-RSM-02", "RS02-RSM-03", "RS02-CON-04")
async def test_the_application_sees_one_connection_with_its_first_setup(
    autojump_clock: object, wire: Wire, flags: int
) -> None:
    log = Log()

    @log.responder.setup
    def gate(terms: Any, connection: Any) -> None:
        log.seen.append((terms.dialect, terms.data_mime, terms.resume, terms.strict))

    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire, data_mime=b"a/b", flags=flags)
        await peer.expect_alive()
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=0)
        await peer.expect_alive()
    assert log.seen == [(wire.name, "a/b", True, bool(flags))]


@both
@pytest.mark.clause("RS10-RSM-19", "RS02-RSM-18", "RSX-RES-08")
async def test_handlers_live_until_their_session_is_refused_for_good_and_a_replay_gives_it_no_time(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()
    async with server(wire, log.responder, with_options(session_seconds=60)) as harbour:
        for token, last in ((b"ahead", 0), (b"replayed", 59)):
            peer = await begin(harbour, wire, token)
            await peer.send(stream(1, 1))
            await peer.expect(tick(0))
            await peer.send(keepalive(respond=False, position=TICK))
            await settle()
            await cut(peer)
            await trio.sleep(last)
            assert b"is below 12" in await expect_refused(harbour, resume(wire, token, got=0))
            assert log.seen == [("stream", b"", None)]
            if last:
                await trio.sleep(2)
            else:
                text = await expect_refused(harbour, resume(wire, token, got=TICK + 1))
                assert b"13 can't be served" in text
            assert log.seen == [("stream", b"", None), "stopped"]
            assert await expect_refused(harbour, resume(wire, token, got=TICK)) == b"unknown resume token"
            log.seen.clear()


@both
@pytest.mark.parametrize("suspended", [False, True])
async def test_of_two_clients_with_one_token_at_once_one_goes_on(
    autojump_clock: object, wire: Wire, suspended: bool
) -> None:
    async with server(wire, Log().responder) as harbour:
        first = await begin(harbour, wire)
        await first.send(stream(1, 1))
        await first.expect(tick(0))
        if suspended:
            await cut(first)
        one, other = await harbour.peer(), await harbour.peer()
        await one.send(resume(wire))
        await other.send(resume(wire))
        await settle()
        alive = []
        for peer in (one, other):
            try:
                await peer.expect(resume_ok(STREAM), tick(0))
                await peer.send(request_n(1, 1))
                await peer.expect(tick(1))
                alive.append(peer)
            except (AssertionError, trio.BrokenResourceError):
                await trio.aclose_forcefully(peer.stream)
        (winner,) = alive
        assert await position_of(winner) == STREAM + 10


@both
async def test_a_client_that_acknowledges_nothing_makes_a_server_keep_no_more_by_coming_back(
    autojump_clock: object, wire: Wire
) -> None:
    log, accepted = Log(), list[Any]()

    @log.responder.setup
    def meet(terms: Any, connection: Any) -> None:
        accepted.append(connection)

    limits = Limits(streams=1, reply_frames=50)
    bound = 16 * 50
    requests = [ask(number, b"wait") for number in range(1, 40_000, 2)]

    def some(count: int) -> list[bytes]:
        taken, requests[:count] = requests[:count], []
        return taken

    options = with_options(store_bytes=1024)
    async with server(wire, log.responder, options, limits=limits, fragment_size=1024) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(*some(2000))
        await settle()
        [connection] = accepted
        outbox = connection._engine.session.outbox
        # It gave up the transport, for what would empty its store can't be read any more.
        assert connection.status == "suspended"
        most = outbox.reply_frames
        assert bound <= most <= bound + FIRST_READ_SIZE // len(prefixed(ask(1, b"wait")))
        for _ in range(10):
            peer = await harbour.peer()
            # What it is to answer comes in one write with the RESUME.
            await peer.send(resume(wire), *some(200))
            await settle()
            assert outbox.reply_frames <= most
            assert connection.status == "suspended"
        await cut(peer)
    accepted.clear()


# A session that nobody let in yet, and one that is half open


BOUND = 5 * STREAM_BYTES


@each_row("held", [BOUND // 2, BOUND + 1])
async def test_what_is_held_for_it_counts_while_it_waits(autojump_clock: object, held: int) -> None:
    log = Log()
    log.responder.setup(never)
    async with server(RS10, log.responder, with_options(sessions_bytes=BOUND), grace=0) as harbour:
        peer = await begin(harbour, RS10)
        await peer.send(ask(1, bytes(held)))
        await settle()
        await cut(peer)
        if held > BOUND:
            await expect_refused(harbour, resume(RS10))
        else:
            back = await harbour.peer()
            await back.send(resume(RS10))
            await back.expect(resume_ok(len(ask(1, bytes(held)))))


async def never(terms: Any, connection: Any) -> None:
    """The application never makes up its mind."""
    await trio.sleep_forever()


async def test_it_does_not_push_out_a_session_that_waits(autojump_clock: object) -> None:
    async with server(RS10, Log().responder, with_options(sessions=1)) as harbour:
        away = await begin(harbour, RS10, b"away")
        await away.expect_alive()
        await cut(away)
        old = await begin(harbour, RS10, b"half-open")
        await old.expect_alive()

        for token in (b"half-open", b"away"):
            new = await harbour.peer()
            await new.send(resume(RS10, token))
            await new.expect(resume_ok(0))
        await old.expect_end()


SLOW = Keepalive(interval=1000, max_lifetime=5000)
"""No beat comes by itself within a test."""
HEADER = 6
"""Bytes of a frame beside its data."""


async def answered(
    server_resume: ResumeOptions, *rounds: list[int], limits: Limits | None = None
) -> tuple[list[int], int]:
    """The sizes of the answers to requests of these sizes, those of a round at once; and how many were rejected."""
    network = SimulatedNetwork(1)
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> bytes:
        return request.data

    answers: list[int] = []
    rejected = 0

    async def ask(connection: Any, size: int) -> None:
        nonlocal rejected
        try:
            answers.append(len((await connection.request_response(bytes(size))).data))
        except Rejected:
            rejected += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: serve(
                responder,
                [network.listener()],
                resume=server_resume,
                limits=limits or Limits(),
                fragment_size=1024,
                grace=0,
            )
        )
        async with open_connection_over(
            network.connect, resume=ResumeOptions(), keepalive=SLOW, fragment_size=1024
        ) as connection:
            for sizes in rounds:
                async with trio.open_nursery() as calls:
                    for size in sizes:
                        calls.start_soon(ask, connection, size)
        nursery.cancel_scope.cancel()
    return answers, rejected


async def test_a_store_of_one_fragment_holds_up_nothing(autojump_clock: Any) -> None:
    # The first answer leaves the store less than half full, and without room for a fragment of the second.
    answers, _ = await answered(ResumeOptions(store_bytes=1024), [100], [10_000], [10_000])

    assert answers == [100, 10_000, 10_000]
    assert trio.current_time() < 100


@each_row("count", [100, 700, 3000])
async def test_refusals_that_fill_the_store_hold_up_nothing(autojump_clock: Any, count: int) -> None:
    limits = Limits(streams=1, reply_frames=50)
    answers, rejected = await answered(ResumeOptions(store_bytes=1024), count * [10], limits=limits)

    assert len(answers) + rejected == count
    assert rejected
    assert trio.current_time() < 100


async def test_what_empties_the_store_is_read_although_more_answers_wait_than_may(autojump_clock: Any) -> None:
    # The store is nearly full and asked for a sign already: the send task finds that nothing fits, and writes nothing.
    options = with_options(store_bytes=1024)
    limits = Limits(reply_frames=4)
    async with server(RS10, Log().responder, options, limits=limits, fragment_size=1024) as harbour:
        peer = await begin(harbour, RS10)
        kept = 0
        for stream_id, left in ((1, 500), (3, 10)):
            await peer.send(ask(stream_id, bytes(options.store_bytes - left - kept - HEADER)))
            kept += HEADER + len((await peer.receive()).body)
        await peer.receive()  # asks how much came

        await peer.send(*[stream(stream_id, 0) for stream_id in range(5, 17, 2)])
        await peer.expect_silence(1)
        await peer.send(keepalive(respond=False, position=kept))

        refusals = [await peer.receive() for _ in range(6)]
        assert {(refusal.type, refusal.error_code) for refusal in refusals} == {(ERROR, INVALID)}


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
