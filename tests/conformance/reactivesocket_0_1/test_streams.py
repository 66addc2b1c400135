"""Streams of ReactiveSocket 0.1, and of 0.0 where it says the same: who may send what, and how each of them ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Limits,
    LocalProtocolError,
    Payload,
    Rejected,
    Responder,
    current_connection,
)
from tests.conformance.old_frames import OLD, RS00, RS01, OldLog, OldWire, both
from tests.conformance.raw import APPLICATION_ERROR, CANCELED, INVALID, REJECTED, RawPeer, client, server, settle

clause = pytest.mark.clause


async def asked(connection: Any, data: bytes, into: list[object]) -> None:
    """What a request/response of the client's comes to."""
    try:
        into.append(await connection.request_response(data))
    except Exception as error:
        into.append(error)


# Request/response


@both
@clause("RS00-SEQ-01", "RS00-SEQ-02", "RS01-SEQ-01", "RS01-SEQ-03", "RS01-CON-04", "RS00-CON-03", "RS01-FLOW-02")
async def test_a_request_is_answered_once_and_its_id_is_free_again(autojump_clock: object, old: OldWire) -> None:
    async with server(old, OldLog().responder) as peer:
        for word in (b"one", b"two"):
            await peer.send(old.ask(2, word, metadata=b"meta"))
            got = await peer.receive()
            assert got == old.parsed(old.item(2, word, "C", b"meta"))


@both
@clause("RS00-SEQ-02", "RS01-SEQ-02", "RS01-SEQ-03")
async def test_after_cancel_no_answer_comes_and_the_handler_stops(autojump_clock: object, old: OldWire) -> None:
    log = OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.ask(2, b"wait"))
        await settle()
        await peer.send(old.cancel(2))
        await peer.expect_alive()
    assert log.seen == [("request", b"wait"), "cancelled"]


@both
@clause("RS00-SEQ-03", "RS01-SEQ-03", "RS00-ERR-02", "RS01-ERR-03")
async def test_a_requester_ends_with_the_answer_the_error_or_its_own_cancel(
    autojump_clock: object, old: OldWire
) -> None:
    got: list[object] = []
    async with client(old) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"a", got)
        await peer.expect(old.ask(2, b"a"))
        await peer.send(old.item(2, b"answer", "C"), old.item(2, b"late", "C"))
        await settle()
        nursery.start_soon(asked, connection, b"b", got)
        await peer.expect(old.ask(4, b"b"))
        await peer.send(old.error(4, APPLICATION_ERROR, b"no"), old.item(4, b"late", "C"))
        await settle()
        with trio.move_on_after(1):
            await connection.request_response(b"c")
        await peer.expect(old.ask(6, b"c"), old.cancel(6))
        await peer.send(old.item(6, b"late", "C"), old.error(6))
        await settle()
        assert got[0] == Payload(b"answer")
        assert isinstance(got[1], ApplicationError)
        assert got[1].text == "no"
        assert len(got) == 2
        assert connection.status == "open"


@both
@clause("RS00-SEQ-11", "RS01-UNX-06")
async def test_an_answer_that_does_not_complete_completes_all_the_same(autojump_clock: object, old: OldWire) -> None:
    got: list[object] = []
    async with client(old) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", got)
        await peer.expect(old.ask(2, b"q"))
        await peer.send(old.item(2, b"answer"), old.item(2, b"second"), old.done(2))
        await settle()
        assert got == [Payload(b"answer")]


@both
@clause("RS00-RSP-03", "RS01-RSP-03")
@pytest.mark.parametrize("flags", ["C", ""])
async def test_an_empty_answer_is_one_empty_item(autojump_clock: object, old: OldWire, flags: str) -> None:
    got: list[object] = []
    async with client(old) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", got)
        await peer.expect(old.ask(2, b"q"))
        await peer.send(old.item(2, b"", flags))
        await settle()
        assert got == [Payload()]


@both
@clause("RS00-RSP-03", "RS01-RSP-03")
async def test_a_handler_that_answers_with_nothing_sends_one_frame(autojump_clock: object, old: OldWire) -> None:
    async with server(old, OldLog().responder) as peer:
        await peer.send(old.ask(2))
        await peer.expect(old.item(2, b"", "C"))
        await peer.expect_alive()


# Fire-and-forget


@both
@clause("RS00-SEQ-04", "RS01-SEQ-04")
async def test_fire_and_forget_is_never_answered(autojump_clock: object, old: OldWire) -> None:
    log = OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.forget(2, b"one"), old.forget(2, b"two"), old.request_n(2, 1), old.cancel(2))
        await peer.expect_alive()
    assert log.seen == [("note", b"one"), ("note", b"two")]


@both
@clause("RS00-SEQ-04", "RS01-SEQ-04", "RS00-SEQ-05", "RS01-SEQ-05")
async def test_fire_and_forget_that_nobody_handles_is_not_answered_either(autojump_clock: object, old: OldWire) -> None:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    async with server(old, responder) as peer:
        await peer.send(old.forget(2, b"one"))
        await peer.expect_alive()


@both
@clause("RS00-SEQ-04", "RS01-SEQ-04")
async def test_a_client_forgets_at_once(autojump_clock: object, old: OldWire) -> None:
    async with client(old, OldLog().responder) as (connection, peer):
        await connection.fire_and_forget(b"x")
        await peer.expect(old.forget(2, b"x"))
        await peer.send(old.item(2, b"what?", "C"), old.error(2))
        await peer.expect_alive()


# Streams and subscriptions


@both
@pytest.mark.parametrize("kind", ["stream", "sub"])
@clause("RS00-SEQ-06", "RS00-SEQ-13", "RS00-SEQ-07", "RS01-SEQ-06", "RS01-SEQ-08", "RS01-FLOW-01")
async def test_items_never_exceed_the_credit(autojump_clock: object, old: OldWire, kind: str) -> None:
    async with server(old, OldLog().responder) as peer:
        await peer.send(getattr(old, kind)(2, 3))
        await peer.expect(*(old.item(2, b"tick %d" % n) for n in range(3)))
        await peer.expect_silence()
        await peer.send(old.request_n(2, 1), old.request_n(2, 2))
        await peer.expect(*(old.item(2, b"tick %d" % n) for n in range(3, 6)))
        await peer.expect_alive()
        await peer.send(old.cancel(2), old.request_n(2, 5))
        await peer.expect_alive()


@both
@clause("RS00-SEQ-06", "RS00-SEQ-08", "RS01-SEQ-06", "RS00-RSP-02", "RS01-RSP-02", "RS00-RSP-03", "RS01-RSP-03")
async def test_a_stream_that_ends_completes_without_an_item(autojump_clock: object, old: OldWire) -> None:
    async with server(old, OldLog().responder) as peer:
        await peer.send(old.stream(2, 5, b"2"))
        await peer.expect(old.item(2, b"tick 0"), old.item(2, b"tick 1"), old.done(2))
        await peer.send(old.cancel(2), old.request_n(2, 1))
        await peer.expect_alive()


@both
@clause("RS00-SEQ-08", "RS01-SEQ-06", "RS00-SEQ-12", "RS01-SEQ-14")
async def test_a_stream_that_fails_says_so_and_is_over(autojump_clock: object, old: OldWire) -> None:
    responder = Responder()

    @responder.request_stream
    async def fails(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        raise ApplicationError("broken")

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    async with server(old, responder) as peer:
        for _ in range(2):  # The id is free again.
            await peer.send(old.stream(2, 5))
            await peer.expect(old.item(2, b"one"))
            assert await peer.expect_error(2, APPLICATION_ERROR) == b"broken"
        await peer.expect_alive()


@both
@clause("RS00-SEQ-09", "RS01-SEQ-07")
async def test_a_subscription_that_returns_ends_with_an_error(autojump_clock: object, old: OldWire) -> None:
    async with server(old, OldLog().responder) as peer:
        await peer.send(old.sub(2, 5, b"1"))
        await peer.expect(old.item(2, b"tick 0"))
        assert await peer.expect_error(2, APPLICATION_ERROR) == b"subscription ended"


@both
@clause("RS00-SEQ-10", "RS01-SEQ-07")
async def test_a_subscription_that_is_completed_is_over_all_the_same(autojump_clock: object, old: OldWire) -> None:
    async with client(old) as (connection, peer):
        async with connection.request_subscription(b"s", initial_request_n=9) as items:
            await peer.expect(old.sub(2, 9, b"s"))
            await peer.send(old.item(2, b"one"), old.item(2, b"two", "C"), old.item(2, b"late"))
            assert [item.data async for item in items] == [b"one", b"two"]
        await peer.expect_silence()


@both
@clause("RS00-RSP-02", "RS01-RSP-02", "RS00-RSP-03", "RS01-RSP-03", "RS00-SEQ-08", "RS01-SEQ-06")
@pytest.mark.parametrize("last", ["done", "with metadata", "with data", "empty then done"])
async def test_what_the_last_response_of_a_stream_carries(autojump_clock: object, old: OldWire, last: str) -> None:
    ends = {
        "done": [old.done(2)],
        "with metadata": [old.item(2, b"", "C", b"")],
        "with data": [old.item(2, b"x", "C")],
        "empty then done": [old.item(2), old.done(2)],
    }
    items_of = {
        "done": [],
        "with metadata": [Payload(b"", b"")],
        "with data": [Payload(b"x")],
        "empty then done": [Payload()],
    }
    async with client(old) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=9) as items:
            await peer.expect(old.stream(2, 9, b"s"))
            await peer.send(old.item(2, b"one"), *ends[last])
            assert [item async for item in items] == [Payload(b"one"), *items_of[last]]
        await peer.expect_silence()


@both
@clause("RS00-SEQ-08", "RS01-SEQ-06", "ALL-RCT-14")
async def test_a_client_that_leaves_a_stream_cancels_it_and_ignores_what_is_late(
    autojump_clock: object, old: OldWire
) -> None:
    async with client(old, OldLog().responder) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=2, refill=False) as items:
            await peer.expect(old.stream(2, 2, b"s"))
            await peer.send(old.item(2, b"one"))
            assert (await anext(items)).data == b"one"
            items.request_n(7)
            await peer.expect(old.request_n(2, 7))
        await peer.expect(old.cancel(2))
        await peer.send(old.item(2, b"late"), old.item(2, b"late", "F"), old.done(2), old.error(2))
        await peer.expect_alive()


@both
@clause("ALL-RCT-09", "RS00-RQN-02")
async def test_the_largest_grants_add_up(autojump_clock: object, old: OldWire) -> None:
    largest = 2**63 if old is RS00 else 2**32 - 1
    async with server(old, OldLog().responder) as peer:
        await peer.send(old.stream(2, 0, b"3"), old.request_n(2, largest), old.request_n(2, largest))
        await peer.expect(*(old.item(2, b"tick %d" % n) for n in range(3)), old.done(2))


@both
@clause("RS01-UNX-04")
async def test_a_stream_without_credit_may_stand_for_a_day(autojump_clock: object, old: OldWire) -> None:
    async with server(old, OldLog().responder) as peer:
        await peer.send(old.stream(2, 1))
        await peer.expect(old.item(2, b"tick 0"))
        for _ in range(24 * 60):
            await trio.sleep(60)
            if old is RS01:
                await peer.send(old.keepalive(flags=""))
        await peer.send(old.request_n(2, 1))
        await peer.expect(old.item(2, b"tick 1"))


@both
@clause("ALL-RCT-13", "RS01-ERR-02")
async def test_error_text_that_is_no_utf_8_is_handed_over(autojump_clock: object, old: OldWire) -> None:
    got: list[Any] = []
    async with client(old) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", got)
        await peer.expect(old.ask(2, b"q"))
        await peer.send(old.error(2, APPLICATION_ERROR, b"\xff\xfe"))
    assert isinstance(got[0], ApplicationError)
    assert got[0].text == "\ufffd\ufffd"


@clause("RS01-ERR-05", "RS01-ERR-06", "RS01-ERR-08")
@pytest.mark.parametrize("code", [0, 1, 0x11, 0x24, 0x101, 0x301, 0xFFFFFFFE, 0xFFFFFFFF])
async def test_codes_that_the_table_does_not_have_pass_through(autojump_clock: object, code: int) -> None:
    got: list[Any] = []
    async with client(RS01) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", got)
        await peer.expect(RS01.ask(2, b"q"))
        await peer.send(RS01.error(2, code, b"text\0"))
    assert isinstance(got[0], ApplicationError)
    assert (got[0].code, got[0].text) == (code, "text")


@clause("RS01-ERR-07")
async def test_a_rejected_request_reached_no_handler(autojump_clock: object) -> None:
    log = OldLog()
    async with server(RS01, log.responder, limits=Limits(streams=1)) as peer:
        await peer.send(RS01.ask(2, b"wait"), RS01.ask(4, b"x"))
        await peer.expect_error(4, REJECTED)
        await settle()
        assert log.seen == [("request", b"wait")]
    got: list[Any] = []
    async with client(RS01) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", got)
        await peer.expect(RS01.ask(2, b"q"))
        await peer.send(RS01.error(2, REJECTED))
    assert isinstance(got[0], Rejected)


# Ids and both directions


@both
@clause("RS00-GEN-01", "RS01-GEN-03", "RS01-CON-07", "RS01-SID-04", "RS00-SID-05", "RS00-SID-01", "RS01-SID-01")
async def test_both_sides_ask_each_in_its_own_ids(autojump_clock: object, old: OldWire) -> None:
    responder = Responder()

    @responder.request_response
    async def back(request: Payload) -> Payload:
        return await current_connection().request_response(b"you?")

    async with server(old, responder) as peer:
        for mine in (1, 3):
            await peer.send(old.ask(2, b"me"))
            await peer.expect(old.ask(mine, b"you?"))
            await peer.send(old.item(mine, b"I", "C"))
            await peer.expect(old.item(2, b"I", "C"))
    async with client(old) as (connection, peer):
        for mine in (2, 4, 6):
            await connection.fire_and_forget(b"x")
            await peer.expect(old.forget(mine, b"x"))


@clause("RS00-SID-04", "RS00-SID-03", "RS00-MP-04")
async def test_one_id_is_open_in_both_directions_at_once(autojump_clock: object) -> None:
    old = RS00
    responder = OldLog().responder
    async with client(old, responder) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=9, pushes=True) as items:
            await peer.expect(old.stream(2, 9, b"s"))
            await peer.send(old.stream(2, 1))
            await peer.expect(old.item(2, b"tick 0"))
            await peer.send(old.item(2, b"yours"), old.request_n(2, 1), old.push(b"both", 2))
            await peer.expect(old.item(2, b"tick 1"))
            assert (await anext(items)).data == b"yours"  # type: ignore[union-attr]
            assert (await anext(items)).metadata == b"both"
            await peer.send(old.cancel(2), old.item(2, b"still"))
            assert (await anext(items)).data == b"still"  # type: ignore[union-attr]
            await peer.send(old.stream(2, 1), old.error(2, text=b"over"))
            await peer.expect(old.item(2, b"tick 0"))
            with pytest.raises(ApplicationError, match="over"):
                await anext(items)
        await peer.send(old.request_n(2, 1))
        await peer.expect(old.item(2, b"tick 1"))


@both
@clause("RS00-SID-03", "RS01-SID-03", "RS01-SID-05", "RS01-SID-06", "RS00-SID-02", "RS01-SID-02")
def test_ids_are_taken_in_turn_skip_live_ones_and_wrap(old: OldWire) -> None:
    from rsocket_trio.mux.stream_state import Interaction
    from rsocket_trio.rsocket.dialects import dialect_named
    from rsocket_trio.rsocket.stream_table import StreamTable

    dialect = dialect_named(old.name)
    for is_client, first in ((True, 2), (False, 1)):
        table = StreamTable(dialect, client=is_client)
        streams = [table.new(Interaction.REQUEST_STREAM) for _ in range(3)]
        assert [stream.id for stream in streams] == [first, first + 2, first + 4]
        table.end(streams[0])
        table.end(streams[1])
        last = dialect.last_id - (dialect.last_id - first) % 2
        assert table.new(Interaction.REQUEST_STREAM).id == first + 6  # Not one that was just freed.
        table.ids.start_at(last)
        assert [table.new(Interaction.REQUEST_STREAM).id for _ in range(4)] == [last, first, first + 2, first + 8]


@both
@clause("RS01-SID-06", "RS00-SID-01")
async def test_any_id_of_the_peers_is_taken_in_any_order(autojump_clock: object, old: OldWire) -> None:
    async with server(old, OldLog().responder) as peer:
        for stream_id in (2**32 - 2, 8, 2**31, 2, 8):
            await peer.send(old.ask(stream_id, b"x"))
            await peer.expect(old.item(stream_id, b"x", "C"))


# Fragments


@both
@clause("RS00-FRAG-01", "RS00-FRAG-02", "RS01-FRAG-01", "RS01-FRAG-03", "RS00-RSP-04", "RS01-UNX-07", "RS00-MD-04")
@pytest.mark.parametrize("last", ["", "C", "CF"])
async def test_fragments_of_a_response_are_joined(autojump_clock: object, old: OldWire, last: str) -> None:
    got: list[Any] = []
    async with client(old) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", got)
        await peer.expect(old.ask(2, b"q"))
        kind = 0xA5 if old is RS00 else 0
        await peer.send(
            old.frame("RESPONSE", "FM", 2, old.sized(b"me", kind)),
            old.frame("RESPONSE", "FM", 2, old.sized(b"ta", kind) + b"one "),
            old.item(2, b"two ", "F"),
            old.item(2, b"three", last),
        )
        await settle()
        assert got == [Payload(b"one two three", b"meta", metadata_type=kind)]


@both
@clause("RS00-FRAG-01", "RS00-FRAG-02", "RS01-FRAG-01", "RS01-FRAG-03")
async def test_a_large_answer_leaves_in_fragments_metadata_first(autojump_clock: object, old: OldWire) -> None:
    reply = Payload(b"d" * 100, b"m" * 100, metadata_type=7 if old is RS00 else 0)
    responder = Responder()

    @responder.request_response
    def answer(request: Payload) -> Payload:
        return reply

    async with server(old, responder, fragment_size=64) as peer:
        await peer.send(old.ask(2))
        data = metadata = b""
        frames = []
        while True:
            got = await peer.receive()
            frames.append(got.flags)
            body = got.body
            if "M" in got.flags:
                size = int.from_bytes(body[1:4], "big")
                assert body[0] == (7 if old is RS00 else 0)
                assert data == b""
                metadata, body = metadata + body[4:size], body[size:]
            data += body
            if "F" not in got.flags:
                break
        assert (data, metadata) == (reply.data, reply.metadata)
        assert frames[-1] == "C"
        assert all("F" in flags and "C" not in flags for flags in frames[:-1])
        await peer.expect_silence()


@clause("RS00-FRAG-02")
@pytest.mark.parametrize("where", ["data", "metadata"])
async def test_a_request_of_0_0_travels_whole_or_is_refused_here(autojump_clock: object, where: str) -> None:
    async with client(RS00, fragment_size=64, limits=Limits(frame_size=100_000)) as (connection, peer):
        large = bytes(99_000)
        await connection.fire_and_forget(Payload(large) if where == "data" else Payload(b"", large))
        got = await peer.receive()
        assert got.body == (large if where == "data" else RS00.sized(large))
        too_large = bytes(100_000)
        with pytest.raises(LocalProtocolError, match="can't be fragmented"):
            await connection.fire_and_forget(Payload(too_large) if where == "data" else Payload(b"", too_large))
        await peer.expect_silence()
        assert connection.status == "open"


@clause("RS01-FRAG-01", "RS01-FRAG-02")
@pytest.mark.parametrize("kind", ["ask", "forget", "stream", "sub", "channel"])
async def test_fragments_of_a_request_repeat_its_type(autojump_clock: object, kind: str) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder) as peer:
        pieces = [(b"1", "F"), (b"0", "F"), (b"0", "")]
        if kind in ("ask", "forget"):
            frames = [getattr(old, kind)(2, data, flags) for data, flags in pieces]
        elif kind == "channel":
            frames = [old.channel(2, 1 if flags and data == b"1" else None, data, flags) for data, flags in pieces]
        else:  # The first number counts.
            frames = [getattr(old, kind)(2, n, *piece) for n, piece in zip((1, 7, 9), pieces, strict=True)]
        await peer.send(*frames)
        expected = {
            "ask": [old.item(2, b"100", "C")],
            "forget": [],
            "stream": [old.item(2, b"tick 0")],
            "sub": [old.item(2, b"tick 0")],
            "channel": [old.request_n(2, 4)],
        }
        await peer.expect(*expected[kind])
        await peer.expect_alive()
    names = {"ask": "request", "forget": "note", "sub": "stream"}
    assert log.seen[0] == (names.get(kind, kind), b"100")


@clause("RS01-FRAG-01", "RS01-FRAG-02", "RS01-CH-02")
@pytest.mark.parametrize("kind", ["stream", "channel"])
async def test_a_large_request_leaves_in_fragments_of_its_type(autojump_clock: object, kind: str) -> None:
    old = RS01
    async with client(old, fragment_size=64) as (connection, peer):
        opened = getattr(connection, f"request_{kind}")(Payload(b"d" * 90, b"m"), initial_request_n=3)
        async with opened:
            first, second = await peer.receive(), await peer.receive()
            n = old.n(3)
            assert first.type == second.type == f"REQUEST_{kind.upper()}"
            assert first.body[:9] == n + old.sized(b"m")
            if kind == "stream":
                assert (first.flags, second.flags) == ("MFN", "N")
                assert second.body[:4] == n
                assert first.body[9:] + second.body[4:] == b"d" * 90
            else:
                assert (first.flags, second.flags) == ("MFN", "")
                assert first.body[9:] + second.body == b"d" * 90


@clause("RS01-FRAG-05")
async def test_what_is_too_large_in_fragments_ends_its_stream_and_the_rest_opens_nothing(
    autojump_clock: object,
) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder, limits=Limits(payload_size=300)) as peer:
        await peer.send(*(old.ask(2, b"x" * 99, "F") for _ in range(4)))
        await peer.expect_error(2, INVALID)
        await peer.send(old.ask(2, b"rest", "F"), old.ask(2, b"rest"))
        await peer.send(*(old.forget(4, b"x" * 99, "F") for _ in range(5)), old.forget(4, b"rest"))
        await peer.expect_alive()
        assert log.seen == []
        await peer.send(old.ask(2, b"new"))
        await peer.expect(old.item(2, b"new", "C"))


@both
@clause("RS01-FRAG-05")
async def test_an_answer_too_large_in_fragments_is_cancelled(autojump_clock: object, old: OldWire) -> None:
    got: list[Any] = []
    async with client(old, limits=Limits(payload_size=300)) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", got)
        await peer.expect(old.ask(2, b"q"))
        await peer.send(*(old.item(2, b"x" * 99, "F") for _ in range(4)), old.item(2, b"rest", "C"))
        await peer.expect(old.cancel(2))
        assert "300" in str(got[0])


@clause("RS01-FRAG-02", "RS01-ERR-07", "ALL-RCT-14")
async def test_the_rest_of_a_refused_request_is_refused_with_it(autojump_clock: object) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder, limits=Limits(streams=1)) as peer:
        await peer.send(old.ask(2, b"wait"), old.ask(4, b"one", "F"))
        await peer.expect_error(4, REJECTED)
        await peer.send(old.cancel(2), old.ask(4, b"two", "F"), old.ask(4, b"three"))
        await peer.expect_alive()
        assert log.seen == [("request", b"wait"), "cancelled"]


@clause("RS01-FRAG-01", "RS01-SEQ-09")
async def test_a_channels_item_in_fragments_uses_one_credit(autojump_clock: object) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.channel(2, 9, b"hi"))
        await peer.expect(old.request_n(2, 4))
        for number in range(4):
            await peer.send(*(old.channel(2, None, b"%d" % number, flags) for flags in "FF"), old.channel(2))
        granted = 0
        while granted < 4:
            granted += int.from_bytes((await peer.receive()).body, "big")
        await peer.expect_alive()
    assert log.seen == [("channel", b"hi"), *(("item", b"%d%d" % (n, n)) for n in range(4)), "Cancelled"]


# Channels


@clause("RS01-SEQ-09", "RS01-SEQ-10", "RS01-FLOW-02", "RS01-CH-02", "RS01-SEQ-08")
async def test_a_channel_is_answered_with_credit_and_its_items_are_its_requests(autojump_clock: object) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.channel(2, 0, b"hi"))
        await peer.expect(old.request_n(2, 4))
        await peer.send(old.channel(2, None, b"back"))
        await peer.expect_alive()  # no credit yet
        await peer.send(old.channel(2, 1, b"one"))  # RS01-CH-02: a number is credit
        assert [(await peer.receive()).type, (await peer.receive()).type] in (
            ["REQUEST_N", "RESPONSE"],
            ["RESPONSE", "REQUEST_N"],
        )


@clause("RS01-CH-02")
async def test_a_channel_without_a_number_opens_without_credit(autojump_clock: object) -> None:
    old = RS01
    async with server(old, OldLog().responder) as peer:
        await peer.send(old.channel(2, None, b"hi"))
        await peer.expect(old.request_n(2, 4))
        await peer.send(old.channel(2, None, b"back"))
        await peer.expect_alive()
        await peer.send(old.request_n(2, 1))
        await peer.expect(old.item(2, b"back"))


@clause("RS01-SEQ-12", "RS01-RSP-03", "RS01-SEQ-11")
async def test_a_requesters_completion_ends_its_own_half_only(autojump_clock: object) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.channel(2, 9, b"stay"))
        await peer.expect(old.request_n(2, 4))
        await peer.send(old.channel(2, None, b"last", "C"))
        await peer.expect(old.item(2, b"still here"), old.done(2))
        await peer.send(old.channel(4, 9, b"stay"))
        await peer.expect(old.request_n(4, 4))
        await peer.send(old.channel(4), old.channel(4, None, b"", "C"))
        await peer.expect(old.item(4, b"still here"), old.done(4))
    items = [("item", b"last"), "completed", ("channel", b"stay"), ("item", b""), "completed"]
    assert log.seen == [("channel", b"stay"), *items]


@clause("RS01-SEQ-12", "ALL-RCT-14")
async def test_a_responders_completion_ends_both_halves_and_what_is_late_opens_nothing(autojump_clock: object) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.channel(2, 9, b"hi"))
        await peer.expect(old.request_n(2, 4))
        await peer.send(old.channel(2, None, b"leave"))
        await peer.expect(old.done(2))
        await peer.send(old.channel(2, None, b"late"), old.channel(2, 0, b"late"), old.channel(2, None, b"", "C"))
        await peer.expect_alive()
        assert log.seen == [("channel", b"hi"), ("item", b"leave")]
        await peer.send(old.channel(2, 9, b"new"))
        await peer.expect(old.request_n(2, 4))
        await peer.send(old.channel(2, None, b"leave"))
        await peer.expect(old.done(2))
        await peer.send(old.channel(2, 9, b"newer"))  # before the last one was completed
        await peer.expect(old.request_n(2, 4))


@clause("RS01-SEQ-12", "RS01-SEQ-13")
@pytest.mark.parametrize("end", ["cancel", "error"])
async def test_a_requesters_cancel_or_error_ends_a_channel(autojump_clock: object, end: str) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.channel(2, 9, b"hi"))
        await peer.expect(old.request_n(2, 4))
        await peer.send(old.cancel(2) if end == "cancel" else old.error(2, APPLICATION_ERROR, b"no"))
        await peer.expect_alive()
        await peer.send(old.channel(2, None, b"again"))
        await peer.expect(old.request_n(2, 4))
    assert log.seen[1] == ("Cancelled" if end == "cancel" else "ApplicationError")


@clause("RS01-SEQ-09", "RS01-SEQ-11", "RS01-CH-02", "RS01-RSP-03", "RS01-FLOW-01", "RS01-FLOW-02")
async def test_a_clients_channel_sends_requests_within_its_credit(autojump_clock: object) -> None:
    old = RS01
    async with client(old) as (connection, peer):
        async with connection.request_channel(b"c", initial_request_n=9) as channel, trio.open_nursery() as nursery:
            await peer.expect(old.channel(2, 9, b"c"))
            nursery.start_soon(channel.send, b"one")
            await peer.expect_silence()
            await peer.send(old.request_n(2, 2))
            await peer.expect(old.channel(2, None, b"one"))
            await channel.send(Payload(b"two", b"meta"))
            assert (await peer.receive()).flags == "M"
            await channel.send_eof()
            await peer.expect(old.channel(2, None, b"", "C"))
            with pytest.raises(LocalProtocolError):
                await channel.send(b"three")
            await peer.send(old.item(2, b"x"), old.item(2, b"y", "C"))
            assert [item.data async for item in channel] == [b"x", b"y"]
        await peer.expect_silence()


@clause("RS01-SEQ-12")
async def test_a_clients_channel_that_is_completed_can_send_no_more(autojump_clock: object) -> None:
    old = RS01
    async with client(old, OldLog().responder) as (connection, peer):
        async with connection.request_channel(b"c") as channel:
            await peer.expect(old.channel(2, 256, b"c"))
            await peer.send(old.request_n(2, 5), old.done(2))
            assert [item async for item in channel] == []
            with pytest.raises(Canceled):
                await channel.send(b"x")
        await peer.expect_alive()


@clause("RS01-SEQ-13")
async def test_a_client_whose_half_fails_cancels(autojump_clock: object) -> None:
    old = RS01
    async with client(old, OldLog().responder) as (connection, peer):

        async def fail() -> None:
            async with connection.request_channel(b"c"):
                await peer.expect(old.channel(2, 256, b"c"))
                raise KeyError

        with pytest.raises(KeyError):
            await fail()
        await peer.expect(old.cancel(2))
        await peer.expect_alive()


@clause("ALL-RCT-10")
async def test_a_channels_handler_hears_that_its_requester_sent_too_much(autojump_clock: object) -> None:
    old, log = RS01, OldLog()
    async with server(old, log.responder) as peer:
        await peer.send(old.channel(2, 9, b"hi"), *(old.channel(2, None, b"x") for _ in range(3)))
        await peer.expect_error(2, INVALID)
        await peer.send(*(old.channel(2, None, b"x") for _ in range(9)))
        await peer.expect_alive()
        assert log.seen == []


@pytest.mark.parametrize("old", OLD, ids=str)
@clause("RS01-UNX-01", "RS00-UNX-01")
async def test_late_frames_leave_nothing_behind(autojump_clock: object, old: OldWire) -> None:
    async with client(old, OldLog().responder) as (connection, peer):
        await late(connection, peer, old)
        assert connection.status == "open"


async def late(connection: Any, peer: RawPeer, old: OldWire) -> None:
    for number in range(2, 42, 2):
        with trio.move_on_after(0.1):
            await connection.request_response(b"x")
        await peer.expect(old.ask(number, b"x"), old.cancel(number))
        await peer.send(old.item(number, b"late", "C"), old.error(number, CANCELED), old.item(number, b"", "F"))
    await peer.expect_alive()
