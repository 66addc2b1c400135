"""Leases: RSocket 1.0, and 0.2 where it says the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from rsocket_trio import (
    Keepalive,
    Lease,
    UnsupportedSetup,
    current_connection,
)
from tests.conformance.raw import (
    REJECTED,
    RS10,
    UNSUPPORTED_SETUP,
    C,
    F,
    L,
    Log,
    M,
    N,
    Wire,
    ask,
    bare_server,
    both,
    client_that_said,
    error,
    ext,
    forget,
    frame,
    lease,
    parsed,
    payload,
    settle,
    sized,
    u32,
)

clause = pytest.mark.clause


def leasing(*leases: Lease, log: Log | None = None) -> Log:
    """A responder that grants these leases, one a second."""
    log = Log() if log is None else log

    @log.responder.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        for one in leases:
            yield one
            await trio.sleep(1)

    return log


@both
@clause("RS10-CON-07", "RS02-CON-02", "RS10-CON-04", "RS10-CON-14")
async def test_a_server_that_accepts_leases_sends_one(autojump_clock: object, wire: Wire) -> None:
    log = leasing(Lease(2, 10.5))
    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(flags=L))
        await peer.expect(lease(10_500, 2))


@both
@clause("RS10-LS-02", "RS02-LS-01", "RS02-ERR-09", "RS02-CON-02")
async def test_requests_beyond_the_lease_are_rejected_and_reach_no_handler(autojump_clock: object, wire: Wire) -> None:
    log = leasing(Lease(2, 10))
    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(flags=L))
        await peer.expect(lease(10_000, 2))
        await peer.send(ask(1, b"a"), forget(3, b"b"), ask(5, b"c"), forget(7, b"d"))
        text = await peer.expect_error(5, REJECTED)
        assert wire is RS10 or text.startswith(b"LEASE_ERROR")
        await peer.expect(payload(1, b"a", N | C))
        await peer.expect_alive()
        assert {("request", b"a", None), ("note", b"b", None)} == set(log.seen)


@both
@clause("RS10-LS-02", "RS02-LS-01")
async def test_requests_before_the_first_lease_are_rejected(autojump_clock: object, wire: Wire) -> None:
    log = Log()

    @log.responder.lease
    async def policy(terms: object) -> AsyncIterator[Lease]:
        await trio.sleep(5)
        yield Lease(5, 5)

    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(flags=L), ask(1, b"a"), forget(3, b"b"))
        await peer.expect_error(1, REJECTED)
        await peer.expect_alive()
        assert log.seen == []


@both
@clause("RS10-LEASE-04", "RS02-LEASE-03", "RS10-LS-02")
async def test_an_expired_lease_allows_nothing(autojump_clock: object, wire: Wire) -> None:
    log = leasing(Lease(100, 2))
    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(flags=L))
        await peer.expect(lease(2000, 100))
        await trio.sleep(1.99)
        await peer.send(ask(1, b"a"))
        await peer.expect(payload(1, b"a", N | C))
        await trio.sleep(0.01)
        await peer.send(ask(3, b"a"))
        await peer.expect_error(3, REJECTED)


@both
@clause("RS10-FRAG-02")
async def test_a_request_in_fragments_counts_once_against_the_lease(autojump_clock: object, wire: Wire) -> None:
    log = leasing(Lease(2, 10))
    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(flags=L))
        await peer.expect(lease(10_000, 2))
        await peer.send(ask(1, b"a", F), payload(1, b"b", N | F), payload(1, b"c"), ask(3, b"d"), ask(5, b"e"))
        await peer.expect_error(5, REJECTED)
        answers = {await peer.receive(), await peer.receive()}
        assert answers == {parsed(payload(1, b"abc", N | C)), parsed(payload(3, b"d", N | C))}


@both
@clause("RS10-CON-06", "RS10-LS-01", "RS02-CON-02", "RS02-LS-01", "RS10-UNX-04", "RS02-UNX-02", "RS10-CON-14")
async def test_a_client_with_leases_waits_for_one_however_long_that_takes(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(wire, lease=True, keepalive=Keepalive(1000, 10_000)) as (connection, peer, first):
        assert first.flags == L
        async with trio.open_nursery() as nursery:
            for data in (b"a", b"b", b"c"):
                nursery.start_soon(connection.fire_and_forget, data)
                await settle()
            await peer.expect_silence(900)
            await peer.send(lease(5000, 2))
            got = [await peer.receive(), await peer.receive()]
            assert [one.stream_id for one in got] == [1, 3]
            assert {one.body for one in got} == {b"a", b"b"}
            await peer.expect_silence(20)
            await peer.send(lease(5000, 0))
            await peer.expect_silence(1)
            await peer.send(lease(0, 5))
            await peer.expect_silence(1)
            await peer.send(lease(5000, 9))
            await peer.expect(forget(5, b"c"))


@both
@clause("RS10-LEASE-03", "RS10-LEASE-04", "RS02-LEASE-02", "RS02-LEASE-03", "RS10-LS-01")
async def test_the_last_lease_replaces_all_former_ones(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(wire, lease=True) as (connection, peer, _):
        await peer.send(lease(60_000, 100), lease(60_000, 1))
        await settle()
        await connection.fire_and_forget(b"a")
        with trio.move_on_after(10) as scope:
            await connection.fire_and_forget(b"b")
        assert scope.cancelled_caught
        await peer.expect(forget(1, b"a"))
        await peer.send(lease(60_000, 5), lease(60_000, 0))
        await settle()
        with trio.move_on_after(1) as scope:
            await connection.fire_and_forget(b"b")
        assert scope.cancelled_caught


@both
@clause("RS10-LEASE-04", "RS10-LS-01", "RS02-LEASE-03")
async def test_the_time_of_a_lease_counts_from_its_reception(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(wire, lease=True) as (connection, peer, _):
        await trio.sleep(3)
        await peer.send(lease(2000, 100))
        await settle()
        await trio.sleep(1.99)
        await connection.fire_and_forget(b"a")
        await trio.sleep(0.01)
        with trio.move_on_after(1) as scope:
            await connection.fire_and_forget(b"b")
        assert scope.cancelled_caught
        await peer.expect(forget(1, b"a"))


@both
@clause("RS10-CON-10", "RS02-CON-02", "RS10-CON-14")
async def test_with_leases_a_server_waits_for_one_too(autojump_clock: object, wire: Wire) -> None:
    log = leasing(Lease(1, 10))

    @log.responder.extension(1)
    def call_back(stream_id: int, body: bytes) -> None:
        trio.lowlevel.spawn_system_task(current_connection().fire_and_forget, body)

    async with bare_server(wire, log.responder) as peer:
        await peer.send(wire.setup(flags=L), ext(1, b"x"))
        await peer.expect(lease(10_000, 1))
        await peer.expect_silence(50)
        await peer.send(lease(1000, 1))
        await peer.expect(forget(2, b"x"))


@both
@clause("RS10-CON-11", "RS02-CON-02", "RS10-CON-14")
async def test_a_client_with_leases_grants_one_right_after_setup(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with client_that_said(wire, responder=log.responder, lease=True) as (_, peer, _):
        await peer.expect(lease(2**31 - 1, 2**31 - 1))
        await peer.send(ask(2, b"x"))
        await peer.expect(payload(2, b"x", N | C))


@both
@clause("RS10-CON-11", "RS02-CON-02", "RS10-CON-14")
async def test_a_client_with_leases_that_serves_nothing_grants_none(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(wire, lease=True) as (connection, peer, first):
        assert first.flags == L
        await peer.send(lease(60_000, 1))
        await connection.fire_and_forget(b"x")
        await peer.expect(forget(1, b"x"))
        await peer.send(ask(2, b"x"))
        await peer.expect_error(2, REJECTED)
        await peer.expect_silence(10)


@both
@clause("RS10-CON-11", "RS02-CON-02", "RS10-LS-02")
async def test_a_clients_own_policy_grants_its_leases(autojump_clock: object, wire: Wire) -> None:
    log = leasing(Lease(1, 30), Lease(2, 30))
    async with client_that_said(wire, responder=log.responder, lease=True) as (_, peer, _):
        await peer.expect(lease(30_000, 1))
        await peer.send(ask(2, b"x"), ask(4, b"x"))
        await peer.expect_error(4, REJECTED)
        await peer.expect(payload(2, b"x", N | C), lease(30_000, 2))


@both
@clause("RS10-CON-14", "RS10-SETUP-09")
async def test_a_client_with_leases_that_is_refused_hears_why(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(wire, lease=True) as (connection, peer, _):
        await peer.send(error(0, UNSUPPORTED_SETUP, b"no leases"))
        with pytest.raises(UnsupportedSetup, match="no leases"):
            await connection.request_response(b"x")


@both
@clause("RS10-LEASE-01", "RS10-LEASE-02", "RS02-LEASE-01")
async def test_a_lease_may_carry_metadata(autojump_clock: object, wire: Wire) -> None:
    metadata = sized(b"meta") if wire.sized_push else b"meta"
    async with client_that_said(wire, lease=True) as (connection, peer, _):
        await peer.send(frame(0x02, M, 0, u32(5000) + u32(1) + metadata))
        await connection.fire_and_forget(b"x")
        await peer.expect(forget(1, b"x"))


@both
@clause("RS10-UNX-18", "RS02-UNX-05", "RS10-LEASE-01", "RS02-LEASE-01")
async def test_a_lease_on_a_stream_grants_nothing(autojump_clock: object, wire: Wire) -> None:
    async with client_that_said(wire, lease=True) as (connection, peer, _):
        await peer.send(frame(0x02, 0, 1, u32(5000) + u32(1)))
        with trio.move_on_after(1) as scope:
            await connection.fire_and_forget(b"x")
        assert scope.cancelled_caught
        await peer.expect_alive()
