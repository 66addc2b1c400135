"""Frames that have nothing but data are read and written without frame values, and mean what they mean as those."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from qa.fuzz.conversations import Talk
from qa.fuzz.spoken import NAMES
from rsocket_trio.mux.events import (
    CreditGranted,
    Event,
    ItemReceived,
    ItemsReceived,
    PeerFault,
    RequestReceived,
    SessionEnded,
)
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.outbox import SMALL
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket import session as session_module
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.frames import PayloadFrame, RequestFrame
from rsocket_trio.rsocket.stream_table import Stream
from tests.each_row import ALL_CASES
from tests.events import one_by_one
from tests.rsocket.pairs import SessionPair

RUNS: Final = 400 if ALL_CASES else 50
DIALECTS: Final = pytest.mark.parametrize("dialect", NAMES.values(), ids=NAMES)


def streaming(dialect: Dialect, initial_n: int = 10, fragment_size: int = 1000) -> tuple[SessionPair, Stream, Stream]:
    """A stream, as its requester and its responder have it."""
    pair = SessionPair(dialect, fragment_size=fragment_size)
    asked = pair.client.commands.open(Interaction.REQUEST_STREAM, Payload(b"all"), initial_n)
    request = pair.exchange()[1][0]
    assert isinstance(request, RequestReceived)
    assert isinstance(request.stream, Stream)
    return pair, asked, request.stream


@DIALECTS
@pytest.mark.parametrize("size", [1, SMALL - 20, SMALL, 60_000])
@pytest.mark.parametrize("first", [b"short", bytes(SMALL)], ids=["short", "large"])
def test_large_ones_are_written_as_their_frames_are_and_not_copied(dialect: Dialect, first: bytes, size: int) -> None:
    pair, _, answering = streaming(dialect, fragment_size=65536)
    codec, commands, body = dialect.codec, pair.server.commands, bytes(size)
    expected = codec.encode(PayloadFrame(answering.id, Payload(body), True, False, False))

    commands.send_item(answering, Payload(first))
    commands.send_item(answering, Payload(body))
    assert commands.offer_item(answering, body)
    assert commands.offer_item(answering, Payload(body))
    frames = pair.server.outbox.take(10**6)[1:]
    pair.exchange()

    assert [whole(frame) for frame in frames] == [expected] * 3
    assert all(isinstance(frame, tuple) and frame[1] is body for frame in frames) == (size >= SMALL)
    assert answering.room == 10 - 4


@DIALECTS
def test_an_item_is_sent_at_once_only_where_nothing_is_unusual(dialect: Dialect) -> None:
    pair, _, answering = streaming(dialect, 2)
    commands = pair.server.commands

    assert not commands.offer_item(answering, b"first")  # whose header is not known yet
    commands.send_item(answering, Payload(b"first"))
    assert not any(
        commands.offer_item(answering, item)
        for item in ("text", bytearray(b"a"), b"", Payload(), Payload(b"a", b"m"), bytes(10**6), None)
    )
    assert not commands.offer_item(answering, Payload(b"a", metadata_type=1))
    assert not commands.offer_item(answering, Payload(b"a", data_mime="text/plain"))
    assert commands.offer_item(answering, b"second")
    assert not commands.offer_item(answering, b"beyond the credit")
    assert [event.payload.data for event in pair.exchange()[0] if isinstance(event, ItemReceived)] == [
        b"first",
        b"second",
    ]


@DIALECTS
@pytest.mark.parametrize("interaction", [Interaction.REQUEST_RESPONSE, Interaction.FIRE_AND_FORGET])
def test_requests_are_written_as_their_frames_are(dialect: Dialect, interaction: Interaction) -> None:
    pair = SessionPair(dialect)

    stream = pair.client.commands.open(interaction, Payload(b"a"))

    assert [whole(frame) for frame in pair.client.outbox.take()] == [
        dialect.codec.encode(RequestFrame(stream.id, interaction, Payload(b"a")))
    ]


@DIALECTS
@pytest.mark.parametrize("metadata", [b"", b"m", bytes(70_000)], ids=["empty", "short", "long"])
def test_with_metadata_they_are_written_and_read_as_their_frames_are(dialect: Dialect, metadata: bytes) -> None:
    pair, asked, answering = streaming(dialect)
    pair.server.commands.send_item(answering, Payload(b"first"))
    pair.exchange()

    pair.server.commands.send_item(answering, Payload(b"a", metadata))
    pair.server.commands.send_item(answering, Payload(b"", metadata), complete=True)
    frames = [whole(frame) for frame in pair.server.outbox.take(10**6)]

    if len(metadata) < 64:
        assert frames == [
            dialect.codec.encode(PayloadFrame(answering.id, Payload(b"a", metadata), True, False, False)),
            dialect.codec.encode(PayloadFrame(answering.id, Payload(b"", metadata), True, True, False)),
        ]
    assert pair.client.receive(frames, 0.0) == [
        ItemReceived(asked, Payload(b"a", metadata), False),
        ItemReceived(asked, Payload(b"", metadata), True),
    ]


@DIALECTS
def test_metadata_that_does_not_fit_means_the_same_either_way(dialect: Dialect) -> None:
    told = []
    for is_fast in (True, False):
        pair, _, answering = streaming(dialect)
        pair.server.commands.send_item(answering, Payload(b"first"))
        pair.exchange()
        whole_frame = dialect.codec.encode(PayloadFrame(answering.id, Payload(b"", b"m" * 9), True, False, False))
        if not is_fast:
            pair.client.patterns = None
        events = pair.client.receive([whole_frame[:size] for size in range(1, len(whole_frame))], 0.0)
        told.append(([*map(said, one_by_one(events))], [whole(frame) for frame in pair.client.outbox.take()]))

    assert told[0] == told[1]


@DIALECTS
def test_those_of_one_read_come_together(dialect: Dialect) -> None:
    pair, asked, answering = streaming(dialect)
    pair.server.commands.send_item(answering, Payload(b"first"))  # shows that the server lets the client in
    assert pair.exchange()[0] == [ItemReceived(asked, Payload(b"first"), False)]
    for data in (b"a", b"b", b"c"):
        pair.server.commands.send_item(answering, Payload(data))

    frames = [whole(frame) for frame in pair.server.outbox.take()]

    assert pair.client.receive(frames, 0.0) == [ItemsReceived(asked, [Payload(b"a"), Payload(b"b"), Payload(b"c")])]


@DIALECTS
def test_one_of_them_may_be_early_and_no_more_are_taken(dialect: Dialect) -> None:
    pair, asked, answering = streaming(dialect, 2)
    answering.room = 4
    for data in (b"a", b"b", b"c", b"d"):
        pair.server.commands.send_item(answering, Payload(data))

    events = [*one_by_one(pair.client.receive([whole(frame) for frame in pair.server.outbox.take()], 0.0))]

    assert events[:2] == [ItemReceived(asked, Payload(data), False) for data in (b"a", b"b")]
    assert events[2:4] == [
        PeerFault(f"stream {asked.id}: an item came before it was granted"),
        ItemReceived(asked, Payload(b"c"), False),
    ]
    assert "more items than were granted" in str(events[4])


@DIALECTS
def test_conversations_mean_the_same_without_them(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [heard(dialect, seed) for seed in range(RUNS)]
    monkeypatch.setattr(session_module, "patterns_of", lambda codec: None)

    assert quick == [heard(dialect, seed) for seed in range(RUNS)]
    assert sum(line.startswith("ItemReceived") for lines, _ in quick for line in lines) > RUNS // 10


def heard(dialect: Dialect, seed: int) -> tuple[list[str], list[bytes]]:
    """Return what a session reports in a conversation, and what it is told."""
    told: list[str] = []

    class Recorded(Talk):
        def saw(self, events: list[Event]) -> None:
            told.extend(map(said, one_by_one(events)))
            super().saw(events)

    talk = Recorded(dialect, Random(seed))
    talk.run()
    return told, talk.received


def said(event: Event) -> str:
    """An event in words that don't depend on when one looks: a stream changes."""
    stream = getattr(event, "stream", None)
    if stream is None or isinstance(event, SessionEnded):
        return type(event).__name__
    more = (
        "" if isinstance(event, CreditGranted) else [str(getattr(event, name, "")) for name in ("payload", "complete")]
    )
    return f"{type(event).__name__} {stream.id} {more}"


class Looked(list[bytes]):
    """Frames, and how often one of them was looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, int), "a part of them is copied"
        self.looks += 1
        return super().__getitem__(index)


def test_those_of_two_streams_in_turn_are_looked_at_a_few_times_each() -> None:
    pair = SessionPair()
    streams = [pair.client.commands.open(Interaction.REQUEST_STREAM, Payload(b"all"), 2**31 - 1) for _ in range(2)]
    for event in pair.exchange()[1]:
        assert isinstance(event, RequestReceived)
        assert isinstance(event.stream, Stream)
        pair.server.commands.send_item(event.stream, Payload(b"first"))
    pair.exchange()
    encode = RSOCKET_1_0.codec.encode
    frames = Looked([encode(PayloadFrame(stream.id, Payload(b"1"), True, False, False)) for stream in streams] * 500)

    events = pair.client.receive(frames, 0.0)

    assert len(events) == len(frames)
    assert frames.looks <= 4 * len(frames)


@DIALECTS
def test_one_that_is_cut_within_its_header_is_none(dialect: Dialect) -> None:
    codec = dialect.codec
    pair, _, answering = streaming(dialect)
    item = codec.encode(PayloadFrame(answering.id, Payload(b"a"), True, False, False))
    request = codec.encode(RequestFrame(answering.id + 2, Interaction.REQUEST_RESPONSE, Payload(b"a")))

    for size in range(1, codec.header_size):
        for cut in (item[:size], request[:size]):
            pair, _, answering = streaming(dialect)
            pair.server.commands.send_item(answering, Payload(b"first"))
            pair.exchange()
            for session in (pair.client, pair.server):
                events = session.receive([cut], 0.0)
                assert not any(isinstance(event, ItemReceived | RequestReceived) for event in events)
