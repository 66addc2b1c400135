"""However the bytes of the vectors are cut on their way, and whatever the size of payloads, the same comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from rsocket_trio.limits import MAX_FRAME_BYTES, MIB
from rsocket_trio.mux.events import Event, ItemReceived, RequestReceived
from rsocket_trio.mux.framing import Framing, Framing24, Framing32, whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.stream_table import Stream
from tests.each_row import each_row
from tests.events import one_by_one
from tests.rsocket.pairs import SessionPair
from tests.rsocket.test_vectors import ALL, FILES

SIZES: Final = (0, 1, 63, 64, 65, 65_535, MIB)
FRAGMENTS: Final = (64, 1024, 16 * 1024, MAX_FRAME_BYTES)
QUICK: Final = 3_000
"""Frames that a case of the suite may take."""
LARGEST: Final = 300
"""Bytes of a vector that is cut at every one of them."""


def cases() -> Iterator[tuple[Dialect, int, int]]:
    """Dialect, size of the payload, size of the fragments."""
    for dialect in FILES.values():
        for size in SIZES:
            for fragment in FRAGMENTS:
                if size // fragment <= QUICK:
                    yield dialect, size, fragment


def check_size(dialect: Dialect, size: int, fragment: int) -> int:
    """A request and an item of this size, a part of it metadata; how many frames the larger of them took."""
    pair = SessionPair(dialect, fragment_size=fragment)
    payload = Payload(b"d" * (size - size // 4), b"m" * (size // 4) if size // 4 else None)
    small = payload if dialect.request_fragments else Payload(payload.data[: 2 * MIB])
    stream = pair.client.commands.open(Interaction.REQUEST_STREAM, small, 2)
    _, [request] = pair.exchange()
    assert isinstance(request, RequestReceived)
    assert request.payload == small
    assert isinstance(request.stream, Stream)
    pair.server.commands.send_item(request.stream, payload)
    pair.server.commands.send_item(request.stream, payload, complete=True)
    seen: list[Event] = []
    count = 0
    while pair.server.outbox:
        frames = [whole(frame) for frame in pair.server.outbox.take(65536)]
        assert all(len(frame) <= fragment for frame in frames)
        count += len(frames)
        seen += one_by_one(pair.client.receive(frames, 0.0))
    complete = not (dialect.bare_complete_is_no_item and not size)
    assert seen[0] == ItemReceived(stream, payload, False)
    assert seen[1] == ItemReceived(stream, payload, complete)
    pair.exchange()
    pair.assert_quiet()
    return count


def framing_of(dialect: Dialect) -> Framing:
    return Framing24() if dialect.framing is Framing24 else Framing32(2**24, dialect.codec.minimum)


def of(dialect: Dialect) -> list[bytes]:
    smallest = dialect.codec.minimum
    return [one.data for one in ALL if one.dialect is dialect and smallest <= len(one.data) <= LARGEST]


@pytest.mark.parametrize("dialect", FILES.values(), ids=lambda dialect: dialect.name)
def test_frames_are_the_same_wherever_their_stream_is_cut(dialect: Dialect) -> None:
    frames = of(dialect)
    stream = framing_of(dialect).join(frames)

    for cut in range(len(stream) + 1):
        framing = framing_of(dialect)
        assert framing.feed(stream[:cut]) + framing.feed(stream[cut:]) == frames
        assert framing.error is None
    framing = framing_of(dialect)
    assert [frame for byte in stream for frame in framing.feed(bytes([byte]))] == frames
    assert framing.error is None


@each_row(
    ("dialect", "size", "fragment"),
    list(cases()),
    ids=lambda part: part.name if isinstance(part, Dialect) else str(part),
)
def test_a_payload_of_any_size_arrives_whole_in_fragments_of_any_size(
    dialect: Dialect, size: int, fragment: int
) -> None:
    assert check_size(dialect, size, fragment) >= 2 * max(1, size // fragment)
