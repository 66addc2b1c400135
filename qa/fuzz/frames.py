"""The frames of the five dialects as targets: which of those that may be read may not be written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs

from qa.fuzz.targets import MORE, Target
from rsocket_trio.mux.framing import Framing24, Framing32
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import BadMetadata, Codec, NotUnderstood
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_0, REACTIVESOCKET_0_2, RSOCKET_1_0, RSOCKET_2_0_DRAFT, Dialect
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtFrame,
    Frame,
    KeepaliveFrame,
    LeaseFrame,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
    SetupOkFrame,
)
from tests.rsocket.test_vectors import ALL, FILES

LARGEST_SEED: Final = 1024
"""Bytes: the vectors at the edges of lengths are megabytes, and say nothing here that small ones don't."""

OF_CONNECTION: Final = (SetupFrame, LeaseFrame, KeepaliveFrame, ResumeFrame, ResumeOkFrame, SetupOkFrame)
OF_STREAM: Final = (RequestFrame, RequestNFrame, CancelFrame, PayloadFrame)
Rule = Callable[[Dialect, Any], bool]


# Written from the documents, not from the encoders: what a sender may not say.


def misplaced(dialect: Dialect, frame: Frame) -> bool:
    """On a stream although it concerns the connection, or the other way round."""
    if isinstance(frame, MetadataPushFrame):
        return frame.stream_id != 0 and not dialect.pushes_on_streams
    if isinstance(frame, ExtFrame):
        return dialect.entries and frame.ext_type == 1 and frame.stream_id != 0
    return isinstance(frame, OF_CONNECTION) if frame.stream_id else isinstance(frame, OF_STREAM)


def grants_nothing(dialect: Dialect, frame: Frame) -> bool:
    """ALL-RCT-08: a number of items is above 0, but in the oldest dialects."""
    if dialect.framing is Framing32:
        return False
    return 0 in (getattr(frame, "request_n", None), getattr(frame, "initial_n", None))


def without_times(dialect: Dialect, frame: Frame) -> bool:
    """RS10-SETUP-04: both times are above 0."""
    newer = dialect in (RSOCKET_1_0, REACTIVESOCKET_0_2)
    return newer and isinstance(frame, SetupFrame) and not (frame.keepalive_interval and frame.max_lifetime)


def bare_payload(dialect: Dialect, frame: Frame) -> bool:
    """RS10-PAY-03: neither an item, nor an end, nor a fragment."""
    newer = dialect in (RSOCKET_1_0, RSOCKET_2_0_DRAFT)
    return newer and isinstance(frame, PayloadFrame) and not (frame.next or frame.complete or frame.follows)


def untyped_ext(dialect: Dialect, frame: Frame) -> bool:
    """RS10-EXT-02: type 0 is reserved."""
    return dialect.framing is Framing24 and isinstance(frame, ExtFrame) and frame.ext_type == 0


def nameless_data(dialect: Dialect, frame: Frame) -> bool:
    """RSX-MIME-03, RSX-SETUP-04: the data's type is given, and an entry asks only where its SETUP does."""
    if not dialect.entries or not isinstance(frame, SetupFrame):
        return False
    return frame.data_mime == "" or (not frame.ack and any(entry.ack for entry in frame.extensions))


RULES: Final[tuple[Rule, ...]] = (
    *(misplaced, grants_nothing, without_times, bare_payload, untyped_ext, nameless_data),
)


def unsayable(dialect: Dialect, frame: Frame) -> bool:
    """Return whether a sender may not say what this frame says."""
    return any(rule(dialect, frame) for rule in RULES)


def as_written(dialect: Dialect, frame: Frame) -> Frame:
    """RS00-ERR-01: an ERROR of 0.0 has no code, whatever the frame that it was read from."""
    if dialect is REACTIVESOCKET_0_0 and isinstance(frame, ErrorFrame) and frame.stream_id:
        return attrs.evolve(frame, code=0x201)
    return frame


TAILS: Final = {ErrorFrame: "data", KeepaliveFrame: "data", LeaseFrame: "metadata", MetadataPushFrame: "metadata"}
"""Fields that go to the end of the frame and are no payload."""


def longer(dialect: Dialect, frame: Frame) -> tuple[Frame, ...]:
    """Return the meanings that the same frame with one byte more may have: its last field grows, or nothing changes."""
    if isinstance(frame, PayloadFrame):
        # RS01-RSP-03: what carries something is an item, in the oldest dialects.
        item = frame.next or dialect.framing is Framing32
        return (attrs.evolve(frame, payload=grown(frame.payload), next=item),)
    if isinstance(frame, SetupFrame | RequestFrame | SetupOkFrame):
        return (attrs.evolve(frame, payload=grown(frame.payload)),)
    if isinstance(frame, LeaseFrame | MetadataPushFrame) and dialect not in (RSOCKET_1_0, RSOCKET_2_0_DRAFT):
        return (frame,)  # There it has a length of its own.
    field = TAILS.get(type(frame), "")
    if isinstance(frame, ExtFrame):
        field = "metadata" if frame.extensions else "body"
    tail = getattr(frame, field, None)
    if tail is None:
        return (frame,)
    # RS01-ERR-02: a terminator that was cut off is text again if something stands behind it.
    return attrs.evolve(frame, **{field: tail + MORE}), attrs.evolve(frame, **{field: tail + b"\0" + MORE})


def grown(payload: Payload) -> Payload:
    twin = copy.copy(payload)
    twin.data += MORE
    return twin


def frame_target(name: str, dialect: Dialect, codec: Codec | None = None) -> Target:
    """The decoder of a dialect, or another ``codec`` in its place."""
    codec = codec or dialect.codec
    seeds = tuple(one.data for one in ALL if one.dialect is dialect and len(one.data) <= LARGEST_SEED)

    def ask(data: bytes) -> None:
        codec.header(data)
        codec.ignorable(data)

    return Target(
        name,
        seeds,
        codec.decode,
        codec.encode,
        (NotUnderstood, BadMetadata),
        partial(unsayable, dialect),
        partial(as_written, dialect),
        partial(longer, dialect),
        on_refusal=ask,
    )


FRAMES: Final = {file[:-4]: frame_target(file[:-4], dialect) for file, dialect in FILES.items()}
"""By the name of the file with their vectors."""
