"""Frames survive the way out and back, what is forbidden is not written, and nothing but the named errors comes out."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.limits import LARGEST_FRAME
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import BadMetadata, Header, NotUnderstood
from rsocket_trio.rsocket.dialects import DIALECTS, REACTIVESOCKET_0_2, RSOCKET_1_0, Dialect
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

LAST = 2**31 - 1
SETUP = SetupFrame(1, 0, 0.5, 1.5, "a", "b", Payload())
REQUEST = RequestFrame(1, Interaction.REQUEST_STREAM, Payload(), initial_n=1)

stream_ids = st.integers(1, LAST)
numbers = st.integers(1, LAST)
positions = st.integers(0, 2**63 - 1)
content = st.binary(max_size=40)
metadata = st.none() | content
payloads = st.builds(Payload, content, metadata)
mime_types = st.text(st.characters(max_codepoint=255), max_size=255)
seconds = st.integers(1, LAST).map(lambda milliseconds: milliseconds / 1000)
versions = st.integers(0, 0xFFFF)


def requests(interaction: Interaction, initial_n: st.SearchStrategy[Any], complete: st.SearchStrategy[bool]) -> Any:
    return st.builds(RequestFrame, stream_ids, st.just(interaction), payloads, initial_n, st.booleans(), complete)


def setups(strict: st.SearchStrategy[bool]) -> st.SearchStrategy[SetupFrame]:
    flags = {"lease": st.booleans(), "strict": strict, "resume_token": metadata}
    return st.builds(SetupFrame, versions, versions, seconds, seconds, mime_types, mime_types, payloads, **flags)


ONE = st.just(None)
NO = st.just(False)
leases = st.builds(LeaseFrame, st.integers(0, LAST).map(lambda ms: ms * 1_000_000), st.integers(0, LAST), metadata)
payload_frames = st.builds(PayloadFrame, stream_ids, payloads, st.booleans(), st.booleans(), st.booleans())
SHARED = [
    leases,
    st.builds(KeepaliveFrame, st.booleans(), positions, content),
    requests(Interaction.REQUEST_RESPONSE, ONE, NO),
    requests(Interaction.FIRE_AND_FORGET, ONE, NO),
    requests(Interaction.REQUEST_STREAM, numbers, NO),
    requests(Interaction.REQUEST_CHANNEL, numbers, st.booleans()),
    st.builds(RequestNFrame, stream_ids, numbers),
    st.builds(MetadataPushFrame, content),
    st.builds(ResumeFrame, versions, versions, content, positions, positions),
    st.builds(ResumeOkFrame, positions),
    st.builds(ExtFrame, st.integers(0, LAST), numbers, content, st.booleans(), st.booleans()),
]
codes = st.integers(0, 0xFFFFFFFF)
FRAMES: dict[Dialect, st.SearchStrategy[Frame]] = {
    RSOCKET_1_0: st.one_of(
        *SHARED,
        setups(NO),
        st.builds(CancelFrame, stream_ids),
        payload_frames.filter(lambda frame: frame.next or frame.complete or frame.follows),
        st.builds(ErrorFrame, st.integers(0, LAST), codes, content),
    ),
    REACTIVESOCKET_0_2: st.one_of(
        *SHARED,
        setups(st.booleans()),
        st.builds(CancelFrame, stream_ids, metadata),
        payload_frames,
        st.builds(ErrorFrame, st.integers(0, LAST), codes, content, metadata),
    ),
}

each_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


@each_dialect
@given(drawn=st.data())
def test_decoding_what_was_encoded_gives_the_frame_back(dialect: Dialect, drawn: st.DataObject) -> None:
    frame = drawn.draw(FRAMES[dialect])

    assert dialect.codec.decode(dialect.codec.encode(frame)) == frame


@each_dialect
@given(drawn=st.data())
def test_both_pieces_of_a_frame_are_the_frame(dialect: Dialect, drawn: st.DataObject) -> None:
    frame = drawn.draw(FRAMES[dialect])
    head, data = dialect.codec.encode_parts(frame)

    assert head + data == dialect.codec.encode(frame)


@each_dialect
@given(drawn=st.data())
def test_a_frame_cut_short_is_another_frame_or_the_peers_error(dialect: Dialect, drawn: st.DataObject) -> None:
    data = dialect.codec.encode(drawn.draw(FRAMES[dialect]))

    for size in range(len(data)):
        decodes_or_fails(dialect, data[:size])


@each_dialect
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_frame_or_the_peers_error(dialect: Dialect, data: bytes) -> None:
    decodes_or_fails(dialect, data)


@each_dialect
@given(number=st.integers(0, 63), flags=st.integers(0, 0x3FF), body=st.binary(max_size=60))
def test_any_body_behind_a_header_is_a_frame_or_the_peers_error(
    dialect: Dialect, number: int, flags: int, body: bytes
) -> None:
    decodes_or_fails(dialect, bytes(4) + (number << 10 | flags).to_bytes(2, "big") + body)


def decodes_or_fails(dialect: Dialect, data: bytes) -> None:
    try:
        dialect.codec.decode(data)
    except (NotUnderstood, BadMetadata) as error:
        place = error.offset
    else:
        return
    assert 0 <= place <= max(len(data), dialect.codec.minimum)


def test_data_given_as_a_view_is_not_copied() -> None:
    payload = Payload()
    view = memoryview(bytes(1000))
    payload.data = view  # type: ignore[assignment]  # what the outbox does with bodies that it need not own

    head, data = RSOCKET_1_0.codec.encode_parts(PayloadFrame(1, payload))

    assert data is view
    assert head == bytes.fromhex("00000001 2820")
    assert RSOCKET_1_0.codec.encode(PayloadFrame(1, payload)) == head + bytes(1000)


REFUSED: list[tuple[Frame, str]] = [
    (attrs.evolve(SETUP, keepalive_interval=0.0), "keepalive_interval 0.0"),  # RS10-SETUP-04, RS02-SETUP-04
    (attrs.evolve(SETUP, max_lifetime=-1.0), "max_lifetime -1.0"),
    (attrs.evolve(SETUP, max_lifetime=2147483.648), "max_lifetime 2147483.648"),
    (attrs.evolve(SETUP, max_lifetime=float("inf")), "max_lifetime inf"),
    (attrs.evolve(SETUP, keepalive_interval=float("nan")), "keepalive_interval nan"),
    (attrs.evolve(SETUP, metadata_mime="a" * 256), "metadata_mime of 256 bytes, limit 255"),
    (attrs.evolve(SETUP, data_mime="text/\N{EURO SIGN}"), "data_mime has '€' at 5"),
    (attrs.evolve(SETUP, resume_token=bytes(65536)), "resume_token of 65536 bytes, limit 65535"),
    (attrs.evolve(SETUP, major=65536), "major 65536"),
    (attrs.evolve(SETUP, minor=-1), "minor -1"),
    (attrs.evolve(SETUP, stream_id=1), "stream_id 1"),  # RS10-SETUP-01, RS02-SETUP-01
    (LeaseFrame(-1, 1), "time_to_live_ns -1"),
    (LeaseFrame(2**31 * 1_000_000, 1), "time_to_live_ns 2147483648000000"),
    (LeaseFrame(1, 2**31), "number_of_requests 2147483648"),
    (LeaseFrame(1, 1, None, 2), "stream_id 2"),  # RS10-LEASE-01, RS02-LEASE-01
    (KeepaliveFrame(True, 2**63), "last_received_position 9223372036854775808"),
    (KeepaliveFrame(True, stream_id=3), "stream_id 3"),  # RS10-KA-01, RS02-KA-01
    (attrs.evolve(REQUEST, stream_id=0), "stream_id 0"),
    (attrs.evolve(REQUEST, stream_id=2**31), "stream_id 2147483648"),
    (attrs.evolve(REQUEST, initial_n=0), "initial_n 0"),  # RS10-N-01, RS02-N-01
    (attrs.evolve(REQUEST, initial_n=2**31), "initial_n 2147483648"),
    (attrs.evolve(REQUEST, initial_n=None), "initial_n None"),
    (attrs.evolve(REQUEST, complete=True), "REQUEST_STREAM complete"),
    (RequestFrame(1, Interaction.REQUEST_RESPONSE, Payload(), initial_n=1), "initial_n 1"),
    (RequestFrame(0, Interaction.FIRE_AND_FORGET, Payload()), "stream_id 0"),
    (RequestFrame(1, Interaction.REQUEST_SUBSCRIPTION, Payload(), 1), "REQUEST_SUBSCRIPTION"),
    (RequestNFrame(1, 0), "request_n 0"),
    (RequestNFrame(1, 2**31), "request_n 2147483648"),
    (RequestNFrame(0, 1), "stream_id 0"),
    (RequestNFrame(1, 1, b"m"), "REQUEST_N metadata of 1 bytes"),
    (CancelFrame(-1), "stream_id -1"),
    (PayloadFrame(0, Payload()), "stream_id 0"),
    (PayloadFrame(1, Payload(b"", bytes(2**24))), "metadata of 16777216 bytes, limit 16777215"),
    (PayloadFrame(1, Payload(bytes(LARGEST_FRAME - 5))), "PAYLOAD frame of 16777216 bytes, limit 16777215"),
    (ErrorFrame(1, 2**32), "code 4294967296"),
    (ErrorFrame(-1, 1), "stream_id -1"),
    (MetadataPushFrame(b"", 1), "stream_id 1"),  # RS10-MP-01, RS02-MP-01
    (MetadataPushFrame(bytes(LARGEST_FRAME)), "METADATA_PUSH frame of 167772"),
    (ResumeFrame(1, 0, bytes(65536), 0, 0), "token of 65536 bytes"),
    (ResumeFrame(1, 0, b"", -1, 0), "last_received_server_position -1"),
    (ResumeFrame(1, 0, b"", 0, 2**63), "first_available_client_position 9223372036854775808"),
    (ResumeFrame(1, 0, b"", 0, 0, 1), "stream_id 1"),  # RS10-RES-01, RS02-RES-03
    (ResumeOkFrame(2**63), "last_received_client_position 9223372036854775808"),
    (ResumeOkFrame(0, 1), "stream_id 1"),
    (ExtFrame(0, 0), "ext_type 0"),  # RS10-EXT-01, RS02-EXT-02
    (ExtFrame(0, 2**31), "ext_type 2147483648"),
]


@each_dialect
@pytest.mark.parametrize(("frame", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_forbidden_frame_is_refused_by_field_and_number(dialect: Dialect, frame: Frame, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        dialect.codec.encode(frame)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (PayloadFrame(1, Payload(b"a"), next=False), "next False, complete False"),  # RS10-PAY-03
        (attrs.evolve(SETUP, strict=True), "strict"),  # RS10-SETUP-03
        (CancelFrame(1, b"why"), "CANCEL metadata of 3 bytes"),  # RS10-CAN-01
        (ErrorFrame(1, 0x201, b"", b"why"), "ERROR metadata of 3 bytes"),  # RS10-ERR-01
    ],
)
def test_1_0_does_not_say_what_only_0_2_can(frame: Frame, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        RSOCKET_1_0.codec.encode(frame)

    assert REACTIVESOCKET_0_2.codec.decode(REACTIVESOCKET_0_2.codec.encode(frame)) == frame


@each_dialect
def test_the_largest_frame_is_written(dialect: Dialect) -> None:  # RS10-FRM-04, RS02-FRM-03
    frame = PayloadFrame(1, Payload(bytes(LARGEST_FRAME - 6)))

    assert len(dialect.codec.encode(frame)) == 16_777_215


@each_dialect
def test_an_interval_below_a_millisecond_is_written_as_one(dialect: Dialect) -> None:
    written = dialect.codec.encode(attrs.evolve(SETUP, keepalive_interval=0.0001))

    assert written[10:14] == bytes.fromhex("00000001")


@each_dialect
def test_a_lease_of_part_milliseconds_is_not_prolonged(dialect: Dialect) -> None:
    written = dialect.codec.encode(LeaseFrame(1_999_999, 1))

    assert written[6:10] == bytes.fromhex("00000001")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("00000001 2920 00", "PAYLOAD frame of 7 bytes: metadata length needs 3 bytes at offset 6, 1 left"),
        ("00000001 2920 000002 61", "PAYLOAD frame of 10 bytes: metadata of 2 bytes at offset 9, 1 left"),
        ("00000001 2000 0000", "REQUEST_N frame of 8 bytes: fixed fields need 4 bytes at offset 6, 2 left"),
        ("00000001 3c00", "frame of 6 bytes: unknown type 0x0F"),
        ("00000001 28", "frame of 5 bytes: header needs 6"),
        ("80000001 2820", "PAYLOAD frame of 6 bytes: stream id 0x80000001 above 0x7FFFFFFF"),
        (
            "00000000 0400 00010000 00000001 00000001 05 61",
            "SETUP frame of 20 bytes: metadata MIME type needs 5 bytes at offset 19, 1 left",
        ),
    ],
)
def test_an_error_says_what_was_missing_and_where(data: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        RSOCKET_1_0.codec.decode(bytes.fromhex(data))

    assert str(caught.value) == text


@each_dialect
@pytest.mark.parametrize(
    ("data", "ignorable"),
    [
        ("00000001 3e00", True),  # unknown type 0F with I
        ("00000001 3c00", False),
        ("00000001 2b20 00", True),  # PAYLOAD with bad metadata, and I
        ("80000001 2a20", True),
        ("00000001 3e", False),  # ALL-RCT-02: too short to hold the bit
        ("", False),
    ],
)
def test_the_ignore_flag_is_read_whatever_the_rest_is(dialect: Dialect, data: str, ignorable: bool) -> None:
    assert dialect.codec.ignorable(bytes.fromhex(data)) is ignorable


@each_dialect
def test_a_header_is_read_even_where_the_frame_is_not_understood(dialect: Dialect) -> None:
    assert dialect.codec.header(bytes.fromhex("80000005 3e01 ff")) == Header(0x0F, 0x201, 0x80000005)
    assert dialect.codec.header(bytes(5)) is None


@each_dialect
def test_rows_are_found_by_number_and_by_frame(dialect: Dialect) -> None:
    codec = dialect.codec

    assert [row.number for row in codec.rows] == [*range(1, 0x0F), 0x3F]  # RS10-TYP-01, RS02-TYP-01
    assert all(codec.row(row.number) is row for row in codec.rows)
    assert codec.row(0) is None
    assert codec.name_of(REQUEST) == "REQUEST_STREAM"
    assert codec.name_of(CancelFrame(1)) == "CANCEL"
    with pytest.raises(LocalProtocolError, match="REQUEST_SUBSCRIPTION"):
        codec.name_of(attrs.evolve(REQUEST, interaction=Interaction.REQUEST_SUBSCRIPTION))


@each_dialect
def test_the_smallest_frame_is_a_header(dialect: Dialect) -> None:
    assert dialect.codec.minimum == len(dialect.codec.encode(CancelFrame(1))) == 6
