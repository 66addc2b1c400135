"""What the application sees of sessions that can be resumed: errors, log, handlers. The other side is made of bytes."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import Connection, ConnectionLost, Limits, RejectedResume, Responder
from rsocket_trio.server.session_registry import STREAM as STREAM_BYTES
from rsocket_trio.transports.byte_stream import FIRST_READ_SIZE
from tests.conformance.raw import (
    CONNECTION_ERROR,
    REJECTED_RESUME,
    RS02,
    RS10,
    Log,
    S,
    Wire,
    ask,
    both,
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


async def test_it_is_refused_where_the_application_leaves_when_it_hears_of_the_loss(autojump_clock: object) -> None:
    responder = Responder()

    @responder.setup
    def meet(terms: Any, connection: Connection) -> None:
        connection.on_state(lambda state: connection._leave() if state == "suspended" else None)

    async with server(RS10, responder) as harbour:
        old = await begin(harbour, RS10)
        await old.expect_alive()

        with trio.fail_after(5):
            assert await expect_refused(harbour, resume(RS10)) == await expect_refused(harbour, resume(RS10, b"other"))
            await old.expect_end()
