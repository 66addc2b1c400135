"""Extension blocks are read and written as the draft's reading says, and what is wrong with one is told apart."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.cli.frame_json import from_json, to_json
from rsocket_trio.cli.frames import decode_lines, encode_lines
from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, RSOCKET_2_0_DRAFT
from rsocket_trio.rsocket.extensions.entries import (
    AT_EXT,
    AT_OK,
    AT_SETUP,
    AT_STREAM,
    CONCURRENCY_LIMIT,
    ENTRY_LIMIT,
    REQUESTS_COUNT,
    Address,
    Beat,
    BrokerInfo,
    Complexity,
    KeepaliveTerms,
    MalformedExtension,
    Permits,
    Point,
    Reader,
    Resumable,
    ResumeGrant,
    ResumePosition,
    ResumeRequest,
    RouteAdd,
    RouteJoin,
    Strategies,
    UnknownExtension,
    decode_block,
    encode_block,
    entry_of,
)
from rsocket_trio.rsocket.frames import (
    BROKER,
    KEEPALIVE,
    RESUME,
    ExtensionEntry,
    ExtFrame,
    Frame,
    PayloadFrame,
    RequestFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.layouts import v1_0 as layout_1_0
from rsocket_trio.rsocket.layouts.v2_0_draft import codec as codec_of
from tests.rsocket import drafted

CODEC = RSOCKET_2_0_DRAFT.codec
TERMS = KeepaliveTerms(0.5, 1.5)
ROUTE = bytes(range(16))
POINTS = {point.name: point for point in (AT_SETUP, AT_OK, AT_EXT, AT_STREAM)}
each_point = pytest.mark.parametrize("point", POINTS.values(), ids=lambda point: point.name)

SETUP = SetupFrame(2, 0, 0.0, 0.0, 0x7F, 0x05, Payload())
REQUEST = RequestFrame(1, Interaction.REQUEST_RESPONSE, Payload())

# fmt: off
SAID: list[tuple[Point, object, str]] = [
    (AT_SETUP,  TERMS,                                              "00 000001f4 000005dc"),          # RSX-KA-01
    (AT_OK,     TERMS,                                              "00 000001f4 000005dc"),          # RSX-KA-03
    (AT_EXT,    Beat(True, b"p"),                                   "01 70"),                         # RSX-KA-04
    (AT_EXT,    Beat(False),                                        "00"),
    (AT_SETUP,  ResumeRequest(b"tok"),                              "00 0003 746f6b"),                # RSX-RES-01
    (AT_SETUP,  ResumeRequest(b"", 258),                            "01 0000 0000000000000102"),      # RSX-RES-02
    (AT_OK,     ResumeGrant(),                                      "00"),                            # RSX-RES-03
    (AT_OK,     ResumeGrant(0),                                     "01 0000000000000000"),
    (AT_EXT,    ResumePosition(2**63 - 1),                          "00 7fffffffffffffff"),           # RSX-RES-05
    (AT_STREAM, Resumable(),                                        "01"),                            # RSX-RES-06
    (AT_STREAM, Resumable(False),                                   "00"),
    (AT_SETUP,  Strategies((REQUESTS_COUNT,)),                      "00 01 80"),                      # RSX-LEASE-01
    (AT_OK,     Strategies((CONCURRENCY_LIMIT, "ab")),              "00 02 81 026162"),               # RSX-LEASE-03
    (AT_EXT,    Permits("ab", 1_000_000_000, 10),                   "00 026162 000003e8 0000000a"),   # RSX-LEASE-04
    (AT_STREAM, Complexity(7),                                      "00 00000007"),                   # RSX-LEASE-05
    (AT_SETUP,  RouteJoin(ROUTE, "é", ((1, b"v"), ("k", b""))),     f"01 {ROUTE.hex()} 02c3a9 818176 016b00"),
    (AT_EXT,    RouteJoin(ROUTE, ""),                               f"01 {ROUTE.hex()} 00 8000"),     # RSX-BRK-01
    (AT_EXT,    BrokerInfo(ROUTE, 258),                             f"00 {ROUTE.hex()} 0000000000000102 8000"),
    (AT_EXT,    RouteAdd(ROUTE, ROUTE, 1, "s"),                     f"02 {2 * ROUTE.hex()} 0000000000000001 0173 8000"),
    (AT_STREAM, Address(ROUTE, (), ((2, b"abc"),), unicast=True),   f"01 {ROUTE.hex()} 8000 8203616263"),
    (AT_STREAM, Address(ROUTE, shard=True, encrypted=True),         f"0c {ROUTE.hex()} 8000 8000"),   # RSX-BRK-03
]
# fmt: on


@pytest.mark.parametrize(("point", "content", "drawn"), SAID, ids=lambda part: str(getattr(part, "name", part)))
def test_a_value_is_the_nibble_and_the_payload_drawn_for_it(point: Point, content: object, drawn: str) -> None:
    entry = entry_of(content, ignore=True)

    assert bytes((entry.nibble,)) + entry.payload == bytes.fromhex(drawn)
    assert point.read(entry) == content


@each_point
@given(drawn=st.data())
def test_every_value_is_read_as_it_was_written(point: Point, drawn: st.DataObject) -> None:
    content = drawn.draw(st.one_of(*drafted.AT[point.name]))
    entry = entry_of(content, ignore=drawn.draw(st.booleans()))
    (read,), end = decode_block(encode_block([entry], point) + b"rest", 0, point)

    assert (read, point.read(read)) == (entry, content)
    assert end == len(encode_block([entry], point))


@each_point
@given(drawn=st.data())
def test_a_block_ends_where_it_ends_whatever_follows(point: Point, drawn: st.DataObject) -> None:
    entries = drawn.draw(drafted.blocks(point.name, least=1))
    block = encode_block(entries, point)

    assert decode_block(b"xy" + block + drawn.draw(st.binary()), 2, point) == (entries, 2 + len(block))


@each_point
@given(drawn=st.data())
def test_a_block_cut_short_is_malformed(point: Point, drawn: st.DataObject) -> None:
    block = encode_block(drawn.draw(drafted.blocks(point.name, least=1)), point)

    for size in range(len(block)):
        with pytest.raises(MalformedExtension):
            decode_block(block[:size], 0, point)


def test_the_length_is_there_only_if_the_entry_may_be_ignored() -> None:  # RSX-TLV-01, RSX-GAP-07
    entry = entry_of(Complexity(1))

    assert encode_block([entry], AT_STREAM).hex(" ") == "83 00 00 00 00 01"
    assert encode_block([attrs.evolve(entry, ignore=True)], AT_STREAM).hex(" ") == "83 40 00 00 04 00 00 00 01"


def test_the_value_of_an_extension_that_is_unknown_at_a_point_is_none() -> None:  # RSX-TLV-06, RSX-TLV-10
    block = bytes.fromhex("85 c0 000000  81 c0 000000  01 61 c0 000000  82 41 000000")
    entries, end = decode_block(block, 0, AT_STREAM)

    assert [AT_STREAM.read(entry) for entry in entries] == [None, None, None, Resumable()]
    assert end == len(block)


@pytest.mark.parametrize("at", ["setup", "ok", "ext", "stream"])
def test_an_unknown_extension_is_told_by_its_id_whatever_the_frame(at: str) -> None:  # RSX-TLV-07, RSX-GAP-18
    frames = {
        "setup": "00000000 0600 8500 00020000",
        "ok": "00000000 3e00",
        "ext": "00000000 fe00 00000001",
        "stream": "00000001 1200",
    }
    for entry, name in (("d000", "0x50"), ("0161 00", "'a'"), ("fe00", "0x7E")):
        with pytest.raises(UnknownExtension, match=f"extension {name} is not known in ") as caught:
            CODEC.decode(bytes.fromhex(frames[at] + entry))
        assert caught.value.offset == len(bytes.fromhex(frames[at]))


def test_a_known_extension_where_it_is_not_defined_is_an_unknown_one() -> None:  # RSX-TLV-10
    with pytest.raises(UnknownExtension, match="extension broker is not known in SETUP_OK"):
        CODEC.decode(bytes.fromhex("00000000 3e00 8401"))


def test_only_in_ext_frames_does_the_ignore_flag_let_an_unknown_extension_pass() -> None:  # RSX-TLV-07, RSX-FLG-05
    assert CODEC.ignorable(bytes.fromhex("00000000 fe00 00000001 9000"))
    assert not CODEC.ignorable(bytes.fromhex("00000000 fc00 00000001 9000"))
    assert not CODEC.ignorable(bytes.fromhex("00000001 1200 9000"))
    assert not CODEC.ignorable(bytes.fromhex("00000000 0600 8500 00020000 9000"))


def test_a_block_may_have_so_many_entries_and_no_more() -> None:
    entries = [ExtensionEntry(f"{number}", ignore=True) for number in range(ENTRY_LIMIT)]
    block = encode_block(entries, AT_EXT)

    assert decode_block(block, 0, AT_EXT)[0] == tuple(entries)
    with pytest.raises(MalformedExtension, match="more than 1023 extension entries"):
        decode_block(block, 0, AT_EXT, limit=ENTRY_LIMIT - 1)
    with pytest.raises(MalformedExtension, match="more than 1024 extension entries"):
        decode_block(encode_block([*entries, ExtensionEntry("more", ignore=True)], AT_EXT), 0, AT_EXT)


def test_the_limit_is_that_of_the_connection() -> None:
    assert Limits().metadata_entries == ENTRY_LIMIT


def test_broker_tags_have_a_limit_too() -> None:
    data = ROUTE + b"\0" + b"\x81\x80" * ENTRY_LIMIT + b"\x81\x00"

    with pytest.raises(MalformedExtension, match="more than 1024 broker tags"):
        AT_SETUP.read(ExtensionEntry(BROKER, True, False, 1, data))


def test_an_application_may_define_an_extension_that_must_be_understood() -> None:  # RSX-TLV-09
    def decode_pair(reader: Reader, nibble: int) -> tuple[int, int]:
        return reader.uint(1, "first"), reader.uint(1, "second")

    at_stream = attrs.evolve(AT_STREAM, definitions={**AT_STREAM.definitions, "com.pair": decode_pair})
    codec = codec_of(at_stream)
    frame = attrs.evolve(REQUEST, extensions=(ExtensionEntry("com.pair", payload=b"\1\2"),), payload=Payload(b"data"))
    data = codec.encode(frame)

    assert codec.decode(data) == frame
    assert at_stream.read(frame.extensions[0]) == (1, 2)
    with pytest.raises(UnknownExtension, match=r"extension 'com\.pair' is not known in REQUEST"):
        CODEC.decode(data)


@pytest.mark.parametrize(
    ("point", "entries", "text"),
    [
        (AT_EXT, (), "a block has at least one entry"),
        (AT_EXT, (ExtensionEntry(0, True),), "EXT extension 0x00: this id is reserved"),  # RSX-TLV-04
        (AT_EXT, (ExtensionEntry(0x7F, True),), "EXT extension 0x7F: this id is reserved"),
        (AT_EXT, (ExtensionEntry("", True),), "EXT extension '': this id is reserved"),
        (AT_EXT, (ExtensionEntry(128, True),), "id 128: must be from 0 to 127"),
        (AT_EXT, (ExtensionEntry("a" * 128, True),), "of 128 bytes, limit 127"),
        (AT_EXT, (ExtensionEntry("\N{EURO SIGN}", True),), "has '€' at 0: must be ASCII"),
        (AT_EXT, (ExtensionEntry("a", True), ExtensionEntry("a", True)), "one is there twice"),  # RSX-TLV-05
        (
            AT_EXT,
            (ExtensionEntry("a"),),
            "EXT extension 'a': it is not known there, and must be ignorable",
        ),  # RSX-TLV-09
        (AT_OK, (ExtensionEntry(BROKER),), "SETUP_OK extension broker: it is not known there"),
        (AT_EXT, (ExtensionEntry(BROKER, nibble=3),), "EXT extension broker: it is not known there"),
        (AT_EXT, (ExtensionEntry("a", True, True),), "ack: only those of SETUP are answered"),  # RSX-TLV-03
        (AT_EXT, (ExtensionEntry("a", True, nibble=16),), "nibble 16: must be from 0 to 15"),
        (AT_EXT, (ExtensionEntry("a", True, payload=bytes(2**24)),), "payload of 16777216 bytes, limit 16777215"),
        (AT_EXT, (entry_of(Beat(True, b"p")),), "without a length it ends after 0"),  # RSX-KA-04
        (AT_SETUP, (ExtensionEntry(KEEPALIVE, payload=bytes(9)),), "of 9 bytes: without a length it ends after 8"),
        (
            AT_SETUP,
            (ExtensionEntry(KEEPALIVE, True, payload=bytes(7)),),
            "of 7 bytes: keepalive lifetime needs 4 bytes",
        ),
        (
            AT_SETUP,
            (ExtensionEntry(RESUME, payload=b"\0\5abc"),),
            "of 5 bytes: resume token needs 5 bytes at offset 2, 3 left",
        ),
    ],
)
def test_a_forbidden_entry_is_refused(point: Point, entries: tuple[ExtensionEntry, ...], text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        encode_block(entries, point)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (KeepaliveTerms(0.0, 1.0), "keepalive interval 0.0: must be from"),  # RSX-KA-02
        (KeepaliveTerms(1.0, float("inf")), "keepalive lifetime inf"),
        (ResumeRequest(bytes(65536)), "resume token of 65536 bytes, limit 65535"),
        (ResumeRequest(b"", -1), "resume last_received_server_position -1"),
        (ResumeGrant(2**63), "resume last_received_client_position 9223372036854775808"),
        (ResumePosition(-1), "resume last_received_position -1"),
        (Strategies(()), "strategy count 0: must be from 1 to 255"),
        (Strategies((0,) * 256), "strategy count 256"),
        (Strategies((128,)), "lease strategy id 128"),
        (Permits(0, -1, 0), "time_to_live_ns -1"),
        (Permits(0, 0, 2**31), "number 2147483648"),
        (Complexity(0), "complexity 0"),  # RSX-LEASE-05
        (RouteJoin(b"short", ""), "route_id size 5: must be 16"),
        (RouteJoin(ROUTE, "s" * 256), "service name of 256 bytes, limit 255"),
        (RouteJoin(ROUTE, "", ((1, bytes(128)),)), "tag value of 128 bytes, limit 127"),
        (RouteJoin(ROUTE, "", ((128, b""),)), "tag key id 128"),
        (RouteJoin(ROUTE, "", ((1, b""),) * 1025), "tag count 1025"),
        (BrokerInfo(ROUTE, 2**64), "timestamp_ms 18446744073709551616"),
        (RouteAdd(ROUTE, b"", 0, ""), "route_id size 0"),
        (Address(ROUTE), "exactly one of unicast, multicast and shard"),  # RSX-BRK-03
        (Address(ROUTE, unicast=True, shard=True), "exactly one of"),
        ("text", "no extension says str"),
    ],
)
def test_a_value_out_of_its_range_is_refused(content: object, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        entry_of(content)


def test_what_only_the_session_may_judge_is_read() -> None:
    assert AT_SETUP.read(ExtensionEntry(KEEPALIVE, payload=bytes(8))) == KeepaliveTerms(0.0, 0.0)  # RSX-KA-02
    address = AT_STREAM.read(ExtensionEntry(BROKER, payload=ROUTE + b"\x80\x00\x80\x00", nibble=0x3))  # RSX-BRK-03
    assert isinstance(address, Address)
    assert not address.has_one_way


def test_reserved_bits_in_payloads_are_masked_off() -> None:  # ALL-RCT-06
    assert AT_OK.read(ExtensionEntry(RESUME, nibble=1, payload=b"\xff" * 8)) == ResumeGrant(2**63 - 1)
    assert AT_SETUP.read(ExtensionEntry(KEEPALIVE, payload=b"\x80\0\0\1" * 2)) == KeepaliveTerms(0.001, 0.001)


REFUSED: list[tuple[Frame, str]] = [
    (attrs.evolve(SETUP, data_mime=""), "SETUP data_mime: it must be given"),  # RSX-MIME-03
    (attrs.evolve(SETUP, data_mime="a" * 128), "SETUP data_mime of 128 bytes, limit 127"),
    (attrs.evolve(SETUP, metadata_mime=128), "SETUP metadata_mime id 128"),
    (attrs.evolve(SETUP, stream_id=1), "SETUP stream_id 1"),  # RSX-SETUP-01
    (attrs.evolve(SETUP, major=65536), "SETUP major 65536"),
    (attrs.evolve(SETUP, keepalive_interval=1.0), "SETUP keepalive_interval"),
    (attrs.evolve(SETUP, max_lifetime=1.0), "SETUP max_lifetime"),
    (attrs.evolve(SETUP, lease=True), "SETUP lease"),
    (attrs.evolve(SETUP, resume_token=b""), "SETUP resume_token"),
    (attrs.evolve(SETUP, strict=True), "SETUP strict"),
    (attrs.evolve(SETUP, extensions=(entry_of(TERMS, ack=True),)), "SETUP ack False"),  # RSX-SETUP-04
    (SetupOkFrame(Payload(), stream_id=1), "SETUP_OK stream_id 1"),  # RSX-OK-01
    (attrs.evolve(REQUEST, stream_id=0), "stream_id 0"),
    (attrs.evolve(REQUEST, initial_n=1), "REQUEST_RESPONSE initial_n 1"),
    (attrs.evolve(REQUEST, complete=True), "REQUEST_RESPONSE complete"),
    (attrs.evolve(REQUEST, interaction=Interaction.REQUEST_STREAM), "REQUEST_STREAM initial_n None"),
    (attrs.evolve(REQUEST, payload=Payload(data_mime="\N{EURO SIGN}")), "REQUEST_RESPONSE data_mime has '€'"),
    (attrs.evolve(REQUEST, extensions=(entry_of(TERMS),)), "REQUEST extension keepalive"),  # RSX-TLV-10
    (PayloadFrame(1, Payload(metadata_mime=-1)), "PAYLOAD metadata_mime id -1"),
    (PayloadFrame(1, Payload(), next=False), "next False, complete False"),  # RSX-PAY-02
    (PayloadFrame(0, Payload()), "stream_id 0"),
    (ExtFrame(0, 0), "ext_type 0"),  # RSX-EXT-01
    (ExtFrame(0, 1), "EXT extensions: a block has at least one entry"),  # RSX-EXT-02
    (ExtFrame(1, 1, extensions=(entry_of(Beat(True)),)), "EXT stream_id 1"),
    (ExtFrame(0, 1, b"body"), "EXT body"),
    (ExtFrame(0, 2, extensions=(entry_of(Beat(True)),)), "ext_type 2: only type 1"),
    (ExtFrame(0, 2, metadata=b""), "ext_type 2: only type 1"),
]


@pytest.mark.parametrize(("frame", "text"), REFUSED, ids=[f"{type(frame).__name__}: {text}" for frame, text in REFUSED])
def test_a_forbidden_frame_is_refused_by_field(frame: Frame, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        CODEC.encode(frame)


def test_the_table_is_that_of_1_0_and_setup_ok() -> None:  # RSX-GEN-03, RSX-GEN-04
    own = {
        "SETUP",
        "SETUP_OK",
        "REQUEST_RESPONSE",
        "REQUEST_FNF",
        "REQUEST_STREAM",
        "REQUEST_CHANNEL",
        "PAYLOAD",
        "EXT",
    }

    assert [row.number for row in CODEC.rows] == [*range(0x01, 0x10), 0x3F]
    assert {row.name for row in CODEC.rows if row is not layout_1_0.CODEC.row(row.number)} == own
    assert CODEC.name_of(SetupOkFrame(Payload())) == "SETUP_OK"
    assert not RSOCKET_1_0.codec.writes(SetupOkFrame)


def test_the_draft_is_1_0_in_all_that_it_does_not_replace() -> None:  # RSX-GEN-02, RSX-GAP-16
    assert (RSOCKET_2_0_DRAFT.name, RSOCKET_2_0_DRAFT.major, RSOCKET_2_0_DRAFT.minor) == ("rsocket/2.0-draft", 2, 0)
    replaced = {
        "name",
        "major",
        "minor",
        "layout",
        "has_lifetime",
        "entries",
        "mime_fields",
        "resume_versions",
    }
    for field in attrs.fields_dict(type(RSOCKET_1_0)).keys() - replaced:
        assert getattr(RSOCKET_2_0_DRAFT, field) == getattr(RSOCKET_1_0, field)


# As JSON


def json_of(text: str) -> Any:
    return to_json(RSOCKET_2_0_DRAFT, bytes.fromhex(text))


def test_absent_keys_of_an_extension_are_false_0_or_empty() -> None:
    short = {
        "type": "REQUEST_FNF",
        "stream_id": 1,
        "extensions": [{"ext": {"id": 2}}, {"ext": {"id": 3}, "payload": "00000001"}],
    }

    assert from_json(RSOCKET_2_0_DRAFT, short).hex(" ") == "00 00 00 01 16 00 82 80 83 00 00 00 00 01"


def test_a_setup_needs_no_more_than_a_data_mime_type() -> None:
    short = {"type": "SETUP", "major": 2, "data_mime": {"text": "a"}}

    assert from_json(RSOCKET_2_0_DRAFT, short).hex(" ") == "00 00 00 00 04 00 01 61 00 00 02 00 00"


def test_only_the_one_type_of_ext_shows_its_extensions() -> None:
    block, opaque = json_of("00000000 fc00 00000001 8100"), json_of("00000000 fc00 00000002 8100")

    assert block.keys() - opaque.keys() == {"extensions", "metadata"}
    assert opaque.keys() - block.keys() == {"ext_body", "ext_metadata"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"type": "SETUP", "major": 2}, "SETUP data_mime: it must be given"),
        ({"type": "SETUP", "data_mime": "a/b"}, 'data_mime: {"id": a whole number} or {"text": text} expected'),
        ({"type": "SETUP", "data_mime": {"id": "5"}}, "data_mime: a whole number expected"),
        ({"type": "SETUP", "data_mime": {"id": 5, "text": "a"}}, "data_mime: {"),
        ({"type": "SETUP", "data_mime": {"text": 5}}, "data_mime: text expected"),
        ({"type": "SETUP", "data_mime": {"name": 5}}, "data_mime: {"),
        ({"type": "SETUP", "data_mime": {"id": 5}, "keepalive_ms": 500}, "keepalive_ms: SETUP has no such key"),
        ({"type": "SETUP", "data_mime": {"id": 5}, "ignore": True}, "ignore: SETUP has no such flag"),
        ({"type": "PAYLOAD", "stream_id": 1, "next": True, "ignore": True}, "ignore: PAYLOAD has no such flag"),
        ({"type": "PAYLOAD", "stream_id": 1, "extensions": [{}]}, "extensions: PAYLOAD has no such key"),
        ({"type": "SETUP_OK", "extensions": {}}, "extensions: a list of extensions expected"),
        ({"type": "SETUP_OK", "extensions": ["a"]}, "extensions: a list of extensions expected"),
        ({"type": "SETUP_OK", "extensions": [{"ext": {"id": 1}, "name": "a"}]}, "extensions: name: an extension has"),
        ({"type": "SETUP_OK", "extensions": [{"ext": 1}]}, "extensions: ext: {"),
        ({"type": "SETUP_OK", "extensions": [{"nibble": 1}]}, "SETUP_OK extension '': this id is reserved"),
        ({"type": "SETUP_OK", "extensions": [{"payload": "x"}]}, "extensions: payload: not hex"),
        ({"type": "EXT", "ext_type": 1, "ext_body": "00"}, "ext_body: EXT has no such key"),
        ({"type": "EXT", "ext_type": 1}, "EXT extensions: a block has at least one entry"),
        ({"type": "EXT", "ext_type": 2, "extensions": [{}]}, "extensions: EXT has no such key"),
    ],
)
def test_json_that_describes_no_frame_says_what_is_wrong(content: dict[str, Any], text: str) -> None:
    [(line, good)] = encode_lines(RSOCKET_2_0_DRAFT, [json.dumps(content)])

    assert not good
    assert text in json.loads(line)["error"]


def test_what_is_wrong_with_an_extension_is_said_with_its_place() -> None:
    [malformed, unknown] = decode_lines(RSOCKET_2_0_DRAFT, ["00000001 1200 8300 0001", "00000001 1200 8500"])

    assert json.loads(malformed[0]) == {
        "error": "REQUEST_RESPONSE frame of 10 bytes: lease complexity needs 4 bytes at offset 8, 2 left",
        "offset": 8,
    }
    assert json.loads(unknown[0]) == {
        "error": "REQUEST_RESPONSE frame of 8 bytes: extension 0x05 is not known in REQUEST, and may not be ignored",
        "offset": 6,
    }


@given(number=st.integers(0, 63), flags=st.integers(0, 0x3FF), body=st.binary(max_size=60))
def test_what_was_shown_as_json_is_written_and_shown_again_the_same(number: int, flags: int, body: bytes) -> None:
    data = b"\0\0\0" + bytes([number & 1]) + (number << 10 | flags).to_bytes(2, "big") + body
    try:
        shown = to_json(RSOCKET_2_0_DRAFT, data)
        written = from_json(RSOCKET_2_0_DRAFT, json.loads(json.dumps(shown)))
    except (RemoteProtocolError, LocalProtocolError):
        return

    assert to_json(RSOCKET_2_0_DRAFT, written) == shown
