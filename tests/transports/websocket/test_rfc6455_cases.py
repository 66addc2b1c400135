"""The cases that Autobahn's suite makes of RFC 6455, by their numbers, as rows: for both roles, however the bytes come.

An echo runs over the transport, and a row says what it has to answer. Text is legal WebSocket and refused here with
1003: its rows are played in binary, which goes on to where the suite does, unless they have their like there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import NamedTuple

import attrs
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.schemes import AcceptOptions, ConnectOptions, Endpoint
from rsocket_trio.transports.websocket.transport import open_websocket
from rsocket_trio.transports.websocket.websocket_frames import masked
from tests.each_row import each_row
from tests.transports.websocket.test_upgrade import accept_for, request

FIN, CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x80, 0, 1, 2, 8, 9, 10
NORMAL, PROTOCOL_ERROR, UNSUPPORTED, INVALID, TOO_BIG = 1000, 1002, 1003, 1007, 1009
KEY = b"\x37\xfa\x21\x3d"
HERE = Endpoint("ws", host="here", port=80, path="/")
both = pytest.mark.parametrize("client", [False, True], ids=["server", "client"])


class Frame(NamedTuple):
    """One frame: its first byte, and its body."""

    first: int
    body: bytes = b""

    def encoded(self, *, is_masked: bool) -> bytes:
        """Return the frame as a peer writes it."""
        size = len(self.body)
        code, more = (size, 0) if size < 126 else (126, 2) if size < 0x10000 else (127, 8)
        header = bytes((self.first, code | (0x80 if is_masked else 0))) + (size.to_bytes(more) if more else b"")
        return header + (KEY + masked(self.body, KEY) if is_masked else self.body)


def closing(code: int, reason: bytes = b"") -> Frame:
    return Frame(FIN | CLOSE, code.to_bytes(2) + reason)


def message(body: bytes, opcode: int = TEXT) -> Frame:
    return Frame(FIN | opcode, body)


def in_fragments(bodies: Sequence[bytes], opcode: int = TEXT) -> list[Frame]:
    last = len(bodies) - 1
    return [Frame((0 if place else opcode) | (FIN if place == last else 0), body) for place, body in enumerate(bodies)]


def ping(body: bytes = b"") -> Frame:
    return Frame(FIN | PING, body)


def pong(body: bytes = b"") -> Frame:
    return Frame(FIN | PONG, body)


def echo(body: bytes) -> Frame:
    """What the answer to a message looks like, whether that came in fragments or not."""
    return Frame(FIN | BINARY, body)


@attrs.frozen
class Row:
    """A case: what the peer sends, one by one, and what it hears. Only the code of a close frame counts."""

    case: str
    sent: Sequence[Frame]
    heard: Sequence[Frame]
    parts: int = 0
    """Bytes of the pieces that it is sent in; 0: in frames, in small pieces, and all at once."""
    at_once: Sequence[Frame] = ()
    """What it may hear as well if several frames come together."""


def is_closed(heard: Sequence[Frame]) -> bool:
    return any(frame.first == FIN | CLOSE for frame in heard)


def without_echoes(heard: Sequence[Frame]) -> list[Frame]:
    return [frame for frame in heard if frame.first != FIN | BINARY]


def echoes(heard: Sequence[Frame]) -> list[Frame]:
    return [frame for frame in heard if frame.first == FIN | BINARY]


def in_binary(case: str, sent: Sequence[Frame], heard: Sequence[Frame], parts: int = 0) -> list[Row]:
    """Return a row about text with binary messages in its place, since text is refused at its header."""
    frames = [
        frame._replace(first=frame.first - TEXT + BINARY) if frame.first & 0x0F == TEXT else frame for frame in sent
    ]
    at_once = without_echoes(heard) if is_closed(heard) else ()
    return [Row(f"{case} in binary", frames, heard, parts, at_once)]


FAIL = closing(PROTOCOL_ERROR)
SIZES = [0, 125, 126, 127, 128, 65535, 65536]
A, B, C, D, E = b"alpha", b"beta", b"gamma", b"delta", b"epsilon"
HELLO, WORLD = b"good morning", b"good night"


def bodies(size: int) -> bytes:
    return b"*" * size


FRAMING = [
    *[
        Row(f"1.2.{number}", [message(b"\xfe" * size, BINARY)], [echo(b"\xfe" * size)])
        for number, size in enumerate(SIZES, 1)
    ],
    Row("1.2.8", [message(b"\xfe" * 65536, BINARY)], [echo(b"\xfe" * 65536)], parts=997),
]
PINGS = [
    Row("2.1", [ping()], [pong()]),
    Row("2.2", [ping(HELLO)], [pong(HELLO)]),
    Row("2.3", [ping(bytes([0, 255, 128, 10]))], [pong(bytes([0, 255, 128, 10]))]),
    Row("2.4", [ping(b"\xfe" * 125)], [pong(b"\xfe" * 125)]),
    Row("2.5", [ping(b"\xfe" * 126)], [FAIL]),
    Row("2.6", [ping(b"\xfe" * 125)], [pong(b"\xfe" * 125)], parts=1),
    Row("2.7", [pong()], []),
    Row("2.8", [pong(HELLO)], []),
    Row("2.9", [pong(HELLO), ping(WORLD)], [pong(WORLD)]),
    Row("2.10", [ping(b"%d" % number) for number in range(10)], [pong(b"%d" % number) for number in range(10)]),
    Row(
        "2.11", [ping(b"%d" % number) for number in range(10)], [pong(b"%d" % number) for number in range(10)], parts=1
    ),
]


def reserved(bits: int, frame: Frame) -> Frame:
    return frame._replace(first=frame.first | bits << 4)


RESERVED_BITS = [
    *in_binary("3.1", [reserved(1, message(A))], [FAIL]),
    *in_binary("3.2", [message(A), reserved(2, message(B)), ping()], [echo(A), FAIL]),
    *in_binary("3.3", [message(A), reserved(3, message(B)), ping()], [echo(A), FAIL]),
    *in_binary("3.4", [message(A), reserved(4, message(B)), ping()], [echo(A), FAIL], parts=1),
    Row("3.5", [reserved(5, message(A, BINARY))], [FAIL]),
    Row("3.6", [reserved(6, ping(A))], [FAIL]),
    Row("3.7", [reserved(7, closing(NORMAL))], [FAIL]),
]
OPCODES = [
    Row("4.1.1", [Frame(FIN | 3)], [FAIL]),
    Row("4.1.2", [Frame(FIN | 4, A)], [FAIL]),
    *in_binary("4.1.3", [message(A), Frame(FIN | 5), ping()], [echo(A), FAIL]),
    *in_binary("4.1.4", [message(A), Frame(FIN | 6, B), ping()], [echo(A), FAIL]),
    *in_binary("4.1.5", [message(A), Frame(FIN | 7, B), ping()], [echo(A), FAIL], parts=1),
    Row("4.2.1", [Frame(FIN | 11)], [FAIL]),
    Row("4.2.2", [Frame(FIN | 12, A)], [FAIL]),
    *in_binary("4.2.3", [message(A), Frame(FIN | 13), ping()], [echo(A), FAIL]),
    *in_binary("4.2.4", [message(A), Frame(FIN | 14, B), ping()], [echo(A), FAIL]),
    *in_binary("4.2.5", [message(A), Frame(FIN | 15, B), ping()], [echo(A), FAIL], parts=1),
]
AB = in_fragments([A, B])
PING_WITHIN = [AB[0], ping(C), AB[1]]
TWO_PINGS_WITHIN = [Frame(TEXT, A), Frame(CONT, B), ping(A), Frame(CONT, C), Frame(CONT, D), ping(B)]
FRAGMENTS = [
    Row("5.1", in_fragments([A, B], PING), [FAIL]),
    Row("5.2", in_fragments([A, B], PONG), [FAIL]),
    *in_binary("5.3", AB, [echo(A + B)]),
    *in_binary("5.4", AB, [echo(A + B)], parts=len(A)),
    *in_binary("5.5", AB, [echo(A + B)], parts=1),
    *in_binary("5.6", PING_WITHIN, [pong(C), echo(A + B)]),
    *in_binary("5.7", PING_WITHIN, [pong(C), echo(A + B)], parts=len(A)),
    *in_binary("5.8", PING_WITHIN, [pong(C), echo(A + B)], parts=1),
    *chain.from_iterable(
        in_binary(f"5.{number}", [Frame(last | CONT, A), message(B)], [FAIL], parts)
        for number, (last, parts) in enumerate([(FIN, 0), (FIN, 5), (FIN, 1), (0, 0), (0, 5), (0, 1)], 9)
    ),
    *in_binary("5.15", [*AB, Frame(CONT, C), message(D)], [echo(A + B), FAIL]),
    *in_binary("5.16", [Frame(CONT, A), *in_fragments([B, C])] * 2, [FAIL]),
    *in_binary("5.17", [Frame(FIN | CONT, A), *in_fragments([B, C])] * 2, [FAIL]),
    *in_binary("5.18", [Frame(TEXT, A), Frame(FIN | TEXT, B)], [FAIL]),
    *in_binary("5.19", [*TWO_PINGS_WITHIN, Frame(FIN | CONT, E)], [pong(A), pong(B), echo(A + B + C + D + E)]),
    *in_binary("5.20", [*TWO_PINGS_WITHIN, Frame(FIN | CONT, E)], [pong(A), pong(B), echo(A + B + C + D + E)], parts=1),
]
GREEK = "\u03ba\u1f79\u03c3\u03bc\u03b5".encode()
NO_TEXT = closing(UNSUPPORTED)


DONE = closing(NORMAL)
AFTER_CLOSE = [DONE]
CLOSES = [
    *in_binary("7.1.1", [message(HELLO)], [echo(HELLO)]),
    Row("7.1.2", [DONE, DONE], AFTER_CLOSE),
    Row("7.1.3", [DONE, ping()], AFTER_CLOSE),
    *in_binary("7.1.4", [DONE, message(HELLO)], AFTER_CLOSE),
    *in_binary("7.1.5", [AB[0], DONE, AB[1]], AFTER_CLOSE),
    *in_binary("7.1.6", [message(bodies(1 << 18)), message(A), DONE, ping()], [echo(bodies(1 << 18)), echo(A), DONE]),
    Row("7.3.1", [Frame(FIN | CLOSE)], [Frame(FIN | CLOSE)]),
    Row("7.3.2", [Frame(FIN | CLOSE, b"a")], [FAIL]),
    Row("7.3.3", [DONE], AFTER_CLOSE),
    Row("7.3.4", [closing(NORMAL, HELLO)], AFTER_CLOSE),
    Row("7.3.5", [closing(NORMAL, b"*" * 123)], AFTER_CLOSE),
    Row("7.3.6", [closing(NORMAL, b"*" * 124)], [FAIL]),
    Row("7.5.1", [closing(NORMAL, b"\xf4\x90\x80\x80")], [closing(INVALID)]),
    *[
        Row(f"7.7.{number}", [closing(code)], [closing(code)])
        for number, code in enumerate([*range(1000, 1004), *range(1007, 1012), 3000, 3999, 4000, 4999], 1)
    ],
    *[
        Row(f"7.9.{number}", [closing(code)], [FAIL])
        for number, code in enumerate([0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999], 1)
    ],
    Row("7.13.1", [closing(5000)], [FAIL]),
    Row("7.13.2", [closing(65535)], [FAIL]),
]
KIB = 1024
NUMBERED = bytes(range(256))


def sized(size: int) -> bytes:
    return (NUMBERED * (size // 256 + 1))[:size]


def split(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


LIMITS = [
    *[
        Row(f"9.2.{number}", [message(sized(size * KIB), BINARY)], [echo(sized(size * KIB))], 64 * KIB)
        for number, size in ((1, 64), (2, 256), (3, 1024))
    ],
    *[
        Row(f"9.4.{number}", in_fragments(split(sized(64 * KIB), size), BINARY), [echo(sized(64 * KIB))], 16 * KIB)
        for number, size in enumerate([64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB], 1)
    ],
    *[
        Row(f"9.8.{number}", [message(sized(size), BINARY)] * 100, [echo(sized(size))] * 100, 16 * KIB)
        for number, size in enumerate([0, 16, 64, 256, KIB, 4 * KIB], 1)
    ],
]
ROWS = [
    *FRAMING,
    *PINGS,
    *RESERVED_BITS,
    *OPCODES,
    *FRAGMENTS,
    *CLOSES,
    *LIMITS,
]


@both
@each_row("row", ROWS, ids=lambda row: row.case)
async def test_a_row_is_answered_as_it_says(row: Row, client: bool, autojump_clock: MockClock) -> None:
    frames = [frame.encoded(is_masked=not client) for frame in row.sent]
    heard, end = codes_of(row.heard), list[bytes]()
    if not is_closed(heard):
        heard, end = [*heard, DONE], [DONE.encoded(is_masked=not client)]
    data = b"".join(frames)
    if row.parts:
        assert await answers_to([*split(data, row.parts), *end], client=client) == heard
        return
    assert await answers_to([*frames, *end], client=client) == heard
    for pieces in (split(data, max(1, len(data) // 100)), [data]):
        answers = await answers_to([*pieces, *end], client=client)
        assert any(is_answer(answers, expected) for expected in (heard, codes_of(row.at_once or heard))), answers


def is_answer(answers: Sequence[Frame], heard: Sequence[Frame]) -> bool:
    """Return whether this is heard. A message needs no echo any more if the frame that closes came with it."""
    heard_back = echoes(answers)
    return without_echoes(answers) == without_echoes(heard) and heard_back == echoes(heard)[: len(heard_back)]


@both
@pytest.mark.parametrize("sent", [[message(GREEK)], in_fragments([A, B]), [message(b"\xff")]])
async def test_text_is_refused_whatever_it_holds(
    sent: Sequence[Frame], client: bool, autojump_clock: MockClock
) -> None:
    pieces = [frame.encoded(is_masked=not client) for frame in sent]

    assert await answers_to(pieces, client=client) == codes_of([NO_TEXT])


@both
async def test_a_frame_of_16_mib_is_one_byte_too_large(client: bool, autojump_clock: MockClock) -> None:
    """9.2.6."""
    header = Frame(FIN | BINARY, bytes(1 << 16)).encoded(is_masked=not client)[: 10 if client else 14]
    header = header[:2] + (1 << 24).to_bytes(8) + header[10:]

    assert await answers_to([header], client=client) == codes_of([closing(TOO_BIG)])


OFFER = b"permessage-deflate; client_max_window_bits; server_max_window_bits=8"
SHORT_AND_LONG = [message(sized(16), BINARY), *in_fragments(split(sized(128 * KIB), 4 * KIB), BINARY)]
COMPRESSED = reserved(4, message(b"\x4b\x04\x00", BINARY))


async def test_a_server_agrees_on_no_compression_and_echoes_what_is_not_compressed(autojump_clock: MockClock) -> None:
    """12, 13."""
    pieces = [frame.encoded(is_masked=True) for frame in [*SHORT_AND_LONG, COMPRESSED]]

    answers = await answers_to(pieces, client=False, offer=OFFER)

    assert answers == codes_of([echo(sized(16)), echo(sized(128 * KIB)), FAIL])


# What runs a row


def codes_of(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames as they are compared: the reason of a close frame is nobody's business."""
    return [frame._replace(body=frame.body[:2]) if frame.first == FIN | CLOSE else frame for frame in frames]


async def answers_to(pieces: Sequence[bytes], *, client: bool, offer: bytes = b"") -> list[Frame]:
    """Return what an echo over our transport says to these pieces, each sent once all is quiet."""
    ours, theirs = memory_stream_pair()

    async def echo_all() -> None:
        async with opened(ours, client=client) as transport:
            await echo_until_the_end(transport)

    data = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo_all)
        if client:
            await answer_handshake(theirs)
        else:
            await ask_for_handshake(theirs, offer)
        try:
            for piece in pieces:
                await theirs.send_all(piece)
                await wait_all_tasks_blocked()
            await theirs.send_eof()
        except trio.BrokenResourceError:
            pass  # our side closed, and what it said before is still to be read
        while chunk := await theirs.receive_some():
            data += chunk
    return codes_of(frames_in(data, is_masked=client))


@asynccontextmanager
async def opened(stream: trio.abc.Stream, *, client: bool) -> AsyncIterator[Transport]:
    options = ConnectOptions() if client else AcceptOptions()
    async with open_websocket(stream, HERE, Handshake(), options) as transport:
        yield transport


async def echo_until_the_end(transport: Transport) -> None:
    try:
        while frames := await transport.receive():
            await transport.send(frames)
    except (RemoteProtocolError, trio.BrokenResourceError):
        pass
    with trio.move_on_after(1):
        await transport.finish()


async def head_of(stream: trio.abc.Stream) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += bytes(await stream.receive_some())  # no frame comes before one is sent
    return head


async def ask_for_handshake(stream: trio.abc.Stream, offer: bytes) -> None:
    offers = [b"Sec-WebSocket-Extensions: " + offer] if offer else []
    await stream.send_all(request(*offers, first=b"GET / HTTP/1.1"))
    head = await head_of(stream)
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"extensions" not in head.lower()


async def answer_handshake(stream: trio.abc.Stream) -> None:
    accept = b"Sec-WebSocket-Accept: " + accept_for(await head_of(stream))
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade", accept]
    await stream.send_all(b"\r\n".join([*lines, b"", b""]))


def frames_in(data: bytes, *, is_masked: bool) -> Iterator[Frame]:
    """Return the frames that our side wrote, which are all well formed."""
    while data:
        size, start = data[1] & 0x7F, 2
        assert bool(data[1] & 0x80) is is_masked
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start])
        key, start = (data[start : start + 4], start + 4) if is_masked else (b"", start)
        body = data[start : start + size]
        assert len(body) == size
        yield Frame(data[0], masked(body, key) if is_masked else body)
        data = data[start + size :]
