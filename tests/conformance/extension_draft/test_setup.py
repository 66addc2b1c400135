"""The extension draft: what SETUP asks for, what SETUP_OK grants, and who may speak when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from rsocket_trio import (
    ConnectionLost,
    Keepalive,
    Lease,
    Payload,
    RejectedSetup,
    Responder,
    Unsupported,
    UnsupportedSetup,
    current_connection,
    open_connection_over,
)
from rsocket_trio.rsocket.frames import Entry
from tests.conformance.draft_frames import (
    KEEPALIVE_ID,
    KEEPALIVES,
    LEASE_ID,
    RESUME_ID,
    RSX,
    A,
    asking_client,
    beat,
    entry,
    keepalives,
    permits,
    selected,
    setup,
    setup_ok,
    strategies,
)
from tests.conformance.raw import (
    CONNECTION_ERROR,
    REJECTED_SETUP,
    UNSUPPORTED_SETUP,
    C,
    Log,
    N,
    RawPeer,
    ask,
    bare_server,
    client_that_said,
    error,
    forget,
    keepalive,
    parsed,
    payload,
    settle,
)

clause = pytest.mark.clause
OURS = entry(KEEPALIVE_ID, KEEPALIVES, ignore=True)
LEASES = strategies(0)
PARTING = 2
"""Seconds in which a client has ended that waits for the other side to close."""
ASKING = Entry("x.app", ack=True, payload=b"may I?")


def leasing(*leases: Lease, responder: Responder | None = None) -> Responder:
    responder = Responder() if responder is None else responder

    @responder.lease
    async def policy(terms: object) -> AsyncIterator[Lease]:
        for one in leases:
            yield one
            await trio.sleep(1)

    return responder


# The client's SETUP


@clause("RSX-SETUP-02", "RSX-KA-01", "RSX-MIME-01", "RSX-FLG-01", "RSX-GAP-02", "RSX-GAP-16")
async def test_a_client_says_its_terms_in_entries(autojump_clock: object) -> None:
    async with client_that_said(RSX, setup=Payload(b"data", b"meta"), keepalive=Keepalive(0.5, 1.5)) as (_, _, said):
        assert said == parsed(
            setup(keepalives(500, 1500), data_mime=b"\x86", metadata_mime=b"\xff", metadata=b"meta", data=b"data")
        )
    async with client_that_said(RSX, data_mime="a/b", metadata_mime="c/d") as (_, _, said):
        assert said == parsed(setup(OURS, data_mime=b"\x03a/b", metadata_mime=b"\x03c/d"))


@clause("RSX-SETUP-03")
async def test_a_client_that_asks_for_no_answer_may_request_at_once(autojump_clock: object) -> None:
    async with client_that_said(RSX) as (connection, peer, said):
        assert not said.flags & A
        await connection.fire_and_forget(b"at once")
        await peer.expect(forget(1, b"at once"))


@clause("RSX-SETUP-03", "RSX-LEASE-06", "RSX-LEASE-01")
async def test_a_client_that_asks_for_leases_waits_for_the_answer(autojump_clock: object) -> None:
    async with asking_client(Responder(), lease=True, keepalive=Keepalive(1, 90)) as (peer, outcome):
        await peer.expect_silence(30)
        assert outcome == []
        await peer.send(setup_ok(selected(0)))
        await peer.expect(permits(2**31 - 1, 2**31 - 1))
        await peer.expect(beat())
        assert len(outcome) == 1


@clause("RSX-LEASE-06")
async def test_a_client_that_serves_nothing_permits_nothing(autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.send(setup_ok(selected(0)))
        await peer.expect_silence(10)
        assert len(outcome) == 1


@clause("RSX-LEASE-06", "RSX-TLV-02")
async def test_leases_are_asked_for_with_an_answer_and_keepalive_without(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.move_on_after(1):
        async with open_connection_over(theirs, dialect=RSX.name, lease=True):
            pass
    got = await RawPeer(ours).receive()
    assert got == parsed(setup(OURS, LEASES, metadata_mime=b"\xff", ack=True))
    await trio.aclose_forcefully(ours)


@clause("RSX-SETUP-03")
async def test_a_refusal_is_raised_where_the_answer_was_awaited(autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.send(error(0, REJECTED_SETUP, b"not you"))
        await trio.sleep(PARTING)
        [refused] = outcome
        assert isinstance(refused, RejectedSetup)
        assert refused.text == "not you"


@clause("RSX-SETUP-03")
async def test_a_server_that_goes_or_is_silent_is_lost(autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.stream.aclose()
        await trio.sleep(PARTING)
        assert [type(one) for one in outcome] == [ConnectionLost]
    async with asking_client(lease=True, keepalive=Keepalive(1, 30)) as (peer, outcome):
        await peer.expect_silence(29)
        await peer.expect_end()
        await trio.sleep(PARTING)
        assert [type(one) for one in outcome] == [ConnectionLost]


@clause("RSX-SETUP-03")
async def test_a_caller_may_give_up_waiting(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.move_on_after(5) as scope:
        async with open_connection_over(theirs, dialect=RSX.name, lease=True):
            raise AssertionError("the block began")
    assert scope.cancelled_caught
    await trio.aclose_forcefully(ours)


# SETUP_OK at a client


@clause("RSX-OK-02")
async def test_a_client_does_not_go_on_without_the_leases_that_it_asked_for(autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.send(setup_ok())
        assert b"lease" in await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(PARTING)
        assert [type(one) for one in outcome] == [UnsupportedSetup]


@clause("RSX-LEASE-03")
@pytest.mark.parametrize("names", [(1,), (0, 1), (2, 0)])
async def test_a_strategy_that_was_not_offered_ends_the_connection(
    names: tuple[int, ...], autojump_clock: object
) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.send(setup_ok(selected(*names)))
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(PARTING)
        assert [type(one) for one in outcome] == [ConnectionLost]


@clause("RSX-LEASE-03")
async def test_leases_that_were_not_asked_for_end_the_connection(autojump_clock: object) -> None:
    async with asking_client(entries=[ASKING]) as (peer, _):
        await peer.send(setup_ok(selected(0)))
        await peer.expect_failure(CONNECTION_ERROR)


@clause("RSX-TLV-07", "RSX-TLV-08", "RSX-TLV-10")
@pytest.mark.parametrize(
    "answer",
    [
        setup_ok(entry(0x55)),
        setup_ok(entry("x.app")),
        setup_ok(entry(0x04, nibble=1)),
        setup_ok(entry(0, ignore=True)),
        setup_ok(selected(0), selected(0)),
        setup_ok(entry(LEASE_ID, b"\x02\x80")),
        setup_ok(entry(KEEPALIVE_ID, bytes(7), ignore=True)),
    ],
)
async def test_an_answer_that_cannot_be_read_ends_the_connection(answer: bytes, autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.send(answer)
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(PARTING)
        assert [type(one) for one in outcome] == [ConnectionLost]


@clause("RSX-OK-01")
@pytest.mark.parametrize("frames", [keepalive(), ask(2, b"x"), beat(), permits(1000, 1), setup()])
async def test_whatever_comes_before_the_answer_ends_the_connection(frames: bytes, autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, _):
        await peer.send(frames)
        assert b"before SETUP_OK" in await peer.expect_failure(CONNECTION_ERROR)


@clause("RSX-TLV-06", "RSX-OK-03")
async def test_what_may_be_ignored_is(autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.send(setup_ok(selected(0), stream_id=1))
        await peer.expect_silence(1)
        await peer.send(setup_ok(entry(0x55, b"?", ignore=True), selected(0)), setup_ok())
        await peer.expect_alive()
        assert len(outcome) == 1


@clause("RSX-OK-02")
async def test_an_applications_entry_is_granted_or_not(autojump_clock: object) -> None:
    async with asking_client(entries=[ASKING]) as (peer, outcome):
        await peer.send(setup_ok(entry("x.app", b"yes", ignore=True)))
        await peer.expect_alive()
        [connection] = outcome
        assert connection.granted == (Entry("x.app", ignore=True, payload=b"yes"),)  # type: ignore[attr-defined]
    async with asking_client(entries=[ASKING]) as (peer, outcome):
        await peer.send(setup_ok())
        await peer.expect_alive()
        [connection] = outcome
        assert connection.granted == ()  # type: ignore[attr-defined]


# A server's SETUP_OK


@clause("RSX-OK-01", "RSX-OK-02", "RSX-KA-03", "RSX-FLG-02", "RSX-GEN-04", "RSX-GAP-05")
async def test_the_worked_example(autojump_clock: object) -> None:
    said = "00000000 0680 85 ff 0002 0000 81 60 000008 000001f4 000005dc 6869"
    answered = "00000000 3e00 81 40 000008 000001f4 000005dc"
    async with bare_server(RSX, Log().responder) as peer:
        await peer.send(bytes.fromhex(said))
        await peer.expect(bytes.fromhex(answered))
        await peer.expect_alive()


@clause("RSX-OK-01", "RSX-SETUP-03")
async def test_setup_ok_comes_if_asked_for_and_once(autojump_clock: object) -> None:
    async with bare_server(RSX, Log().responder) as peer:
        await peer.send(setup(ack=True), ask(1, b"x"), keepalive())
        await peer.expect(setup_ok())
        await peer.expect_in_any_order(payload(1, b"x", N | C), keepalive(respond=False))
        await peer.expect_alive()
    async with bare_server(RSX, Log().responder) as peer:
        await peer.send(setup(keepalives()))
        await peer.expect_alive()


@clause("RSX-OK-02", "RSX-LEASE-03")
async def test_setup_ok_holds_what_is_granted(autojump_clock: object) -> None:
    asked = (
        strategies(1, 0, ignore=True),
        keepalives(ack=True),
        entry(RESUME_ID, b"\x00\x01t", ignore=True, ack=True),
        entry(0x55, b"?", ignore=True, ack=True),
        entry("x.app", ignore=True, ack=True),
    )
    async with bare_server(RSX, leasing(Lease(1, 1))) as peer:
        await peer.send(setup(*asked, ack=True))
        await peer.expect(setup_ok(strategies(0, ignore=True, ack=False), keepalives()))
        await peer.expect(permits(1000, 1))


@clause("RSX-OK-02", "RSX-LEASE-02")
async def test_leases_that_may_be_ignored_are_not_granted_where_they_cannot_be(autojump_clock: object) -> None:
    async with bare_server(RSX, Log().responder) as peer:
        await peer.send(setup(strategies(0, ignore=True), ack=True))
        await peer.expect(setup_ok())
        await peer.send(ask(1, b"x"))
        await peer.expect(payload(1, b"x", N | C))
    async with bare_server(RSX, leasing(Lease(1, 1))) as peer:
        await peer.send(setup(strategies(1, 2, ignore=True), ack=True))
        await peer.expect(setup_ok())
    async with bare_server(RSX, leasing(Lease(1, 1))) as peer:
        await peer.send(setup(strategies(1, 2), ack=True))
        assert b"lease" in await peer.expect_failure(UNSUPPORTED_SETUP)


@clause("RSX-TLV-07", "RSX-GAP-18")
async def test_the_refusal_names_the_extension(autojump_clock: object) -> None:
    refused = {b"0x55": entry(0x55), b"x.app": entry("x.app"), b"resume": entry(RESUME_ID, b"\x00\x05token")}
    for name, one in refused.items():
        async with bare_server(RSX, Log().responder) as peer:
            await peer.send(setup(one))
            assert name in await peer.expect_failure(UNSUPPORTED_SETUP)


@clause("RSX-RES-03", "RSX-RES-04")
async def test_a_resumable_session_is_not_granted(autojump_clock: object) -> None:
    async with bare_server(RSX, Log().responder) as peer:
        await peer.send(setup(entry(RESUME_ID, b"\x00\x01t", ignore=True, ack=True), ack=True))
        await peer.expect(setup_ok())
        await peer.expect_alive()


@clause("RSX-OK-01", "RSX-SETUP-03")
async def test_nothing_is_said_before_the_application_has_decided(autojump_clock: object) -> None:
    log = Log()

    @log.responder.setup
    async def gate(terms: object, connection: Any) -> None:
        await connection.fire_and_forget(b"early")
        await trio.sleep(5)

    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(ack=True), keepalive(b"early"), beat(b"early"), ask(1, b"early"))
        await peer.expect_silence(4)
        assert log.seen == []
        await peer.expect(setup_ok())
        late = (keepalive(b"early", respond=False), beat(b"early", respond=False), payload(1, b"early", N | C))
        await peer.expect_in_any_order(*late, forget(2, b"early"))


@clause("RSX-OK-01")
async def test_a_refused_client_hears_nothing_else(autojump_clock: object) -> None:
    log = Log()

    @log.responder.setup
    async def gate(terms: object, connection: Any) -> None:
        await connection.fire_and_forget(b"early")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.ping)
            await settle()
            nursery.cancel_scope.cancel()
        raise RejectedSetup("not you")

    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(ack=True), keepalive())
        assert await peer.expect_failure(REJECTED_SETUP) == b"not you"
    assert log.seen == []


@clause("RSX-KA-06", "RSX-KA-05")
async def test_beats_are_answered_while_the_application_decides(autojump_clock: object) -> None:
    log = Log()

    @log.responder.setup
    async def gate(terms: object, connection: object) -> None:
        await trio.sleep(5)

    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(keepalives()), beat(b"?"))
        with trio.fail_after(1):
            await peer.expect(beat(b"?", respond=False))


# What the application sees of it


@clause("RSX-MIME-01", "RSX-MIME-04", "RSX-MIME-02")
@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ((b"\x85", b"\xff"), ("application/json", "message/x.rsocket.composite-metadata.v0")),
        ((b"\xe6", b"\x00"), (0x66, "")),
        ((b"\x03a/b", b"\xfe"), ("a/b", "message/x.rsocket.routing.v0")),
    ],
)
async def test_mime_numbers_that_are_known_are_texts_to_the_application(
    fields: tuple[bytes, bytes], seen: tuple[object, object], autojump_clock: object
) -> None:
    log = Log()

    @log.responder.setup
    def gate(terms: Any, connection: object) -> None:
        log.seen.append((terms.data_mime, terms.metadata_mime))

    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(data_mime=fields[0], metadata_mime=fields[1]))
        await peer.expect_alive()
    assert log.seen == [seen]


@clause("RSX-TLV-09", "RSX-OK-02")
async def test_the_application_sees_its_entries_and_grants_them(autojump_clock: object) -> None:
    log = Log()

    @log.responder.extension_entry("x.app")
    def hook(point: str, content: Any) -> bytes:
        log.seen.append((point, content.payload, current_connection().dialect))
        return b"granted"

    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(entry("x.app", b"one", ignore=True, ack=True), ack=True))
        await peer.expect(setup_ok(entry("x.app", b"granted", ignore=True)))
    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(entry("x.app", b"two", ignore=True)))
        await peer.expect_alive()
    assert log.seen == [("SETUP", b"one", RSX.name), ("SETUP", b"two", RSX.name)]


async def test_a_hook_may_refuse_the_setup_and_its_faults_refuse_it_too(autojump_clock: object) -> None:
    for fault, text in ((RejectedSetup("no"), b"no"), (ZeroDivisionError(), b"internal error")):
        responder = Responder()

        @responder.extension_entry("x.app")
        def hook(point: str, content: object, fault: Exception = fault) -> None:
            raise fault

        async with bare_server(RSX, responder) as peer:
            await peer.send(setup(entry("x.app", ignore=True)))
            assert await peer.expect_failure(REJECTED_SETUP) == text


# Where there are no entries


@pytest.mark.parametrize("dialect", ["rsocket/1.0", "reactivesocket/0.2", "reactivesocket/0.1", "reactivesocket/0.0"])
async def test_other_dialects_have_no_entries(dialect: str, autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(Unsupported, match="no extension entries"):
        async with open_connection_over(theirs, dialect=dialect, entries=[ASKING]):
            raise AssertionError
    async with open_connection_over(theirs, dialect=dialect) as connection:
        for call in (connection.request_response, connection.fire_and_forget):
            with pytest.raises(Unsupported, match="no extension entries"):
                await call(b"", entries=[ASKING])
        with pytest.raises(Unsupported, match="no extension entries"):
            async with connection.request_stream(entries=[ASKING]):
                raise AssertionError
        with pytest.raises(Unsupported, match="no extension entries"):
            await connection.send_entries([ASKING])
    await trio.aclose_forcefully(ours)


async def test_what_our_setup_cannot_say_is_refused_before_it_is_sent() -> None:
    _, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(ValueError, match="there twice"):
        async with open_connection_over(theirs, dialect=RSX.name, entries=[ASKING, ASKING]):
            raise AssertionError
    with pytest.raises(ValueError, match="data_mime"):
        async with open_connection_over(theirs, dialect=RSX.name, data_mime=""):
            raise AssertionError
