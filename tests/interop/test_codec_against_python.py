"""Random frames of RSocket 1.0, written by one codec and read by the other: ours and rsocket-py's agree on every byte.

Left out is what the other codec gets wrong; the last tests show that it still does. ``RSOCKET_TRIO_FRAMES`` sets how
many frames are tried.
"""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

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

COUNT = int(os.environ.get("RSOCKET_TRIO_FRAMES", "5000"))
SEED = 20_150_407
CODEC = RSOCKET_1_0.codec
UINT31 = 2**31 - 1
UINT63 = 2**63 - 1
NS_PER_MS = 1_000_000
KNOWN_CODES = (0x001, 0x002, 0x003, 0x004, 0x101, 0x102, 0x201, 0x202, 0x203, 0x204, 0xFFFFFFFF)
LONGEST_MIME = 127
LONGEST_TOKEN = 65_535
REQUESTS = {
    Interaction.REQUEST_RESPONSE: "RequestResponseFrame",
    Interaction.FIRE_AND_FORGET: "RequestFireAndForgetFrame",
    Interaction.REQUEST_STREAM: "RequestStreamFrame",
    Interaction.REQUEST_CHANNEL: "RequestChannelFrame",
}


@pytest.fixture(autouse=True)
def python_is_here() -> None:
    require_peer("py")


# ---- any frame that both codecs can say


class Dice:
    """Random parts of frames: the ends of each range come up often."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        return self.random.choice((low, high, self.random.randint(low, high), self.random.randint(low, min(high, 300))))

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def content(self, least: int = 0) -> bytes:
        longest = self.random.choice((least, 8, 300)) if self.random.random() < 0.99 else 70_000
        return self.random.randbytes(self.random.randint(least, max(least, longest)))

    def metadata(self) -> bytes | None:
        return self.content(1) if self.flag() else None

    def token(self) -> bytes:
        return self.random.randbytes(self.number(0, LONGEST_TOKEN) if self.random.random() < 0.01 else 16)

    def payload(self) -> Payload:
        return Payload(self.content(), self.metadata())

    def mime(self) -> str:
        return "".join(chr(self.random.randint(33, 126)) for _ in range(self.random.randint(0, LONGEST_MIME)))

    def stream_id(self) -> int:
        return self.number(1, UINT31)

    def version(self) -> int:
        return self.number(0, 0xFFFF)

    def milliseconds(self) -> int:
        return self.number(1, UINT31)

    def frame(self) -> Frame:
        return self.random.choice(FRAMES)(self)


def any_setup(dice: Dice) -> Frame:
    return SetupFrame(
        dice.version(),
        dice.version(),
        dice.milliseconds() / 1000,
        dice.milliseconds() / 1000,
        dice.mime(),
        dice.mime(),
        dice.payload(),
        lease=dice.flag(),
        resume_token=dice.token() if dice.flag() else None,
    )


def any_lease(dice: Dice) -> Frame:
    return LeaseFrame(dice.number(0, UINT31) * NS_PER_MS, dice.number(0, UINT31), dice.metadata())


def any_keepalive(dice: Dice) -> Frame:
    return KeepaliveFrame(dice.flag(), dice.number(0, UINT63), dice.content())


def any_request(dice: Dice) -> Frame:
    interaction = dice.random.choice(tuple(REQUESTS))
    counted = interaction in (Interaction.REQUEST_STREAM, Interaction.REQUEST_CHANNEL)
    return RequestFrame(
        dice.stream_id(),
        interaction,
        dice.payload(),
        initial_n=dice.number(1, UINT31) if counted else None,
        follows=dice.flag(),
        complete=interaction is Interaction.REQUEST_CHANNEL and dice.flag(),
    )


def any_request_n(dice: Dice) -> Frame:
    return RequestNFrame(dice.stream_id(), dice.number(1, UINT31))


def any_cancel(dice: Dice) -> Frame:
    return CancelFrame(dice.stream_id())


def any_payload(dice: Dice) -> Frame:
    payload = dice.payload()
    complete, follows = dice.flag(), dice.flag()
    # What carries something is an item; a frame that is neither that nor an end says nothing.
    has_item = bool(payload.size) or not (complete or follows) or dice.flag()
    return PayloadFrame(dice.stream_id(), payload, has_item, complete, follows)


def any_error(dice: Dice) -> Frame:
    return ErrorFrame(dice.random.choice((0, dice.stream_id())), dice.random.choice(KNOWN_CODES), dice.content())


def any_metadata_push(dice: Dice) -> Frame:
    return MetadataPushFrame(dice.content(1))


def any_resume(dice: Dice) -> Frame:
    positions = dice.number(0, UINT63), dice.number(0, UINT63)
    return ResumeFrame(dice.version(), dice.version(), dice.token(), *positions)


def any_resume_ok(dice: Dice) -> Frame:
    return ResumeOkFrame(dice.number(0, UINT63))


FRAMES: tuple[Callable[[Dice], Frame], ...] = (
    any_setup,
    any_lease,
    any_keepalive,
    any_request,
    any_request_n,
    any_cancel,
    any_payload,
    any_error,
    any_metadata_push,
    any_resume,
    any_resume_ok,
)


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


# ---- the tests


def test_they_read_what_we_write() -> None:
    theirs = importlib.import_module("rsocket.frame")
    dice = Dice(SEED)
    for number in range(COUNT):
        frame = dice.frame()
        name, attributes = in_their_terms(frame)

        read = theirs.parse_or_ignore(CODEC.encode(frame))

        assert type(read).__name__ == name, f"frame {number}: {frame}"
        assert {key: getattr(read, key) for key in attributes} == attributes, f"frame {number}: {frame}"


def test_we_read_what_they_write() -> None:
    dice = Dice(SEED + 1)
    for number in range(COUNT):
        frame = dice.frame()
        written = their_frame(frame).serialize()

        assert CODEC.decode(written) == frame, f"frame {number}: {frame}"
        assert CODEC.encode(frame) == written, f"frame {number}: {frame}"


# ---- what is left out

LONG_MIME = SetupFrame(1, 0, 1.0, 1.0, "m" * (LONGEST_MIME + 1), "d", Payload())
EMPTY_METADATA = PayloadFrame(1, Payload(b"data", b""))
EXTENSION = ExtFrame(1, 1, b"body", ignore=False)
OWN_CODE = ErrorFrame(1, 0x301, b"an application's own")


@pytest.mark.parametrize("frame", [EXTENSION, OWN_CODE], ids=["extension", "application's code"])
def test_extensions_and_codes_of_an_application_they_do_not_read(frame: Frame) -> None:
    theirs = importlib.import_module("rsocket.frame")

    with pytest.raises(importlib.import_module("rsocket.exceptions").RSocketError):
        theirs.parse_or_ignore(CODEC.encode(frame))


def test_the_length_of_a_mime_type_they_read_with_a_sign() -> None:
    read = importlib.import_module("rsocket.frame").parse_or_ignore(CODEC.encode(LONG_MIME))

    assert read.metadata_encoding != LONG_MIME.metadata_mime.encode()


def test_metadata_that_is_present_and_empty_they_do_not_write() -> None:
    assert CODEC.decode(their_frame(EMPTY_METADATA).serialize()) == PayloadFrame(1, Payload(b"data"))


@pytest.mark.parametrize(
    "frame", [EXTENSION, OWN_CODE, LONG_MIME, EMPTY_METADATA], ids=lambda frame: type(frame).__name__
)
def test_we_read_and_write_what_they_do_not(frame: Frame) -> None:
    assert CODEC.decode(CODEC.encode(frame)) == frame
