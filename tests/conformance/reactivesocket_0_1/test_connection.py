"""Connecting, refusing, keepalive and leases in ReactiveSocket 0.1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import (
    ConnectionLost,
    InvalidSetup,
    Keepalive,
    Lease,
    Payload,
    RejectedSetup,
    Responder,
    RSocketError,
    Unsupported,
    UnsupportedSetup,
    current_connection,
    open_connection_over,
    serve_stream,
)
from rsocket_trio.transports.memory import memory_pair
from tests.conformance.old_frames import INVALID_SETUP, REJECTED_SETUP, RS01, UNSUPPORTED_SETUP, OldLog
from tests.conformance.raw import CONNECTION_ERROR, REJECTED, bare_server, client, server, settle, u32

clause = pytest.mark.clause
W = RS01
UNLIMITED = W.lease((2**31 - 1) / 1000, 2**31 - 1)


def leasing(log: OldLog, *leases: Lease, every: float = 1, after: float = 0) -> Responder:
    @log.responder.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        await trio.sleep(after)
        for one in leases:
            yield one
            await trio.sleep(every)

    return log.responder


# The first frame


@clause("RS01-CON-01", "RS01-SETUP-01", "RS01-SETUP-02", "RS01-SETUP-03", "RS01-HDR-02", "RS01-HDR-04", "RS01-CON-03")
async def test_a_client_says_setup_first_and_at_once(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_connection_over(
        theirs,
        dialect=W.name,
        setup=Payload(b"data", b"meta"),
        data_mime="a/b",
        metadata_mime="c/d",
        keepalive=Keepalive(0.5, 2),
        strict=True,
    ):
        fields = bytes.fromhex("0000 0001 000001f4 000007d0") + b"\x03c/d\x03a/b"
        expected = W.frame("SETUP", "SM", 0, fields + W.sized(b"meta") + b"data")
        assert bytes(await ours.receive_some()) == u32(4 + len(expected)) + expected
    await trio.aclose_forcefully(ours)


@clause("RS01-CON-09", "RS01-SETUP-02", "RS01-SETUP-05", "RS01-SETUP-09", "RS01-SETUP-11")
async def test_the_application_sees_the_setup_as_it_was_sent_and_may_refuse(autojump_clock: object) -> None:
    seen: list[Any] = []
    log = OldLog()

    @log.responder.setup
    def gate(setup: Any, connection: object) -> None:
        seen.append(setup)
        if setup.strict:
            raise UnsupportedSetup("nothing of this is known here")

    async with bare_server(W, log.responder) as peer:
        await peer.send(
            W.setup("SI", keepalive=0, lifetime=5000, metadata_mime=b"m\xff\0", data_mime=b"", metadata=b"", data=b"d")
        )
        assert await peer.expect_failure(UNSUPPORTED_SETUP) == b"nothing of this is known here"
    (setup,) = seen
    assert (setup.payload, setup.metadata_mime, setup.data_mime) == (Payload(b"d", b""), "m\xff", "")
    assert (setup.keepalive_interval, setup.max_lifetime, setup.lease) == (0, 5, False)


@clause("RS01-CON-08", "RS01-CON-17", "RS01-CON-18")
@pytest.mark.parametrize(
    ("error", "code"),
    [(RejectedSetup, REJECTED_SETUP), (InvalidSetup, INVALID_SETUP), (UnsupportedSetup, UNSUPPORTED_SETUP)],
)
@pytest.mark.parametrize("flags", ["", "L"])
async def test_a_setup_that_the_application_refuses_is_answered_and_closed(
    autojump_clock: object, error: Any, code: str, flags: str
) -> None:
    log = OldLog()
    leasing(log, Lease(1, 1))

    @log.responder.setup
    async def gate(setup: object, connection: object) -> None:
        await trio.sleep(1)
        raise error("not you")

    async with bare_server(W, log.responder) as peer:
        await peer.send(W.setup(flags), W.forget(2, b"x"), W.push(b"x"), W.keepalive(b"x"))
        await peer.expect(W.keepalive(b"x", ""))
        assert await peer.expect_failure(code) == b"not you"
    assert log.seen == []


@clause("RS01-CON-14", "RS01-CON-18", "RS01-CON-17", "RS01-ERR-08")
@pytest.mark.parametrize(
    ("code", "error"), [(1, InvalidSetup), (2, UnsupportedSetup), (3, RejectedSetup), (0x22, RejectedSetup)]
)
@pytest.mark.parametrize("lease", [False, True])
@pytest.mark.parametrize("before", [b"", W.keepalive(b"x", ""), W.push(b"x"), W.setup()])
async def test_a_client_that_is_refused_hears_why(
    autojump_clock: object, code: int, error: type[RSocketError], lease: bool, before: bytes
) -> None:
    async with client(W, OldLog().responder, lease=lease) as (connection, peer):
        if lease:
            await peer.expect(UNLIMITED)
        await peer.send(*filter(None, [before, W.error(0, code, b"no\0")]))
        await settle()
        with pytest.raises(error, match="no") as caught:
            await connection.request_response()
        assert caught.value.code == code  # type: ignore[attr-defined]
        assert caught.value.text == "no"  # type: ignore[attr-defined]
        await peer.expect_end()


@clause("RS01-CON-14", "RS01-UNX-16")
@pytest.mark.parametrize("sign", [W.ask(1, b"wait"), W.item(2, b"x", "C"), W.lease(1, 1), W.error(2)])
async def test_what_shows_acceptance_takes_the_refusal_its_meaning(autojump_clock: object, sign: bytes) -> None:
    async with client(W, OldLog().responder, lease=True) as (connection, peer):
        await peer.expect(UNLIMITED)
        await peer.send(sign, W.error(0, 3))
        await peer.expect_alive()
        assert connection.status == "open"


@clause("RS01-CON-16", "RS01-CON-02")
async def test_a_server_says_nothing_before_setup(autojump_clock: object) -> None:
    async with bare_server(W, OldLog().responder) as peer:
        await peer.expect_silence(5)


@clause("RS01-TRN-02")
async def test_after_the_error_that_ends_a_connection_nothing_has_effect(autojump_clock: object) -> None:
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.frame(0x0E), W.forget(2, b"late"), W.ask(4, b"late"))
        await peer.expect_failure()
    assert log.seen == []


@clause("RS01-UNX-18")
async def test_a_connection_error_fails_what_is_open_without_an_answer(autojump_clock: object) -> None:
    got: list[ConnectionLost] = []
    async with client(W) as (connection, peer), trio.open_nursery() as nursery:

        async def ask() -> None:
            try:
                await connection.request_response(b"q")
            except ConnectionLost as error:
                got.append(error)

        nursery.start_soon(ask)
        await peer.expect(W.ask(2, b"q"))
        await peer.send(W.error(0, CONNECTION_ERROR, b"bye"))
        await peer.expect_end()
    assert "bye" in str(got[0])
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.ask(2, b"wait"))
        await settle()
        await peer.send(W.error(0, CONNECTION_ERROR, b"bye"))
        await peer.expect_end()
    assert log.seen == [("request", b"wait"), "cancelled"]


# Framing


@clause("RS01-HDR-02", "RS01-HDR-03")
async def test_frames_may_arrive_byte_by_byte(autojump_clock: object) -> None:
    async with bare_server(W, OldLog().responder) as peer:
        for byte in W.prefixed(W.setup(), W.ask(2, b"x")):
            await peer.send_bytes(bytes([byte]))
        await peer.expect(W.item(2, b"x", "C"))


@clause("RS01-HDR-03", "ALL-RCT-05")
@pytest.mark.parametrize("length", [0, 3, 4, 11, 16 * 2**20 + 4, 2**31 - 1, 2**31 + 16])
async def test_a_length_that_cannot_be_ends_the_connection(autojump_clock: object, length: int) -> None:
    async with server(W, OldLog().responder) as peer:
        await peer.expect_alive()
        await peer.send_bytes(u32(length))
        await peer.expect_failure()
    async with bare_server(W, OldLog().responder) as peer:
        await peer.send_bytes(u32(length))
        await peer.expect_failure(INVALID_SETUP)
    async with client(W) as (_, peer):
        await peer.send_bytes(u32(length))
        await peer.expect_failure()


@clause("RS01-HDR-01", "RS01-MD-06")
async def test_a_message_is_a_frame_without_its_length(autojump_clock: object) -> None:
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, OldLog().responder, theirs, dialects=[W.name]))
        broken = W.frame("REQUEST_FNF", "M", 4, u32(5))
        await ours.send([W.setup(), broken, W.ask(2, b"x")])
        assert list(await ours.receive()) == [W.item(2, b"x", "C")]
        ours.close()


# Keepalive


@clause("RS01-KA-02", "RS01-SETUP-08")
async def test_a_client_sends_keepalive_at_the_interval_of_its_setup(autojump_clock: object) -> None:
    async with client(W, keepalive=Keepalive(3, 10)) as (connection, peer):
        for _ in range(20):
            await peer.expect_silence(2.9)
            await peer.expect(W.keepalive())
            await peer.send(W.keepalive(b"whatever", ""))
        assert connection.status == "open"


@clause("RS01-KA-02", "RS01-KA-04", "RS01-KA-07")
async def test_a_server_sends_keepalive_only_when_its_application_asks(autojump_clock: object) -> None:
    responder = Responder()

    @responder.request_response
    async def ping(request: Payload) -> bytes:
        return b"%.1f" % await current_connection().ping()

    async with server(W, responder) as peer:
        await peer.expect_silence(80)
        await peer.send(W.ask(2))
        await peer.expect(W.keepalive())
        await trio.sleep(0.5)
        await peer.send(W.keepalive(b"", ""))
        await peer.expect(W.item(2, b"0.5", "C"))


@clause("RS01-KA-05", "RS01-KA-06")
@pytest.mark.parametrize("size", [0, 1, 4096])
async def test_keepalive_is_answered_with_its_data_by_both_roles(autojump_clock: object, size: int) -> None:
    async with server(W, OldLog().responder) as peer:
        await peer.send(W.keepalive(b"x" * size), W.keepalive(b"y" * size))
        await peer.expect(W.keepalive(b"x" * size, ""), W.keepalive(b"y" * size, ""))
    async with client(W) as (_, peer):
        await peer.send(W.keepalive(b"x" * size))
        await peer.expect(W.keepalive(b"x" * size, ""))


@clause("RS01-UNX-02", "RS01-KA-09", "RS01-SETUP-08")
async def test_a_server_takes_a_client_for_dead_after_its_lifetime(autojump_clock: object) -> None:
    async with bare_server(W, OldLog().responder) as peer:
        await peer.send(W.setup(lifetime=3000))
        for _ in range(5):
            await trio.sleep(2.9)
            await peer.send(W.request_n(2, 1))  # any frame is a sign of life
        await peer.expect_silence(2.9)
        await trio.sleep(0.2)
        await peer.expect_failure()
    async with client(W, keepalive=Keepalive(1, 3)) as (connection, peer):
        await trio.sleep(3.1)
        assert connection.status == "closed"


@clause("RS01-SETUP-09", "RS01-UNX-02")
async def test_a_lifetime_of_0_means_no_death_by_silence_but_half_a_frame_stalls(autojump_clock: object) -> None:
    async with bare_server(W, OldLog().responder) as peer:
        await peer.send(W.setup(keepalive=0, lifetime=0))
        await trio.sleep(80_000)
        await peer.expect_alive()
        started = trio.current_time()
        await peer.send_bytes(u32(100))
        with trio.fail_after(200):
            assert await peer.stream.receive_some() == b""
        assert 90 <= trio.current_time() - started <= 101


# Leases


@clause("RS01-CON-13", "RS01-CON-05", "RS01-CON-15", "RS01-LEASE-02", "RS01-UNX-05", "RS01-CON-18")
async def test_a_client_with_leases_grants_one_after_setup_and_waits_for_one(autojump_clock: object) -> None:
    async with client(W, OldLog().responder, lease=True, keepalive=Keepalive(10, 100_000)) as (connection, peer):
        await peer.expect(UNLIMITED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.fire_and_forget, b"x")
            for _ in range(100):
                await trio.sleep(10)
                await peer.expect(W.keepalive())
            await peer.send(W.lease(1, 1))
            await peer.expect(W.forget(2, b"x"))


@clause("RS01-CON-13")
async def test_a_client_with_leases_that_serves_nothing_grants_none(autojump_clock: object) -> None:
    async with client(W, lease=True) as (connection, peer):
        await peer.send(W.lease(60_000, 1))
        await connection.fire_and_forget(b"x")
        await peer.expect(W.forget(2, b"x"))
        await peer.expect_silence(10)


@clause("RS01-CON-13")
async def test_a_clients_own_policy_grants_its_leases(autojump_clock: object) -> None:
    log = OldLog()
    leasing(log, Lease(1, 2), every=100)
    async with client(W, log.responder, lease=True) as (_, peer):
        await peer.expect(W.lease(2, 1))
        await peer.send(W.ask(1, b"granted"))
        await peer.expect(W.item(1, b"granted", "C"))
        await peer.send(W.ask(3, b"too much"))
        assert (await peer.expect_error(3, REJECTED)).startswith(b"LEASE_ERROR")


@clause("RS01-CON-06", "RS01-LS-01", "RS01-LS-02", "RS01-LS-03", "RS01-ERR-09", "RS01-LEASE-06", "RS01-LEASE-02")
async def test_a_server_that_accepts_leases_holds_the_client_to_them(autojump_clock: object) -> None:
    log = OldLog()
    leasing(log, Lease(4, 1), Lease(0, 1), Lease(1, 0), every=2, after=1)
    async with server(W, log.responder, "L") as peer:
        await peer.send(W.ask(2, b"early"))
        assert (await peer.expect_error(2, REJECTED)).startswith(b"LEASE_ERROR")
        await peer.expect(W.lease(1, 4))
        await peer.send(W.ask(4, b"1"), W.forget(6, b"2"), W.stream(8, 0, b"3"), W.channel(10, 0, b"4"))
        await peer.send(W.ask(12, b"5"), W.forget(14, b"6"), W.sub(16, 0), W.channel(18, 0))
        errors = []
        for _ in range(5):
            got = await peer.receive()
            if got.type == "ERROR":
                assert got.body[:4] == u32(REJECTED)
                errors.append(got.stream_id or 0)
        assert sorted(errors) == [12, 16, 18]
        for _ in range(2):
            await trio.sleep(1.1)
            await peer.send(W.ask(20, b"late"))
            await trio.sleep(0.1)
    assert len(log.seen) == 6  # four requests, and what became of the two that were open
    assert ("note", b"6") not in log.seen


@clause("RS01-LS-01", "RS01-LEASE-04", "RS01-LEASE-05", "RS01-LEASE-06", "RS01-LS-03", "RS01-CON-15")
async def test_the_last_lease_replaces_all_former_ones(autojump_clock: object) -> None:
    sent: list[int] = []
    async with client(W, lease=True, keepalive=Keepalive(1000, 10_000)) as (connection, peer):
        async with trio.open_nursery() as nursery:

            async def forget(number: int) -> None:
                await connection.fire_and_forget(b"%d" % number)
                sent.append(number)

            for number in range(6):
                nursery.start_soon(forget, number)
                await settle()
            await peer.send(W.lease(10, 2))
            await peer.expect(W.forget(2, b"0"), W.forget(4, b"1"))
            await peer.send(W.lease(10, 5), W.lease(10, 0))
            await peer.expect_silence(20)
            await peer.send(W.lease(0, 5))
            await peer.expect_silence(20)
            await peer.send(W.lease(10, 1, metadata=b"why"))
            await peer.expect(W.forget(6, b"2"))
            await peer.send(W.lease(1, 9), W.lease(2**31 / 1000, 2**32 - 1))
            await peer.expect(W.forget(8, b"3"), W.forget(10, b"4"), W.forget(12, b"5"))
        assert sorted(sent) == list(range(6))
        lease = connection.lease
        assert lease is not None
        assert lease.number_of_requests == 2**31 - 1


@clause("RS01-CON-12", "RS01-CON-18", "RS01-CON-15")
async def test_with_leases_a_server_waits_for_one_too(autojump_clock: object) -> None:
    log = OldLog()
    leasing(log, Lease(9, 9))

    @log.responder.request_subscription("back")
    async def back(request: Payload) -> AsyncIterator[bytes]:
        yield (await current_connection().request_response(b"you?")).data

    async with bare_server(W, log.responder) as peer:
        await peer.send(W.setup("L", metadata_mime=b"message/x.rsocket.routing.v0"))
        await peer.expect(W.lease(9, 9))
        await peer.send(W.frame("REQUEST_SUB", "M", 2, W.n(5) + W.sized(b"\4back")))
        await peer.expect_silence(50)
        await peer.send(W.lease(1, 1))
        await peer.expect(W.ask(1, b"you?"))
        await peer.send(W.item(1, b"I", "C"))
        await peer.expect(W.item(2, b"I"))


@clause("RS01-CON-18", "RS01-CON-07", "RS01-CON-04")
@pytest.mark.parametrize("who", ["client", "server"])
async def test_without_leases_either_side_asks_first(autojump_clock: object, who: str) -> None:
    log = OldLog()
    replies: list[bytes] = []

    @log.responder.setup
    async def gate(setup: object, connection: Any) -> None:
        if who == "server":
            replies.append((await connection.request_response(b"you?")).data)

    async with bare_server(W, log.responder) as peer:
        if who == "client":
            await peer.send(W.setup(), W.ask(2, b"x"))
            await peer.expect(W.item(2, b"x", "C"))
        else:
            await peer.send(W.setup())
            await peer.expect(W.ask(1, b"you?"))
            await peer.send(W.item(1, b"I", "C"))
            await peer.expect_alive()
            assert replies == [b"I"]


# The rest


@clause("RS01-GEN-04", "RS01-MP-01")
async def test_metadata_is_pushed_for_the_connection_both_ways(autojump_clock: object) -> None:
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.push(b"one"), W.push(b""))
        await peer.expect_alive()
        assert log.seen == [("push", b"one"), ("push", b"")]
    async with client(W) as (connection, peer):
        await connection.metadata_push(b"one")
        await peer.expect(W.push(b"one"))


@clause("RS01-EXT-01")
@pytest.mark.parametrize("flags", ["", "I", "M"])
async def test_an_extension_that_is_known_is_handed_over_as_it_is(autojump_clock: object, flags: str) -> None:
    seen: list[object] = []
    log = OldLog()

    @log.responder.extension(0x4AFEBABE)
    def known(stream_id: int, body: bytes) -> None:
        seen.append((stream_id, body))

    async with server(W, log.responder) as peer:
        await peer.send(W.ext(0x4AFEBABE, b"\0body", flags))
        await peer.expect_alive()
    assert seen == [(0, b"\0body")]


async def test_a_drain_ends_without_the_word_that_the_draft_lacks(autojump_clock: object) -> None:
    async with client(W) as (connection, peer):
        await connection.drain()
        await peer.expect_end()
    with pytest.raises(Unsupported):
        async with open_connection_over(
            trio.testing.memory_stream_pair()[0],
            dialect=W.name,
            resume=object(),  # type: ignore[arg-type]
        ):
            pass
