"""What is forbidden is not written, and nothing but the named errors comes out. Vectors and fuzzing show the rest."""

from __future__ import annotations

import attrs
import pytest

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.limits import MAX_FRAME_BYTES
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import BadMetadata, Codec, Header, NotUnderstood
from rsocket_trio.rsocket.dialect import (
    DIALECTS,
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
    Dialect,
)
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
from rsocket_trio.rsocket.layouts import v0_1 as layout_0_1
from tests.each_row import each_row
from tests.rsocket.test_vectors import WELL_FORMED

SETUP = SetupFrame(1, 0, 0.5, 1.5, "a", "b", Payload())
REQUEST = RequestFrame(1, Interaction.REQUEST_STREAM, Payload(), initial_n=1)

CHANNEL = Interaction.REQUEST_CHANNEL
OLDEST = (REACTIVESOCKET_0_1, REACTIVESOCKET_0_0)
each_dialect = pytest.mark.parametrize("dialect", [RSOCKET_1_0, REACTIVESOCKET_0_2], ids=lambda dialect: dialect.name)
each_layout_24 = pytest.mark.parametrize(
    "dialect", [dialect for dialect in DIALECTS.values() if dialect not in OLDEST], ids=lambda dialect: dialect.name
)
each_layout_32 = pytest.mark.parametrize("dialect", OLDEST, ids=lambda dialect: dialect.name)


def test_a_frame_cut_short_is_another_frame_or_the_peers_error() -> None:
    for vector in WELL_FORMED:
        for size in range(min(len(vector.data), 200)):
            decodes_or_fails(vector.dialect, vector.data[:size])


def decodes_or_fails(dialect: Dialect, data: bytes) -> None:
    try:
        dialect.codec.decode(data)
    except (NotUnderstood, BadMetadata) as error:
        place = error.offset
    else:
        return
    assert 0 <= place <= max(len(data), dialect.codec.header_size)


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
    (PayloadFrame(1, Payload(bytes(MAX_FRAME_BYTES - 5))), "PAYLOAD frame of 16777216 bytes, limit 16777215"),
    (ErrorFrame(1, 2**32), "code 4294967296"),
    (ErrorFrame(-1, 1), "stream_id -1"),
    (MetadataPushFrame(b"", 1), "stream_id 1"),  # RS10-MP-01, RS02-MP-01
    (MetadataPushFrame(bytes(MAX_FRAME_BYTES)), "METADATA_PUSH frame of 167772"),
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
@each_row(("frame", "text"), REFUSED, ids=[text for _, text in REFUSED])
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


@each_layout_24
def test_the_largest_frame_is_written(dialect: Dialect) -> None:  # RS10-FRM-04, RS02-FRM-03
    frame = PayloadFrame(1, Payload(bytes(MAX_FRAME_BYTES - 6)))

    assert len(dialect.codec.encode(frame)) == 16_777_215


@each_dialect
def test_an_interval_below_a_millisecond_is_written_as_one(dialect: Dialect) -> None:
    written = dialect.codec.encode(attrs.evolve(SETUP, keepalive_interval=0.0001))

    assert written[10:14] == bytes.fromhex("00000001")


@each_layout_24
def test_a_lease_of_part_milliseconds_is_not_prolonged(dialect: Dialect) -> None:
    written = dialect.codec.encode(LeaseFrame(1_999_999, 1))

    assert written[6:10] == bytes.fromhex("00000001")


@pytest.mark.parametrize(
    ("dialect", "data", "text"),
    [
        (
            RSOCKET_1_0,
            "00000001 2920 00",
            "7 bytes: metadata length needs 3 bytes at offset 6, 1 left",
        ),
        (RSOCKET_1_0, "00000001 2920 000002 61", "PAYLOAD frame of 10 bytes: metadata of 2 bytes at offset 9, 1 left"),
        (
            RSOCKET_1_0,
            "00000001 2000 0000",
            "REQUEST_N frame of 8 bytes: fixed fields need 4 bytes at offset 6, 2",
        ),
        (RSOCKET_1_0, "00000001 3c00", "frame of 6 bytes: unknown type 0x0F"),
        (RSOCKET_1_0, "00000001 28", "frame of 5 bytes: header needs 6"),
        (RSOCKET_1_0, "80000001 2820", "PAYLOAD frame of 6 bytes: stream id 0x80000001 above 0x7FFFFFFF"),
        (
            RSOCKET_1_0,
            "00000000 0400 00010000 00000001 00000001 05 61",
            "SETUP frame of 20 bytes: metadata MIME type needs 5 bytes at offset 19, 1 left",
        ),
        (REACTIVESOCKET_0_1, "000b 4000 00000002 00", "RESPONSE frame of 9 bytes: metadata header needs 4 bytes at "),
        (REACTIVESOCKET_0_1, "000b 4000 00000002 00000003", "metadata length 3, which must count its own 4 bytes"),
        (REACTIVESOCKET_0_1, "000b 4000 00000002 00000006 61", "metadata length 6 at offset 8, 5 left"),
        (REACTIVESOCKET_0_1, "000d 0000 00000000", "METADATA_PUSH frame of 8 bytes: no metadata: its flag is clear"),
        (REACTIVESOCKET_0_1, "0009 0000 00000002 0000", "fixed fields need 4 bytes at offset 8, 2 left"),
        (REACTIVESOCKET_0_1, "000a 0000", "frame of 4 bytes: header needs 8"),
        (REACTIVESOCKET_0_0, "0000 0015 0000000000000002 0000", "fixed fields need 8 bytes at offset 12, 2 left"),
        (REACTIVESOCKET_0_0, "0000 0016 00000000", "frame of 8 bytes: header needs 12"),
        (REACTIVESOCKET_0_0, "0300 0016 0000000000000002", "frame of 12 bytes: version 3, must be 0"),
        (REACTIVESOCKET_0_0, "0000 0004 0000000000000002", "frame of 12 bytes: unknown type 0x04"),
    ],
)
def test_an_error_says_what_was_missing_and_where(dialect: Dialect, data: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        dialect.codec.decode(bytes.fromhex(data))

    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("dialect", "data", "ignorable"),
    [
        (RSOCKET_1_0, "00000001 3e00", True),  # unknown type 0F with I
        (RSOCKET_1_0, "00000001 3c00", False),
        (RSOCKET_1_0, "00000001 2b20 00", True),  # PAYLOAD with bad metadata, and I
        (RSOCKET_1_0, "80000001 2a20", True),
        (RSOCKET_1_0, "00000001 3e", False),  # ALL-RCT-02: too short to hold the bit
        (RSOCKET_1_0, "", False),
        (REACTIVESOCKET_0_2, "00000001 2b20 00", True),
        (REACTIVESOCKET_0_1, "000e 8000 00000002", True),  # unknown type 000e with I
        (REACTIVESOCKET_0_1, "000e 4000 00000002", False),
        (REACTIVESOCKET_0_1, "000b c000 00000002", True),  # RESPONSE with bad metadata, and I
        (REACTIVESOCKET_0_1, "000b 8000", True),  # ALL-RCT-02: no whole header, but the bit is there
        (REACTIVESOCKET_0_1, "000b 80", False),
        (REACTIVESOCKET_0_0, "0080 0004 0000000000000002", True),
        (REACTIVESOCKET_0_0, "0000 0004 0000000000000002", False),
        (REACTIVESOCKET_0_0, "0180 0016 0000000000000002", True),  # RS00-HDR-12: another version
        (REACTIVESOCKET_0_0, "0080", True),
        (REACTIVESOCKET_0_0, "80", False),
        (REACTIVESOCKET_0_0, "", False),
    ],
)
def test_the_ignore_flag_is_read_as_soon_as_it_is_there_whatever_the_rest_is(
    dialect: Dialect, data: str, ignorable: bool
) -> None:
    assert dialect.codec.ignorable(bytes.fromhex(data)) is ignorable


@pytest.mark.parametrize(
    ("dialect", "data", "header"),
    [
        (RSOCKET_1_0, "80000005 3e01 ff", Header(0x0F, 0x201, 0x80000005)),
        (RSOCKET_1_0, "0000000000", None),
        (REACTIVESOCKET_0_1, "000e 8001 ffffffff 61", Header(0x0E, 0x8001, 2**32 - 1)),
        (REACTIVESOCKET_0_1, "ffff 0000 00000007 61", Header(0xFFFF, 0, 0)),  # EXT has no stream id
        (REACTIVESOCKET_0_1, "00000000000000", None),
        (REACTIVESOCKET_0_0, "0081 0004 0000000000000005", Header(0x04, 0x81, 5)),
        (REACTIVESOCKET_0_0, "0000 ffff 00000007", Header(0xFFFF, 0, 0)),
        (REACTIVESOCKET_0_0, "0000 ffff 00000007 00000000 61", Header(0xFFFF, 0, 0)),
        (REACTIVESOCKET_0_0, "0000000000000000000000", None),
    ],
)
def test_a_header_is_read_even_where_the_frame_is_not_understood(
    dialect: Dialect, data: str, header: Header | None
) -> None:
    assert dialect.codec.header(bytes.fromhex(data)) == header


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


@each_layout_24
def test_the_smallest_frame_is_a_header(dialect: Dialect) -> None:
    assert dialect.codec.minimum == len(dialect.codec.encode(CancelFrame(1))) == 6


# ReactiveSocket 0.1 and 0.0

OLD_SETUP = SetupFrame(0, 0, 0.0, 0.0, "a", "b", Payload())
NOT_AN_ITEM = "RESPONSE next False"
REFUSED_BY_BOTH: list[tuple[Frame, str]] = [
    (attrs.evolve(OLD_SETUP, stream_id=2), "SETUP stream_id 2"),  # RS00-SETUP-01, RS01-SETUP-01
    (attrs.evolve(OLD_SETUP, resume_token=b"abc"), "resume_token of 3 bytes"),
    (attrs.evolve(OLD_SETUP, metadata_mime="a" * 256), "metadata_mime of 256 bytes, limit 255"),
    (attrs.evolve(OLD_SETUP, data_mime="text/\N{EURO SIGN}"), "data_mime has '€' at 5"),
    (attrs.evolve(OLD_SETUP, major=-1), "major -1"),
    (LeaseFrame(-1, 1), "time_to_live_ns -1"),
    (LeaseFrame(1, -1), "number_of_requests -1"),
    (LeaseFrame(1, 1, None, 2), "LEASE stream_id 2"),  # RS00-LEASE-01, RS01-LEASE-01
    (RequestFrame(0, Interaction.REQUEST_RESPONSE, Payload()), "REQUEST_RESPONSE stream_id 0"),
    (RequestFrame(2, Interaction.REQUEST_RESPONSE, Payload(), 1), "REQUEST_RESPONSE initial_n 1"),
    (RequestFrame(2, Interaction.FIRE_AND_FORGET, Payload(), complete=True), "complete True"),
    (RequestFrame(2, Interaction.REQUEST_STREAM, Payload()), "REQUEST_STREAM initial_n None"),
    (RequestFrame(2, Interaction.REQUEST_SUBSCRIPTION, Payload(), -1), "REQUEST_SUB initial_n -1"),
    (RequestFrame(2, Interaction.REQUEST_STREAM, Payload(), 1, complete=True), "REQUEST_STREAM complete"),
    (RequestFrame(0, Interaction.REQUEST_STREAM, Payload(), 1), "REQUEST_STREAM stream_id 0"),
    (RequestNFrame(0, 1), "REQUEST_N stream_id 0"),
    (RequestNFrame(2, -1), "request_n -1"),
    (CancelFrame(0), "CANCEL stream_id 0"),
    (CancelFrame(2**64), "CANCEL stream_id 18446744073709551616"),
    (PayloadFrame(0, Payload()), "RESPONSE stream_id 0"),
    (PayloadFrame(2, Payload(), next=False), NOT_AN_ITEM),  # RS00-RSP-03, RS01-RSP-03
    (PayloadFrame(2, Payload(b"a"), next=False, complete=True), NOT_AN_ITEM),
    (PayloadFrame(2, Payload(b"", b""), next=False, complete=True), NOT_AN_ITEM),
    (ErrorFrame(0, 2**32), "code 4294967296"),
    (MetadataPushFrame(b"", -1), "METADATA_PUSH stream_id -1"),
    (ExtFrame(1, 1), "EXT stream_id 1: must be 0"),  # RS00-EXT-02, RS01-EXT-01
    (ExtFrame(0, 2**32), "ext_type 4294967296"),
    (ResumeFrame(0, 1, b"", 0, 0), "no frame of this dialect says ResumeFrame"),
    (ResumeOkFrame(0), "no frame of this dialect says ResumeOkFrame"),
]
REFUSED_BY_0_1: list[tuple[Frame, str]] = [
    (attrs.evolve(OLD_SETUP, minor=65536), "minor 65536"),
    (attrs.evolve(OLD_SETUP, keepalive_interval=-0.001), "keepalive_interval -0.001"),
    (attrs.evolve(OLD_SETUP, max_lifetime=4294967.296), "max_lifetime 4294967.296"),
    (attrs.evolve(OLD_SETUP, max_lifetime=float("nan")), "max_lifetime nan"),
    (LeaseFrame(2**32 * 1_000_000, 1), "time_to_live_ns 4294967296000000"),
    (LeaseFrame(1, 2**32), "number_of_requests 4294967296"),
    (KeepaliveFrame(True, stream_id=1), "KEEPALIVE stream_id 1"),  # RS01-KA-01
    (KeepaliveFrame(True, 1), "last_received_position 1: this frame has none"),  # RS01-KA-08
    (RequestFrame(2, CHANNEL, Payload(), 2**32), "REQUEST_CHANNEL initial_n 4294967296"),
    (RequestFrame(0, CHANNEL, Payload()), "REQUEST_CHANNEL stream_id 0"),
    (RequestNFrame(2, 2**32), "request_n 4294967296"),
    (RequestNFrame(2, 1, b"m"), "REQUEST_N metadata of 1 bytes"),  # RS01-RQN-01
    (PayloadFrame(2**32, Payload()), "RESPONSE stream_id 4294967296"),
    (ErrorFrame(2**32, 1), "ERROR stream_id 4294967296"),
    (MetadataPushFrame(b"", 2), "METADATA_PUSH stream_id 2"),  # RS01-MP-01
]
REFUSED_BY_0_0: list[tuple[Frame, str]] = [
    (attrs.evolve(OLD_SETUP, major=256), "major 256: must be from 0 to 255"),  # RS00-HDR-05
    (attrs.evolve(OLD_SETUP, minor=1), "minor 1: must be 0"),
    (attrs.evolve(OLD_SETUP, strict=True), "SETUP strict"),  # RS00-SETUP-03
    (LeaseFrame(2**64, 1), "time_to_live_ns 18446744073709551616"),
    (KeepaliveFrame(True), "no frame of this dialect says KeepaliveFrame"),
    (RequestFrame(2, CHANNEL, Payload(), 1), "no frame of this dialect says REQUEST_CHANNEL"),
    (RequestFrame(2, Interaction.REQUEST_RESPONSE, Payload(), follows=True), "can't be fragmented"),  # RS00-FRAG-02
    (RequestFrame(2, Interaction.REQUEST_STREAM, Payload(), 1, follows=True), "can't be fragmented"),
    (RequestNFrame(2, 2**64), "request_n 18446744073709551616"),
    (PayloadFrame(2, Payload(b"", b"m", metadata_type=256)), "RESPONSE metadata_type 256"),  # RS00-MD-03
    (CancelFrame(2, b"m", -1), "CANCEL metadata_type -1"),
    (PayloadFrame(2, Payload(b"", bytes(16_777_212))), "metadata of 16777212 bytes, limit 16777211"),  # RS00-MD-06
]


@each_row(
    ("dialect", "frame", "text"),
    [
        *((dialect, *refused) for dialect in OLDEST for refused in REFUSED_BY_BOTH),
        *((REACTIVESOCKET_0_1, *refused) for refused in REFUSED_BY_0_1),
        *((REACTIVESOCKET_0_0, *refused) for refused in REFUSED_BY_0_0),
    ],
    ids=lambda given: given if isinstance(given, str) else getattr(given, "name", ""),
)
def test_the_oldest_dialects_refuse_a_forbidden_frame_too(dialect: Dialect, frame: Frame, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        dialect.codec.encode(frame)


def test_the_oldest_rows_are_found_by_number_and_by_frame() -> None:  # RS00-TYP-01, RS01-TYP-01
    new, old = REACTIVESOCKET_0_1.codec, REACTIVESOCKET_0_0.codec
    subscription = attrs.evolve(REQUEST, interaction=Interaction.REQUEST_SUBSCRIPTION)

    assert [row.number for row in new.rows] == [*range(1, 0x0E), 0xFFFF]
    assert [row.number for row in old.rows] == [1, 2, 3, *range(0x11, 0x17), 0x20, 0x21, 0x31, 0xFFFF]
    assert (new.name_of(subscription), old.name_of(subscription)) == ("REQUEST_SUB", "REQUEST_SUB")
    assert (new.name_of(ErrorFrame(0, 1)), new.name_of(ErrorFrame(2, 1))) == ("ERROR", "ERROR")
    assert (old.name_of(ErrorFrame(0, 1)), old.name_of(ErrorFrame(2, 1))) == ("SETUP_ERROR", "ERROR")
    assert old.row_of(ErrorFrame(0, 1)) is old.row(2)


def test_the_smallest_frames_of_the_oldest_dialects() -> None:  # RS00-EXT-02, RS00-HDR-13, RS01-HDR-04
    new, old = REACTIVESOCKET_0_1.codec, REACTIVESOCKET_0_0.codec

    assert new.minimum == new.header_size == len(new.encode(CancelFrame(2))) == len(new.encode(ExtFrame(0, 1))) == 8
    assert old.minimum == len(old.encode(ExtFrame(0, 1))) == 8
    assert old.header_size == len(old.encode(CancelFrame(2))) == 12


@each_layout_32
def test_the_largest_frame_of_the_oldest_dialects_is_what_their_length_can_say(dialect: Dialect) -> None:
    codec = dialect.codec
    small = type(codec)(attrs.evolve(codec.layout, largest=20), codec.rows)

    assert codec.largest == 2**31 - 1 - 4  # RS00-HDR-04, RS01-HDR-04
    assert len(small.encode(PayloadFrame(2, Payload(bytes(20 - codec.header_size))))) == 20
    with pytest.raises(LocalProtocolError, match="RESPONSE frame of 21 bytes, limit 20"):
        small.encode(PayloadFrame(2, Payload(bytes(21 - codec.header_size))))


def test_an_error_of_0_0_is_read_with_the_code_of_an_application_and_written_without() -> None:  # RS00-ERR-01
    codec = REACTIVESOCKET_0_0.codec
    written = codec.encode(ErrorFrame(2, 0x202, b"no"))

    assert written == bytes.fromhex("0000 0021 0000000000000002") + b"no"
    assert codec.decode(written) == ErrorFrame(2, 0x201, b"no")


def test_an_interval_of_0_1_is_0_only_if_it_is_0() -> None:  # RS01-SETUP-09
    codec = REACTIVESOCKET_0_1.codec

    for seconds_given, written in [(0.0, 0), (0.0001, 1), (0.0014, 1), (0.0016, 2)]:
        data = codec.encode(attrs.evolve(SETUP, keepalive_interval=seconds_given))
        assert int.from_bytes(data[12:16], "big") == written


def test_a_lease_of_0_1_is_cut_to_milliseconds_and_that_of_0_0_is_not() -> None:
    frame = LeaseFrame(1_999_999, 1)

    assert REACTIVESOCKET_0_1.codec.encode(frame)[8:12] == bytes.fromhex("00000001")
    assert REACTIVESOCKET_0_0.codec.encode(frame)[12:20] == (1_999_999).to_bytes(8, "big")


# Quirks of 0.1's peers


def quirky(*names: str) -> Codec:
    return layout_0_1.codec(frozenset(names))


def test_a_setup_can_say_0_0() -> None:
    codec = quirky("version_0_0")
    written = codec.encode(attrs.evolve(SETUP, major=0, minor=1))

    assert written[8:12] == bytes(4)
    assert codec.decode(written) == attrs.evolve(SETUP, major=0, minor=0)


@pytest.mark.parametrize(
    ("flags", "lease", "strict"), [("0020", True, False), ("0010", False, True), ("3000", True, True)]
)
def test_lease_and_strict_can_be_read_from_the_low_flags_and_are_written_there_too(
    flags: str, lease: bool, strict: bool
) -> None:
    codec = quirky("low_setup_flags")
    frame = codec.decode(bytes.fromhex(f"0001 {flags} 00000000 00000000 00000001 00000001 00 00"))

    assert isinstance(frame, SetupFrame)
    assert (frame.lease, frame.strict) == (lease, strict)
    both = 0x2020 * lease | 0x1010 * strict
    assert codec.encode(frame)[2:4] == both.to_bytes(2, "big")


@pytest.mark.parametrize(
    ("data", "initial_n"),
    [
        ("0008 0800 00000002 00000005 61", 5),
        ("0008 0800 00000002 00000000 61", 0),
        ("0008 0000 00000002 00000005 61", 5),  # without ever setting N
        ("0008 0000 00000002 00000000 61", None),
    ],
)
def test_a_channel_can_have_its_number_always(data: str, initial_n: int | None) -> None:
    codec = quirky("channel_slot")
    frame = codec.decode(bytes.fromhex(data))

    assert frame == RequestFrame(2, CHANNEL, Payload(b"a"), initial_n)
    assert codec.decode(codec.encode(frame)) == frame
    assert codec.encode(frame)[8:] == bytes.fromhex(data)[8:]


@pytest.mark.parametrize("body", ["", "61", "000000"])
def test_a_channel_whose_body_has_no_room_for_its_number_has_none(body: str) -> None:
    frame = quirky("channel_slot").decode(bytes.fromhex("0008 0000 00000002" + body))

    assert frame == RequestFrame(2, CHANNEL, Payload(bytes.fromhex(body)), None)
