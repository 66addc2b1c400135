"""How channels of 0.1 end with the peers of the time: numbers without their flag, empty responses, short bodies."""

from __future__ import annotations

from typing import Any

import pytest

from rsocket_trio import Payload
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.dialects import REACTIVESOCKET_0_1
from tests.conformance.old_frames import RS01, OldLog
from tests.conformance.raw import CONNECTION_ERROR, client, server, settle, u32
from tests.rsocket.pairs import SessionPair

clause = pytest.mark.clause
W = RS01

# What Java 0.2.2 and 0.5.2 sent, but for the ids. The document has no use for the four zero bytes of the first.
COMPLETED_BY_JAVA_0_2_2 = bytes.fromhex("00000010 0008 1000 00000016 00000000")
COMPLETED_BY_JAVA_0_5_2 = bytes.fromhex("0000000c 000b 1000 00000016")


@clause("RS01-CH-01", "RS01-RSP-03", "QRK-07", "QRK-16")
@pytest.mark.parametrize("end", [COMPLETED_BY_JAVA_0_2_2, COMPLETED_BY_JAVA_0_5_2], ids=["0.2.2", "0.5.2"])
async def test_a_java_client_completes_its_half_without_an_item(autojump_clock: object, end: bytes) -> None:
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.channel(0x16, 9, b"stay"))
        await peer.expect(W.request_n(0x16, 4))
        await peer.send(W.channel(0x16, None, b"one"))
        await peer.send_bytes(end)
        await peer.expect(W.item(0x16, b"still here"), W.done(0x16))
        await peer.expect_alive()
    assert log.seen == [("channel", b"stay"), ("item", b"one"), "completed"]


@clause("RS01-CH-01", "RS01-RSP-03", "QRK-07", "QRK-16")
@pytest.mark.parametrize("end", ["0008 1000 00000001 00000000", "000b 1000 00000001"], ids=["0.2.2", "0.5.2"])
async def test_a_server_that_opened_a_channel_may_complete_its_half_the_same_way(
    autojump_clock: object, end: str
) -> None:
    log = OldLog()
    async with client(W, log.responder) as (_, peer):
        await peer.send(W.channel(1, 9, b"stay"))
        await peer.expect(W.request_n(1, 4))
        await peer.send(bytes.fromhex(end))
        await peer.expect(W.item(1, b"still here"), W.done(1))
    assert log.seen == [("channel", b"stay"), "completed"]


@clause("RS01-CH-01", "RS01-CH-02", "RS01-FRAG-03", "QRK-07")
async def test_four_zero_bytes_are_an_item_wherever_they_can_be_one(autojump_clock: object) -> None:
    zeros = bytes(4)
    opened = ("channel", b"stay")
    for frames, seen in (
        ([W.channel(2, None, zeros)], [opened, ("item", zeros)]),  # C is clear
        ([W.channel(2, 0, zeros, "C")], [opened, ("item", zeros), "completed"]),  # N is set
        ([W.frame("REQUEST_CHANNEL", "MC", 2, W.sized(b"") + zeros)], [opened, ("item", zeros), "completed"]),
        ([W.channel(2, None, zeros[:3], "C")], [opened, ("item", zeros[:3]), "completed"]),
        ([W.channel(2, None, bytes(5), "C")], [opened, ("item", bytes(5)), "completed"]),
        ([W.channel(2, None, b"\0\0\0\1", "C")], [opened, ("item", b"\0\0\0\1"), "completed"]),
        (
            [W.channel(2, None, b"ab", "F"), W.channel(2, None, zeros, "C")],
            [opened, ("item", b"ab" + zeros), "completed"],
        ),
    ):
        log = OldLog()
        async with server(W, log.responder) as peer:
            await peer.send(W.channel(2, 9, b"stay"))
            await peer.expect(W.request_n(2, 4))
            await peer.send(*frames)
            await settle()
            assert log.seen == seen
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.channel(2, None, zeros, "C"))  # what opens a channel
        await settle()
        assert log.seen == [("channel", zeros), "completed"]


@clause("RS01-RSP-03", "QRK-07")
@pytest.mark.parametrize("item", [bytes(4), b"", bytes(3), bytes(5)])
def test_a_last_item_that_would_read_as_none_goes_before_its_completion(item: bytes) -> None:
    pair = SessionPair(REACTIVESOCKET_0_1)
    stream = pair.client.commands.open(Interaction.REQUEST_CHANNEL, Payload(b"c"), 1)
    pair.exchange()
    pair.server.commands.request_n(pair.server.table.theirs[2], 1)
    pair.exchange()

    pair.client.commands.send_item(stream, Payload(item), complete=True)

    frames = [whole(frame) for frame in pair.client.outbox.take(65536)]
    if item in (bytes(4), b""):
        assert frames == [W.channel(2, None, item), W.channel(2, None, b"", "C")]
    else:
        assert frames == [W.channel(2, None, item, "C")]


@clause("RS01-FRAG-04", "RS01-UNX-12", "QRK-16")
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(W.item(2, b"x", "C"), id="with data"),
        pytest.param(W.item(2, b"", "C", b""), id="with empty metadata"),
        pytest.param(W.item(2), id="that does not complete"),
    ],
)
async def test_only_an_empty_response_ends_a_requesters_half(autojump_clock: object, frame: bytes) -> None:
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.channel(2, 9, b"hi"))
        await peer.expect(W.request_n(2, 4))
        await peer.send(frame, W.channel(2, None, b"back"))
        await peer.expect(W.item(2, b"back"))
    assert log.seen == [("channel", b"hi"), ("item", b"back"), "Cancelled"]


@clause("RS01-FRAG-04", "RS01-UNX-12", "QRK-16")
async def test_an_empty_response_amid_a_payload_or_on_anything_but_a_channel_is_ignored(autojump_clock: object) -> None:
    log = OldLog()
    async with server(W, log.responder) as peer:
        await peer.send(W.channel(2, 9, b"h", "F"), W.done(2), W.channel(2, None, b"i"))
        await peer.expect(W.request_n(2, 4))
        await peer.send(W.channel(2, None, b"ba", "F"), W.done(2), W.channel(2, None, b"ck"))
        await peer.expect(W.item(2, b"back"))
        await peer.send(W.done(2), W.done(2))
        await peer.expect(W.done(2))
        await peer.send(W.stream(4, 1, b"2"), W.done(4))
        await peer.expect(W.item(4, b"tick 0"))
        await peer.send(W.request_n(4, 5))
        await peer.expect(W.item(4, b"tick 1"), W.done(4))
        await peer.expect_alive()
    assert log.seen[:3] == [("channel", b"hi"), ("item", b"back"), "completed"]


@clause("RS01-CH-01", "QRK-07")
@pytest.mark.parametrize(
    ("flags", "body", "seen"),
    [
        ("C", b"", ["completed"]),
        ("C", b"abc", [("item", b"abc"), "completed"]),
        ("", b"abc", [("item", b"abc")]),
        ("", b"", [("item", b"")]),
        ("N", b"a", [("item", b"a")]),
        ("MC", b"\0\0\0", []),
        ("C", u32(0), ["completed"]),
        ("C", u32(0) + bytes(4), [("item", bytes(4)), "completed"]),
    ],
)
async def test_with_the_slot_a_short_body_has_none_and_ends_no_connection(
    autojump_clock: object, flags: str, body: bytes, seen: list[Any]
) -> None:
    log = OldLog()
    async with server(W, log.responder, quirks=["channel_slot"]) as peer:
        await peer.send(W.channel(2, 9, b"stay"))
        await peer.expect(W.request_n(2, 4))
        await peer.send(W.frame("REQUEST_CHANNEL", flags, 2, body))
        await settle()
        assert log.seen == [("channel", b"stay"), *seen]
        if "completed" in seen:
            await peer.expect(W.item(2, b"still here"), W.done(2))
        await peer.expect_alive()


@clause("RS01-IGN-02", "QRK-07")
async def test_without_the_quirk_a_number_that_is_announced_must_be_there(autojump_clock: object) -> None:
    async with server(W, OldLog().responder) as peer:
        await peer.send(W.channel(2, 9, b"stay"))
        await peer.expect(W.request_n(2, 4))
        await peer.send(W.frame("REQUEST_CHANNEL", "N", 2, b"abc"))
        await peer.expect_error(0, CONNECTION_ERROR)
