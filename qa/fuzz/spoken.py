"""Frames that a peer of each dialect may send in a conversation, most of them well-formed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import attrs

from qa.fuzz.mutation import mutate
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import whole
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtFrame,
    Frame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.session import Session
from tests.rsocket.pairs import client_terms
from tests.rsocket.test_vectors import FILES, WELL_FORMED

NAMES: Final = {dialect.name: dialect for dialect in FILES.values()}
STREAMUX: Final = "streamux/1"
TEMPERS: Final = (0.0, 0.0, 0.02, 0.1, 0.3)
"""Probability that a peer's frame is not quite as it should be."""
FATAL: Final = (SetupFrame, SetupOkFrame, ResumeFrame, ResumeOkFrame, ErrorFrame)
"""Frames that end a session that runs, so that they are rare."""
KINDS: Final = ("request", "item", "control", "other", "fatal")
SHARES: Final = (30, 60, 85, 99, 100)
"""In hundred frames, each added to those before."""


def spoken(dialect: Dialect) -> dict[str, list[tuple[Frame, bytes]]]:
    """Return the frames that a peer may send: the vectors by their effect, most often those of streams."""
    frames: dict[str, list[tuple[Frame, bytes]]] = {kind: [] for kind in KINDS}
    for vector in WELL_FORMED:
        if vector.dialect is dialect and len(vector.data) < 1024:
            frame = dialect.codec.decode(vector.data)
            frames[kind_of(frame)].append((frame, vector.data))
    return frames


def kind_of(frame: Frame) -> str:
    """Return the effect of a frame on a session."""
    if isinstance(frame, RequestFrame):
        return "request"
    if isinstance(frame, PayloadFrame):
        return "item"
    if isinstance(frame, RequestNFrame | CancelFrame) or (isinstance(frame, ErrorFrame) and frame.stream_id):
        return "control"
    unknown = isinstance(frame, ExtFrame) and not frame.ignore and not frame.extensions
    return "fatal" if unknown or isinstance(frame, FATAL) else "other"


FRAMES: Final = {dialect: spoken(dialect) for dialect in FILES.values()}


def some_setup(dialect: Dialect, *, lease: bool = False) -> bytes:
    """Return the first frame of a client."""
    client = Session(dialect, client=True, limits=Limits(), fragment_size=1000)
    client.start_client(client_terms(lease=lease), 0.0)
    return whole(client.outbox.take(65536)[0])


def some_frame(dialect: Dialect, temper: float, random: Random, stream_id: Callable[[str], int]) -> bytes:
    """Return a frame, on a stream of the id for its kind if it is about one: as it should be, or not quite."""
    (kind,) = random.choices(KINDS, cum_weights=SHARES)
    frame: Any
    frame, data = random.choice(FRAMES[dialect][kind])
    if frame.stream_id:
        try:
            data = dialect.codec.encode(attrs.evolve(frame, stream_id=stream_id(kind)))
        except LocalProtocolError:
            pass  # A vector that may only be read goes as it stands.
    return mutate(random, (data,)) if random.random() < temper else data
