"""The rules of HTTP/2 for a server, section by section: each row is bytes of a client, and what the server makes of it.

The rows follow the cases that test tools have for servers; sections are those of RFC 9113, and of RFC 7541 for headers.
Whatever else a client sends, and however it is cut, the server closes or goes on, and nothing fails in it.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio.limits import Limits
from rsocket_trio.transports.first_bytes import PREFACE
from tests.each_row import each_row
from tests.transports.http2.raw_http2 import (
    ACK,
    BEGIN,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Frame,
    block,
    data,
    frame,
    raw_client,
    request,
    reset,
    settings,
    window,
)

BLOCK = block()
GO_ON = "goes on"
"""The server answers a PING that comes behind."""
ANSWERED = "the stream is granted, and goes on"
TRAILERS = block([("x", "y")])
GRANTED = request()
ENDED = request() + data(flags=END_STREAM)


def refused(*codes: int) -> tuple[str, tuple[int, ...]]:
    """The connection ends, with GOAWAY of one of these codes."""
    return "GOAWAY", codes


def stream_refused(*codes: int) -> tuple[str, tuple[int, ...]]:
    """The stream ends with RST_STREAM, or the connection with GOAWAY, of one of these codes."""
    return "RST_STREAM", codes


def status(number: int) -> tuple[str, tuple[int, ...]]:
    """The request is answered with this status."""
    return "status", (number,)


def without(name: str) -> list[tuple[str, str]]:
    """The headers of a request without one."""
    return [pair for pair in REQUEST if pair[0] != name]


def told(name: str, text: str) -> list[tuple[str, str]]:
    """The headers of a request with another value of one."""
    return [(each, text if each == name else value) for each, value in REQUEST]


def more(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    """The headers of a request, and others behind."""
    return [*REQUEST, *pairs]


# fmt: off
ROWS = [
    # section     what the client does                                bytes behind the preface and SETTINGS                    the server
    # Frames
    ("4.1",   "a frame of an unknown type",                           frame(0xEE, 0xFF, 0, b"any"),                            GO_ON),
    ("4.1",   "a flag that is not defined",                           frame(PING, 0x16, 0, bytes(8)),                          GO_ON),
    ("4.1",   "the reserved bit",                                     frame(PING, 0, 0x80000000, bytes(8)),                    GO_ON),
    ("4.2",   "DATA of the largest size",                             GRANTED + data(body=bytes(131072)),                      ANSWERED),
    ("4.2",   "DATA that is too large",                               GRANTED + data(body=bytes(131073)),                      refused(FRAME_SIZE_ERROR)),
    ("4.2",   "a length that announces 16 MiB",                       GRANTED + frame(DATA, 0, 1, length=0xFFFFFF),            refused(FRAME_SIZE_ERROR)),
    ("4.2",   "HEADERS that are too large",                           frame(HEADERS, END_HEADERS, 1, bytes(131073)),           refused(FRAME_SIZE_ERROR)),
    ("4.3",   "PRIORITY inside of a header block",                    frame(HEADERS, 0, 1, BLOCK) + frame(PRIORITY, 0, 1, bytes(5)), refused(PROTOCOL_ERROR)),
    ("4.3",   "HEADERS of another stream inside of a header block",   frame(HEADERS, 0, 1, BLOCK) + request(3),                refused(PROTOCOL_ERROR)),
    ("4.3",   "DATA inside of a header block",                        GRANTED + frame(HEADERS, 0, 3, BLOCK) + data(1),         refused(PROTOCOL_ERROR)),
    ("4.3",   "WINDOW_UPDATE inside of a header block",               frame(HEADERS, 0, 1, BLOCK) + window(),                  refused(PROTOCOL_ERROR)),
    ("4.3",   "GOAWAY inside of a header block",                      frame(HEADERS, 0, 1, BLOCK) + frame(GOAWAY, body=bytes(8)), refused(PROTOCOL_ERROR)),
    ("4.3",   "an unknown type inside of a header block",             frame(HEADERS, 0, 1, BLOCK) + frame(0xEE),               refused(PROTOCOL_ERROR)),
    # States of streams
    ("5.1",   "idle: DATA",                                           data(1),                                                 refused(PROTOCOL_ERROR)),
    ("5.1",   "idle: RST_STREAM",                                     reset(1),                                                refused(PROTOCOL_ERROR)),
    ("5.1",   "idle: WINDOW_UPDATE",                                  window(1),                                               refused(PROTOCOL_ERROR)),
    ("5.1",   "idle: CONTINUATION",                                   frame(CONTINUATION, END_HEADERS, 1, BLOCK),              refused(PROTOCOL_ERROR)),
    ("5.1",   "idle: PRIORITY",                                       frame(PRIORITY, 0, 1, bytes(5)),                         GO_ON),
    ("5.1",   "half-closed: DATA",                                    ENDED + data(1),                                         stream_refused(STREAM_CLOSED)),
    ("5.1",   "half-closed: HEADERS",                                 ENDED + request(1),                                      stream_refused(STREAM_CLOSED)),
    ("5.1",   "half-closed: CONTINUATION",                            ENDED + frame(CONTINUATION, END_HEADERS, 1, BLOCK),      stream_refused(STREAM_CLOSED, PROTOCOL_ERROR)),
    ("5.1",   "half-closed: WINDOW_UPDATE",                           ENDED + window(1),                                       GO_ON),
    ("5.1",   "half-closed: PRIORITY",                                ENDED + frame(PRIORITY, 0, 1, bytes(5)),                 GO_ON),
    ("5.1",   "half-closed: RST_STREAM",                              ENDED + reset(1),                                        GO_ON),
    ("5.1",   "closed by RST_STREAM: DATA",                           GRANTED + reset(1) + data(1),                            stream_refused(STREAM_CLOSED)),
    ("5.1",   "closed by RST_STREAM: HEADERS",                        GRANTED + reset(1) + request(1),                         stream_refused(STREAM_CLOSED)),
    ("5.1",   "closed by RST_STREAM: CONTINUATION",                   GRANTED + reset(1) + frame(CONTINUATION, 4, 1, BLOCK),   stream_refused(STREAM_CLOSED, PROTOCOL_ERROR)),
    ("5.1",   "closed by RST_STREAM: PRIORITY",                       GRANTED + reset(1) + frame(PRIORITY, 0, 1, bytes(5)),    GO_ON),
    ("5.1",   "closed by RST_STREAM: RST_STREAM",                     GRANTED + reset(1) + reset(1),                           GO_ON),
    ("5.1",   "closed by RST_STREAM: WINDOW_UPDATE",                  GRANTED + reset(1) + window(1),                          GO_ON),
    ("5.1.1", "an even stream",                                       request(2),                                              refused(PROTOCOL_ERROR)),
    ("5.1.1", "a stream below one that was opened",                   request(5) + request(3),                                 refused(PROTOCOL_ERROR, STREAM_CLOSED)),
    ("5.1.1", "streams with gaps",                                    request(5) + request(9),                                 GO_ON),
    ("5.1.2", "more streams than may be open",                        request(1) + request(3) + request(5) + request(7),       stream_refused(REFUSED_STREAM)),
    ("5.3",   "HEADERS that depend on their own stream",              frame(HEADERS, 0x24, 1, b"\0\0\0\1\0" + BLOCK),          stream_refused(PROTOCOL_ERROR)),
    ("5.3",   "PRIORITY that depends on its own stream",              frame(PRIORITY, 0, 1, b"\0\0\0\1\0"),                    stream_refused(PROTOCOL_ERROR)),
    ("5.5",   "an unknown setting",                                   settings((0xFFEE, 1)),                                   GO_ON),
    # DATA
    ("6.1",   "DATA on stream 0",                                     data(0),                                                 refused(PROTOCOL_ERROR)),
    ("6.1",   "padding as long as the frame",                         GRANTED + frame(DATA, PADDED, 1, b"\4abc"),              refused(PROTOCOL_ERROR)),
    ("6.1",   "padding without its length",                           GRANTED + frame(DATA, PADDED, 1),                        refused(FRAME_SIZE_ERROR, PROTOCOL_ERROR)),
    ("6.1",   "padding",                                              GRANTED + frame(DATA, PADDED, 1, b"\3a\0\0\0"),          ANSWERED),
    ("6.1",   "padding alone, then data",                             GRANTED + frame(DATA, PADDED, 1, b"\1\0") + data(),      ANSWERED),
    ("6.1",   "DATA without a byte, then data",                       GRANTED + data(body=b"") + data(),                       ANSWERED),
    # HEADERS
    ("6.2",   "HEADERS on stream 0",                                  request(0),                                              refused(PROTOCOL_ERROR)),
    ("6.2",   "padding as long as the frame",                         frame(HEADERS, 0xC, 1, b"\xff" + BLOCK),                 refused(PROTOCOL_ERROR)),
    ("6.2",   "padding",                                              frame(HEADERS, 0xC, 1, b"\2" + BLOCK + b"\0\0"),         GO_ON),
    ("6.2",   "a priority",                                           frame(HEADERS, 0x24, 1, b"\0\0\0\0\x10" + BLOCK),        GO_ON),
    # PRIORITY, RST_STREAM
    ("6.3",   "PRIORITY on stream 0",                                 frame(PRIORITY, 0, 0, bytes(5)),                         refused(PROTOCOL_ERROR)),
    ("6.3",   "PRIORITY of 4 bytes",                                  frame(PRIORITY, 0, 1, bytes(4)),                         stream_refused(FRAME_SIZE_ERROR)),
    ("6.4",   "RST_STREAM on stream 0",                               reset(0),                                                refused(PROTOCOL_ERROR)),
    ("6.4",   "RST_STREAM of an even stream",                         reset(2),                                                refused(PROTOCOL_ERROR)),
    ("6.4",   "RST_STREAM of 3 bytes",                                GRANTED + frame(RST_STREAM, 0, 1, bytes(3)),             refused(FRAME_SIZE_ERROR)),
    # SETTINGS
    ("6.5",   "an acknowledgement with content",                      frame(SETTINGS, ACK, 0, bytes(6)),                       refused(FRAME_SIZE_ERROR)),
    ("6.5",   "an acknowledgement that nothing asked for",            frame(SETTINGS, ACK) + frame(SETTINGS, ACK),             GO_ON),
    ("6.5",   "SETTINGS on a stream",                                 frame(SETTINGS, 0, 1, bytes(6)),                         refused(PROTOCOL_ERROR)),
    ("6.5",   "SETTINGS of 3 bytes",                                  frame(SETTINGS, 0, 0, bytes(3)),                         refused(FRAME_SIZE_ERROR)),
    ("6.5.2", "ENABLE_PUSH of 2",                                     settings((2, 2)),                                        refused(PROTOCOL_ERROR)),
    ("6.5.2", "INITIAL_WINDOW_SIZE above the largest",                settings((4, 1 << 31)),                                  refused(FLOW_CONTROL_ERROR)),
    ("6.5.2", "MAX_FRAME_SIZE below the least",                       settings((5, 16383)),                                    refused(PROTOCOL_ERROR)),
    ("6.5.2", "MAX_FRAME_SIZE above the largest",                     settings((5, 1 << 24)),                                  refused(PROTOCOL_ERROR)),
    ("6.5.3", "a setting twice",                                      settings((4, 100), (4, 1)),                              GO_ON),
    # PUSH_PROMISE, PING, GOAWAY
    ("6.6",   "a push of a client",                                   GRANTED + frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2" + BLOCK), refused(PROTOCOL_ERROR)),
    ("6.7",   "PING on a stream",                                     frame(PING, 0, 1, bytes(8)),                             refused(PROTOCOL_ERROR)),
    ("6.7",   "PING of 6 bytes",                                      frame(PING, 0, 0, bytes(6)),                             refused(FRAME_SIZE_ERROR)),
    ("6.7",   "an answer that nothing asked for",                     frame(PING, ACK, 0, bytes(8)),                           GO_ON),
    ("6.8",   "GOAWAY on a stream",                                   frame(GOAWAY, 0, 1, bytes(8)),                           refused(PROTOCOL_ERROR)),
    ("6.8",   "GOAWAY of 7 bytes",                                    frame(GOAWAY, 0, 0, bytes(7)),                           refused(FRAME_SIZE_ERROR)),
    ("6.8",   "GOAWAY while a stream is open",                        GRANTED + frame(GOAWAY, body=bytes(8)) + data(),         ANSWERED),
    # WINDOW_UPDATE
    ("6.9",   "an increment of 0 for the connection",                 window(0, 0),                                            refused(PROTOCOL_ERROR)),
    ("6.9",   "an increment of 0 for a stream",                       GRANTED + window(1, 0),                                  stream_refused(PROTOCOL_ERROR)),
    ("6.9",   "WINDOW_UPDATE of 3 bytes",                             frame(WINDOW_UPDATE, 0, 0, bytes(3)),                    refused(FRAME_SIZE_ERROR)),
    ("6.9.1", "a window of the connection above the largest",         window(0, 0x7FFFFFFF),                                   refused(FLOW_CONTROL_ERROR)),
    ("6.9.1", "a window of a stream above the largest",               GRANTED + window(1, 0x7FFFFFFF),                         stream_refused(FLOW_CONTROL_ERROR)),
    ("6.9.2", "INITIAL_WINDOW_SIZE that makes a window too large",    GRANTED + window(1, 100_000) + settings((4, 0x7FFFFFFF)), refused(FLOW_CONTROL_ERROR)),
    # CONTINUATION
    ("6.10",  "a header block in several frames",                     frame(HEADERS, 0, 1, BLOCK[:3]) + frame(CONTINUATION, 0, 1, BLOCK[3:9]) + frame(CONTINUATION, 4, 1, BLOCK[9:]), GO_ON),
    ("6.10",  "CONTINUATION behind END_HEADERS",                      GRANTED + frame(CONTINUATION, 4, 1, TRAILERS),           refused(PROTOCOL_ERROR)),
    ("6.10",  "CONTINUATION behind DATA",                             GRANTED + data() + frame(CONTINUATION, 4, 1, TRAILERS),  refused(PROTOCOL_ERROR)),
    ("6.10",  "CONTINUATION on stream 0",                             frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 4, 0, TRAILERS), refused(PROTOCOL_ERROR)),
    ("6.10",  "CONTINUATION of another stream",                       frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 4, 3, TRAILERS), refused(PROTOCOL_ERROR)),
    # Error codes
    ("7",     "GOAWAY with an unknown code",                          frame(GOAWAY, 0, 0, bytes(4) + b"\0\0\0\xff"),           GO_ON),
    ("7",     "RST_STREAM with an unknown code",                      GRANTED + reset(1, 0xFF),                                GO_ON),
    # HTTP in HTTP/2
    ("8.1",   "a second HEADERS without END_STREAM",                  GRANTED + frame(HEADERS, 4, 1, TRAILERS),                stream_refused(PROTOCOL_ERROR)),
    ("8.1",   "trailers",                                             GRANTED + data() + frame(HEADERS, 5, 1, TRAILERS),       ANSWERED),
    ("8.1",   "pseudo-headers in trailers",                           GRANTED + frame(HEADERS, 5, 1, BLOCK),                   stream_refused(PROTOCOL_ERROR)),
    ("8.1.1", "a content length that is exceeded",                    request(headers=more(("content-length", "1"))) + data(body=b"ab"), stream_refused(PROTOCOL_ERROR)),
    ("8.1.1", "a content length that is not reached",                 request(headers=more(("content-length", "9"))) + data(body=b"a", flags=1), stream_refused(PROTOCOL_ERROR)),
    ("8.1.1", "a content length that no sum of frames reaches",       request(headers=more(("content-length", "9"))) + data() + data(flags=1), stream_refused(PROTOCOL_ERROR)),
    ("8.1.1", "a content length that is right",                       request(headers=more(("content-length", "3"))) + data(body=b"ab") + data(flags=1), ANSWERED),
    ("8.2.1", "a name in upper case",                                 request(headers=more(("X-Upper", "a"))),                 stream_refused(PROTOCOL_ERROR)),
    ("8.2.1", "a line break in a value",                              request(headers=more(("x", "a\nb"))),                    stream_refused(PROTOCOL_ERROR)),
    ("8.2.2", "a header of the connection",                           request(headers=more(("connection", "keep-alive"))),     stream_refused(PROTOCOL_ERROR)),
    ("8.2.2", "te that is not trailers",                              request(headers=more(("te", "gzip"))),                   stream_refused(PROTOCOL_ERROR)),
    ("8.2.2", "te: trailers",                                         request(headers=more(("te", "trailers"))),               GO_ON),
    ("8.3",   "an unknown pseudo-header",                             request(headers=[(":test", "a"), *REQUEST]),             stream_refused(PROTOCOL_ERROR)),
    ("8.3",   "a pseudo-header of answers",                           request(headers=[(":status", "200"), *REQUEST]),         stream_refused(PROTOCOL_ERROR)),
    ("8.3",   "a pseudo-header behind others",                        request(headers=[("x", "y"), *REQUEST]),                 stream_refused(PROTOCOL_ERROR)),
    ("8.3.1", "an empty path",                                        request(headers=told(":path", "")),                      stream_refused(PROTOCOL_ERROR)),
    ("8.3.1", "no method",                                            request(headers=without(":method")),                     stream_refused(PROTOCOL_ERROR)),
    ("8.3.1", "no scheme",                                            request(headers=without(":scheme")),                     stream_refused(PROTOCOL_ERROR)),
    ("8.3.1", "no path",                                              request(headers=without(":path")),                       stream_refused(PROTOCOL_ERROR)),
    ("8.3.1", "two methods",                                          request(headers=[REQUEST[0], *REQUEST]),                 stream_refused(PROTOCOL_ERROR)),
    ("8.3.1", "two paths",                                            request(headers=[REQUEST[3], *REQUEST]),                 stream_refused(PROTOCOL_ERROR)),
    # Ours
    ("8.5",   "CONNECT",                                              request(headers=[(":method", "CONNECT"), (":authority", "a:1")]), status(404)),
    ("8.1",   "another path",                                         request(headers=told(":path", "/y")),                    status(404)),
    ("8.1",   "a query",                                              request(headers=told(":path", "/x?a=b")),                GO_ON),
    ("8.1",   "another method",                                       request(headers=told(":method", "GET")),                 status(405)),
    ("8.1",   "another content type",                                 request(headers=told("content-type", "text/plain")),     status(415)),
    ("8.1",   "no content type",                                      request(headers=without("content-type")),                status(415)),
    ("8.1",   "a content type with a parameter",                      request(headers=told("content-type", "Application/RSocket; a=b")), GO_ON),
    # HPACK
    ("H 2.3.3", "an index behind the table",                          frame(HEADERS, 4, 1, BLOCK + b"\xc6"),                   refused(COMPRESSION_ERROR)),
    ("H 2.3.3", "a name by an index behind the table",                frame(HEADERS, 4, 1, BLOCK + b"\x7f\x07\1a"),            refused(COMPRESSION_ERROR)),
    ("H 4.2",  "a new size of the table behind headers",              frame(HEADERS, 4, 1, BLOCK + b"\x20"),                   refused(COMPRESSION_ERROR)),
    ("H 5.2",  "padding of a string longer than 7 bits",              frame(HEADERS, 4, 1, BLOCK + b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"), refused(COMPRESSION_ERROR)),
    ("H 5.2",  "padding of a string with zeros",                      frame(HEADERS, 4, 1, BLOCK + b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"), refused(COMPRESSION_ERROR)),
    ("H 5.2",  "the end of a string inside of it",                    frame(HEADERS, 4, 1, BLOCK + b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f"), refused(COMPRESSION_ERROR)),
    ("H 6.1",  "index 0",                                             frame(HEADERS, 4, 1, BLOCK + b"\x80"),                   refused(COMPRESSION_ERROR)),
    ("H 6.3",  "a table larger than allowed",                         frame(HEADERS, 4, 1, b"\x3f\xe1\x7f" + BLOCK),           refused(COMPRESSION_ERROR)),
    ("H 5.2",  "a string longer than the block",                      frame(HEADERS, 4, 1, BLOCK + b"\x00\x7f\x7f"),           refused(COMPRESSION_ERROR)),
]
# fmt: on


@each_row(
    ("sent", "expected"),
    [pytest.param(sent, expected, id=f"{section} {what}") for section, what, sent, expected in ROWS],
)
async def test_a_client_that_does_this_is_treated_as_the_section_says(
    sent: bytes, expected: str | tuple[str, tuple[int, ...]], autojump_clock: MockClock
) -> None:
    async with raw_client(Limits(shared_connections=3)) as peer:
        await peer.send(sent)
        came = await peer.rest()

    ends = [(each.kind, each.code) for each in came if each.kind in {GOAWAY, RST_STREAM}]
    if isinstance(expected, str):
        assert ends in ([], [(GOAWAY, NO_ERROR)])
        if expected == ANSWERED:
            assert sum(len(each.body) for each in came if each.kind == DATA) > 0
        return
    how, codes = expected
    if how == "status":
        [answer] = [each for each in came if each.kind == HEADERS]
        assert answer.flags & END_STREAM
        assert dict(peer.answers[1])[":status"] == str(codes[0])
        assert ends == [(RST_STREAM, NO_ERROR)]
        return
    kinds = {GOAWAY} if how == "GOAWAY" else {GOAWAY, RST_STREAM}
    assert ends, "nothing ended"
    assert ends[-1][0] in kinds
    assert ends[-1][1] in codes


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX",
        PREFACE + frame(PING, body=bytes(8)),
        PREFACE + frame(SETTINGS, ACK),
        PREFACE + b"\0" * 9,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_a_client_without_the_preface_is_closed(sent: bytes, autojump_clock: MockClock) -> None:
    async with raw_client(begin=False) as peer:
        await peer.send(sent)
        came = await peer.rest()

    assert [each.code for each in came if each.kind == GOAWAY] == [PROTOCOL_ERROR]


async def test_a_header_block_that_begins_with_an_empty_frame_lets_no_data_pass(autojump_clock: MockClock) -> None:
    async with raw_client() as peer:
        await peer.send(GRANTED)
        await peer.wait_for(HEADERS)
        await peer.send(frame(HEADERS, 0, 3), data(1))
        last = await peer.receive()
        assert last is not None
        assert (last.kind, last.code) == (GOAWAY, PROTOCOL_ERROR)


TALK = b"".join([
    BEGIN,
    settings((4, 100_000), (5, 20_000), (0xFFFF, 1)),
    request(1),
    data(1, b"first"),
    frame(HEADERS, 0, 3, BLOCK[:5]) + frame(CONTINUATION, 4, 3, BLOCK[5:]),
    data(3, b"s" * 300),
    frame(DATA, PADDED, 1, b"\5padded\0\0\0\0\0"),
    window(0, 5) + window(1, 7),
    frame(PING, body=b"12345678"),
    frame(PRIORITY, 0, 3, bytes(5)),
    data(3, b"last", END_STREAM),
    request(5) + data(5) + reset(5),
    data(1, b"more"),
    frame(HEADERS, 5, 1, block([("x", "y")])),
])  # fmt: skip
"""A conversation of everything that a client may say."""
SEEDS = 150


async def answers(*pieces: bytes) -> list[Frame]:
    """Return the answer of the server to these bytes."""
    async with raw_client(begin=False) as peer:
        for piece in pieces:
            await peer.send(piece)
        await wait_all_tasks_blocked()
        with suppress(trio.BrokenResourceError):
            await peer.stream.send_eof()
        found = []
        while (each := await peer.receive()) is not None:
            found.append(each)
        return found


def said(frames: list[Frame]) -> dict[int, bytes]:
    """The data of each stream but the one that the client resets, whose echo may come before."""
    found: dict[int, bytes] = {}
    for each in frames:
        if each.kind == DATA and each.stream_id != 5:
            found[each.stream_id] = found.get(each.stream_id, b"") + each.body
    return found


@pytest.mark.parametrize("size", [1, 7, 64, len(TALK)])
async def test_pieces_of_any_size_say_the_same(size: int, autojump_clock: MockClock) -> None:
    pieces = [TALK[at : at + size] for at in range(0, len(TALK), size)]
    assert said(await answers(*pieces)) == {1: b"firstpaddedmore", 3: b"s" * 300 + b"last"}


async def test_any_cut_in_two_says_the_same(autojump_clock: MockClock) -> None:
    for at in range(0, len(TALK), 5):
        assert said(await answers(TALK[:at], TALK[at:])) == {1: b"firstpaddedmore", 3: b"s" * 300 + b"last"}


async def test_bytes_that_were_changed_end_the_connection_or_nothing(autojump_clock: MockClock) -> None:
    ended = 0
    for seed in range(SEEDS):
        chance = random.Random(seed)
        talk = bytearray(TALK)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(BEGIN), len(talk))
            match chance.randrange(4):
                case 0:
                    talk[at] = chance.randrange(256)
                case 1:
                    talk[at] ^= 1 << chance.randrange(8)
                case 2:
                    del talk[at : at + chance.randint(1, 20)]
                case _:
                    talk[at:at] = chance.randbytes(chance.randint(1, 20))
        cut = chance.randrange(len(talk))
        came = await answers(bytes(talk[:cut]), bytes(talk[cut:]))
        ended += any(each.kind == GOAWAY and each.code for each in came)
    assert ended > SEEDS // 3
