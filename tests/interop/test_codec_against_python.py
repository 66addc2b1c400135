"""Random frames of RSocket 1.0, written by one codec and read by the other: ours and rsocket-py's agree on every byte.

Left out is what the other codec gets wrong: extensions, codes of an application, long MIME types, empty metadata.
"""

from __future__ import annotations

import importlib
from typing import Any

import attrs
import pytest
from hypothesis import given

from rsocket_trio import Payload
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
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
)
from tests.interop.peers import require_peer
from tests.rsocket.test_codec import FRAMES

CODEC = RSOCKET_1_0.codec
NS_PER_MS = 1_000_000
KNOWN_CODES = (0x001, 0x002, 0x003, 0x004, 0x101, 0x102, 0x201, 0x202, 0x203, 0x204, 0xFFFFFFFF)
LONGEST_MIME = 127
"""Bytes: the other codec reads the length with a sign."""
REQUESTS = {
    Interaction.REQUEST_RESPONSE: "RequestResponseFrame",
    Interaction.FIRE_AND_FORGET: "RequestFireAndForgetFrame",
    Interaction.REQUEST_STREAM: "RequestStreamFrame",
    Interaction.REQUEST_CHANNEL: "RequestChannelFrame",
}


@pytest.fixture(autouse=True, scope="module")
def python_is_here() -> None:
    require_peer("py")


def sayable(frame: Any) -> Any:
    """Return a frame as both codecs can say it: metadata that is present is not empty, and codes are known."""
    changes: dict[str, Any] = {}
    payload = getattr(frame, "payload", None)
    if payload is not None and payload.metadata == b"":
        changes["payload"] = Payload(payload.data, b"m")
    if getattr(frame, "metadata", None) == b"":
        changes["metadata"] = b"m"
    match frame:
        case SetupFrame():
            for name in ("metadata_mime", "data_mime"):
                changes[name] = getattr(frame, name).encode("ascii", "ignore").decode()[:LONGEST_MIME]
        case PayloadFrame():
            # What carries something is an item.
            changes["next"] = frame.next or bool(frame.payload.data) or frame.payload.metadata is not None
        case ErrorFrame():
            changes["code"] = KNOWN_CODES[frame.code % len(KNOWN_CODES)]
    return attrs.evolve(frame, **changes)


frames = FRAMES[RSOCKET_1_0].filter(lambda frame: not isinstance(frame, ExtFrame)).map(sayable)


# ---- the same frame in the other library's terms


def in_their_terms(frame: Frame) -> tuple[str, dict[str, Any]]:
    """The class of rsocket-py, and what its attributes have to be."""
    match frame:
        case SetupFrame():
            token = frame.resume_token
            return "SetupFrame", {
                "major_version": frame.major,
                "minor_version": frame.minor,
                "keep_alive_milliseconds": round(frame.keepalive_interval * 1000),
                "max_lifetime_milliseconds": round(frame.max_lifetime * 1000),
                "metadata_encoding": frame.metadata_mime.encode(),
                "data_encoding": frame.data_mime.encode(),
                "flags_lease": frame.lease,
                "flags_resume": token is not None,
                **({} if token is None else {"token_length": len(token), "resume_identification_token": token}),
                **content_of(frame.payload),
            }
        case LeaseFrame():
            return "LeaseFrame", {
                "time_to_live": frame.time_to_live_ns // NS_PER_MS,
                "number_of_requests": frame.number_of_requests,
                "metadata": frame.metadata or b"",
            }
        case KeepaliveFrame():
            position = frame.last_received_position
            return "KeepAliveFrame", {
                "flags_respond": frame.respond, "last_received_position": position, "data": frame.data
            }  # fmt: skip
        case RequestFrame():
            counted = {} if frame.initial_n is None else {"initial_request_n": frame.initial_n}
            ends = {"flags_complete": True} if frame.complete else {}
            follows = {"stream_id": frame.stream_id, "flags_follows": frame.follows}
            return REQUESTS[frame.interaction], follows | counted | ends | content_of(frame.payload)
        case RequestNFrame():
            return "RequestNFrame", {"stream_id": frame.stream_id, "request_n": frame.request_n}
        case CancelFrame():
            return "CancelFrame", {"stream_id": frame.stream_id}
        case PayloadFrame():
            return "PayloadFrame", {
                "stream_id": frame.stream_id,
                "flags_next": frame.next,
                "flags_complete": frame.complete,
                "flags_follows": frame.follows,
                **content_of(frame.payload),
            }
        case ErrorFrame():
            return "ErrorFrame", {"stream_id": frame.stream_id, "error_code": frame.code, "data": frame.data}
        case MetadataPushFrame():
            return "MetadataPushFrame", {"metadata": frame.metadata}
        case ResumeFrame():
            return "ResumeFrame", {
                "major_version": frame.major,
                "minor_version": frame.minor,
                "token_length": len(frame.token),
                "resume_identification_token": frame.token,
                "last_server_position": frame.last_received_server_position,
                "first_client_position": frame.first_available_client_position,
            }
        case ResumeOkFrame():
            return "ResumeOKFrame", {"last_received_client_position": frame.last_received_client_position}
        case _:
            raise AssertionError(f"{frame} is none that both can say")


def content_of(payload: Payload) -> dict[str, bytes]:
    return {"data": payload.data, "metadata": payload.metadata or b""}


def their_frame(frame: Frame) -> Any:
    theirs = importlib.import_module("rsocket.frame")
    name, attributes = in_their_terms(frame)
    made = getattr(theirs, name)()
    for attribute, wanted in attributes.items():
        setattr(made, attribute, wanted)
    return made


@given(frame=frames)
def test_they_read_what_we_write(frame: Frame) -> None:
    name, attributes = in_their_terms(frame)

    read = importlib.import_module("rsocket.frame").parse_or_ignore(CODEC.encode(frame))

    assert type(read).__name__ == name
    assert {key: getattr(read, key) for key in attributes} == attributes


@given(frame=frames)
def test_we_read_and_write_what_they_write(frame: Frame) -> None:
    written = their_frame(frame).serialize()

    assert CODEC.decode(written) == frame
    assert CODEC.encode(frame) == written
