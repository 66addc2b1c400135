"""The MIME types of one stream."""

from __future__ import annotations

import pytest

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    decode_accepted_mimes,
    decode_data_mime,
    encode_accepted_mimes,
    encode_data_mime,
)


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
