"""Targets that cut bytes into pieces: frame splitters, chunk readers, the message that begins Streamux.

Of each the result must be the same however the bytes were cut on their way.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Final, TypeAlias
from zlib import crc32

from qa.fuzz.targets import Target
from rsocket_trio.connection.protocols import detect_protocol, name_of
from rsocket_trio.errors import NegotiationFailed, RemoteProtocolError
from rsocket_trio.mux.framing import Framing, Framing24, Framing32
from rsocket_trio.rsocket.detection import UNDECIDED, Undecided, answer_for
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_1, RSOCKET_1_0
from rsocket_trio.streamux.chunks import ChunkReader, HeaderLayout
from rsocket_trio.streamux.negotiation import Initialize, Terms, negotiate
from rsocket_trio.streamux_magic import SIZE
from tests.rsocket.test_vectors import ALL
from tests.streamux.pairs import ChunkHeader

Split: TypeAlias = tuple[list[bytes], str]
"""The frames, and why nothing more was understood."""

FRAME_LIMIT: Final = 2000
"""Bytes: small, so that mutated lengths are often above it."""


PATTERNS: Final = ((1,), (1, 2, 40), (3, 1000), (7,), (2, 1, 1, 5), (100, 1), (4, 3), (5, 2))
"""Sizes of pieces, over and over."""


def cuts(data: bytes) -> list[bytes]:
    """The data in pieces; where it is cut follows from the data alone, so that a finding can be repeated."""
    pieces: list[bytes] = []
    start = 0
    for size in cycle(PATTERNS[crc32(data) % len(PATTERNS)]):
        if start >= len(data):
            break
        pieces.append(data[start : start + size])
        start += size
    return pieces


# Frame splitters


def split(framing: Framing, pieces: list[bytes]) -> Split:
    frames = [frame for piece in pieces for frame in framing.feed(piece)]
    if framing.error is not None:
        assert framing.feed(b"\0" * 100) == []
    return frames, "" if framing.error is None else str(framing.error)


def splitter(name: str, make: Callable[[], Framing], seeds: tuple[bytes, ...]) -> Target:
    def read(data: bytes) -> Split:
        frames, error = split(make(), [data])
        assert split(make(), cuts(data)) == (frames, error), "how the bytes were cut changed what came of them"
        joined = make().join(frames)
        assert data.startswith(joined), "the frames are not what the bytes said"
        return frames, error

    def write(what: Split) -> bytes:
        return make().join(what[0])

    def as_written(what: Split) -> Split:
        return what[0], ""

    return Target(name, seeds, read, write, (), as_written=as_written)


def framed(framing: Framing24 | Framing32) -> tuple[bytes, ...]:
    """Three vectors behind one another, with their lengths."""
    frames = [one.data for one in ALL if one.dialect.framing is type(framing) and framing_fits(one.data)]
    return tuple(framing.join(frames[at : at + 3]) for at in range(0, len(frames), 3))


def framing_fits(data: bytes) -> bool:
    return 8 <= len(data) <= 200


# The message that begins Streamux: decoded, checked, and negotiated with peers of every kind

OTHERS: Final = (
    Initialize(min_id=0, max_id=29, rec_id=14, min_len=1, max_len=24, rec_len=16, qa=True),
    Initialize(min_id=6, max_id=12, rec_id=8, min_len=6, max_len=20, rec_len=14),
    Initialize(min_id=8, max_id=15, rec_id=8, min_len=10, max_len=18, rec_len=18, qr=True),
    Initialize(min_id=15, max_id=29, rec_id=31, min_len=15, max_len=30, rec_len=31),
)


def read_initialize(data: bytes) -> Initialize:
    message = Initialize.decode(data)
    for other in OTHERS:
        forth, back = agreed(message, other), agreed(other, message)
        assert forth == back, f"{message} and {other} agree on {forth} or {back}"
        if forth is not None:
            assert 2 <= forth.id_bits + forth.length_bits + 2 <= 32, forth
            for one in (message, other):
                assert one.min_id <= forth.id_bits <= one.max_id, (one, forth)
                assert one.min_len <= forth.length_bits <= one.max_len, (one, forth)
    return message


def agreed(a: Initialize, b: Initialize) -> Terms | None:
    try:
        return negotiate(a, b)[0]
    except NegotiationFailed:
        return None


# Chunks: the first two bytes of the input are the widths

CHUNK_LIMIT: Final = 5000


class Chunks:
    """Takes what a reader finds; every third request id is not wanted, and its chunks are none."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int, bytes | None]] = []

    def on_chunk(self, request_id: int, bits: int, payload: bytes) -> None:
        self.found.append((request_id, bits, payload if self.begin_chunk(request_id, 0, 0) else None))

    def on_run(self, request_id: int, bits: int, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.on_chunk(request_id, bits, payload)

    def begin_chunk(self, request_id: int, length: int, bits: int) -> bool:
        return request_id % 3 != 2

    def on_skipped(self, request_id: int, bits: int) -> None:
        self.found.append((request_id, bits, None))


def read_chunks(data: bytes) -> list[tuple[int, int, bytes | None]]:
    terms, rest = terms_of(data), data[2:]
    layout = HeaderLayout(terms)
    whole, error, torn = chunks_in(layout, [rest])
    assert chunks_in(layout, cuts(rest)) == (whole, error, torn), "how the bytes were cut changed what came of them"
    at = 0
    for request_id, bits, payload in whole:
        header = ChunkHeader.decode(layout, rest[at:])
        assert (header.request_id, header.response << 1 | header.termination) == (request_id, bits)
        assert header.encode(layout) == rest[at : at + layout.size]
        at += layout.size + header.length
        assert payload is None or payload == rest[at - header.length : at]
    assert error or torn or at == len(rest)
    return whole


def terms_of(data: bytes) -> Terms:
    id_bits = data[0] % 30 if data else 4
    return Terms(id_bits, 1 + (data[1] if len(data) > 1 else 0) % (30 - id_bits))


def chunks_in(layout: HeaderLayout, pieces: list[bytes]) -> tuple[list[tuple[int, int, bytes | None]], str, str]:
    consumer = Chunks()
    reader = ChunkReader(layout, CHUNK_LIMIT, consumer)
    try:
        for piece in pieces:
            reader.feed(piece)
    except RemoteProtocolError as error:
        return consumer.found, str(error), ""
    return consumer.found, "", reader.partial


def chunk_seeds() -> tuple[bytes, ...]:
    seeds: list[bytes] = []
    for id_bits, length_bits in ((0, 1), (4, 8), (8, 16), (14, 16), (5, 1), (29, 1), (1, 29)):
        layout = HeaderLayout(Terms(id_bits, length_bits))
        chunks = [bytes((id_bits, length_bits - 1))]
        for number in range(6):
            payload = bytes(min(number * 7, layout.length_mask))
            header = ChunkHeader(number % (1 << id_bits), len(payload), number % 2 == 1, number % 3 == 1)
            chunks += (header.encode(layout), payload)
        seeds.append(b"".join(chunks))
    return tuple(seeds)


# The first bytes of a connection: once they tell whose they are, further bytes don't change that

ENOUGH: Final = 20
"""Bytes, more than any dialect needs to be told."""


def read_first_bytes(data: bytes) -> str:
    """Return the verdict on all bytes; on some of them, a number drawn from the data, it is the same or none yet."""
    size = crc32(data) % ENOUGH
    some, more, whole = (said(part, ended=False) for part in (data[:size], data[: size + 1], data[:ENOUGH]))
    assert some in (UNDECIDED.name, more), f"{some} after {size} bytes, {more} after one more"
    assert some in (UNDECIDED.name, whole), f"{some} after {size} bytes, {whole} after all"
    assert whole != UNDECIDED.name or len(data) < ENOUGH
    last = said(data, ended=True)
    assert whole in (UNDECIDED.name, last), f"{whole}, and {last} at the end"
    detect_protocol(data, message=True, ended=True)
    return last


def said(data: bytes, *, ended: bool) -> str:
    """Return the dialect of these first bytes; where they have none, the dialect of the answer."""
    found = detect_protocol(data, message=False, ended=ended)
    if found is UNDECIDED:
        assert not ended
        return UNDECIDED.name
    if found is None:
        answer = answer_for(data, message=False)
        return f"nobody, told in {answer.name if answer else 'silence'}"
    assert not isinstance(found, Undecided)
    return name_of(found)


def first_bytes() -> tuple[bytes, ...]:
    """The beginnings of connections, and of frames that should not begin one."""
    setups = [one.data for one in ALL if one.name.startswith(("SETUP", "RESUME,")) and framing_fits(one.data)]
    return (
        *(framing.join([data]) for data in setups for framing in (Framing24(), Framing32(FRAME_LIMIT, 8))),
        *(other.encode() for other in OTHERS),
        *(seed[:40] for seed in framed(Framing24())),
    )


# What a chunk reader found is checked against its bytes where it is read; there is nothing more to write.

NOTHING: Final = read_first_bytes(b"")

STREAMS: Final = {
    target.name: target
    for target in (
        splitter("framing_24", lambda: Framing24(FRAME_LIMIT, RSOCKET_1_0.codec.minimum), framed(Framing24())),
        splitter(
            "framing_32",
            lambda: Framing32(FRAME_LIMIT, REACTIVESOCKET_0_1.codec.minimum, 500),
            framed(Framing32(FRAME_LIMIT, 8)),
        ),
        Target(
            "initialize",
            tuple(one.encode() for one in OTHERS),
            read_initialize,
            Initialize.encode,
            (NegotiationFailed,),
        ),
        Target("first_bytes", first_bytes(), read_first_bytes, lambda found: b"", (), as_written=lambda found: NOTHING),
        Target("chunks", chunk_seeds(), read_chunks, lambda found: b"", (), as_written=lambda found: []),
    )
}
assert all(len(seed) == SIZE for seed in STREAMS["initialize"].seeds)
