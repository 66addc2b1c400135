"""However the chunks of several messages interleave, and wherever the bytes are cut: the same messages arrive."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, ItemReceived, RequestReceived, StreamCompleted
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.chunks import TERMINATION, HeaderLayout
from rsocket_trio.streamux.negotiation import Terms
from rsocket_trio.streamux.session import Session
from tests.events import one_by_one
from tests.streamux.pairs import of_widths

clause = pytest.mark.clause
ID_BITS, LENGTH_BITS = 4, 5
LAYOUT = HeaderLayout(Terms(ID_BITS, LENGTH_BITS))
Message = list[bytes]
"""Its chunks; a last one that is empty is an empty termination."""

chunk = st.binary(min_size=1, max_size=31)
messages = st.lists(
    st.builds(
        lambda chunks, more: [*chunks, *more], st.lists(chunk, min_size=1, max_size=5), st.sampled_from([[], [b""]])
    ),
    min_size=1,
    max_size=6,
)


def met(*, client: bool, whole: bool = False, chunks: bool = False) -> Session:
    """A session whose peer is a test."""
    session = Session(
        of_widths(ID_BITS, LENGTH_BITS),
        client=client,
        limits=Limits(),
        fragment_size=65536,
        whole=whole,
        chunks=chunks,
        randbelow=lambda cap: 0,
    )
    session.start(0)
    session.receive([of_widths(ID_BITS, LENGTH_BITS)._initialize().encode()], 0)
    session.accept(0)
    session.outbox.take()
    return session


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Message], list[tuple[int, int]], list[int]]:
    """Messages, the turns in which their chunks travel as (message, chunk), and where the bytes are cut."""
    said = draw(messages)
    turns = draw(st.permutations([number for number, chunks in enumerate(said) for _ in chunks]))
    counts: dict[int, int] = defaultdict(int)
    travel: list[tuple[int, int]] = []
    for number in turns:
        travel.append((number, counts[number]))
        counts[number] += 1
    size = sum(LAYOUT.size + len(said[number][at]) for number, at in travel)
    return said, travel, sorted(draw(st.lists(st.integers(0, size), max_size=15)))


def received(
    session: Session, said: list[Message], travel: list[tuple[int, int]], cuts: list[int], bits: int
) -> list[Event]:
    """Return what the session tells of the messages, each on the id of its place."""
    data = b"".join(
        LAYOUT.pack(number, len(said[number][at]), bits | (TERMINATION if at == len(said[number]) - 1 else 0))
        + said[number][at]
        for number, at in travel
    )
    borders = [0, *cuts, len(data)]
    pieces = [data[start:end] for start, end in pairwise(borders)]
    events = [event for piece in pieces for event in one_by_one(session.receive([piece], 0))]
    assert not session.is_mid_frame
    assert session.error is None
    assert session.table.reassembling == 0
    return events


def in_order_of_ends(said: list[Message], travel: list[tuple[int, int]]) -> list[int]:
    return [number for number, at in travel if at == len(said[number]) - 1]


@clause("SMX-MSG-01", "SMX-MSG-06")
@given(delivery=deliveries())
def test_requests_that_are_wanted_whole(delivery: tuple[list[Message], list[tuple[int, int]], list[int]]) -> None:
    said, travel, cuts = delivery
    events = received(met(client=False, whole=True), said, travel, cuts, 0)

    assert all(type(event) is RequestReceived for event in events)
    assert [(event.stream.id, event.payload.data) for event in events if isinstance(event, RequestReceived)] == [
        (number, b"".join(said[number])) for number in in_order_of_ends(said, travel)
    ]


@clause("SMX-MSG-01", "SMX-MSG-06")
@given(delivery=deliveries())
def test_requests_that_are_wanted_in_chunks(delivery: tuple[list[Message], list[tuple[int, int]], list[int]]) -> None:
    said, travel, cuts = delivery
    events = received(met(client=False, chunks=True), said, travel, cuts, 0)

    saw: dict[int, list[bytes | None]] = defaultdict(list)
    for event in events:
        if isinstance(event, ItemReceived):
            saw[event.stream.id].append(event.payload.data)
            saw[event.stream.id] += [None] * event.complete
        elif isinstance(event, StreamCompleted):
            saw[event.stream.id].append(None)
        else:
            assert isinstance(event, RequestReceived)
            assert (event.stream.id in saw, event.payload) == (False, Payload())
    assert saw == {number: [one for one in chunks if one] + [None] for number, chunks in enumerate(said)}
