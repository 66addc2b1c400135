"""What the application sees of sessions that can be resumed: errors, log, handlers. The other side is made of bytes."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from rsocket_trio import Connection, ConnectionLost, Limits, RejectedResume, RSocketError, connect_forever
from rsocket_trio.transports.byte_stream import FIRST_READ_SIZE
from rsocket_trio.transports.memory import MemoryTransport, listen_memory
from tests.conformance.raw import (
    CONNECTION_ERROR,
    OPAQUE,
    REJECTED_RESUME,
    RS02,
    RS10,
    SETUP,
    C,
    Log,
    N,
    Raw,
    S,
    Wire,
    ask,
    both,
    error,
    forget,
    keepalive,
    parsed,
    payload,
    prefixed,
    request_n,
    settle,
    stream,
)
from tests.conformance.resuming import (
    OPTIONS,
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
    token_of,
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


@both
async def test_a_client_that_reconnects_goes_on_in_a_new_session(autojump_clock: object, wire: Wire) -> None:
    listener = listen_memory("uncounted")

    async def met() -> tuple[MemoryTransport, Raw]:
        transport = await listener.accept()
        [first, *_] = await transport.receive()
        return transport, parsed(first)

    try:
        async with (
            connect_forever(
                "memory://uncounted", dialect=wire.name, resume=OPTIONS, metadata_mime=OPAQUE.decode()
            ) as lasting,
            trio.open_nursery() as nursery,
        ):
            there, first = await met()
            token = token_of(first)
            nursery.start_soon(swallow, lasting, b"q")
            assert await there.receive() == [ask(1, b"q")]
            await there.send([payload(1, b"a")])
            await settle()
            there.close()
            there, first = await met()
            assert first == parsed(resume(wire, token, got=7))
            await there.send([resume_ok(0)])
            assert parsed((await there.receive())[0]).error_code == CONNECTION_ERROR

            there, first = await met()
            assert first.type == SETUP
            assert token_of(first) != token
            nursery.start_soon(swallow, lasting, b"again")
            assert await there.receive() == [ask(1, b"again")]
            nursery.cancel_scope.cancel()
    finally:
        await listener.aclose()


async def swallow(connection: Any, data: bytes) -> None:
    try:
        await connection.request_response(data)
    except RSocketError:
        return


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
@pytest.mark.clause("RS10-RSM-19", "RS02-RSM-18")
async def test_an_answer_to_a_request_of_the_servers_shows_that_the_client_got_it(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()

    @log.responder.setup
    async def meet(terms: Any, connection: Any) -> None:
        log.seen.append(connection)

    async with server(wire, log.responder) as harbour, trio.open_nursery() as nursery:
        peer = await begin(harbour, wire)
        await peer.expect_alive()
        connection: Connection | None = log.seen.pop()  # type: ignore[assignment]
        assert connection is not None
        nursery.start_soon(connection.request_response, b"who?")
        await peer.expect(ask(2, b"who?"))
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=0)  # nothing came of it yet
        await peer.expect(ask(2, b"who?"))
        await peer.send(payload(2, b"me", N | C))
        await settle()
        await cut(peer)
        assert b"is below 10" in await expect_refused(harbour, resume(wire, got=0))
        peer = await come_back(harbour, wire, got=10, sent=8)
        assert await position_of(peer) == 8
        connection = None


@both
async def test_what_the_old_transport_brings_as_the_new_one_comes_counts_once(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        for turn in range(40):
            token = b"%d" % turn
            old = await begin(harbour, wire, token)
            new = await harbour.peer()
            await settle()
            note = forget(1, b"note")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(old.send, note)
                nursery.start_soon(new.send, resume(wire, token))
            got = await new.receive()
            assert got in (parsed(resume_ok(0)), parsed(resume_ok(len(note))))
            if got == parsed(resume_ok(0)):
                await new.send(note)
            assert await position_of(new) == len(note)
            await settle()
            assert log.seen == [("note", b"note", None)]
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


@each_row("dialects", [[RS10.name], [RS10.name, RS02.name]])
async def test_a_resume_whose_version_is_swapped_is_understood(autojump_clock: object, dialects: list[str]) -> None:
    async with server(RS10, Log().responder, dialects=dialects) as harbour:
        peer = await begin(harbour, RS10)
        await peer.expect_alive()
        await cut(peer)
        peer = await harbour.peer()
        await peer.send(resume(attrs.evolve(RS10, version=(0, 1))))
        await peer.expect(resume_ok(0))


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
