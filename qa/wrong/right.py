"""Manners in which a server of RSocket 1.0 is right and unusual: a fair tester finds no failure in one."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from tests.conformance import raw
from tests.conformance.raw import C, F, I, M, N, R

FIVE: Final = (5).to_bytes(4, "big")
GREETING: Final = (
    raw.ask(2, b"who are you?"),
    raw.frame(raw.KEEPALIVE, R, 0, bytes(8) + b"are you there?"),
    raw.frame(raw.REQUEST_FNF, 0, 4, b"welcome"),
    raw.frame(raw.REQUEST_STREAM, 0, 6, FIVE + b"news"),
    raw.frame(raw.REQUEST_CHANNEL, 0, 8, FIVE + b"talk"),
    raw.ask(10, b"a request ", F),
    raw.payload(10, b"in two fragments", N),
    raw.frame(raw.METADATA_PUSH, M, 0, b"hello"),
    raw.frame(raw.EXT, I, 0, FIVE + b"more"),
    raw.frame(raw.EXT, I | M, 2, FIVE + raw.sized(b"e")),
)
UNUSED: Final = {
    raw.LEASE: 0x0FF,
    raw.KEEPALIVE: 0x17F,
    raw.REQUEST_N: 0x1FF,
    raw.PAYLOAD: 0x01F,
    raw.ERROR: 0x1FF,
}
"""The flags that mean nothing in what a server sends."""
WITH_RESERVED_BIT: Final = (raw.LEASE, raw.KEEPALIVE, raw.REQUEST_N)
"""The types whose first field has a reserved bit."""


def as_it_is(frame: bytes) -> list[bytes]:
    """Change nothing."""
    return [frame]


def in_fragments(frame: bytes) -> list[bytes]:
    """Send a payload of 2 bytes and more in two fragments."""
    header = raw.parsed(frame)
    if header.type != raw.PAYLOAD:
        return [frame]
    end = 3 + int.from_bytes(header.body[:3], "big") if header.flags & M else 0
    metadata, data = header.body[3:end], header.body[end:]
    half = (len(metadata) + len(data)) // 2
    first = header.flags & ~C | F
    if not half:
        return [frame]
    if half < len(metadata):
        return [
            raw.frame(raw.PAYLOAD, first, header.stream_id, raw.sized(metadata[:half])),
            raw.frame(raw.PAYLOAD, header.flags, header.stream_id, raw.sized(metadata[half:]) + data),
        ]
    half -= len(metadata)
    return [
        raw.frame(raw.PAYLOAD, first, header.stream_id, header.body[: end + half]),
        raw.frame(raw.PAYLOAD, header.flags & ~M, header.stream_id, data[half:]),
    ]


def one_by_one(frame: bytes) -> list[bytes]:
    """Send an item and its end in two frames, and grant items one by one."""
    header = raw.parsed(frame)
    if header.type == raw.PAYLOAD and header.flags & C and header.flags & N:
        first = raw.frame(raw.PAYLOAD, header.flags & ~C, header.stream_id, header.body)
        return [first, raw.frame(raw.PAYLOAD, C, header.stream_id)]
    if header.type == raw.REQUEST_N:
        return [raw.request_n(header.stream_id, 1)] * int.from_bytes(header.body, "big")
    return [frame]


def with_spare_bits(frame: bytes) -> list[bytes]:
    """Set bits that should be 0."""
    header = raw.parsed(frame)
    body = header.body
    if header.type in WITH_RESERVED_BIT:
        body = bytes([body[0] | 0x80]) + body[1:]
    return [raw.frame(header.type, header.flags | UNUSED.get(header.type, 0), header.stream_id, body)]


class Manner(Enum):
    """The manners: how a frame of the server is sent, and what it says by itself behind the client's SETUP."""

    TALKS = "it requests right after SETUP, and sends KEEPALIVE, METADATA_PUSH and EXT with I", as_it_is, GREETING
    FRAGMENTS = "it sends every payload of 2 bytes and more in fragments", in_fragments, ()
    ONE_BY_ONE = "it sends an item and its end in two frames, and grants one by one", one_by_one, ()
    SETS_BITS = "it sets bits that should be 0", with_spare_bits, ()

    def __init__(self, description: str, reshape: Callable[[bytes], list[bytes]], greeting: tuple[bytes, ...]) -> None:
        self.description = description
        self.reshape = reshape
        self.greeting = greeting

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")
