"""However the bytes of a WebSocket are cut: the messages and the answers are those of its frames."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.mux.framing import CROWD, PORTION
from rsocket_trio.transports.websocket.websocket_frames import KEY, MessageReader, masked
from tests.memory import traced

LARGE = 1 << 24
TEXT, BINARY, CLOSE, PING, PONG, FIN = 1, 2, 8, 9, 10, 0x80


def unmasked(replies: bytes, *, client: bool) -> list[tuple[int, bytes]]:
    """The frames of the answers, which are short. A client masks each with other bytes."""
    frames = []
    while replies:
        length, start = replies[1] & 0x7F, 6 if client else 2
        body = replies[start : start + length]
        frames.append((replies[0], masked(body, replies[2:6]) if client else body))
        replies = replies[start + length :]
    return frames


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[left:right] for left, right in pairwise(borders) if left < right]


class Frame(NamedTuple):
    """One frame, right or wrong."""

    first: int
    body: bytes
    key: bytes
    extended: int | None = None
    """Bytes for the length, if not as few as possible."""
    wrong_mask: bool = False

    def encoded(self, *, client: bool) -> bytes:
        """As the peer of a client, or of a server, would write it."""
        size = len(self.body)
        extended = self.extended if self.extended is not None else 0 if size < 126 else 2 if size < 0x10000 else 8
        is_masked = client is self.wrong_mask
        short = {0: size & 0x7F, 2: 126, 8: 127}[extended]
        header = bytes((self.first, short | (0x80 if is_masked else 0)))
        header += (size % (1 << 8 * extended)).to_bytes(extended, "big") if extended else b""
        return header + (self.key + masked(self.body, self.key) if is_masked else self.body)


KEYS = st.binary(min_size=KEY, max_size=KEY)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([0, 1, 3, 124, 125, 126, 127, 16_384, 65_535, 65_536, 140_001]).map(
        lambda size: bytes(range(256)) * (size // 256) + bytes(size % 256)
    ),
)
SHORT = st.binary(max_size=125)


def proper(first: st.SearchStrategy[int], body: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Frame]]:
    """A frame by itself, as it should be written."""
    return st.builds(Frame, first, body, KEYS, st.none(), st.just(False)).map(lambda frame: [frame])


WHOLE = proper(st.just(FIN | BINARY), BODIES)
CONTROLS = proper(st.sampled_from([FIN | PING, FIN | PONG]), SHORT)


@st.composite
def fragments(draw: st.DrawFn) -> list[Frame]:
    """A message in fragments, with pings between them."""
    bodies = draw(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
    frames: list[Frame] = []
    for number, body in enumerate(bodies):
        first = (0 if number else BINARY) | (FIN if number == len(bodies) - 1 else 0)
        frames += [Frame(first, body, draw(KEYS)), *draw(st.one_of(st.just([]), CONTROLS))]
    return frames


CODES = st.sampled_from([1000, 1001, 1005, 1008, 4000]).map(lambda code: code.to_bytes(2))
CLOSES = proper(st.just(FIN | CLOSE), st.one_of(st.just(b""), SHORT, CODES))
ANYHOW = st.builds(
    Frame,
    st.integers(0, 255).filter(lambda first: first & 0x0F != TEXT),  # which is refused at its header here
    st.binary(max_size=200),
    KEYS,
    st.sampled_from([None, 0, 2, 8]),
    st.booleans(),
).map(lambda frame: [frame])
ORDINARY = st.lists(st.one_of(WHOLE, WHOLE, WHOLE, CONTROLS, fragments()), max_size=8)
UNUSUAL = st.lists(st.one_of(WHOLE, WHOLE, fragments(), CLOSES, ANYHOW), max_size=8)
PLACES = st.lists(st.integers(0, 1 << 20), max_size=12)


@given(ORDINARY, PLACES, st.booleans())
def test_messages_and_answers_are_those_of_the_frames_however_the_bytes_are_cut(
    groups: list[list[Frame]], places: list[int], client: bool
) -> None:
    frames = [frame for group in groups for frame in group]
    data = b"".join(frame.encoded(client=client) for frame in frames)
    ours = MessageReader(client=client, max_message=LARGE)

    messages = [message for chunk in cut(data, places) for message in ours.feed(chunk)]

    expected = [b"".join(frame.body for frame in group if not frame.first & 8) for group in groups]
    assert messages == [body for body, group in zip(expected, groups, strict=True) if not group[0].first & 8]
    answers = unmasked(b"".join(ours.replies), client=client)
    assert answers == [(FIN | PONG, frame.body) for frame in frames if frame.first == FIN | PING]
    assert ours.closed is None


def raw_header(first: int, length: int, *, client: bool, key: bytes = b"mask") -> bytes:
    """RFC 6455, 5.2: the header of a frame as the peer of a client, or of a server, writes it."""
    mark = 0 if client else 0x80
    if length < 126:
        start = bytes((first, mark | length))
    elif length < 0x10000:
        start = bytes((first, mark | 126)) + length.to_bytes(2, "big")
    else:
        start = bytes((first, mark | 127)) + length.to_bytes(8, "big")
    return start + (b"" if client else key)


def closed_with(ours: MessageReader) -> int | None:
    return None if ours.closed is None else int(ours.closed.code)


both = pytest.mark.parametrize("client", [True, False], ids=["client", "server"])


@both
@pytest.mark.parametrize("length", [1001, 0xFFFF, 0x10000, 1 << 40])
@pytest.mark.parametrize("first", [FIN | BINARY, BINARY])
def test_a_message_that_is_announced_above_the_limit_is_refused_at_its_header(
    first: int, length: int, client: bool
) -> None:
    header = raw_header(first, length, client=client)
    for pieces in ([header], [header[place : place + 1] for place in range(len(header))]):
        ours = MessageReader(client=client, max_message=1000)
        for number, piece in enumerate(pieces, 1):
            assert closed_with(ours) is None, f"closed before byte {number}"
            assert ours.feed(piece) == []

        assert closed_with(ours) == 1009
        assert str(ours.fault) == "WebSocket: message of more than 1000 bytes (1009)"
        ((kind, body),) = unmasked(b"".join(ours.replies), client=client)
        assert (kind, body[:2]) == (FIN | CLOSE, b"\x03\xf1")
        assert not ours.mid_frame
        assert ours.feed(bytes(5000)) == []


@both
@pytest.mark.parametrize("size", [0, 1, 31])
def test_a_message_has_no_more_tiny_frames_than_there_may_be(size: int, client: bool) -> None:
    ours = MessageReader(client=client, max_message=LARGE, max_tiny=1024)
    body = bytes(size)
    ours.feed(raw_header(BINARY, size, client=client) + body)
    for _ in range(1023):
        ours.feed(raw_header(0, size, client=client) + body)
    assert closed_with(ours) is None
    ours.feed(raw_header(0, size, client=client))

    assert closed_with(ours) == 1008
    assert str(ours.fault) == "WebSocket: message of more than 1024 frames below 32 bytes (1008)"


CHANGES = st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=4)))


@given(st.one_of(ORDINARY, UNUSUAL), CHANGES, PLACES, st.booleans())
def test_any_bytes_are_messages_or_a_fault_and_little_is_kept_of_them(
    groups: list[list[Frame]], changes: list[tuple[int, bytes]], places: list[int], client: bool
) -> None:
    data = b"".join(frame.encoded(client=client) for group in groups for frame in group)
    for number, other in changes:
        place = number % (len(data) + 1)
        data = data[:place] + other + data[place + len(other) :]
    chunks = cut(data, places)
    ours = MessageReader(client=client, max_message=1000, max_tiny=4)
    fed = delivered = 0
    for chunk in chunks:
        was_closed = ours.closed
        messages = ours.feed(chunk)
        fed += len(chunk)
        delivered += sum(map(len, messages))
        assert was_closed is None or (ours.closed is was_closed and not messages)
        assert all(len(message) <= 1000 for message in messages)
        assert delivered + len(ours._rest) + ours._gathering._here <= fed
        assert len(ours._rest) <= 14 + 125
        assert ours.missing <= 1000
        # A pong holds what its ping held, and a close frame little.
        assert sum(map(len, ours.replies)) <= fed + 4 * len(ours.replies) + 131
    assert (ours.fault is None) or (ours.closed is not None and ours.replies)


@pytest.mark.parametrize("kind", ["alike", "unlike", "pongs"])
@both
def test_many_frames_of_a_large_chunk_are_handed_out_in_portions(kind: str, client: bool) -> None:
    bodies = [bytes([number % 251]) * (9 if kind == "alike" else number % 13) for number in range(20_000)]
    first = FIN | (PONG if kind == "pongs" else BINARY)
    chunk = b"".join(Frame(first, body, b"mask").encoded(client=client) for body in bodies)
    ours = MessageReader(client=client, max_message=LARGE)

    portions, judged = [ours.feed(chunk)], ours.judged
    while ours.pending:
        portions.append(ours.feed(b""))
        judged += ours.judged

    assert not ours.mid_frame
    assert [message for portion in portions for message in portion] == ([] if kind == "pongs" else bodies)
    assert judged == (20_000 if kind == "pongs" else 0)
    assert len(portions) >= 20
    assert max(map(len, portions)) <= CROWD + PORTION // 2


@both
def test_a_message_in_fragments_is_held_no_more_than_twice(client: bool) -> None:
    ours = MessageReader(client=client, max_message=LARGE)
    size, count = 0x8000, 256
    piece = raw_header(0, size, client=client, key=bytes(4)) + bytes(size)
    with traced() as memory:
        ours.feed(raw_header(BINARY, 0, client=client))
        for _ in range(count):
            ours.feed(piece)
        (message,) = ours.feed(raw_header(FIN, 0, client=client))
        peak = memory.peak()

    assert len(message) == size * count
    assert peak < 2.3 * size * count
