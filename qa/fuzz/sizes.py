"""Payloads of every size in fragments of every size: what arrives is what was sent, and no more frames than needed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from rsocket_trio.limits import LARGEST_FRAME, MIB
from rsocket_trio.mux.events import Event, ItemReceived, RequestReceived
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.stream_table import Stream
from tests.events import one_by_one
from tests.rsocket.pairs import SessionPair
from tests.rsocket.test_vectors import FILES

SIZES: Final = (0, 1, 63, 64, 65, 65_535, MIB, LARGEST_FRAME, LARGEST_FRAME + 1, 45_000_000)
FRAGMENTS: Final = (64, 1024, 16 * 1024, LARGEST_FRAME)
QUICK: Final = 3_000
"""Frames that a case of the suite may take."""
QUICK_SIZE: Final = 2 * MIB


def cases(*, quick: bool) -> Iterator[tuple[Dialect, int, int]]:
    """Dialect, size of the payload, size of the fragments."""
    for dialect in FILES.values():
        for size in SIZES:
            for fragment in FRAGMENTS:
                if not quick or (size // fragment <= QUICK and size <= QUICK_SIZE):
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


def all_sizes() -> bool:
    """Every case, the huge ones too."""
    for dialect, size, fragment in cases(quick=False):
        start = time.perf_counter()
        count = check_size(dialect, size, fragment)
        print(
            f"{dialect.name:20} {size:>12,} bytes in fragments of {fragment:>12,}: {count:>9,} frames  "
            f"{time.perf_counter() - start:.2f} s",
            flush=True,
        )
    return True
