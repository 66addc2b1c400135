"""Whatever bytes a client sends, and however they are cut, the server closes or goes on, and nothing fails in it."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.transports.http2.raw_http2 import (
    BEGIN,
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
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


async def test_the_conversation_is_answered(autojump_clock: MockClock) -> None:
    assert said(await answers(TALK)) == {1: b"firstpaddedmore", 3: b"s" * 300 + b"last"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
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


async def test_chance_alone_is_refused(autojump_clock: MockClock) -> None:
    for seed in range(SEEDS):
        came = await answers(BEGIN, random.Random(seed).randbytes(300))
        assert not said(came)
