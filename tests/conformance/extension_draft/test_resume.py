"""Resumption in the extension draft: by entries of SETUP, SETUP_OK and EXT, and of marked streams only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from rsocket_trio import (
    Connection,
    ConnectionLost,
    Keepalive,
    Lease,
    Payload,
    RejectedResume,
    Responder,
    ResumeOptions,
    RSocketError,
    UnsupportedSetup,
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
    beat,
    entry,
    ext_block,
    keepalives,
    permits,
    request,
    selected,
    setup,
    setup_ok,
    strategies,
)
from tests.conformance.raw import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    INVALID_SETUP,
    REJECTED_RESUME,
    REJECTED_SETUP,
    REQUEST_CHANNEL,
    REQUEST_FNF,
    REQUEST_RESPONSE,
    REQUEST_STREAM,
    SETUP,
    UNSUPPORTED_SETUP,
    C,
    Log,
    N,
    RawPeer,
    cancel,
    error,
    keepalive,
    parsed,
    payload,
    request_n,
    settle,
    u64,
)
from tests.conformance.raw import resume as old_resume
from tests.conformance.resuming import OPTIONS, TOKEN, Harbour, cut, expect_refused, server

clause = pytest.mark.clause

MARK = entry(RESUME_ID, ignore=True, nibble=1)
"""Five bytes: this stream is resumable."""
NO_MARK = entry(RESUME_ID, ignore=True)
TICK, STREAM = 12, 15
"""Bytes of one tick, and of the marked request that asks for them."""


def asked(token: bytes = TOKEN, got: int | None = None, *, ignore: bool = False) -> bytes:
    """RSX-RES-01, RSX-RES-02: a session that can be resumed, or with a position one that is."""
    position = b"" if got is None else u64(got)
    content = len(token).to_bytes(2, "big") + token + position
    return entry(RESUME_ID, content, ack=True, ignore=ignore, nibble=0 if got is None else 1)


def granted(got: int | None = None, *, ignore: bool = False) -> bytes:
    """RSX-RES-03."""
    return entry(RESUME_ID, b"" if got is None else u64(got), ignore=ignore, nibble=0 if got is None else 1)


def position(got: int) -> bytes:
    """RSX-RES-05."""
    return ext_block(entry(RESUME_ID, u64(got)))


def resume(got: int = 0, token: bytes = TOKEN, **fields: Any) -> bytes:
    """Return what a client says that comes back."""
    return setup(keepalives(), asked(token, got), ack=True, **fields)


def marked(kind: int, stream_id: int, data: bytes = b"", *, n: int | None = None, flags: int = 0) -> bytes:
    return request(kind, stream_id, MARK, n=n, data=data, flags=flags)


def ticks(stream_id: int, n: int) -> bytes:
    return marked(REQUEST_STREAM, stream_id, n=n)


def tick(number: int, stream_id: int = 1) -> bytes:
    return payload(stream_id, b"tick %d" % number)


async def begin(harbour: Harbour, *entries: bytes, token: bytes = TOKEN, **fields: Any) -> RawPeer:
    """A client whose session can be resumed."""
    peer = await harbour.peer()
    await peer.send(setup(keepalives(), asked(token), *entries, ack=True, **fields))
    await peer.expect(setup_ok(granted(), *fields.pop("grants", ())))
    return peer


async def come_back(harbour: Harbour, *, got: int, sent: int) -> RawPeer:
    peer = await harbour.peer()
    await peer.send(resume(got))
    await peer.expect(setup_ok(granted(sent)))
    return peer


async def expect_position(peer: RawPeer, got: int) -> None:
    """A sign of life is answered, behind how far the other side got."""
    await peer.send(beat(b"how far?"))
    await peer.expect(position(got), beat(b"how far?", respond=False))


# A server


@clause("RSX-RES-01", "RSX-RES-02", "RSX-RES-03", "RSX-RES-04", "RSX-RES-08")
async def test_a_session_as_it_stands_in_the_document(autojump_clock: object) -> None:
    asks = bytes.fromhex("00000000 0680 86 86 0002 0000 82 20 0003 746f6b")
    grants = bytes.fromhex("00000000 3e00 82 00")
    ticks_please = bytes.fromhex("00000001 1a00 00000002 82 41 000000")
    comes_back = bytes.fromhex("00000000 0680 86 86 0002 0000 82 21 0003 746f6b 000000000000000c")
    lets_in = bytes.fromhex("00000000 3e00 82 01 000000000000000f")
    second = bytes.fromhex("00000001 2820 7469636b2031")
    async with server(RSX, Log().responder) as harbour:
        peer = await harbour.peer()
        await peer.send(asks)
        await peer.expect(grants)
        await peer.send(ticks_please)
        await peer.expect(tick(0), second)
        await cut(peer)
        peer = await harbour.peer()
        await peer.send(comes_back)
        await peer.expect(lets_in, second)


@clause("RSX-RES-03", "RSX-RES-04")
async def test_a_wish_that_may_be_ignored_is_granted_with_a_length(autojump_clock: object) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await harbour.peer()
        await peer.send(setup(asked(ignore=True), ack=True))
        await peer.expect(setup_ok(granted(ignore=True)))
        await cut(peer)
        peer = await come_back(harbour, got=0, sent=0)
        await peer.expect_alive()


@clause("RSX-RES-01", "RSX-RES-04", "RSX-GAP-18")
async def test_without_resumption_the_wish_is_refused_unless_it_may_be_ignored(autojump_clock: object) -> None:
    async with server(RSX, Log().responder, None) as harbour:
        peer = await harbour.peer()
        await peer.send(setup(asked(), ack=True))
        assert b"resum" in await peer.expect_failure(UNSUPPORTED_SETUP)
        peer = await harbour.peer()
        await peer.send(setup(asked(ignore=True), ack=True))
        await peer.expect(setup_ok())
        await expect_refused(harbour, resume())


@clause("RSX-RES-07", "RSX-RES-08")
@pytest.mark.parametrize("got", [0, 1, 2, 3])
async def test_a_server_sends_again_exactly_what_is_missing_and_goes_on(autojump_clock: object, got: int) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await begin(harbour)
        await peer.send(ticks(1, 3))
        await peer.expect(*map(tick, range(3)))
        await cut(peer)
        peer = await come_back(harbour, got=got * TICK, sent=STREAM)
        await peer.expect(*map(tick, range(got, 3)))
        await peer.send(request_n(1, 1))
        await peer.expect(tick(3))
        await expect_position(peer, STREAM + 10)


@clause("RSX-RES-08")
async def test_a_replay_is_refused_and_leaves_the_session(autojump_clock: object) -> None:
    log = Log()
    async with server(RSX, log.responder) as harbour:
        peer = await begin(harbour)
        await peer.send(ticks(1, 3))
        await peer.expect(*map(tick, range(3)))
        await peer.send(position(2 * TICK))
        await settle()
        for got in (0, TICK, TICK + 1):
            assert b"is below 24" in await expect_refused(harbour, resume(got))
        await expect_position(peer, STREAM)
        await cut(peer)
        for got in (0, TICK, TICK + 1):
            assert b"is below 24" in await expect_refused(harbour, resume(got))
        assert log.seen == [("stream", b"", None)]
        peer = await come_back(harbour, got=2 * TICK, sent=STREAM)
        await peer.expect(tick(2))
        await cut(peer)
        await expect_refused(harbour, resume(3 * TICK + 1))
        assert log.seen == [("stream", b"", None), "stopped"]


@clause("RSX-RES-07", "RSX-RES-06")
async def test_only_marked_streams_count_and_outlive_their_transport(autojump_clock: object) -> None:
    log = Log()
    async with server(RSX, log.responder) as harbour:
        peer = await begin(harbour)
        await peer.send(ticks(1, 2))
        await peer.expect(tick(0), tick(1))
        for number, mark in ((3, ()), (5, (NO_MARK,))):
            await peer.send(request(REQUEST_STREAM, number, *mark, n=2), request_n(number, 1))
            await peer.expect(*(tick(item, number) for item in range(3)))
        await expect_position(peer, STREAM)
        assert log.seen == [("stream", b"", None)] * 3
        await cut(peer)
        assert log.seen[3:] == ["stopped"] * 2
        peer = await come_back(harbour, got=TICK, sent=STREAM)
        await peer.expect(tick(1))
        await peer.send(request_n(3, 5), request_n(5, 5), cancel(3), request_n(1, 1))
        await peer.expect(tick(2))
        await expect_position(peer, STREAM + 10)


@clause("RSX-RES-07")
async def test_frames_that_count_on_marked_streams(autojump_clock: object) -> None:
    one = [
        (marked(REQUEST_RESPONSE, 1, b"wait"), 15),
        (marked(REQUEST_FNF, 3, b"note"), 15),
        (marked(REQUEST_STREAM, 5, b"0", n=1), 16),
        (marked(REQUEST_CHANNEL, 7, b"stay", n=1), 19),
        (request_n(5, 3), 10),
        (payload(7, b"item"), 10),
        (error(7, 0x201, b"no"), 12),
        (cancel(1), 6),
        (keepalive(b"of 1.0", respond=False), 0),
        (ext_block(entry(KEEPALIVE_ID, b"x", ignore=True), flags=0x200), 0),
        (RSX.push(b"push"), 0),
    ]
    async with server(RSX, Log().responder) as harbour:
        peer = await begin(harbour)
        total = 0
        for frame, size in one:
            await peer.send(frame)
            await settle()
            total += size
            await cut(peer)
            peer = await harbour.peer()
            await peer.send(resume())
            await peer.expect(setup_ok(granted(total)))


@clause("RSX-RES-05")
async def test_a_server_says_how_far_it_got_after_every_quarter_of_its_store(autojump_clock: object) -> None:
    options = attrs.evolve(OPTIONS, store_bytes=4000)
    async with server(RSX, Log().responder, options, fragment_size=1000) as harbour:
        peer = await begin(harbour)
        total = 0
        for number in range(1, 41, 2):
            before = total // 1000
            one = marked(REQUEST_FNF, number, bytes(239))  # 250 bytes
            await peer.send(one, request(REQUEST_FNF, 100 + number, data=bytes(900)))
            total += len(one)
            if total // 1000 > before:
                await peer.expect(position(total))
        await expect_position(peer, total)
        assert total == 5000


@clause("RSX-RES-05", "RSX-RES-08")
async def test_a_position_that_the_client_reports_is_not_kept_before(autojump_clock: object) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await begin(harbour)
        await peer.send(ticks(1, 3))
        await peer.expect(*map(tick, range(3)))
        await peer.send(position(TICK), position(TICK - 1), position(1000), position(TICK + 1))
        await settle()
        await cut(peer)
        peer = await come_back(harbour, got=TICK, sent=STREAM)
        await peer.expect(tick(1), tick(2))
        await cut(peer)
        await expect_refused(harbour, resume(0))


@clause("RSX-RES-08")
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(resume(0, b"nobody's"), id="unknown token"),
        pytest.param(resume(0, b""), id="no token"),
        pytest.param(resume(STREAM), id="ahead of us"),
        pytest.param(resume(1), id="inside a frame"),
        pytest.param(resume(data_mime=b"\x85"), id="another data MIME"),
        pytest.param(resume(metadata_mime=b"\x85"), id="another metadata MIME"),
        pytest.param(resume(metadata_mime=b"\x18application/octet-stream"), id="the same MIME in another way"),
    ],
)
async def test_what_cannot_be_gone_on_from_is_refused(autojump_clock: object, first: bytes) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await begin(harbour)
        await peer.send(ticks(1, 1))
        await peer.expect(tick(0))
        await cut(peer)
        await expect_refused(harbour, first)


@clause("RSX-RES-08")
async def test_another_version_is_refused(autojump_clock: object) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await begin(harbour)
        await cut(peer)
        await expect_refused(harbour, resume(version=(2, 1)))


@clause("RSX-RES-08", "RSX-RES-07")
async def test_a_session_ends_with_its_refusal(autojump_clock: object) -> None:
    log = Log()
    async with server(RSX, log.responder) as harbour:
        peer = await begin(harbour)
        await peer.send(marked(REQUEST_RESPONSE, 1, b"wait"))
        await settle()
        await cut(peer)
        assert log.seen == [("request", b"wait", None)]
        await expect_refused(harbour, resume(7))
        assert log.seen[1:] == ["cancelled"]
        await expect_refused(harbour, resume(0))


@clause("RSX-GAP-11")
async def test_the_frames_of_1_0_resume_nothing(autojump_clock: object) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await begin(harbour)
        await cut(peer)
        other = await harbour.peer()
        await other.send(old_resume((2, 0), TOKEN))
        await other.expect_failure(REJECTED_RESUME)
        peer = await come_back(harbour, got=0, sent=0)
        await peer.expect_alive()


@clause("RSX-RES-01", "RSX-TLV-10", "RSX-SETUP-04")
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(setup(entry(RESUME_ID, b"\x00\x09abc", ack=True), ack=True), id="token cut short"),
        pytest.param(setup(entry(RESUME_ID, b"\x00\x01a" + u64(1)[:7], ack=True, nibble=1), ack=True), id="position"),
        pytest.param(setup(asked(got=0)), id="no answer asked for"),
        pytest.param(resume(stream_id=1), id="on a stream"),
    ],
)
async def test_a_wish_that_cannot_be_read_is_no_way_to_begin(autojump_clock: object, broken: bytes) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await harbour.peer()
        await peer.send(broken)
        got = await peer.receive()
        assert got.error_code in (INVALID_SETUP, REJECTED_RESUME)
        await peer.expect_end()


@clause("RSX-RES-01", "RSX-RES-08")
async def test_a_token_in_use_is_not_taken_and_a_half_open_transport_is_replaced(autojump_clock: object) -> None:
    async with server(RSX, Log().responder) as harbour:
        old = await begin(harbour)
        await old.send(ticks(1, 1))
        await old.expect(tick(0))
        other = await harbour.peer()
        await other.send(setup(asked(), ack=True))
        await other.expect_failure(REJECTED_SETUP)
        new = await come_back(harbour, got=TICK, sent=STREAM)
        await old.expect_end()
        await new.send(request_n(1, 1))
        await new.expect(tick(1))


@clause("RSX-RES-08", "RSX-OK-03")
async def test_a_setup_on_a_session_that_is_set_up_means_nothing(autojump_clock: object) -> None:
    async with server(RSX, Log().responder) as harbour:
        peer = await begin(harbour)
        await peer.send(resume(0), setup(asked(b"another"), ack=True))
        await expect_position(peer, 0)


@clause("RSX-LEASE-06", "RSX-RES-03")
async def test_leases_begin_anew_and_are_granted_again(autojump_clock: object) -> None:
    log = Log()

    @log.responder.lease
    async def policy(terms: object) -> AsyncIterator[Lease]:
        yield Lease(3, 60)
        await trio.sleep_forever()

    async with server(RSX, log.responder) as harbour:
        peer = await harbour.peer()
        await peer.send(setup(keepalives(), asked(), strategies(0), ack=True))
        await peer.expect(setup_ok(granted(), selected(0)), permits(60_000, 3))
        await peer.send(marked(REQUEST_RESPONSE, 1, b"x"))
        await peer.expect(payload(1, b"x", N | C))
        await cut(peer)
        await trio.sleep(10)
        peer = await harbour.peer()
        await peer.send(setup(keepalives(), asked(got=7), strategies(0), ack=True))
        await peer.expect(setup_ok(granted(12), selected(0)), permits(50_000, 2))


# A client


@attrs.define
class Side:
    """A client's connection, the server made of bytes that it speaks to now, and its token."""

    connection: Connection
    peer: RawPeer
    token: bytes
    harbour: Harbour

    async def asked(self, *, got: int) -> RawPeer:
        await trio.aclose_forcefully(self.peer.stream)
        self.peer = await self.harbour.met()
        assert await self.peer.receive() == parsed(resume(got, self.token, metadata_mime=b"\xff"))
        return self.peer

    async def resumed(self, *, got: int, sent: int) -> RawPeer:
        peer = await self.asked(got=got)
        await peer.send(setup_ok(granted(sent)))
        return peer


@asynccontextmanager
async def client(
    responder: Responder | None = None, options: ResumeOptions = OPTIONS, **more: Any
) -> AsyncIterator[Side]:
    """A client that was granted a session that it can resume."""
    harbour = Harbour()
    met: list[tuple[RawPeer, bytes]] = []

    async def answer() -> None:
        peer = await harbour.met()
        got = await peer.receive()
        assert (got.type, got.flags & A) == (SETUP, A)
        start = got.body.index(b"\x82\x20") + 2  # the entry, which asks for an answer
        size = int.from_bytes(got.body[start : start + 2], "big")
        met.append((peer, got.body[start + 2 : start + 2 + size]))
        await peer.send(setup_ok(granted()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        async with open_connection_over(
            harbour.connect, dialect=RSX.name, responder=responder, resume=options, **more
        ) as connection:
            ((peer, token),) = met
            side = Side(connection, peer, token, harbour)
            try:
                yield side
            finally:
                await trio.aclose_forcefully(side.peer.stream)


@clause("RSX-RES-01", "RSX-RES-04", "RSX-RES-02")
async def test_a_client_asks_for_a_session_that_it_can_resume_and_must_be_answered(autojump_clock: object) -> None:
    async with client() as side:
        assert len(side.token) == 16
        peer = await side.resumed(got=0, sent=0)
        await peer.expect_alive()


@clause("RSX-RES-01", "RSX-RES-04")
async def test_what_the_first_setup_says(autojump_clock: object) -> None:
    harbour = Harbour()
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(UnsupportedSetup, match="resume"):
                async with open_connection_over(
                    harbour.connect, dialect=RSX.name, resume=OPTIONS, metadata_mime="application/octet-stream"
                ):
                    pytest.fail("it was not granted")

        nursery.start_soon(ask)
        peer = await harbour.met()
        got = await peer.receive()
        token = got.body[-16:]
        assert got == parsed(setup(entry(KEEPALIVE_ID, KEEPALIVES, ignore=True), asked(token), ack=True))
        await peer.send(setup_ok())
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.aclose_forcefully(peer.stream)


@clause("RSX-RES-06", "RSX-RES-07")
async def test_a_clients_streams_are_marked_unless_it_says_otherwise(autojump_clock: object) -> None:
    async with client() as side:
        await side.connection.fire_and_forget(b"marked")
        await side.peer.expect(marked(REQUEST_FNF, 1, b"marked"))
        await side.connection.fire_and_forget(b"not", entries=[Entry(RESUME_ID, ignore=True)])
        await side.peer.expect(request(REQUEST_FNF, 3, NO_MARK, data=b"not"))
        peer = await side.resumed(got=0, sent=0)
        await peer.expect(marked(REQUEST_FNF, 1, b"marked"))
        await side.connection.fire_and_forget(b"next")
        await peer.expect(marked(REQUEST_FNF, 5, b"next"))


@clause("RSX-RES-06")
async def test_without_a_grant_nothing_is_marked(autojump_clock: object) -> None:
    harbour = Harbour()
    async with open_connection_over(harbour.connect, dialect=RSX.name) as connection:
        peer = await harbour.met()
        await peer.receive()
        await connection.fire_and_forget(b"plain")
        await peer.expect(request(REQUEST_FNF, 1, data=b"plain"))
        await trio.aclose_forcefully(peer.stream)


@clause("RSX-RES-07")
async def test_a_clients_unmarked_streams_end_with_their_transport(autojump_clock: object) -> None:
    outcome: dict[bytes, object] = {}
    async with client() as side, trio.open_nursery() as nursery:

        async def ask(data: bytes, *entries: Entry) -> None:
            try:
                outcome[data] = await side.connection.request_response(data, entries=entries)
            except RSocketError as failure:
                outcome[data] = type(failure)

        nursery.start_soon(ask, b"marked")
        await side.peer.expect(marked(REQUEST_RESPONSE, 1, b"marked"))
        nursery.start_soon(ask, b"not", Entry(RESUME_ID, ignore=True))
        await side.peer.expect(request(REQUEST_RESPONSE, 3, NO_MARK, data=b"not"))
        await cut(side.peer)
        assert outcome == {b"not": ConnectionLost}
        peer = await side.resumed(got=0, sent=17)
        await peer.send(payload(1, b"answer", N | C))
        await settle()
        assert outcome[b"marked"] == Payload(b"answer")


@clause("RSX-RES-08", "RSX-RES-09")
@pytest.mark.parametrize("got", [0, 1, 2])
async def test_a_client_sends_again_exactly_what_is_missing(autojump_clock: object, got: int) -> None:
    frames = [marked(REQUEST_FNF, 1, b"1"), marked(REQUEST_FNF, 3, b"22")]
    async with client() as side:
        await side.connection.fire_and_forget(b"1")
        await side.connection.fire_and_forget(b"22")
        await side.peer.expect(*frames)
        peer = await side.asked(got=0)
        await side.connection.fire_and_forget(b"333")
        await peer.expect_silence(3)
        await peer.send(setup_ok(granted(sum(map(len, frames[:got])))))
        await peer.expect(*frames[got:], marked(REQUEST_FNF, 5, b"333"))


@clause("RSX-RES-09", "RSX-RES-08")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(setup_ok(granted(13)), id="beyond what was sent"),
        pytest.param(setup_ok(granted(5)), id="inside a frame"),
        pytest.param(setup_ok(granted()), id="no position"),
        pytest.param(setup_ok(), id="no grant"),
        pytest.param(setup_ok(granted(12), stream_id=1), id="on a stream"),
        pytest.param(beat(), id="something else"),
    ],
)
async def test_an_answer_that_cannot_be_gone_on_from_ends_it(autojump_clock: object, answer: bytes) -> None:
    async with client() as side:
        await side.connection.fire_and_forget(b"1")
        peer = await side.asked(got=0)
        await peer.send(answer)
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(2)
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await side.connection.fire_and_forget(b"2")
        await side.harbour.expect_nobody(300)


@clause("RSX-RES-09")
@pytest.mark.parametrize(("sent", "goes_on"), [(0, False), (15, True), (28, True)])
async def test_a_server_must_have_the_requests_that_it_answered(
    autojump_clock: object, sent: int, goes_on: bool
) -> None:
    got: list[bytes] = []
    outcome: list[RSocketError] = []
    async with client() as side, trio.open_nursery() as nursery:

        async def read() -> None:
            try:
                async with side.connection.request_stream(initial_request_n=9) as items:
                    async for item in items:
                        got.append(item.data)
            except RSocketError as failure:
                outcome.append(failure)

        async def ask(data: bytes, *entries: Entry) -> None:
            with contextlib.suppress(RSocketError):
                await side.connection.request_response(data, entries=entries)

        # Whether it was answered or not, what is not marked has no position.
        nursery.start_soon(ask, b"unmarked", Entry(RESUME_ID, ignore=True))
        await side.peer.expect(request(REQUEST_RESPONSE, 1, NO_MARK, data=b"unmarked"))
        nursery.start_soon(read)
        await side.peer.expect(ticks(3, 9))
        nursery.start_soon(ask, b"22")
        await side.peer.expect(marked(REQUEST_RESPONSE, 5, b"22"))
        await side.peer.send(payload(1, b"answer", N | C), tick(0, 3))
        await settle()
        peer = await side.asked(got=TICK)
        await peer.send(setup_ok(granted(sent)), tick(2, 3))
        if goes_on:
            await settle()
            assert got == [b"tick 0", b"tick 2"]  # a server that counts sends the gap
        else:
            assert b"does not count what it receives" in await peer.expect_failure(CONNECTION_ERROR)
            await trio.sleep(2)
            assert got == [b"tick 0"]
            assert [type(one) for one in outcome] == [ConnectionLost]
            assert "does not count what it receives" in str(outcome[0])
            await side.harbour.expect_nobody(300)
        outcome.clear()
        nursery.cancel_scope.cancel()


@clause("RSX-RES-08")
@pytest.mark.parametrize(("code", "kind"), [(REJECTED_RESUME, RejectedResume), (CONNECTION_ERROR, ConnectionLost)])
async def test_a_refusal_is_not_tried_again(autojump_clock: object, code: int, kind: type[RSocketError]) -> None:
    async with client() as side:
        peer = await side.asked(got=0)
        await peer.send(error(0, code, b"no"))
        await peer.expect_end()
        await settle()
        with pytest.raises(kind, match="no"):
            await side.connection.fire_and_forget(b"x")
        await side.harbour.expect_nobody(300)


@clause("RSX-RES-05")
async def test_a_client_says_how_far_it_got_and_does_not_keep_what_the_server_has(autojump_clock: object) -> None:
    log = Log()
    async with client(log.responder, keepalive=Keepalive(5, 100)) as side:
        await side.connection.fire_and_forget(b"1")
        await side.peer.expect(marked(REQUEST_FNF, 1, b"1"))
        await side.peer.send(marked(REQUEST_FNF, 2, b"x"), request(REQUEST_FNF, 4, data=b"unmarked"))
        await expect_position(side.peer, 12)
        await side.peer.send(position(12))
        await settle()
        await trio.aclose_forcefully(side.peer.stream)
        side.peer = await side.harbour.met()
        first = await side.peer.receive()
        assert first.body.endswith(side.token + u64(12))
        await side.peer.send(setup_ok(granted(0)))
        await side.peer.expect_failure(CONNECTION_ERROR)


@clause("RSX-LEASE-06", "RSX-RES-02")
async def test_a_client_asks_for_its_leases_again_and_waits_for_them(autojump_clock: object) -> None:
    harbour = Harbour()
    seen: list[str] = []

    async def ask() -> None:
        options: Any = {"dialect": RSX.name, "resume": OPTIONS, "lease": True, "responder": Responder()}
        async with open_connection_over(harbour.connect, **options) as connection:
            await connection.fire_and_forget(b"1")
            seen.append("1")
            await trio.sleep(1)
            await connection.fire_and_forget(b"2")
            seen.append("2")
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        peer = await harbour.met()
        first = await peer.receive()
        assert entry(LEASE_ID, b"\x01\x80", ack=True)[2:] in first.body
        await peer.send(setup_ok(granted(), selected(0)), permits(60_000, 9))
        await peer.expect(permits(2**31 - 1, 2**31 - 1), marked(REQUEST_FNF, 1, b"1"))
        await trio.aclose_forcefully(peer.stream)
        peer = await harbour.met()
        again = await peer.receive()
        assert again.body.endswith(strategies(0)[1:])
        await peer.send(setup_ok(granted(12), selected(0)))
        got = await peer.receive()
        assert got.body[:6] == parsed(permits(0, 0)).body[:6]
        await peer.expect_silence(10)
        assert seen == ["1"]
        await peer.send(permits(60_000, 1))
        await peer.expect(marked(REQUEST_FNF, 3, b"2"))
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(peer.stream)


@clause("RSX-RES-08")
async def test_a_client_that_leaves_says_that_nobody_comes_back(autojump_clock: object) -> None:
    async with client() as side:
        peer = side.peer
        side.peer = await side.harbour.peer()
    assert (await peer.receive()).error_code == CONNECTION_CLOSE
    await peer.expect_end()
