"""However the bytes of the vectors are cut on their way, and whatever the size of payloads, the same comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import pytest

from rsocket_trio.limits import MAX_FRAME_BYTES, MIB, Limits
from rsocket_trio.mux.events import Event, ItemReceived, RequestReceived
from rsocket_trio.mux.framing import Framing, Framing24, Framing32, whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.stream_table import Stream
from rsocket_trio.streamux.negotiation import StreamuxOptions
from rsocket_trio.streamux.session import Session
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


# Streamux cuts its bytes itself


def streamux(*, client: bool) -> Session:
    session = Session(
        StreamuxOptions(rec_id=4, rec_len=8, qa=not client),
        client=client,
        limits=Limits(),
        fragment_size=100,
        whole=True,
        chunks=True,
        randbelow=lambda cap: 0,
    )
    session.start(0.0)
    return session


def written(session: Any) -> bytes:
    return b"".join(b"".join(frame) if isinstance(frame, tuple) else frame for frame in session.outbox.take(10**6))


def said_by_a_client() -> bytes:
    """Requests whole and in chunks, one that is cancelled, a ping."""
    client, server = streamux(client=True), streamux(client=False)
    data = written(client)
    server.receive([data], 0.0)
    client.receive([written(server)], 0.0)
    client.commands.open(Interaction.REQUEST_RESPONSE, Payload(b"whole"))
    client.commands.open(Interaction.REQUEST_RESPONSE, Payload(bytes(350)))
    channel = client.commands.open(Interaction.REQUEST_CHANNEL, Payload(b"first"))
    data += written(client)
    client.commands.send_item(channel, Payload(bytes(120)))
    client.ping(None)
    data += written(client)
    client.commands.send_cancel(channel)
    return data + written(client)


def heard(feed: Callable[[Session], list[Any]]) -> list[Any]:
    """Return what a server reports of these bytes, with all that is in it."""
    server = streamux(client=False)
    events = feed(server)
    return [
        (type(event).__name__, *(repr(getattr(event, field.name)) for field in attrs.fields(type(event))))
        for event in events + server.accept(0.0)
    ]


def test_streamux_reports_the_same_wherever_its_bytes_are_cut() -> None:
    data = said_by_a_client()
    uncut = heard(lambda server: server.receive([data], 0.0))
    assert len(uncut) == 8

    for cut in range(len(data) + 1):
        assert heard(lambda server: server.receive([data[:cut], data[cut:]], 0.0)) == uncut  # noqa: B023
    assert heard(lambda server: server.receive([bytes([byte]) for byte in data], 0.0)) == uncut
