"""Two sessions without I/O: what is bounded, what a peer must not do, and how a failure is told or is not."""

from __future__ import annotations

import pytest

from rsocket_trio.errors import (
    ApplicationError,
    ConnectionLost,
    Invalid,
    RemoteProtocolError,
    StreamError,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    ItemReceived,
    PeerFault,
    RequestReceived,
    StreamCancelled,
    StreamFailed,
)
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.chunks import HeaderLayout
from tests.streamux.pairs import (
    CHANNEL,
    WHOLE,
    SessionPair,
    ended,
    of_widths,
    request_in,
    requests_in,
    texts_in,
)

clause = pytest.mark.clause

# What each side counts


def test_requests_that_handlers_have_are_counted_until_they_are_answered() -> None:
    pair = SessionPair(limits=Limits(reassembly_size=150))
    _, first = pair.asked(bytes(100))
    assert (pair.server.table.buffered, pair.server.is_congested) == (100, False)
    ours, second = pair.asked(bytes(60))
    assert (pair.server.table.buffered, pair.server.is_congested) == (160, True)
    pair.server.commands.send_item(first, Payload(b"a"), complete=True)
    assert (pair.server.table.buffered, pair.server.is_congested) == (60, False)
    pair.client.commands.send_cancel(ours)
    assert pair.exchange()[1] == [StreamCancelled(second)]

    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_a_message_above_the_limit_is_refused_and_its_rest_dropped() -> None:
    pair = SessionPair(4, 4, chunks=False, limits=Limits(payload_size=50))
    good, large = pair.ask(bytes(50)), pair.ask(bytes(51))
    saw = pair.exchange()[1]
    (theirs,) = requests_in(saw)
    assert texts_in(saw) == [bytes(50)]
    assert [event.text for event in saw if isinstance(event, PeerFault)] == [
        f"message of more than 50 bytes on id {large.id}"
    ]
    assert pair.server.error is None
    pair.server.commands.send_item(theirs, Payload(b"a"), complete=True)
    assert pair.exchange()[0] == [ItemReceived(good, Payload(b"a"), True)]

    # Nobody can be told; the requester gives up in its own time.
    pair.client.commands.send_cancel(large)
    pair.exchange()
    pair.assert_quiet()


@clause("SMX-MSG-10")
@pytest.mark.parametrize("size", [51, 100, 150])
def test_a_refused_message_is_answered_by_the_applications_word(size: int) -> None:
    def encode(error: StreamError) -> bytes:
        assert isinstance(error, Invalid)
        return error.data

    server = of_widths(4, 4, qa=True, encode_error=encode)
    pair = SessionPair(client=of_widths(4, 4), server=server, chunks=False, limits=Limits(payload_size=50))
    ours = pair.ask(bytes(size))
    client_saw, server_saw = pair.exchange()

    assert [type(event) for event in server_saw] == [PeerFault]
    assert isinstance(client_saw[0], ItemReceived)
    assert client_saw[0].payload.text[:51] == f"message of more than 50 bytes on id {ours.id}"[:51]
    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_a_response_above_the_limit_fails_its_request_only() -> None:
    pair = SessionPair(4, 4, limits=Limits(payload_size=50))
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(bytes(80)), complete=True)
    (saw,) = pair.exchange()[0]

    assert isinstance(saw, StreamFailed)
    assert (saw.stream, str(saw.error)) == (ours, f"message of more than 50 bytes on id {ours.id}")
    assert type(saw.error) is RemoteProtocolError
    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_unfinished_messages_are_bounded_together() -> None:
    pair = SessionPair(4, 4, chunks=False, limits=Limits(reassembly_size=40))
    first, second = pair.ask(bytes(30), CHANNEL), pair.ask(bytes(30), CHANNEL)
    saw = pair.exchange()[1]

    assert [event.text for event in saw if isinstance(event, PeerFault)] == [
        "more than 40 bytes in unfinished messages"
    ]
    assert pair.server.table.reassembling == 30
    for one in (first, second):
        pair.client.commands.send_cancel(one)
    pair.exchange()
    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_one_request_too_many_ends_the_session() -> None:
    pair = SessionPair(limits=Limits(streams=2))
    for _ in range(3):
        pair.ask(b"q")

    assert "request id 2 is one too many: 2 requests are open already" in ended(pair.exchange()[1])


# What a peer must not do


def chunk(pair: SessionPair, request_id: int, payload: bytes, bits: int) -> bytes:
    assert pair.client.terms is not None
    return HeaderLayout(pair.client.terms).pack(request_id, len(payload), bits) + payload


SPURIOUS = [
    ("SMX-SPU-03", (3, b"x", 3), "response to request id 3, which is not in flight"),
    ("SMX-SPU-03", (3, b"x", 2), "response to request id 3, which is not in flight"),
    ("SMX-SPU-03", (3, b"", 3), "response to request id 3, which is not in flight"),
    ("SMX-SPU-03", (3, b"", 2), "cancel ack for request id 3, which was not canceled"),
    ("SMX-SPU-03", (5, b"", 2), "cancel ack for request id 5, which was not canceled"),
    ("SMX-SPU-03", (6, b"x", 3), "response of 1 bytes to the ping of id 6"),
    ("SMX-SPU-03", (6, b"", 2), "cancel ack for request id 6, which was not canceled"),
    ("SMX-SPU-04", (9, b"x", 0), "request chunk on id 9, whose request is complete and not answered yet"),
    ("SMX-SPU-04", (9, b"x", 1), "request chunk on id 9, whose request is complete and not answered yet"),
    ("SMX-SPU-04", (9, b"", 1), "request chunk on id 9, whose request is complete and not answered yet"),
]


def spurious_pair(spurious: str) -> SessionPair:
    """The server has a request on id 5 and a ping on id 6, and the client an unanswered one on id 9."""
    start = {"client": 9, "server": 5}
    server = of_widths(4, 8, qa=True, spurious=spurious)
    ids = iter([start["server"], start["client"]])
    pair = SessionPair(client=of_widths(4, 8), server=server, first_id=lambda cap: next(ids))
    assert pair.ask(b"q").id == 9
    assert pair.ask(b"q", of=pair.server).id == 5
    pair.server.ping("token")
    pair.write(pair.server)
    pair.move(pair.client)
    return pair


@pytest.mark.parametrize(
    ("sent", "text"), [pytest.param(sent, text, marks=clause(name), id=text) for name, sent, text in SPURIOUS]
)
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])
def test_what_nothing_explains_ends_the_session_or_is_reported(
    sent: tuple[int, bytes, int], text: str, parts: bool
) -> None:
    for spurious in ("end", "report"):
        pair = spurious_pair(spurious)
        data = chunk(pair, *sent)
        pieces = [data[at : at + 1] for at in range(len(data))] if parts else [data]
        saw = [event for piece in pieces for event in pair.server.receive([piece], 0)]

        if spurious == "end":
            assert ended(saw) == f"the peer broke the protocol: {text}"
            assert pair.server.receive([data], 0) == []
        else:
            assert saw == [PeerFault(text)]
            assert pair.server.error is None
            assert set(pair.server.table.mine) == {5, 6}
            assert set(pair.server.table.theirs) == {9}


@clause("SMX-MSG-10")
def test_a_chunk_above_the_limit_ends_the_session_after_what_came_before_it() -> None:
    pair = SessionPair(limits=Limits(frame_size=100))
    saw = pair.server.receive([chunk(pair, 1, b"good", 1) + chunk(pair, 2, bytes(101), 1)], 0)

    assert isinstance(saw[0], RequestReceived)
    assert "chunk of 101 bytes on request id 2, limit 100" in ended(saw)


@clause("SMX-SPU-05")
@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "gone"),
        (1, "gone inside a chunk header: 1 of 2 bytes came"),
        (5, "gone inside a chunk of request id 1: 3 of 4"),
    ],
)
def test_the_end_inside_of_a_chunk_says_so(size: int, text: str) -> None:
    pair = SessionPair()
    assert pair.server.receive([chunk(pair, 1, b"torn", 1)[:size]], 0) == []

    assert str(pair.server.cut_off(ConnectionLost("gone"))).startswith(text)
    assert pair.server.is_mid_frame == (size > 0)


# Which handler


@pytest.mark.parametrize(
    ("requests", "whole", "chunks", "kinds"),
    [
        # a whole message of one chunk, one that begins with a full chunk, one that begins with a small one
        ("auto", True, True, (WHOLE, WHOLE, CHANNEL)),
        ("whole", True, True, (WHOLE, WHOLE, WHOLE)),
        ("chunks", True, True, (CHANNEL, CHANNEL, CHANNEL)),
        ("auto", True, False, (WHOLE, WHOLE, WHOLE)),
        ("auto", False, True, (CHANNEL, CHANNEL, CHANNEL)),
        ("whole", False, True, (CHANNEL, CHANNEL, CHANNEL)),
        ("chunks", True, False, (WHOLE, WHOLE, WHOLE)),
        ("auto", False, False, (WHOLE, WHOLE, WHOLE)),
    ],
)
def test_the_kind_of_a_request_is_told_by_its_first_chunk_and_by_the_handlers(
    requests: str, whole: bool, chunks: bool, kinds: tuple[Interaction, ...]
) -> None:
    server = of_widths(4, 4, qa=True, requests=requests)
    pair = SessionPair(client=of_widths(4, 4), server=server, whole=whole, chunks=chunks)
    pair.ask(b"small")
    pair.ask(bytes(20))
    channel = pair.ask(b"begins", CHANNEL)
    pair.client.commands.send_item(channel, Payload(b"ends"), complete=True)
    saw = pair.exchange()[1]

    assert tuple(one.interaction for one in sorted(requests_in(saw), key=lambda one: one.id)) == kinds


# Failing


def refusing(error: StreamError) -> bytes:
    return b"no: " + error.data


def test_a_requester_that_fails_its_channel_cancels_it() -> None:
    pair = SessionPair(whole=False)
    ours = pair.ask(b"one", CHANNEL)
    theirs = request_in(pair.exchange()[1])

    assert pair.client.commands.send_error(ours, ApplicationError("broken")) is None
    assert pair.exchange() == ([], [StreamCancelled(theirs)])
    pair.assert_quiet()


def test_while_draining_new_requests_are_refused_and_open_ones_finish() -> None:
    pair = SessionPair(client=of_widths(4, 8), server=of_widths(4, 8, qa=True, encode_error=refusing))
    first, theirs = pair.asked(b"first")
    pair.server.drain()
    second = pair.ask(b"second")
    assert pair.exchange() == (
        [ItemReceived(second, Payload(b"no: no new requests: the connection is closing"), True)],
        [],
    )
    assert not pair.server.is_quiet
    pair.server.commands.send_item(theirs, Payload(b"a"), complete=True)
    assert not pair.server.is_quiet  # the answer has not left

    assert pair.exchange()[0] == [ItemReceived(first, Payload(b"a"), True)]
    pair.assert_quiet()


def test_while_draining_a_refused_request_without_a_word_for_it_is_left_to_its_requester() -> None:
    pair = SessionPair()
    pair.server.drain()
    ours = pair.ask(b"q")
    assert pair.exchange() == ([], [])
    assert pair.server.is_quiet
    pair.client.commands.send_cancel(ours)
    pair.exchange()

    pair.assert_quiet()
