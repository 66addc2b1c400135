"""Routing metadata: tags behind their lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import decode_route, encode_route


def test_tags_stand_behind_their_lengths() -> None:
    assert encode_route("greet", "de") == b"\x05greet\x02de"
    assert decode_route(b"\x05greet\x02de") == ["greet", "de"]


def test_lengths_count_bytes_not_characters() -> None:
    assert encode_route("grüß") == b"\x06gr\xc3\xbc\xc3\x9f"


def test_no_bytes_are_no_tags_and_an_empty_tag_is_one() -> None:
    assert decode_route(b"") == []
    assert decode_route(b"\x00") == [""]
    assert encode_route("") == b"\x00"


@given(st.lists(st.text(max_size=63)))
def test_what_was_encoded_decodes_to_the_same(tags: list[str]) -> None:
    assert decode_route(encode_route(*tags)) == tags


def test_a_tag_holds_255_bytes_and_no_more() -> None:
    assert encode_route("x" * 255) == b"\xff" + b"x" * 255
    with pytest.raises(ValueError, match="route of 256 bytes, limit 255"):
        encode_route("x" * 256)


@pytest.mark.parametrize(
    ("data", "offset", "text"),
    [
        (b"\x05gree", 0, "route of 5 bytes at offset 0, 4 left"),
        (b"\x01a\xff", 2, "route of 255 bytes at offset 2, 0 left"),
        (b"\x03a\xffb", 2, "route is not UTF-8 at offset 2"),
        (b"\x01\xc3", 1, "route is not UTF-8 at offset 1"),
    ],
)
def test_malformed_tags_are_the_peers_fault(data: bytes, offset: int, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        decode_route(data)

    assert caught.value.offset == offset


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_the_peers_fault(data: bytes) -> None:
    try:
        tags = decode_route(data)
    except RemoteProtocolError:
        return
    assert encode_route(*tags) == data
