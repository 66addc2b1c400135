"""Fragments in between are taken without frame values, and mean what they mean as those: in lockstep, step by step."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

import attrs
import pytest

from qa.fuzz.spoken import NAMES
from rsocket_trio.errors import LocalProtocolError, RSocketError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket import fast_path
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.frames import CancelFrame, PayloadFrame, RequestFrame
from rsocket_trio.rsocket.session import Session
from tests.each_row import ALL_CASES
from tests.events import one_by_one
from tests.memory import traced
from tests.rsocket.pairs import client_terms

SEEDS: Final = 150 if ALL_CASES else 50
STEPS: Final = 30
LIMITS: Final = Limits(payload_size=400, reassembly_size=600, tiny_fragments=3, streams=6, cancels=10_000)
SIZES: Final = (0, 1, 30, 63, 64, 65, 100, 5000, 5000)
NUMBERED: Final = (Interaction.REQUEST_STREAM, Interaction.REQUEST_CHANNEL)


class Lockstep:
    """Two servers that hear the same, one of them with the fast path and one without."""

    def __init__(self, dialect: Dialect, limits: Limits) -> None:
        self.dialect = dialect
        client = Session(dialect, client=True, limits=Limits(), fragment_size=1000)
        client.start_client(client_terms(), 0.0)
        first = [whole(frame) for frame in client.outbox.take()]
        self.sessions = [Session(dialect, client=False, limits=limits, fragment_size=64) for _ in range(2)]
        for session in self.sessions:
            session.start_server(grants_leases=False)
            session.receive(first, 0.0)
            session.accept(0.0)
        self.sessions[1].patterns = None

    def hear(self, frames: list[bytes], patch: pytest.MonkeyPatch) -> None:
        """Let both hear this, and find them the same in all that they report, hold and answer."""
        told = []
        for session in self.sessions:
            events = [said(event) for event in one_by_one(session.receive(list(frames), 0.0))]
            told.append((events, state(session), [whole(frame) for frame in session.outbox.take()]))
        assert told[0] == told[1]
        for session in self.sessions:
            held = sum(stream.assembly.size for stream in session.open_streams() if stream.assembly is not None)
            assert held == session.table.reassembling


def said(event: Any) -> list[str]:
    fields = ("payload", "complete", "error")
    stream = getattr(event, "stream", None)
    return [type(event).__name__, str(stream and stream.id), *(str(getattr(event, name, "")) for name in fields)]


def state(session: Session) -> list[Any]:
    streams = [
        (stream.id, stream.open, stream.granted, stream.room, stream.assembly and stream.assembly.size)
        for stream in session.open_streams()
    ]
    receiver = session.receiver
    return [session.state, streams, session.table.reassembling, receiver.ignored, receiver.refused, str(session.error)]


def spoken(dialect: Dialect, rng: Random) -> bytes:
    """A frame of a peer that cuts all its payloads, mostly as it may, on one of few streams."""
    stream_id = rng.randrange(1, 10, 2)
    data = rng.randbytes(rng.choice(SIZES))
    kind = rng.random()
    frame: Any
    if kind < 0.2:
        interaction = rng.choice(list(Interaction))
        number = rng.choice((1, 5)) if interaction in NUMBERED or not dialect.half_close else None
        frame = RequestFrame(stream_id, interaction, Payload(data), number, follows=rng.random() < 0.7)
    elif kind < 0.8:
        frame = PayloadFrame(stream_id, Payload(data), next=True, complete=False, follows=rng.random() < 0.8)
    elif kind < 0.95:
        metadata = b"m" if rng.random() < 0.3 else None
        frame = PayloadFrame(stream_id, Payload(data, metadata), True, rng.random() < 0.3, rng.random() < 0.5)
    else:
        frame = CancelFrame(stream_id)
    try:
        return dialect.codec.encode(frame)
    except LocalProtocolError:  # there is no such frame in this dialect
        return spoken(dialect, rng)


@pytest.mark.parametrize("dialect", NAMES.values(), ids=NAMES)
def test_conversations_of_fragments_mean_the_same_without_the_short_cut(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: Counter[int] = Counter()
    take_parts = fast_path._take_parts

    def counted(*arguments: Any) -> int:
        found = take_parts(*arguments)
        taken[found] += 1
        return found

    monkeypatch.setattr(fast_path, "_take_parts", counted)
    for seed in range(SEEDS):
        rng = Random(seed)
        sizes = {
            "payload_size": rng.choice((120, 400, 20_000, 20_000)),
            "reassembly_size": rng.choice((600, 14_000, 50_000, 50_000)),
        }
        pair = Lockstep(dialect, attrs.evolve(LIMITS, **sizes))
        for _ in range(STEPS):
            frames = [spoken(dialect, rng) for _ in range(rng.choice((1, 1, 2, 5)))]
            pair.hear([frame for frame in frames for _ in range(rng.choice((1, 1, 2, 3, 4)))], monkeypatch)
    # RS01-FRAG-02: there a request goes on as itself, and a server takes no others.
    assert dialect.request_repeats or (taken[1] > SEEDS and taken[2] + taken[3] > SEEDS // 15)


@pytest.mark.parametrize("size", [1, 64])
def test_tiny_fragments_hold_little_more_than_what_was_sent(size: int) -> None:
    session = Lockstep(RSOCKET_1_0, Limits()).sessions[0]
    codec = RSOCKET_1_0.codec
    asked = [
        codec.encode(RequestFrame(number, Interaction.REQUEST_RESPONSE, Payload(b"x"), follows=True))
        for number in range(1, 201, 2)
    ]
    session.receive(asked, 0.0)
    with traced() as memory:
        for number in range(1, 201, 2):
            part = PayloadFrame(number, Payload(bytes(size)), True, False, True)
            session.receive([codec.encode(part) for _ in range(250)], 0.0)
        held = memory.now()
    assert held < 100 * 250 * (size + 60)


def test_the_error_of_a_payload_that_was_refused_does_not_keep_it() -> None:
    pair = Lockstep(RSOCKET_1_0, LIMITS)
    codec = RSOCKET_1_0.codec
    request = RequestFrame(1, Interaction.REQUEST_CHANNEL, Payload(b"x"), 1)
    session = pair.sessions[0]
    session.receive([codec.encode(request)], 0.0)
    [stream] = session.open_streams()
    session.commands.request_n(stream, 5)
    part = codec.encode(PayloadFrame(1, Payload(bytes(300)), True, False, True))
    errors = [getattr(event, "error", None) for event in session.receive([part, part], 0.0)]
    [error] = [error for error in errors if isinstance(error, RSocketError)]
    assert error.__traceback__ is None
