"""Every error knows its code and data, and what a peer sent can't spoil a message or a log."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from rsocket_trio import (
    ApplicationError,
    Canceled,
    ConnectionLost,
    Invalid,
    InvalidSetup,
    Rejected,
    RejectedResume,
    RejectedSetup,
    RSocketError,
    UnsupportedSetup,
)
from rsocket_trio.errors import DATA_LIMIT, CodedError, fresh_copy, readable, stream_error

CODES: dict[type[CodedError], int] = {
    InvalidSetup: 0x001,
    UnsupportedSetup: 0x002,
    RejectedSetup: 0x003,
    RejectedResume: 0x004,
    ApplicationError: 0x201,
    Rejected: 0x202,
    Canceled: 0x203,
    Invalid: 0x204,
}


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_stands_for_its_code(kind: type[CodedError], code: int) -> None:
    error = kind("tëxt")

    assert (error.code, error.data, error.text) == (code, "tëxt".encode(), "tëxt")
    assert str(error) == "tëxt"


@pytest.mark.parametrize("code", [0x201, 0x301, 0xFFFFFFFE])
def test_an_application_chooses_its_code(code: int) -> None:
    assert ApplicationError("own", code=code).code == code


@pytest.mark.parametrize("code", [-1, 0, 0x101, 0x200, 0x202, 0x300, 0xFFFFFFFF, 2**32])
def test_codes_that_the_protocol_keeps_are_refused(code: int) -> None:
    with pytest.raises(ValueError, match="error code"):
        ApplicationError("own", code=code)


def test_an_unusual_code_shows_in_the_text() -> None:
    assert str(ApplicationError("own", code=0x301)) == "own (code 0x301)"
    assert str(ApplicationError(code=0x301)) == "code 0x301"
    assert str(stream_error(0xFFFFFFFF, b"")) == "code 0xFFFFFFFF"


@pytest.mark.parametrize("code", [0, 0x1, 0x205, 0x300, 0xFFFFFFFF])
def test_codes_outside_of_the_table_are_application_errors_that_keep_them(code: int) -> None:
    error = stream_error(code, b"\xff")

    assert type(error) is ApplicationError
    assert (error.code, error.data, error.text) == (code, b"\xff", "\ufffd")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"line\nbreak", "line\\nbreak"),
        (b"\x1b[2Jscreen", "\\x1b[2Jscreen"),
        (b"\xff", "\ufffd"),
        ("\u202eright to left", "\\u202eright to left"),
        (b"a" * 1024, "a" * 1024),
        (b"a" * 1025, "a" * 1021 + "..."),
        (b"\x00" * 100_000, ("\\x00" * 256)[:1021] + "..."),
    ],
)
def test_what_a_peer_sent_is_escaped_and_cut_before_it_is_shown(data: bytes | str, shown: str) -> None:
    assert readable(data) == shown


def test_each_task_gets_an_error_of_its_own() -> None:
    lost = ConnectionLost("gone", code=0x101)
    lost.__cause__ = OSError("reset")

    twin = fresh_copy(lost)

    assert twin is not lost
    assert isinstance(twin, ConnectionLost)
    assert (twin.text, twin.code, twin.__cause__) == ("gone", 0x101, lost.__cause__)


@pytest.mark.parametrize("error", [Rejected("no"), ApplicationError("own", code=0x301), ConnectionLost("gone", code=1)])
def test_errors_can_be_sent_to_another_process(error: RSocketError) -> None:
    there = pickle.loads(pickle.dumps(error))

    assert type(there) is type(error)
    assert vars(there) == vars(error)


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_of_what_a_peer_sent_the_first_64_kib_are_kept(kind: type[CodedError]) -> None:
    said = b"x" * DATA_LIMIT

    assert kind._received(kind.default_code, said + b"more").data == said
    assert kind._received(kind.default_code, said).data == said


@dataclass
class Shortage:
    symbol: str
    missing: int


def test_details_are_the_data_as_json() -> None:
    error = ApplicationError(details=Shortage("ACMË", 3), code=0x302)

    assert error.data == '{"symbol":"ACMË","missing":3}'.encode()
    assert error.code == 0x302
    assert str(ApplicationError(details=Shortage("ACMË", 3))) == '{"symbol":"ACMË","missing":3}'
    assert str(error) == '{"symbol":"ACMË","missing":3} (code 0x302)'


@pytest.mark.parametrize("kind", [Rejected, Canceled, Invalid])
def test_each_error_of_a_handler_may_have_details(kind: type[Rejected | Canceled | Invalid]) -> None:
    error = kind(details=Shortage("ACME", 3))
    assert (error.code, error.data) == (kind.default_code, b'{"symbol":"ACME","missing":3}')
    with pytest.raises(TypeError, match="data or details"):
        kind("none left", details=3)


def test_details_are_read_as_a_type_on_this_side_and_on_the_other() -> None:
    error = ApplicationError(details=Shortage("ACME", 3))
    received = stream_error(0x302, b'{"missing": 3, "symbol": "ACME"}')

    assert error.details_as(Shortage) == Shortage("ACME", 3)
    assert received.details_as(Shortage) == Shortage("ACME", 3)
    assert received.details_as(dict[str, Any]) == {"missing": 3, "symbol": "ACME"}
    assert RejectedSetup('["a", "b"]').details_as(list[str]) == ["a", "b"]
    assert pickle.loads(pickle.dumps(error)).details_as(Shortage) == Shortage("ACME", 3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"symbol":"ACME","missing":"3"}', "$.missing: expected int, got str"),
        (b'{"symbol":"ACME"}', "$: missing required field `missing`"),
        (b"out of stock", "$: JSON is malformed: invalid character (byte 0)"),
        (b"", "$: no data"),
        (
            b'{"symbol":"ACME","missi',
            "$: input data was truncated: 23 bytes came, and an error has no more than one frame and 64 KiB",
        ),
    ],
)
def test_data_that_is_no_such_details_is_refused_with_the_place(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=r"^\$") as caught:
        Invalid._received(0x204, data).details_as(Shortage)

    assert str(caught.value) == said
