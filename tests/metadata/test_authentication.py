"""Authentication metadata: simple, bearer and everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import (
    BearerAuthentication,
    Credentials,
    OtherAuthentication,
    SimpleAuthentication,
    decode_authentication,
    encode_authentication,
)

# fmt: off
PUBLISHED = [
    (SimpleAuthentication("ann", "s:cret"),   "80 0003 616E6E 733A63726574"),
    (SimpleAuthentication("", ""),            "80 0000"),
    (SimpleAuthentication("ü", ""),           "80 0002 C3BC"),
    (BearerAuthentication("abc"),             "81 616263"),
    (BearerAuthentication(""),                "81"),
    (OtherAuthentication("own", b"\x01"),     "02 6F776E 01"),
    (OtherAuthentication(0x7F, b"\x01\x02"),  "FF 0102"),
]
# fmt: on


@pytest.mark.parametrize(("credentials", "data"), PUBLISHED)
def test_credentials_encode_to_the_published_bytes_and_back(credentials: Credentials, data: str) -> None:
    assert encode_authentication(credentials) == bytes.fromhex(data)
    assert decode_authentication(bytes.fromhex(data)) == credentials


@given(st.builds(SimpleAuthentication, st.text(), st.text()) | st.builds(BearerAuthentication, st.text()))
def test_what_was_encoded_decodes_to_the_same(credentials: Credentials) -> None:
    assert decode_authentication(encode_authentication(credentials)) == credentials


@pytest.mark.parametrize(
    ("data", "offset", "text"),
    [
        ("", 0, "no type at offset 0"),
        ("80", 1, "user name at offset 1 has 0 of 2 length bytes"),
        ("80 00", 1, "user name at offset 1 has 1 of 2 length bytes"),
        ("80 0004 616E6E", 1, "user name of 4 bytes at offset 3, 3 left"),
        ("80 0001 FF", 3, "user name is not UTF-8 at offset 3"),
        ("80 0001 61 62FF", 5, "password is not UTF-8 at offset 5"),
        ("81 61FF", 2, "token is not UTF-8 at offset 2"),
        ("02 6F77", 0, "type of 3 bytes at offset 0, 2 left"),
    ],
)
def test_malformed_credentials_are_the_peers_fault(data: str, offset: int, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        decode_authentication(bytes.fromhex(data))

    assert caught.value.offset == offset
    assert caught.value.__context__ is None


def test_secrets_are_not_shown() -> None:
    shown = repr([credentials for credentials, _ in PUBLISHED])

    assert "ann" in shown
    assert "s:cret" not in shown
    assert "abc" not in shown


def test_a_user_name_above_16_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="user name of 65536 bytes, limit 65535"):
        encode_authentication(SimpleAuthentication("x" * 65_536, ""))
