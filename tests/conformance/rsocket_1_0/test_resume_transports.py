"""A server's sessions and their transports: which one counts, how long one waits, leases anew: RSocket 1.0 and 0.2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import (
    Lease,
    Limits,
    Responder,
)
from rsocket_trio.transports.byte_stream import FIRST_READ_SIZE
from tests.conformance.raw import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    KEEPALIVE,
    REJECTED_SETUP,
    C,
    L,
    Log,
    N,
    R,
    Raw,
    Wire,
    ask,
    both,
    complete,
    error,
    forget,
    keepalive,
    lease,
    parsed,
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

clause = pytest.mark.clause


# A server: transports of one session


@both
@clause("RS10-RSM-24", "RS02-RSM-23")
async def test_a_resume_replaces_a_transport_that_is_still_open(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder) as harbour:
        old = await begin(harbour, wire)
        await old.send(stream(1, 2))
        await old.expect(tick(0), tick(1))
        new = await come_back(harbour, wire, got=TICK, sent=STREAM)
        await old.expect_end()
        await new.expect(tick(1))
        await new.send(request_n(1, 1))
        await new.expect(tick(2))


@both
@clause("RS10-RSM-24", "RS02-RSM-23", "RS10-RSM-15", "RS02-RSM-14")
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
@clause("RS10-RSM-24", "RS02-RSM-23")
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
@clause("RS10-RSM-08", "RS02-RSM-08", "RS10-RSM-23")
async def test_a_session_waits_for_its_time_and_is_forgotten_then(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder, with_options(session_seconds=30)) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(ask(1, b"wait"))
        for _ in range(3):
            await settle()
            await cut(peer)
            await trio.sleep(29)
            peer = await come_back(harbour, wire, got=0, sent=10)
            await trio.sleep(29)
        await cut(peer)
        await trio.sleep(29)
        assert log.seen == [("request", b"wait", None)]
        await trio.sleep(2)
        assert log.seen == [("request", b"wait", None), "cancelled"]
        unknown = await expect_refused(harbour, resume(wire, b"never known"))
        assert await expect_refused(harbour, resume(wire)) == unknown


@both
@clause("RS10-RSM-08", "RS02-RSM-08")
async def test_a_token_is_unknown_as_soon_as_its_session_is_over(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.fire_and_forget("slow")
    async def slow(request: Any) -> None:
        log.seen.append("slow")
        await trio.sleep(0.9)

    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(ask(1, b"wait"))
        await settle()
        await peer.send(error(0, CONNECTION_ERROR, b"enough"))
        await settle()
        await expect_refused(harbour, resume(wire))
    assert log.seen == [("request", b"wait", None), "cancelled"]


@both
@clause("RS10-RSM-01", "RS02-RSM-01")
async def test_a_client_that_does_not_ask_for_resumption_has_none(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        peer = await harbour.peer()
        await peer.send(wire.setup(), ask(1, b"wait"))
        await peer.expect_alive()
        await cut(peer)
        assert log.seen == [("request", b"wait", None), "cancelled"]


@both
@clause("RS10-RSM-01", "RS02-RSM-01", "RS10-SETUP-07", "RS02-SETUP-07", "RS10-RSM-17", "RS02-RSM-16")
async def test_a_server_without_resumption_refuses_it(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder, None) as harbour:
        peer = await begin(harbour, wire)
        await peer.expect_failure(REJECTED_SETUP)
        await expect_refused(harbour, resume(wire))


@both
@clause("RS10-RSM-16", "RS02-RSM-15")
@pytest.mark.parametrize("code", [CONNECTION_ERROR, CONNECTION_CLOSE])
async def test_a_client_that_gives_up_after_its_answer_cannot_come_back(
    autojump_clock: object, wire: Wire, code: int
) -> None:
    log = Log()
    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(ask(1, b"wait"))
        await settle()
        await cut(peer)
        peer = await come_back(harbour, wire, got=0, sent=10)
        await peer.send(error(0, code, b"I can't go on"))
        await cut(peer)
        assert log.seen == [("request", b"wait", None), "cancelled"]
        await expect_refused(harbour, resume(wire))


@both
@clause("RS10-RSM-25", "RS10-RSM-08")
async def test_of_too_many_sessions_the_one_that_waits_longest_ends(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder, with_options(sessions=2)) as harbour:
        connected = await begin(harbour, wire, b"connected")
        await connected.expect_alive()
        tokens = [b"1", b"2", b"3", b"4"]
        for token in tokens:
            peer = await begin(harbour, wire, token)
            await peer.expect_alive()
            await cut(peer)
            await trio.sleep(1)
        for token in tokens[:2]:
            await expect_refused(harbour, resume(wire, token))
        for token in tokens[2:]:
            peer = await harbour.peer()
            await peer.send(resume(wire, token))
            await peer.expect(resume_ok(0))
        await connected.expect_alive()


@both
@clause("RS10-RSM-25")
async def test_sessions_that_wait_with_too_many_bytes_end_from_the_oldest_on(
    autojump_clock: object, wire: Wire
) -> None:
    options = with_options(sessions_bytes=2500)
    async with server(wire, Log().responder, options) as harbour:
        tokens = [b"1", b"2", b"3"]
        for token in tokens:
            peer = await begin(harbour, wire, token)
            await peer.send(ask(1, bytes(994)))
            await peer.expect(payload(1, bytes(994), N | C))
            await cut(peer)
        await expect_refused(harbour, resume(wire, b"1"))
        for token in tokens[1:]:
            peer = await harbour.peer()
            await peer.send(resume(wire, token, got=1000))
            await peer.expect(resume_ok(1000))


@both
@clause("RS10-RSM-25")
async def test_what_sessions_queue_while_they_wait_is_bounded_as_well(autojump_clock: object, wire: Wire) -> None:
    responder = Responder()

    @responder.request_stream
    async def big(request: Any) -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(0.1)
            yield bytes(10_000)

    async with server(wire, responder, with_options(sessions_bytes=200_000)) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 300))
        await peer.receive()
        await cut(peer)
        await trio.sleep(40)
        await expect_refused(harbour, resume(wire, got=10_006))


@both
@clause("RS10-RSM-25", "RS10-RSM-22", "RS02-RSM-21")
async def test_a_full_store_asks_and_then_waits_until_it_is_told(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder, with_options(store_bytes=1024), fragment_size=1024) as harbour:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 10_000))
        seen: list[Raw] = []
        asked = 0
        for _ in range(5):
            kept = sum(6 + len(got.body) for got in seen)
            while True:
                with trio.move_on_after(1):
                    got = await peer.receive()
                    if got.type == KEEPALIVE:
                        assert got.flags == R
                        asked += 1
                    else:
                        seen.append(got)
                    continue
                break
            total = sum(6 + len(got.body) for got in seen)
            assert 1024 - 16 < total - kept <= 1024
            await peer.expect_silence(3)
            await peer.send(keepalive(respond=False, position=total))
        assert asked == 5
        assert [got.body for got in seen] == [b"tick %d" % number for number in range(len(seen))]


# A server: closing


@both
@clause("RS10-RSM-14", "RS02-RSM-13", "RS10-ERR-09")
async def test_a_close_that_was_announced_is_said_again_on_each_transport(autojump_clock: object, wire: Wire) -> None:
    log, accepted = Log(), list[Any]()

    @log.responder.setup
    def meet(terms: Any, connection: Any) -> None:
        accepted.append(connection)

    async with server(wire, log.responder) as harbour, trio.open_nursery() as nursery:
        peer = await begin(harbour, wire)
        await peer.send(stream(1, 1, b"3"))
        await peer.expect(tick(0))
        nursery.start_soon(partial(accepted.pop().drain, announce=True, grace=50))
        assert (await peer.receive()).error_code == CONNECTION_CLOSE
        for _ in range(2):
            await cut(peer)
            peer = await come_back(harbour, wire, got=TICK, sent=STREAM + 1)
            assert (await peer.receive()).error_code == CONNECTION_CLOSE
        await peer.send(request_n(1, 9))
        await peer.expect(tick(1), tick(2), complete(1))


# A server: leases


@both
@clause("RS10-RSM-21", "RS02-RSM-20", "RS02-RSM-03")
async def test_a_lease_begins_anew_with_one_of_the_servers(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        yield Lease(3, 60)
        await trio.sleep_forever()

    async with server(wire, log.responder) as harbour:
        peer = await begin(harbour, wire, flags=L)
        await peer.expect(lease(60_000, 3))
        await peer.send(ask(1, b"x"))
        await peer.expect(payload(1, b"x", N | C))
        await cut(peer)
        await trio.sleep(10)
        peer = await come_back(harbour, wire, got=7, sent=7)
        await peer.expect(lease(50_000, 2))
        await peer.send(ask(3, b"y"), ask(5, b"z"))
        await peer.expect_in_any_order(payload(3, b"y", N | C), payload(5, b"z", N | C))


@both
async def test_whoever_acknowledges_nothing_makes_a_server_keep_no_more_by_coming_back(
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

    async with server(
        wire, log.responder, with_options(store_bytes=1024), limits=limits, fragment_size=1024
    ) as harbour:
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
