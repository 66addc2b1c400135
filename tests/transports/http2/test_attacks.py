"""Attacks on servers of HTTP/2, most of them with a name: each ends its own connection, or holds little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, repeat

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio.limits import Limits
from rsocket_trio.transports.http2.http2_stream import FULL, JOINED, MAX_UNWRITTEN, STREAM_WINDOW, TURN
from rsocket_trio.transports.http2.multiplexed import EMPTY_FRAMES, EMPTY_RATE
from tests.each_row import each_row, some
from tests.transports.http2.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    REQUEST,
    RST_STREAM,
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
LIMITS = Limits(cancels=200, cancel_rate=20)
AT_ONCE = 100
"""Repetitions in one write."""
MOST = 4 * EMPTY_FRAMES
"""Repetitions that every attack ends before."""
WIDE = settings((4, 0x7FFFFFFF)) + window(0, 0x7FFFFFFF - 65535)
"""The largest windows that there are."""


def odd(*parts: Callable[[int], bytes]) -> Iterator[bytes]:
    """Each of these frames for one new stream after the other."""
    return (b"".join(part(stream_id) for part in parts) for stream_id in count(3, 2))


def pings() -> Iterator[bytes]:
    return repeat(frame(PING, body=bytes(8)))


def shuffles() -> Iterator[bytes]:
    """PRIORITY frames that build the tree of dependencies anew again and again."""
    return (
        frame(PRIORITY, 0, 1 + 2 * (turn % 9), (101 + 2 * (turn % 7)).to_bytes(4, "big") + b"\7") for turn in count()
    )


def bomb() -> bytes:
    """A header of 4,000 bytes, and 16,000 references to it."""
    name, value = b"x", b"y" * 3900
    literal = b"\x40\x01" + name + b"\x7f" + bytes((len(value) - 127 & 0x7F | 0x80, len(value) - 127 >> 7)) + value
    return frame(HEADERS, END_HEADERS, 1, BLOCK + literal + b"\xbe" * 16_000)


# fmt: off
ATTACKS = [
    # CVE                what                                         first                                                then, again and again                                             GOAWAY
    ("CVE-2019-9511",    "a window opened byte by byte",              settings((4, 0)) + request() + data(body=bytes(9000)), repeat(window(1, 1)),                                           ENHANCE_YOUR_CALM),
    ("CVE-2019-9512",    "pings",                                     b"",                                                 pings(),                                                          ENHANCE_YOUR_CALM),
    ("CVE-2019-9513",    "priorities",                                b"",                                                 shuffles(),                                                       ENHANCE_YOUR_CALM),
    ("CVE-2019-9515",    "settings",                                  b"",                                                 repeat(settings()),                                               ENHANCE_YOUR_CALM),
    ("CVE-2019-9516",    "headers without name and value",            b"",                                                 odd(lambda each: frame(HEADERS, 4, each, BLOCK + bytes(3))),      PROTOCOL_ERROR),
    ("CVE-2019-9518",    "DATA without a byte",                       request(),                                           repeat(data(body=b"")),                                           ENHANCE_YOUR_CALM),
    ("CVE-2019-9518",    "DATA of padding",                           request(),                                           repeat(frame(DATA, 8, 1, b"\0")),                                 ENHANCE_YOUR_CALM),
    ("CVE-2024-27316",   "a header block without an end",             frame(HEADERS, 0, 1, BLOCK),                         repeat(frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b")),             ENHANCE_YOUR_CALM),
    ("CVE-2024-28182",   "a header block in large frames",            frame(HEADERS, 0, 1, BLOCK),                         repeat(frame(CONTINUATION, 0, 1, bytes(16384))),                  ENHANCE_YOUR_CALM),
    ("CVE-2024-30255",   "a header block in empty frames",            frame(HEADERS, 0, 1, BLOCK),                         repeat(frame(CONTINUATION, 0, 1)),                                ENHANCE_YOUR_CALM),
    ("CVE-2023-45288",   "the same on a stream that was reset",       request() + reset() + frame(HEADERS, 0, 1, BLOCK),   repeat(frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b")),             ENHANCE_YOUR_CALM),
    ("CVE-2016-6581",    "headers that unfold to 64 MB",              b"",                                                 repeat(bomb()),                                                   ENHANCE_YOUR_CALM),
    ("",                 "resets of a closed stream",                 request() + reset(),                                 repeat(reset()),                                                  ENHANCE_YOUR_CALM),
    ("",                 "headers of a closed stream",                request() + reset(),                                 repeat(request()),                                                ENHANCE_YOUR_CALM),
    ("",                 "windows of a closed stream",                request() + reset(),                                 repeat(window(1)),                                                ENHANCE_YOUR_CALM),
    ("",                 "frames of an unknown type",                 b"",                                                 repeat(frame(0xEE)),                                              ENHANCE_YOUR_CALM),
    ("",                 "goodbyes",                                  request(),                                           repeat(frame(GOAWAY, body=bytes(8))),                             ENHANCE_YOUR_CALM),
]
# fmt: on


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [pytest.param(first, then, code, id=f"{name} {what}".strip()) for name, what, first, then, code in ATTACKS],
)
async def test_an_attack_ends_its_own_connection(
    first: bytes, then: Iterator[bytes], code: int, autojump_clock: MockClock
) -> None:
    told: list[int] = []
    async with raw_client(LIMITS) as peer, trio.open_nursery() as nursery:

        async def attack() -> None:
            await peer.send(first)
            for _ in range(MOST // AT_ONCE):
                await peer.send(*(next(then) for _ in range(AT_ONCE)))
                await wait_all_tasks_blocked()
                if told:
                    return

        nursery.start_soon(attack)
        while (came := await peer.receive()) is not None:
            if came.kind == GOAWAY:
                told.append(came.code)
        nursery.cancel_scope.cancel()

    assert told == [code]
    assert peer.accepted is not None
    assert len(peer.accepted.connection.h2.streams) <= LIMITS.shared_connections + AT_ONCE


# fmt: off
SHORT = [
    # what                                     first                            then, for each new stream
    ("CVE-2023-44487",                         b"",                             lambda each: request(each) + reset(each)),
    ("reset behind its content",               b"",                             lambda each: request(each) + data(each) + reset(each)),
    ("CVE-2019-9518 no byte",                  b"",                             lambda each: request(each, END_STREAM)),
    ("over behind padding alone",              b"",                             lambda each: request(each) + frame(DATA, PADDED | END_STREAM, each, b"\2\0\0")),
    ("reset behind padding alone",             b"",                             lambda each: request(each) + frame(DATA, PADDED, each, b"\2\0\0") + reset(each)),
    ("CVE-2019-9514 refused",                  b"",                             lambda each: request(each, headers=REQUEST[:4])),
    ("refused as one too many",                b"".join(map(request, range(1, 2001, 2))), lambda each: request(each + 2000)),
    ("CVE-2025-8671 reset for its window",     b"",                             lambda each: request(each) + window(each, 0x7FFFFFFF)),
]
# fmt: on


@each_row("first, then", some([row[1:] for row in SHORT], 2), ids=some([row[0] for row in SHORT], 2))
async def test_a_stream_that_comes_to_nothing_costs_its_client_as_much_as_a_cancel(
    first: bytes, then: Callable[[int], bytes], autojump_clock: MockClock
) -> None:
    async with raw_client(LIMITS) as peer:
        await peer.send(first)
        await wait_all_tasks_blocked()
        assert peer.accepted is not None
        connection = peer.accepted.connection
        for number in range(LIMITS.cancels):
            await peer.send(then(2 * number + 1))
            await wait_all_tasks_blocked()
        assert connection.failure == ""
        await peer.send(then(2 * LIMITS.cancels + 1))
        await wait_all_tasks_blocked()
        assert "streams reset, refused or without content" in connection.failure


async def test_data_in_a_window_that_is_opened_by_one_byte_pays_for_no_frame(autojump_clock: MockClock) -> None:
    """CVE-2019-9511: each byte is waited for, so that each WINDOW_UPDATE has a DATA frame of its own."""
    async with raw_client() as peer:
        await peer.send(settings((4, 0)), request(), data(body=bytes(2 * EMPTY_FRAMES)))
        await wait_all_tasks_blocked()
        came: list[int] = []
        for _ in range(EMPTY_FRAMES + 1):
            await peer.send(window(1, 1))
            while (next_frame := await peer.receive()) is not None and next_frame.kind not in {DATA, GOAWAY}:
                pass
            assert next_frame is not None
            if next_frame.kind == GOAWAY:
                assert next_frame.code == ENHANCE_YOUR_CALM
                break
            came.append(len(next_frame.body))
        else:
            pytest.fail("each byte paid for the next one")
        assert set(came) == {1}


async def test_one_who_does_not_read_answers_is_closed(autojump_clock: MockClock) -> None:
    """Answers are bounded even where the frames that ask for them come so slowly that each is forgiven."""
    async with raw_client(size=1000) as peer:
        assert peer.accepted is not None
        connection = peer.accepted.connection
        for _ in range(40):
            await peer.send(frame(PING, body=bytes(8)) * 1000)
            await trio.sleep(1000 / EMPTY_RATE)
            if connection.failure:
                break
        assert connection.failure.endswith(
            f"bytes of answers wait for a peer that does not read, limit {MAX_UNWRITTEN}"
        )


async def test_answers_to_one_who_does_not_read_are_bounded(autojump_clock: MockClock) -> None:
    """CVE-2019-9517: wide windows, and no bytes taken from the connection."""
    async with raw_client(size=1000) as peer:
        await peer.send(WIDE, *map(request, range(1, 201, 2)))
        for stream_id in range(1, 201, 2):
            await peer.send(data(stream_id, bytes(60_000)))
        await wait_all_tasks_blocked()

        assert peer.accepted is not None
        connection = peer.accepted.connection
        assert connection.failure == ""
        assert connection.outlet.size <= FULL + TURN + 100
        assert sum(stream.waiting for stream in connection.streams.values()) <= 100 * 60_000


async def test_small_pieces_that_nobody_reads_take_little_more_than_their_bytes(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer:
        await peer.send(request(), data() * 20_000)
        await wait_all_tasks_blocked()
        assert peer.accepted is not None
        [lane] = peer.accepted.connection.streams.values()

        assert lane.waiting == 20_000
        assert len(lane._pieces) == 1 + 20_000 // JOINED
        assert b"".join(iter(lane.take, b"")) == b"x" * 20_000


async def test_more_than_a_window_is_refused(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer:
        await peer.send(request(), data(body=bytes(65536)) * (STREAM_WINDOW // 65536))
        assert GOAWAY not in [each.kind for each in await peer.rest()]
        await peer.send(data())
        assert [each.code for each in await peer.rest() if each.kind == GOAWAY] == [3]


async def test_settings_that_h2_does_not_know_are_not_kept(autojump_clock: MockClock) -> None:
    async with raw_client() as peer:
        for start in range(0x100, 0xD000, 10_000):
            await peer.send(settings(*((number, 1) for number in range(start, start + 10_000))))
        await wait_all_tasks_blocked()

        assert peer.accepted is not None
        assert len(peer.accepted.connection.h2.remote_settings) < 10


async def test_a_table_of_headers_is_no_larger_than_this_side_wants(autojump_clock: MockClock) -> None:
    async with raw_client() as peer:
        await peer.send(settings((1, 0xFFFFFFFF)))
        await wait_all_tasks_blocked()

        assert peer.accepted is not None
        assert peer.accepted.connection.h2.encoder.header_table_size == 4096


async def test_streams_that_were_reset_count_until_their_tasks_are_over(autojump_clock: MockClock) -> None:
    """CVE-2023-44487: a reset frees nothing at this side as long as the stream is worked on."""
    async with raw_client(Limits(shared_connections=5), echoes=False) as peer:
        for stream_id in range(1, 21, 2):
            await peer.send(request(stream_id), data(stream_id), reset(stream_id))
        came = await peer.rest()

        assert len(peer.streams) == 5
        assert {each.stream_id for each in came if each.kind == RST_STREAM} == {11, 13, 15, 17, 19}
        for stream in peer.streams:
            stream.cut()
        await peer.send(request(21))
        await peer.rest()
        assert len(peer.streams) == 6
