"""The first bytes of a connection tell its dialect: at every cut, over byte streams and over messages."""

from __future__ import annotations

import struct

import attrs
import pytest

from rsocket_trio.mux.framing import Framing32
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.detection import UNDECIDED, Undecided, answer_for, detect, keeps_length
from rsocket_trio.rsocket.dialect import (
    ALL,
    DIALECTS,
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
    RSOCKET_2_0_DRAFT,
    Dialect,
    dialect_named,
)
from rsocket_trio.rsocket.layouts import v0_0 as layout_0_0
from rsocket_trio.rsocket.layouts import v0_1 as layout_0_1
from rsocket_trio.rsocket.layouts.fields_32 import METADATA_HEADER

SETUP_1_0 = "00 00 14  00 00 00 00  04 00  00 01 00 00  00 00 01 f4  00 00 05 dc  00 00"
RESUME_1_0 = "00 00 1d  00 00 00 00  34 00  00 01 00 00  00 01 74" + " 00" * 16
SETUP_0_1 = "00 00 00 1e  00 01 00 00  00 00 00 00 "
TERMS_0_1 = "00 00 01 f4  00 00 05 dc  01 61 00 01 62 63"
SETUP_0_2 = "00 00 14  00 00 00 00  05 e0  00 00 00 02  00 00 01 f4  00 00 05 dc  00 00"
RESUME_0_1 = "00 00 1d  00 00 00 00  34 00  00 00 00 01  00 01 74" + " 00" * 16
RESUME_0_2 = "00 00 1d  00 00 00 00  34 00  00 00 00 02  00 01 74" + " 00" * 16


@attrs.frozen
class Opening:
    """What a client may begin with, and what to make of it as soon as ``decided`` bytes are there."""

    name: str
    hex: str
    decided: int
    dialect: Dialect | None = None
    answer: Dialect | None = None

    @property
    def bytes(self) -> bytes:
        return bytes.fromhex(self.hex)

    def __str__(self) -> str:
        return self.name


# fmt: off
OPENINGS = [
    Opening("SETUP of 1.0",                   SETUP_1_0,  13, RSOCKET_1_0),                         # DET-02
    Opening("SETUP of 1.0 with all flags",    "00 00 14  00 00 00 00  07 ff  00 01 00 00", 13, RSOCKET_1_0),
    Opening("SETUP of 1.0, 16 MB long",       "ff ff ff  00 00 00 00  04 00  00 01 00 00", 13, RSOCKET_1_0),
    Opening("RESUME of 1.0",                  RESUME_1_0, 13, RSOCKET_1_0),                         # DET-02
    Opening("SETUP of 0.2",                   SETUP_0_2,  13, REACTIVESOCKET_0_2),                  # DET-03
    Opening("RESUME of 1.0 by rsocket-js",    RESUME_0_1, 13, RSOCKET_1_0),
    Opening("RESUME of 0.2",                  RESUME_0_2, 13, REACTIVESOCKET_0_2),                  # DET-03
    # DET-04
    Opening("SETUP of the draft, MIME number", "00 00 14  00 00 00 00  06 80  85 FF 00 02", 10, RSOCKET_2_0_DRAFT),
    Opening("SETUP of the draft, MIME text",  "00 00 14  00 00 00 00  04 00  03 61 2F 62", 10, RSOCKET_2_0_DRAFT),
    Opening("SETUP of the draft, in short",   "00 00 07  00 00 00 00  04 00  03", 10, RSOCKET_2_0_DRAFT),
    # DET-05
    Opening("SETUP of 0.1",                   SETUP_0_1 + "00 00 00 01" + TERMS_0_1, 16, REACTIVESOCKET_0_1),
    Opening("SETUP of 0.1 that says 0.0",     SETUP_0_1 + "00 00 00 00" + TERMS_0_1, 16, REACTIVESOCKET_0_1),
    Opening("SETUP of 0.1 that says 0.2",     SETUP_0_1 + "00 00 00 02" + TERMS_0_1, 16, REACTIVESOCKET_0_1),
    Opening("SETUP of 0.1 with all flags",    "00 00 00 16  00 01 ff ff  00 00 00 00  00 00 00 01", 16,
            REACTIVESOCKET_0_1),
    Opening("SETUP of 0.1, 256 bytes long",   "00 00 01 00  00 01 00 00  00 00 00 00  00 00 00 01", 16,
            REACTIVESOCKET_0_1),
    Opening("SETUP of 0.0",                   "00 00 00 12  00 00 00 01" + " 00" * 8 + " 00 00", 16,
            REACTIVESOCKET_0_0),                                                                    # DET-06
    Opening("SETUP of 0.0 with all flags",    "00 00 00 12  00 ff 00 01" + " 00" * 10, 16, REACTIVESOCKET_0_0),
    Opening("SETUP of 0.0, 256 bytes long",   "00 00 01 00  00 00 00 01" + " 00" * 10, 16, REACTIVESOCKET_0_0),
    Opening("SETUP of 0.0 with a 01 flag",    "00 00 00 12  00 01 00 01" + " 00" * 10, 16, REACTIVESOCKET_0_1),
    # DET-07
    Opening("SETUP of 0.1 that says 0.3",     SETUP_0_1 + "00 00 00 03", 16, None, REACTIVESOCKET_0_1),
    Opening("SETUP of 0.1 that says 1.0",     SETUP_0_1 + "00 01 00 00", 14, None, REACTIVESOCKET_0_1),
    Opening("SETUP of 0.1, low flags, 3.0",   "00 00 00 16  00 01 00 20  00 00 00 00  00 03 00 00", 14, None,
            REACTIVESOCKET_0_1),
    Opening("SETUP of 0.1 on a stream",       "00 00 00 16  00 01 00 00  00 00 00 02  00 00 00 01", 12),
    Opening("SETUP of 0.1 in 15 bytes",       "00 00 00 0f  00 01 00 00  00 00 00 00  00 00 00", 4),
    Opening("KEEPALIVE of 0.1",               "00 00 00 0c  00 03 20 00  00 00 00 00", 4),
    Opening("KEEPALIVE of 0.1 with data",     "00 00 00 10  00 03 20 00  00 00 00 00  64 61 74 61", 7),
    Opening("SETUP of 0.0 on a stream",       "00 00 00 12  00 00 00 01  00 00 00 00 00 00 00 02  00 00", 16),
    Opening("SETUP of 0.0, version 1",        "00 00 00 12  01 00 00 01" + " 00" * 8 + " 00 00", 5),
    Opening("CANCEL of 0.0",                  "00 00 00 10  00 00 00 16  00 00 00 00 00 00 00 02", 8),
    Opening("a length with its top bit",      "80 00 00 12  00 00 00 01" + " 00" * 8 + " 00 00", 8),
    Opening("SETUP of 1.1",                   "00 00 14  00 00 00 00  04 00  00 01 00 01", 13, None, RSOCKET_1_0),
    Opening("SETUP of 0.3",                   "00 00 14  00 00 00 00  04 00  00 00 00 03", 13, None, RSOCKET_1_0),
    Opening("SETUP of 3.0",                   "00 00 14  00 00 00 00  04 00  00 03 00 00", 11, None, RSOCKET_1_0),
    Opening("SETUP on a stream",              "00 00 14  00 00 00 01  04 00  00 01 00 00", 8, None, RSOCKET_1_0),
    Opening("SETUP that ends in its version", "00 00 09  00 00 00 00  04 00  00 01 00", 10, None, RSOCKET_1_0),
    Opening("SETUP that is only a header",    "00 00 06  00 00 00 00  04 00", 8, None, RSOCKET_1_0),
    Opening("PAYLOAD",                        "00 00 08  00 00 00 01  28 20  68 69", 8, None, RSOCKET_1_0),
    Opening("KEEPALIVE",                      "00 00 0e  00 00 00 00  0c 80" + " 00" * 8, 8, None, RSOCKET_1_0),
    Opening("CANCEL on the last stream",      "00 00 06  7f ff ff ff  24 00", 8, None, RSOCKET_1_0),
    Opening("EXT",                            "00 00 0a  00 00 00 00  fc 00  00 00 00 01", 8, None, RSOCKET_1_0),
    Opening("RESUME of 3.0",                  "00 00 1d  00 00 00 00  34 00  00 03 00 00", 11),
    Opening("RESUME on a stream",             "00 00 1d  00 00 00 01  34 00  00 01 00 00", 8, None, RSOCKET_1_0),
    Opening("type 00",                        "00 00 06  00 00 00 00  00 00", 8),
    Opening("type 0f",                        "00 00 06  00 00 00 00  3c 00", 8),
    Opening("a reserved stream id",           "00 00 06  80 00 00 01  24 00", 7),
    Opening("a frame below a header",         "00 00 05  00 00 00 01  24", 7),
    Opening("an empty frame",                 "00 00 00  00 00 06  00 00 00 01  24 00", 4),
    Opening("an HTTP request",                b"GET / HTTP/1.1\r\n\r\n".hex(), 8),
    Opening("a TLS handshake",                "16 03 01 02 00 01 00 01 fc 03 03", 9),
]
# fmt: on


@pytest.mark.parametrize("opening", OPENINGS, ids=str)
def test_a_byte_stream_is_decided_at_the_earliest_byte_and_not_before(opening: Opening) -> None:
    data = opening.bytes

    for size in range(len(data) + 1):
        expected: Dialect | Undecided | None = opening.dialect if size >= opening.decided else UNDECIDED
        assert detect(data[:size], message=False, ended=False) is expected, f"at {size} bytes"


@pytest.mark.parametrize("opening", OPENINGS, ids=str)
def test_a_byte_stream_that_ended_is_always_decided(opening: Opening) -> None:
    data = opening.bytes

    for size in range(len(data) + 1):
        expected = opening.dialect if size >= opening.decided else None
        assert detect(data[:size], message=False, ended=True) is expected, f"at {size} bytes"


@pytest.mark.parametrize(
    "opening", [one for one in OPENINGS if REACTIVESOCKET_0_1 in (one.dialect, one.answer)], ids=str
)
def test_a_message_of_0_1_may_keep_the_length_whatever_that_says(opening: Opening) -> None:
    for message in (
        opening.bytes,
        bytes(4) + opening.bytes[4:],
        len(opening.bytes).to_bytes(4, "big") + opening.bytes[4:],
    ):
        assert keeps_length(message)
        assert detect(message, message=True, ended=False) is opening.dialect
        assert answer_for(message, message=True) is REACTIVESOCKET_0_1


@pytest.mark.parametrize("opening", OPENINGS, ids=str)
def test_no_message_without_a_length_looks_as_if_it_had_one(opening: Opening) -> None:
    begins_u32 = opening.bytes[:1] == b"\0" and opening.dialect in (REACTIVESOCKET_0_0, REACTIVESOCKET_0_1)

    assert not keeps_length(opening.bytes[4 if begins_u32 else 3 :])


@pytest.mark.parametrize("opening", OPENINGS, ids=str)
def test_once_decided_it_is_known_how_to_refuse(opening: Opening) -> None:
    if opening.dialect is None:
        for size in range(opening.decided, len(opening.bytes) + 1):
            assert answer_for(opening.bytes[:size], message=False) is opening.answer, f"at {size} bytes"


@pytest.mark.parametrize("opening", [one for one in OPENINGS if one.dialect is not None], ids=str)
def test_a_message_needs_no_length_prefix_and_is_decided_as_it_comes(opening: Opening) -> None:  # DET-09
    assert opening.dialect is not None
    prefix = 4 if opening.dialect.framing is Framing32 else 3
    frame = opening.bytes[prefix:]

    for size in range(1, len(frame) + 1):
        expected = opening.dialect if size >= opening.decided - prefix else None
        assert detect(frame[:size], message=True, ended=False) is expected, f"at {size} bytes"


@pytest.mark.parametrize(
    ("frame", "answer"),
    [
        ("00 00 00 00  04 00  00 01 00", RSOCKET_1_0),
        ("00 00 00 00  04 00  00 09 00 00", RSOCKET_1_0),
        ("00 00 00 01  28 20", RSOCKET_1_0),
        ("00 00 00 01  28", None),
        ("80 00 00 01  28 20", None),
        ("00 00 00 01  3c 00", None),
        ("68 65 6c 6c 6f", None),
        ("00 01 00 00  00 00 00 00  00 00 00 03", REACTIVESOCKET_0_1),
        ("00 01 00 20  00 00 00 00  00 07 00 00", REACTIVESOCKET_0_1),
        ("00 01 00 00  00 00 00 02  00 00 00 01", None),
        ("00 01 00 00  00 00 00 00  00 00 00", None),
        ("00 03 20 00  00 00 00 00", None),
        ("01 00 00 01  00 00 00 00 00 00 00 00  00 00", None),
        ("00 00 00 01  00 00 00 00 00 00 00 02  00 00", None),
    ],
)
def test_a_message_that_opens_nothing_is_refused_in_1_0_if_it_is_a_frame(frame: str, answer: Dialect | None) -> None:
    data = bytes.fromhex(frame)

    assert detect(data, message=True, ended=False) is None
    assert answer_for(data, message=True) is answer


def test_nothing_yet_is_undecided_and_nothing_at_all_is_unknown() -> None:
    assert detect(b"", message=False, ended=False) is UNDECIDED
    for message in (False, True):
        assert detect(b"", message=message, ended=True) is None
        assert answer_for(b"", message=message) is None


def test_an_empty_message_is_a_whole_one_and_no_dialects() -> None:
    assert detect(b"", message=True, ended=False) is None


def test_sixteen_bytes_always_decide() -> None:
    for opening in OPENINGS:
        assert detect(opening.bytes[:16].ljust(16, b"\0"), message=False, ended=False) is not UNDECIDED


def test_dialects_are_found_by_name() -> None:
    assert {name: dialect_named(name).name for name in ALL} == {name: name for name in ALL}
    assert list(ALL) == list(DIALECTS)
    with pytest.raises(ValueError, match=r"'rsocket/3': the known ones are rsocket/1.0, reactivesocket/0.2"):
        dialect_named("rsocket/3")


LACKING = {
    REACTIVESOCKET_0_0.name: {Interaction.REQUEST_CHANNEL},
    REACTIVESOCKET_0_1.name: set[Interaction](),
}
"""Every other dialect has no subscription."""


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_a_dialect_has_a_frame_for_exactly_its_interactions(dialect: Dialect) -> None:
    asked = {row.interaction for row in dialect.codec.rows if row.interaction is not None}
    lacking = LACKING.get(dialect.name, {Interaction.REQUEST_SUBSCRIPTION})

    assert asked == dialect.interactions == set(Interaction) - lacking


FIRST_IDS = {
    REACTIVESOCKET_0_0.name: (2, 1, 2**63 - 1),  # RS00-SID-05
    REACTIVESOCKET_0_1.name: (2, 1, 2**31 - 1),  # RS01-SID-04, RS01-SID-06
}
"""In every other dialect: RS10-SID-03, RS10-SID-04, RS02-SID-03."""


@pytest.mark.clause("RS00-SID-02", "RS00-SID-05", "RS01-SID-02", "RS01-SID-04")
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_clients_and_servers_take_their_ids_from_ranges_of_their_own(dialect: Dialect) -> None:
    first = FIRST_IDS.get(dialect.name, (1, 2, 2**31 - 1))

    assert (dialect.client_first_id, dialect.server_first_id, dialect.last_id) == first


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_the_largest_frame_is_that_of_the_codec(dialect: Dialect) -> None:
    assert dialect.framing.largest == dialect.codec.largest


def test_the_sizes_of_fields_are_those_of_the_layouts() -> None:
    assert struct.calcsize(layout_0_1.SHAPE.count.format) == REACTIVESOCKET_0_1.request_n_field
    assert struct.calcsize(layout_0_0.SHAPE.count.format) == REACTIVESOCKET_0_0.request_n_field
    assert METADATA_HEADER == REACTIVESOCKET_0_1.metadata_header == REACTIVESOCKET_0_0.metadata_header
