"""Connecting, refusing, leases, pushed metadata and silence in ReactiveSocket 0.0."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    InvalidSetup,
    Lease,
    Limits,
    MetadataPush,
    Outgoing,
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
from tests.conformance.old_frames import INVALID_SETUP, REJECTED_SETUP, RS00, UNSUPPORTED_SETUP, OldLog
from tests.conformance.raw import bare_server, client, server, settle, u32

clause = pytest.mark.clause
W = RS00


def leasing(log: OldLog, *leases: Lease, every: float = 1) -> Responder:
    @log.responder.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        for one in leases:
            yield one
            await trio.sleep(every)

    return log.responder


# The first frame


@clause("RS00-CON-01", "RS00-SETUP-01", "RS00-SETUP-02", "RS00-SETUP-06", "RS00-HDR-01", "RS00-HDR-04", "RS00-HDR-07")
async def test_a_client_says_setup_first_and_at_once(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    payload = Payload(b"data", b"meta", metadata_type=0xA5)
    async with open_connection_over(
        theirs, dialect=W.name, setup=payload, data_mime="a/b", metadata_mime="c/d+e", lease=True
    ):
        body = b"\x05c/d+e\x03a/b" + W.sized(b"meta", 0xA5) + b"data"
        expected = W.frame("SETUP", "LM", 0, body)
        assert bytes(await ours.receive_some()) == u32(4 + len(expected)) + expected
    await trio.aclose_forcefully(ours)


@clause("RS00-SETUP-07", "RS00-CON-02", "RS00-SETUP-02", "RS00-CON-09")
async def test_the_application_sees_the_setup_as_it_was_sent(autojump_clock: object) -> None:
    seen: list[Any] = []
    log = OldLog()
    leasing(log, Lease(5, 5))

    @log.responder.setup
    def gate(setup: Any, connection: object) -> None:
        seen.append(setup)

    async with bare_server(W, log.responder) as peer:
        body = b"\x03m/m\x03d/d" + W.sized(b"meta", 9) + b"data"
        await peer.send(W.frame("SETUP", "LM", 0, body))
        await peer.expect(W.lease(5, 5))
    (setup,) = seen
    assert setup.payload == Payload(b"data", b"meta", metadata_type=9)
    assert (setup.dialect, setup.metadata_mime, setup.data_mime, setup.lease) == (W.name, "m/m", "d/d", True)
    assert (setup.keepalive_interval, setup.max_lifetime, setup.strict, setup.resume) == (0, 0, False, False)


@clause("RS00-CON-07", "RS00-SERR-04", "RS00-SERR-02", "RS00-SERR-03")
@pytest.mark.parametrize(
    ("error", "code"),
    [(RejectedSetup, REJECTED_SETUP), (InvalidSetup, INVALID_SETUP), (UnsupportedSetup, UNSUPPORTED_SETUP)],
)
async def test_a_setup_that_the_application_refuses_is_answered_and_closed(
    autojump_clock: object, error: Any, code: str
) -> None:
    log = OldLog()

    @log.responder.setup
    async def gate(setup: object, connection: object) -> None:
        await trio.sleep(1)
        raise error("not you")

    async with bare_server(W, log.responder) as peer:
        await peer.send(W.setup(), W.forget(2, b"x"), W.push(b"x"))
        assert await peer.expect_failure(code) == b"not you"
    assert log.seen == []


@clause("RS00-CON-08")
@pytest.mark.parametrize(
    ("code", "error", "number"),
    [
        (0x0001, InvalidSetup, 1),
        (0x0010, UnsupportedSetup, 2),
        (0x0100, RejectedSetup, 3),
        (0x0000, RejectedSetup, 0),
        (0x0101, RejectedSetup, 0x101),
        (0xFFFFFFFF, RejectedSetup, 0xFFFFFFFF),
    ],
)
async def test_a_client_that_is_refused_hears_why(
    autojump_clock: object, code: int, error: type[RSocketError], number: int
) -> None:
    async with client(W) as (connection, peer):
        await peer.send(W.refusal(code, b"no"))
        await settle()
        with pytest.raises(error, match="no") as caught:
            await connection.request_response()
        assert caught.value.code == number  # type: ignore[attr-defined]
        await peer.expect_end()


@clause("RS00-CON-08")
@pytest.mark.parametrize("sign", [W.ask(1, b"wait"), W.item(2, b"x", "C"), W.lease(1, 1), W.error(2)])
async def test_what_shows_acceptance_takes_the_refusal_its_meaning(autojump_clock: object, sign: bytes) -> None:
    async with client(W, OldLog().responder, lease=True) as (connection, peer):
        await peer.send(sign, W.refusal(REJECTED_SETUP))
        await peer.expect_alive()
        assert connection.status == "open"


@clause("RS00-CON-01", "RS00-CON-10")
async def test_a_server_says_nothing_before_setup(autojump_clock: object) -> None:
    async with bare_server(W, OldLog().responder) as peer:
        await peer.expect_silence(5)


@clause("RS00-SID-04")
async def test_while_the_setup_is_considered_only_answers_get_through(autojump_clock: object) -> None:
    log = OldLog()
    answers: list[bytes] = []

    @log.responder.setup
    async def gate(setup: object, connection: Any) -> None:
        answers.append((await connection.request_response(b"who?")).data)

    async with bare_server(W, log.responder) as peer:
        await peer.send(W.setup())
        await peer.expect(W.ask(1, b"who?"))
        await peer.send(W.forget(1, b"held"), W.ask(1, b"held"))
        await settle()
        assert log.seen == []
        await peer.send(W.item(1, b"me", "C"))
        await peer.expect(W.item(1, b"held", "C"))
    assert answers == [b"me"]
    assert sorted(log.seen) == [("note", b"held"), ("request", b"held")]  # type: ignore[type-var]


# Framing


@clause("RS00-HDR-01", "RS00-HDR-03")
async def test_frames_may_arrive_byte_by_byte(autojump_clock: object) -> None:
    async with bare_server(W, OldLog().responder) as peer:
        for byte in W.prefixed(W.setup(), W.ask(2, b"x")):
            await peer.send_bytes(bytes([byte]))
        await peer.expect(W.item(2, b"x", "C"))


@clause("RS00-HDR-13", "ALL-RCT-05")
@pytest.mark.parametrize("length", [0, 3, 4, 11, 16 * 2**20 + 4, 2**31 - 1, 2**31 + 16])
async def test_a_length_that_cannot_be_ends_the_connection(autojump_clock: object, length: int) -> None:
    async with server(W, OldLog().responder) as peer:
        await peer.expect_alive()
        await peer.send_bytes(u32(length))
        await peer.expect_end()
    async with bare_server(W, OldLog().responder) as peer:
        await peer.send_bytes(u32(length))
        await peer.expect_failure(INVALID_SETUP)
    async with client(W) as (_, peer):
        await peer.send_bytes(u32(length))
        await peer.expect_end()


@clause("RS00-HDR-02")
async def test_a_message_is_a_frame_without_its_length(autojump_clock: object) -> None:
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, OldLog().responder, theirs, dialects=[W.name]))
        await ours.send([W.setup(), W.ask(2, b"x")])
        assert list(await ours.receive()) == [W.item(2, b"x", "C")]
        await ours.send([W.frame(0x04)])
        assert list(await ours.receive()) == []
        ours.close()


# Both sides ask


@clause("RS00-CON-06", "RS00-CON-12", "RS00-CON-05")
async def test_with_leases_the_setup_allows_the_server_to_ask_until_a_lease_restricts_it(
    autojump_clock: object,
) -> None:
    log = OldLog()
    leasing(log, Lease(100, 100))
    replies: list[bytes] = []

    @log.responder.setup
    async def gate(setup: object, connection: Any) -> None:
        assert connection.lease is None
        replies.append((await connection.request_response(b"first")).data)

    @log.responder.request_response("back")
    async def back(request: Payload) -> Payload:
        return await current_connection().request_response(b"later")

    mime = b"message/x.rsocket.routing.v0"
    async with bare_server(W, log.responder) as peer:
        await peer.send(W.setup("L", metadata_mime=mime))
        await peer.expect(W.ask(1, b"first"))
        await peer.send(W.item(1, b"1", "C"))
        await peer.expect(W.lease(100, 100))
        await peer.send(W.lease(100, 1), W.ask(2, b"", metadata=b"\4back"), W.ask(4, b"", metadata=b"\4back"))
        await peer.expect(W.ask(3, b"later"))
        await peer.expect_silence(30)
        await peer.send(W.lease(100, 1))
        await peer.expect(W.ask(5, b"later"))
    assert replies == [b"1"]


@clause("RS00-CON-12", "RS00-LEASE-02")
async def test_a_client_with_leases_sends_none_but_its_policys(autojump_clock: object) -> None:
    async with client(W, lease=True) as (_, peer):
        await peer.expect_silence(5)
    log = OldLog()
    leasing(log, Lease(1, 2), every=100)
    async with client(W, log.responder, lease=True) as (_, peer):
        await peer.expect(W.lease(2, 1))
        await peer.send(W.ask(3, b"granted"), W.ask(5, b"too much"))
        got = {await peer.receive(), await peer.receive()}
        assert W.parsed(W.item(3, b"granted", "C")) in got
        assert any(one.type == "ERROR" and one.stream_id == 5 and b"lease" in one.body for one in got)


# Leases


@clause("RS00-CON-05", "RS00-LEASE-02", "RS00-LEASE-05", "RS00-LEASE-03", "RS00-LEASE-04")
async def test_a_server_that_accepts_leases_sends_one_and_holds_the_client_to_it(autojump_clock: object) -> None:
    log = OldLog()
    leasing(log, Lease(1, 1.5), Lease(1, 0.5), every=2)
    async with server(W, log.responder, "L") as peer:
        await peer.expect(W.lease(1.5, 1))
        await peer.send(W.ask(2, b"one"), W.ask(4, b"two"))
        got = {await peer.receive(), await peer.receive()}
        assert W.parsed(W.item(2, b"one", "C")) in got
        assert any(one.type == "ERROR" and one.stream_id == 4 and b"LEASE_ERROR" in one.body for one in got)
        await peer.expect(W.lease(0.5, 1))
        await trio.sleep(0.6)
        await peer.send(W.stream(6, 1), W.forget(8))
        assert b"LEASE_ERROR" in await peer.expect_error(6, 0)
    assert log.seen == [("request", b"one")]


@clause("RS00-LEASE-05")
async def test_before_the_first_lease_nothing_is_served(autojump_clock: object) -> None:
    log = OldLog()

    @log.responder.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        await trio.sleep(1)
        yield Lease(1, 1)

    async with server(W, log.responder, "L") as peer:
        await peer.send(W.ask(2, b"early"))
        await peer.expect_error(2, 0)
        await peer.expect(W.lease(1, 1))
    assert log.seen == []


@clause("RS00-CON-04", "RS00-LEASE-03", "RS00-LEASE-04", "RS00-LEASE-05")
async def test_a_client_with_leases_waits_and_counts_nanoseconds(autojump_clock: object) -> None:
    times: list[float] = []
    async with client(W, lease=True) as (connection, peer), trio.open_nursery() as nursery:

        async def forget() -> None:
            await connection.fire_and_forget()
            times.append(trio.current_time())

        for _ in range(3):
            nursery.start_soon(forget)
        await peer.expect_silence(1000)
        await peer.send(W.lease(1.5, 2))
        await peer.expect(W.forget(2), W.forget(4))
        await peer.expect_silence(1)
        await peer.send(W.frame("LEASE", "M", 0, (1_500_000_000).to_bytes(8, "big") * 2 + W.sized(b"why")))
        await peer.expect(W.forget(6))
        lease = connection.lease
        assert lease is not None
        assert lease.number_of_requests == 1_499_999_999
        assert lease.time_to_live == pytest.approx(1.5)
        await trio.sleep(1.49)
        await connection.fire_and_forget()
        await peer.expect(W.forget(8))
        await trio.sleep(0.02)
        nursery.start_soon(forget)
        await peer.expect_silence(100)
        await peer.send(W.frame("LEASE", "", 0, b"\xff" * 16))
        await peer.expect(W.forget(10))
        lease = connection.lease
        assert lease is not None
        assert lease.number_of_requests == 2**31 - 1


# Pushed metadata


@clause("RS00-MP-02", "RS00-MD-04")
async def test_metadata_is_pushed_for_the_connection_both_ways(autojump_clock: object) -> None:
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.push(b"one"), W.push(b"", kind=7))
        await peer.expect_alive()
        assert log.seen == [("push", b"one"), ("push", b"")]
    async with client(W) as (connection, peer):
        await connection.metadata_push(b"one")
        await connection.metadata_push(b"two", metadata_type=0xA5)
        await peer.expect(W.push(b"one"), W.push(b"two", kind=0xA5))


@clause("RS00-MP-02", "RS00-MP-03", "RS00-MP-04", "RS00-MD-04")
@pytest.mark.parametrize("kind", ["stream", "subscription"])
async def test_pushed_metadata_comes_in_order_with_the_items(autojump_clock: object, kind: str) -> None:
    async with client(W) as (connection, peer):
        ask = getattr(connection, f"request_{kind}")
        async with ask(b"s", initial_request_n=9, pushes=True) as items:
            assert (await peer.receive()).stream_id == 2
            await peer.send(
                W.push(b"0", 2), W.item(2, b"1"), W.push(b"", 2, 0xA5), W.item(2, b"2"), W.push(b"3", 2), W.done(2)
            )
            got = [one async for one in items]
        assert got == [
            MetadataPush(b"0"),
            Payload(b"1"),
            MetadataPush(b"", 0xA5),
            Payload(b"2"),
            MetadataPush(b"3"),
        ]
        await peer.expect_silence()


@clause("RS00-MP-03")
async def test_a_reader_that_waits_is_woken_by_pushed_metadata_and_pushes_take_no_credit(
    autojump_clock: object,
) -> None:
    got: list[object] = []
    async with client(W) as (connection, peer), trio.open_nursery() as nursery:

        async def read() -> None:
            async with connection.request_stream(b"s", initial_request_n=2, pushes=True) as items:
                async for one in items:
                    got.append(one)

        nursery.start_soon(read)
        await peer.expect(W.stream(2, 2, b"s"))
        for number in range(5):
            await peer.send(W.push(b"%d" % number, 2))
            await settle()
            assert len(got) == number + 1
        await peer.expect_silence()
        await peer.send(W.item(2, b"x"))
        await peer.expect(W.request_n(2, 1))
        await peer.send(W.done(2))
    assert got[-1] == Payload(b"x")


@clause("RS00-MP-02")
async def test_pushed_metadata_beyond_what_a_slow_reader_may_leave_is_dropped(autojump_clock: object) -> None:
    async with client(W, limits=Limits(pending_handlers=3)) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=9, pushes=True) as items:
            await peer.expect(W.stream(2, 9, b"s"))
            await peer.send(*(W.push(b"%d" % number, 2) for number in range(5)), W.done(2))
            assert [one.metadata async for one in items] == [b"0", b"1", b"2"]
        assert connection.faults.dropped == 2


@clause("RS00-MP-02", "RS00-MP-03")
async def test_both_sides_of_a_stream_push_metadata_onto_it(autojump_clock: object) -> None:
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload, out: Outgoing) -> None:
        await out.metadata_push(b"before")
        await out.send(b"item")
        await out.metadata_push("after", metadata_type=3)

    async with server(W, responder) as peer:
        await peer.send(W.stream(2, 5))
        await peer.expect(W.push(b"before", 2), W.item(2, b"item"), W.push(b"after", 2, 3), W.done(2))
    async with client(W) as (connection, peer):
        async with connection.request_stream(b"s") as items:
            await items.metadata_push(b"word", metadata_type=4)
            await peer.expect(W.stream(2, 256, b"s"), W.push(b"word", 2, 4))
            await peer.send(W.done(2))
            await settle()
            with pytest.raises(RSocketError):
                await items.metadata_push(b"late")
        await peer.expect_silence()


@clause("RS00-MP-02")
async def test_other_dialects_have_no_metadata_for_a_stream(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with (
        open_connection_over(theirs, dialect="reactivesocket/0.1") as connection,
        connection.request_stream() as items,
    ):
        with pytest.raises(Unsupported, match=r"reactivesocket/0.1 has no metadata push on streams"):
            await items.metadata_push(b"x")
    await trio.aclose_forcefully(ours)


@clause("RS00-MP-04")
async def test_metadata_pushed_amid_the_fragments_of_an_answer_harms_nothing(autojump_clock: object) -> None:
    async with client(W) as (connection, peer), trio.open_nursery() as nursery:
        got: list[Payload] = []

        async def ask() -> None:
            got.append(await connection.request_response(b"q"))

        nursery.start_soon(ask)
        await peer.expect(W.ask(2, b"q"))
        await peer.send(W.item(2, b"one ", "F"), W.push(b"x", 2), W.item(2, b"two", "C"))
        await settle()
        assert got == [Payload(b"one two")]


# What it lacks


async def test_what_the_draft_lacks_is_refused_before_a_byte_is_sent(autojump_clock: object) -> None:
    async with client(W, OldLog().responder) as (connection, peer):
        with pytest.raises(Unsupported):
            await connection.ping()
        with pytest.raises(Unsupported):
            async with connection.request_channel():
                pass
        await peer.expect_alive()
    with pytest.raises(Unsupported):
        async with open_connection_over(trio.testing.memory_stream_pair()[0], dialect=W.name, strict=True):
            pass


@clause("RS00-EXT-01", "RS00-EXT-02")
@pytest.mark.parametrize("flags", ["", "I", "M"])
async def test_an_extension_that_is_known_is_handed_over_as_it_is(autojump_clock: object, flags: str) -> None:
    seen: list[object] = []
    log = OldLog()

    @log.responder.extension(0x4AFEBABE)
    def known(stream_id: int, body: bytes) -> None:
        seen.append((stream_id, body))

    async with server(W, log.responder) as peer:
        await peer.send(W.ext(0x4AFEBABE, b"\0body", flags), W.ext(0x4AFEBABE, b"", flags))
        await peer.expect_alive()
    assert seen == [(0, b"\0body"), (0, b"")]


# Silence


async def test_an_idle_connection_stays_and_half_a_frame_is_closed(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with server(W, OldLog().responder) as peer:
        await trio.sleep(80_000)
        await peer.expect_alive()
        await trio.sleep(1000)
        started = trio.current_time()
        await peer.send_bytes(u32(100) + b"half")
        with trio.fail_after(200):
            assert await peer.stream.receive_some() == b""
        assert 90 <= trio.current_time() - started <= 101
    assert "half a frame" in caplog.text


async def test_frames_that_come_slowly_but_come_are_no_stall(autojump_clock: object) -> None:
    async with server(W, OldLog().responder) as peer:
        for number in range(2, 10, 2):
            frame = W.prefixed(W.ask(number, b"x"))
            await peer.send_bytes(frame[:10])
            await trio.sleep(60)
            await peer.send_bytes(frame[10:])
            await peer.expect(W.item(number, b"x", "C"))


async def test_a_client_of_an_idle_server_stays_and_one_that_stalls_leaves(autojump_clock: object) -> None:
    async with client(W) as (connection, peer):
        await trio.sleep(80_000)
        assert connection.status == "open"
        await peer.send_bytes(b"\0")
        await trio.sleep(102)
        assert connection.status == "closed"


async def test_an_error_has_no_code_and_no_connection_error_exists(autojump_clock: object) -> None:
    got: list[BaseException] = []
    async with client(W) as (connection, peer), trio.open_nursery() as nursery:

        async def ask() -> None:
            try:
                await connection.request_response(b"q")
            except ApplicationError as error:
                got.append(error)

        nursery.start_soon(ask)
        await peer.expect(W.ask(2, b"q"))
        await peer.send(W.frame("ERROR", "M", 2, W.sized(b"meta") + b"text"))
    assert str(got[0]) == "text"
