"""Joining what was split gives the payload back; metadata ends before data begins; too much is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.reassembly import PartialPayload
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
from rsocket_trio.rsocket.frames import PayloadFrame
from rsocket_trio.rsocket.stream_sender import fragments

HEADER = 3
NONE = 1 << 30


def cut(payload: Payload, first: int, room: int) -> list[PayloadFrame]:
    size = RSOCKET_1_0.codec.header_size + room
    frames = list(fragments(RSOCKET_1_0, size, PayloadFrame(1, payload), room - first))
    decoded = [RSOCKET_1_0.codec.decode(whole(frame)) for frame in frames]
    return [frame for frame in decoded if isinstance(frame, PayloadFrame)]


def join(parts: list[PayloadFrame]) -> Payload:
    assembly = PartialPayload()
    for one in parts:
        assembly.add(one.payload, NONE, NONE)
    return assembly.join()


def check(payload: Payload, first: int, room: int) -> None:
    parts = cut(payload, first, room)
    assert join(parts) == payload
    assert [one.follows for one in parts] == [True] * (len(parts) - 1) + [False]
    data_began = False
    for index, one in enumerate(parts):
        metadata, data = one.payload.metadata, one.payload.data
        size = len(data) + (0 if metadata is None else HEADER + len(metadata))
        assert size <= (first if index == 0 else room)
        assert not (data_began and metadata is not None)
        data_began = data_began or len(data) > 0
        assert size or len(parts) == 1


ROOM = 20
SIZES = sorted(
    {0, 1, *(n * ROOM + d for n in (1, 2, 3) for d in (-1, 0, 1)), *(17 * n + d for n in (1, 2) for d in (-1, 0, 1))}
)


@pytest.mark.clause("RS10-FRAG-03", "RS02-FRAG-02")
@pytest.mark.parametrize("first", [ROOM, ROOM - 4])
def test_around_each_limit_what_was_cut_joins_again(first: int) -> None:
    for data in SIZES:
        check(Payload(bytes(range(data % 251)) * (data // (data % 251 or 1) + 1)), first, ROOM)
        for metadata in SIZES:
            check(Payload(b"d" * data, b"m" * metadata), first, ROOM)


@given(st.binary(max_size=300), st.none() | st.binary(max_size=300), st.integers(8, 60), st.integers(0, 4))
def test_any_payload_joins_again(data: bytes, metadata: bytes | None, room: int, fixed: int) -> None:
    check(Payload(data, metadata), room - fixed, room)


@pytest.mark.clause("RS10-FRAG-09")
def test_metadata_after_data_is_refused() -> None:
    assembly = PartialPayload()
    assembly.add(Payload(b"", b"m"), NONE, NONE)
    assembly.add(Payload(b"d", b"m"), NONE, NONE)

    with pytest.raises(RemoteProtocolError, match="after data"):
        assembly.add(Payload(b"", b""), NONE, NONE)


@pytest.mark.clause("RS10-FRAG-08", "RS10-UNX-06", "RS02-UNX-04")
def test_the_limit_is_the_sum_of_both_parts() -> None:
    assembly = PartialPayload()
    assembly.add(Payload(b"", b"m" * 60), 100, NONE)
    assembly.add(Payload(b"d" * 40), 100, NONE)

    with pytest.raises(RemoteProtocolError, match="100 bytes"):
        assembly.add(Payload(b"d"), 100, NONE)
    assert assembly.size == 101


@pytest.mark.clause("RS10-FRAG-08")
def test_tiny_pieces_count_in_a_row_only() -> None:
    assembly = PartialPayload()
    tiny_metadata, tiny_data = Payload(b"", b"m" * 31), Payload(b"d" * 31)
    for tiny, large in (
        (tiny_metadata, Payload(b"", b"m" * 32)),
        (tiny_metadata, Payload(b"d" * 16, b"m" * 16)),
        (tiny_data, Payload(b"d" * 32)),
    ):
        for _ in range(3):
            assembly.add(tiny, NONE, 3)
        assembly.add(large, NONE, 3)
    for _ in range(3):
        assembly.add(Payload(b"", None), NONE, 3)

    with pytest.raises(RemoteProtocolError, match="more than 3 fragments"):
        assembly.add(Payload(b"", None), NONE, 3)
