"""Well-known MIME types, both ways through the table, how a name is written, and the types of one stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    IDS,
    WELL_KNOWN,
    decode_accepted_mimes,
    decode_data_mime,
    decode_mime,
    encode_accepted_mimes,
    encode_data_mime,
    encode_mime,
)

NAMES = st.text(st.characters(max_codepoint=127), min_size=1, max_size=128)
MIMES = st.one_of(NAMES, st.integers(0, 127)).map(
    lambda mime: WELL_KNOWN.get(mime, mime) if type(mime) is int else mime
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0x00, "application/avro"),
        (0x05, "application/json"),
        (0x06, "application/octet-stream"),
        (0x21, "text/plain"),
        (0x2A, "application/x-flatbuffers"),
        (0x7A, "message/x.rsocket.mime-type.v0"),
        (0x7C, "message/x.rsocket.authentication.v0"),
        (0x7E, "message/x.rsocket.routing.v0"),
        (0x7F, "message/x.rsocket.composite-metadata.v0"),
    ],
)
def test_a_well_known_type_is_one_byte(number: int, text: str) -> None:
    assert encode_mime(text) == bytes((0x80 | number,))
    assert decode_mime(bytes((0x80 | number,))) == (text, 1)


def test_the_table_reads_the_same_both_ways() -> None:
    assert len(WELL_KNOWN) == len(IDS) == 49
    assert all(IDS[text] == number for number, text in WELL_KNOWN.items())


def test_a_text_is_written_behind_its_length_less_one() -> None:
    assert encode_mime("a/b") == b"\x02a/b"
    assert decode_mime(b"??\x02a/b!", 2) == ("a/b", 6)


def test_the_longest_text_has_128_characters() -> None:
    assert encode_mime("x" * 128) == b"\x7f" + b"x" * 128


def test_an_unknown_number_stays_a_number() -> None:
    assert decode_mime(b"\xb0") == (0x30, 1)
    assert encode_mime(0x30) == b"\xb0"


@pytest.mark.parametrize("mime", ["", "x" * 129, "text/ümlaut", -1, 128])
def test_a_type_that_cannot_be_written_is_refused(mime: str | int) -> None:
    with pytest.raises(ValueError, match=r"can be written"):
        encode_mime(mime)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no type at offset 0"),
        (b"\x02a/", "type of 3 bytes at offset 0, 2 left"),
        (b"\x02a/\xe9", "type of 3 bytes at offset 0 is not ASCII"),
    ],
)
def test_malformed_bytes_are_the_peers_fault(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        decode_mime(data)


@given(MIMES, st.binary(max_size=3))
def test_what_was_encoded_decodes_to_the_same(mime: str | int, rest: bytes) -> None:
    encoded = encode_mime(mime)

    assert decode_mime(encoded + rest) == (mime, len(encoded))


# The MIME types of one stream


@pytest.mark.parametrize(("mime", "data"), [(APPLICATION_JSON, b"\x85"), ("a/b", b"\x02a/b"), (0x30, b"\xb0")])
def test_a_data_type_is_one_name(mime: str | int, data: bytes) -> None:
    assert encode_data_mime(mime) == data
    assert decode_data_mime(data) == mime


def test_bytes_behind_a_data_type_are_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="2 bytes behind the MIME type at offset 1"):
        decode_data_mime(b"\x85\x85\x86")


def test_accepted_types_keep_their_order() -> None:
    mimes: list[str | int] = [APPLICATION_JSON, "a/b", 0x30]

    assert encode_accepted_mimes(mimes) == b"\x85\x02a/b\xb0"
    assert decode_accepted_mimes(b"\x85\x02a/b\xb0") == mimes
    assert decode_accepted_mimes(b"") == []


def test_accepted_types_have_a_limit() -> None:
    assert len(decode_accepted_mimes(b"\x85" * 1024)) == 1024
    with pytest.raises(RemoteProtocolError, match="more than 1024 MIME types at offset 1024"):
        decode_accepted_mimes(b"\x85" * 1025)
