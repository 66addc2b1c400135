"""Composite metadata: entries one after the other, and what happens to malformed ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    ROUTING,
    WELL_KNOWN,
    Entry,
    decode_composite,
    encode_composite,
    iterate_composite,
)

# fmt: off
WRITTEN = bytes.fromhex(
    "FE 000006 05 6772656574"        # routing, 6 bytes: a tag of 5, "greet"
    "02 612F62 000002 0102"          # "a/b", 2 bytes
    "B0 000000"                      # a number that is not in the table, empty
    "85 000002 7B7D"                 # JSON, "{}"
)
# fmt: on
ENTRIES = [Entry(ROUTING, b"\x05greet"), Entry("a/b", b"\x01\x02"), Entry(0x30, b""), Entry(APPLICATION_JSON, b"{}")]
BORDERS = {0, 10, 19, 23, 29}

MIMES = st.one_of(
    st.text(st.characters(max_codepoint=127), min_size=1, max_size=128),
    st.sampled_from(sorted(set(range(128)) - set(WELL_KNOWN))),
)


def test_published_bytes_decode_to_their_entries() -> None:
    assert decode_composite(WRITTEN) == ENTRIES


def test_entries_encode_to_the_published_bytes() -> None:
    assert encode_composite(ENTRIES) == WRITTEN


def test_a_number_from_the_table_may_stand_for_its_text() -> None:
    assert encode_composite([Entry(0x05, b"{}")]) == encode_composite([Entry(APPLICATION_JSON, b"{}")])


@given(st.lists(st.builds(Entry, MIMES, st.binary(max_size=300)), max_size=8))
def test_what_was_encoded_decodes_to_the_same(entries: list[Entry]) -> None:
    assert decode_composite(encode_composite(entries)) == entries


def test_lengths_have_24_bits() -> None:
    content = bytes(0x12345)
    encoded = encode_composite([Entry(APPLICATION_JSON, content)])

    assert encoded[:4] == b"\x85\x01\x23\x45"
    assert decode_composite(encoded) == [Entry(APPLICATION_JSON, content)]


def test_a_content_above_24_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="metadata entry of 16777216 bytes, limit 16777215"):
        encode_composite([Entry(APPLICATION_JSON, bytes(1 << 24))])


@pytest.mark.parametrize("size", sorted(set(range(len(WRITTEN))) - BORDERS))
def test_every_cut_inside_an_entry_is_the_peers_fault(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="at offset"):
        decode_composite(WRITTEN[:size])


@given(st.binary(max_size=64))
def test_any_bytes_decode_or_are_the_peers_fault(data: bytes) -> None:
    try:
        entries = decode_composite(data)
    except RemoteProtocolError:
        return
    assert decode_composite(encode_composite(entries)) == entries


@pytest.mark.parametrize(
    ("data", "offset", "text"),
    [
        ("8500", 1, "metadata entry at offset 0 has 1 of 3 length bytes"),
        ("85000005 0102", 1, "metadata entry of 5 bytes at offset 4, 2 left"),
        ("85000000 85FFFFFF 00", 5, "metadata entry of 16777215 bytes at offset 8, 1 left"),
        ("85000000 02 61", 4, "type of 3 bytes at offset 4, 1 left"),
        ("00E9 000000", 0, "type of 1 bytes at offset 0 is not ASCII"),
    ],
)
def test_a_malformed_entry_is_named_with_its_place_and_number(data: str, offset: int, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        decode_composite(bytes.fromhex(data))

    assert caught.value.offset == offset


def test_a_hundred_entries_pass_and_the_first_above_the_limit_does_not() -> None:
    hundred = encode_composite([Entry(APPLICATION_JSON, b"")] * 100)

    assert len(decode_composite(hundred)) == 100
    assert len(decode_composite(hundred, limit=100)) == 100
    with pytest.raises(RemoteProtocolError, match="more than 99 metadata entries at offset 396"):
        decode_composite(hundred, limit=99)


def test_iterating_decodes_no_more_than_is_asked_for() -> None:
    entries = iterate_composite(WRITTEN[:10] + b"\x85\xff")

    assert next(entries) == ENTRIES[0]
    with pytest.raises(RemoteProtocolError):
        next(entries)
