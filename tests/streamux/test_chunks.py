"""Headers as the specification draws them for every pair of widths; and chunks out of bytes, however those were cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.framing import Framing, whole
from rsocket_trio.streamux.chunks import RESPONSE, TERMINATION, ChunkReader, HeaderLayout
from rsocket_trio.streamux.negotiation import Terms
from tests.memory import traced
from tests.streamux.pairs import ChunkHeader

clause = pytest.mark.clause
PAIRS = [Terms(id_bits, length_bits) for id_bits in range(30) for length_bits in range(1, 31 - id_bits)]
KIB = 1024

# A second implementation, of text: what the specification draws, most significant bit first


def drawn(terms: Terms, header: ChunkHeader) -> str:
    """The header's bits without the unused ones."""
    request_id = f"{header.request_id:0{terms.id_bits}b}" if terms.id_bits else ""
    return f"{request_id}{header.length:0{terms.length_bits}b}{header.response:d}{header.termination:d}"


def octets(total: int) -> int:
    """The specification's table of the bits that id and length have together."""
    (size,) = [
        size
        for size, (least, most) in enumerate(((1, 6), (7, 14), (15, 22), (23, 30)), 1)
        if total in range(least, most + 1)
    ]
    return size


def written(terms: Terms, header: ChunkHeader) -> bytes:
    """The drawing as octets, the last one first."""
    size = octets(terms.id_bits + terms.length_bits)
    bits = drawn(terms, header).rjust(8 * size, "0")
    return bytes(int(bits[at : at + 8], 2) for at in reversed(range(0, 8 * size, 8)))


def samples(terms: Terms, seed: int = 0) -> Iterator[ChunkHeader]:
    """Both ends of either field and some between, with each pair of bits."""
    random = Random(seed)
    id_cap, length_cap = 1 << terms.id_bits, 1 << terms.length_bits
    ids = {0, id_cap - 1, random.randrange(id_cap)}
    lengths = {0, 1, length_cap - 1, random.randrange(length_cap)}
    for request_id in ids:
        for length in lengths:
            for bits in range(4):
                yield ChunkHeader(request_id, length, bool(bits & 2), bool(bits & 1))


def test_there_are_465_pairs_of_widths() -> None:
    assert len(PAIRS) == 465


@clause("SMX-HDR-01", "SMX-HDR-02", "SMX-NEG-09")
def test_every_pair_of_widths_has_its_header_both_ways() -> None:
    for terms in PAIRS:
        layout = HeaderLayout(terms)
        for header in samples(terms):
            data = written(terms, header)

            assert header.encode(layout) == data, (terms, header)
            assert ChunkHeader.decode(layout, data) == header, (terms, header)
        assert layout.size == octets(terms.id_bits + terms.length_bits)


@clause("SMX-HDR-02", "SMX-HDR-04")
@pytest.mark.parametrize(
    ("terms", "header", "data"),
    [
        # 000000 1010101011 11000000000001 1 0
        (Terms(10, 14), ChunkHeader(0b1010101011, 0b11000000000001, True, False), "06 c0 ab 02"),
        # 000000 0000000001 00000000000101 0 1
        (Terms(10, 14), ChunkHeader(1, 5, False, True), "15 00 01 00"),
        # 10110 100000101 0 1
        (Terms(5, 9), ChunkHeader(0b10110, 0b100000101, False, True), "15 b4"),
        # 00001 000000000 1 1
        (Terms(5, 9), ChunkHeader(1, 0, True, True), "03 08"),
        # 101101 1 1
        (Terms(0, 6), ChunkHeader(0, 0b101101, True, True), "b7"),
        # 000001 0 0
        (Terms(0, 6), ChunkHeader(0, 1, False, False), "04"),
    ],
)
def test_the_specifications_drawings_give_these_bytes(terms: Terms, header: ChunkHeader, data: str) -> None:
    layout = HeaderLayout(terms)

    assert header.encode(layout).hex(" ") == data
    assert ChunkHeader.decode(layout, bytes.fromhex(data)) == header


@clause("SMX-HDR-03")
def test_each_unused_bit_is_refused_for_every_pair_that_has_some() -> None:
    with_unused = 0
    for terms in PAIRS:
        layout = HeaderLayout(terms)
        used = terms.id_bits + terms.length_bits + 2
        with_unused += used < 8 * layout.size
        for bit in range(used, 8 * layout.size):
            data = (1 << bit).to_bytes(layout.size, "little")
            match = f"upper {8 * layout.size - used} bits"
            with pytest.raises(RemoteProtocolError, match=match):
                ChunkHeader.decode(layout, data)
            with pytest.raises(RemoteProtocolError, match=match):
                ChunkReader(layout, terms.length_cap, Taken()).feed(data)

    full = [terms for terms in PAIRS if (terms.id_bits + terms.length_bits) in (6, 14, 22, 30)]
    assert with_unused == len(PAIRS) - len(full)


@clause("SMX-FLD-01", "SMX-FLD-06", "SMX-MSG-07")
@pytest.mark.parametrize(
    ("size", "lengths"), [(1, [1]), (6, [6]), (7, [7]), (8, [7, 1]), (14, [7, 7]), (15, [7, 7, 1])]
)
@pytest.mark.parametrize("response", [0, RESPONSE])
def test_a_message_is_cut_into_chunks_and_only_the_last_one_ends_it(
    size: int, lengths: list[int], response: int
) -> None:
    layout = HeaderLayout(Terms(5, 3))
    data = bytes(range(size))
    chunks = [whole(chunk) for chunk in layout.cut(9, data, response | TERMINATION, 7)]
    headers = [ChunkHeader.decode(layout, chunk) for chunk in chunks]

    assert [header.length for header in headers] == lengths
    assert [header.termination for header in headers] == [False] * (len(lengths) - 1) + [True]
    assert {(header.request_id, header.response) for header in headers} == {(9, bool(response))}
    assert b"".join(chunk[layout.size :] for chunk in chunks) == data
    assert not any(ChunkHeader.decode(layout, whole(chunk)).termination for chunk in layout.cut(9, data, response, 7))


# Chunks out of bytes


class Taken:
    """Takes what a reader hands on; of ids in ``unwanted`` no payload that comes in parts."""

    def __init__(self, unwanted: frozenset[int] = frozenset()) -> None:
        self.unwanted = unwanted
        self.chunks: list[tuple[int, int, bytes]] = []
        self.asked: list[tuple[int, int, int]] = []
        self.skipped: list[tuple[int, int]] = []

    def on_chunk(self, request_id: int, bits: int, payload: bytes) -> None:
        self.chunks.append((request_id, bits, payload))

    def on_run(self, request_id: int, bits: int, payloads: list[bytes]) -> None:
        self.chunks += [(request_id, bits, payload) for payload in payloads]

    def begin_chunk(self, request_id: int, length: int, bits: int) -> bool:
        self.asked.append((request_id, length, bits))
        return request_id not in self.unwanted

    def on_skipped(self, request_id: int, bits: int) -> None:
        self.skipped.append((request_id, bits))


LAYOUTS = [HeaderLayout(terms) for terms in (Terms(0, 6), Terms(5, 9), Terms(10, 7), Terms(10, 14))]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.size} octets")


def stream_of(layout: HeaderLayout, chunks: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(layout.pack(request_id, len(payload), bits) + payload for request_id, bits, payload in chunks)


def taken(layout: HeaderLayout, pieces: list[bytes]) -> list[tuple[int, int, bytes]]:
    consumer = Taken()
    reader = ChunkReader(layout, 60, consumer)
    for piece in pieces:
        reader.feed(piece)
    assert reader.partial == ""
    assert all(type(payload) is bytes for _, _, payload in consumer.chunks)
    return consumer.chunks


@st.composite
def streams(draw: st.DrawFn) -> tuple[HeaderLayout, list[tuple[int, int, bytes]], list[bytes]]:
    """Chunks of any terms, and their bytes in any pieces."""
    id_bits, length_bits = draw(st.integers(0, 20)), draw(st.integers(1, 10))
    layout = HeaderLayout(Terms(id_bits, length_bits))
    payloads = st.binary(max_size=min((1 << length_bits) - 1, 60))
    chunk = st.tuples(st.integers(0, (1 << id_bits) - 1), st.integers(0, 3), payloads)
    chunks = draw(st.lists(chunk, max_size=12))
    data = stream_of(layout, chunks)
    cuts = [0, *sorted(draw(st.lists(st.integers(0, len(data)), max_size=20))), len(data)]
    return layout, chunks, [data[start:end] for start, end in pairwise(cuts)]


@given(stream=streams())
def test_any_chunks_in_any_pieces_give_the_same_chunks(
    stream: tuple[HeaderLayout, list[tuple[int, int, bytes]], list[bytes]],
) -> None:
    layout, chunks, pieces = stream

    assert taken(layout, pieces) == chunks


@clause("SMX-MSG-10")
@each_layout
def test_a_length_above_the_limit_is_refused_with_its_header_and_the_chunks_before_it_are_not_lost(
    layout: HeaderLayout,
) -> None:
    consumer = Taken()
    reader = ChunkReader(layout, 60, consumer)
    good = layout.pack(0, 2, TERMINATION) + b"ok"

    with pytest.raises(RemoteProtocolError, match="chunk of 61 bytes on request id 0, limit 60"):
        reader.feed(good + layout.pack(0, 61, 0))
    assert (consumer.chunks, consumer.asked) == ([(0, TERMINATION, b"ok")], [])


@clause("SMX-MSG-10")
def test_a_length_that_was_announced_is_not_allocated() -> None:
    layout = HeaderLayout(Terms(0, 30))
    largest = 2**30 - 1
    reader = ChunkReader(layout, largest, Taken())
    data = layout.pack(0, largest, 0) + bytes(KIB)
    with traced() as memory:
        reader.feed(data)
        allocated = memory.peak()

    assert reader.partial == f"inside a chunk of request id 0: 1024 of {largest} bytes came"
    assert allocated < 64 * KIB


def test_an_unwanted_chunk_is_skipped_and_not_kept() -> None:
    layout = HeaderLayout(Terms(4, 22))
    consumer = Taken(unwanted=frozenset({7}))
    reader = ChunkReader(layout, 2**22, consumer)
    piece = bytes(64 * KIB)
    with traced() as memory:
        reader.feed(layout.pack(7, 40 * len(piece), TERMINATION))
        for _ in range(39):
            reader.feed(piece)
        allocated = memory.now()
    reader.feed(piece + layout.pack(8, 1, RESPONSE) + b"x")

    assert allocated < 64 * KIB
    assert consumer.asked == [(7, 40 * len(piece), TERMINATION)]
    assert consumer.skipped == [(7, TERMINATION)]
    assert consumer.chunks == [(8, RESPONSE, b"x")]


@clause("SMX-SPU-05")
@pytest.mark.parametrize(
    ("data", "torn"),
    [
        ("", ""),
        ("15", "inside a chunk header: 1 of 4 bytes came"),
        ("15 00 01", "inside a chunk header: 3 of 4 bytes came"),
        ("15 00 01 00", "inside a chunk of request id 1: 0 of 5 bytes came"),
        ("15 00 01 00 61 62 63 64", "inside a chunk of request id 1: 4 of 5 bytes came"),
        ("15 00 01 00 61 62 63 64 65", ""),
        ("15 00 01 00 61 62 63 64 65 01", "inside a chunk header: 1 of 4 bytes came"),
        ("01 00 01 00", ""),
    ],
)
def test_where_the_bytes_end_is_told(data: str, torn: str) -> None:
    reader = ChunkReader(HeaderLayout(Terms(10, 14)), 100, Taken())

    reader.feed(bytes.fromhex(data))

    assert reader.partial == torn


def test_unframed_bytes_are_handed_on_as_they_come_and_pieces_are_joined_once() -> None:
    framing = Framing()

    assert framing.feed(b"12") + framing.feed(b"345") == [b"12", b"345"]
    assert framing.join([b"12", (b"3", memoryview(b"45"))]) == b"12345"
    assert (framing.mid_frame, framing.error) == (False, None)
