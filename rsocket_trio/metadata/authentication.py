"""Authentication metadata: a user name and password, a bearer token, or the bytes of another scheme.

The scheme is a name as in ``mime``, with a table of its own. Nothing secret is shown by ``repr``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.mime import decode_name, encode_name
from rsocket_trio.values import value

SIMPLE: Final = "simple"
BEARER: Final = "bearer"
SCHEMES: Final[Mapping[int, str]] = {0x00: SIMPLE, 0x01: BEARER}
SCHEME_IDS: Final[Mapping[str, int]] = {name: number for number, name in SCHEMES.items()}
MAX_USERNAME_BYTES = 0xFFFF
_LENGTH_SIZE = 2


@value
class SimpleAuthentication:
    """A user name and a password: ``username`` of at most 65535 bytes of UTF-8, ``password`` of any size."""

    username: str
    password: str = attrs.field(repr=False)


@value
class BearerAuthentication:
    """A bearer token: ``token`` is text of any size."""

    token: str = attrs.field(repr=False)


@value
class OtherAuthentication:
    """Credentials of another scheme. ``scheme`` is its name, or the number of a well-known scheme that is not in the
    table; ``content`` its bytes.
    """

    scheme: str | int
    content: bytes = attrs.field(repr=False)


Credentials: TypeAlias = SimpleAuthentication | BearerAuthentication | OtherAuthentication
Auth: TypeAlias = Credentials | Callable[[], Credentials | Awaitable[Credentials]]
"""Credentials, or a function that gives fresh ones, async or not."""


def decode_authentication(data: bytes) -> Credentials:
    """Return the credentials that ``data``, the content of an ``AUTHENTICATION`` entry, holds.

    Raise ``RemoteProtocolError`` for bytes that are cut short or not UTF-8.
    """
    scheme, offset = decode_name(data, 0, SCHEMES)
    if scheme == SIMPLE:
        return _decode_simple(data, offset)
    if scheme == BEARER:
        return BearerAuthentication(_text(data, offset, len(data), "token"))
    return OtherAuthentication(scheme, data[offset:])


def encode_authentication(authentication: Credentials) -> bytes:
    """Return ``authentication`` as the content of an ``AUTHENTICATION`` entry.

    Raise ``ValueError`` for a user name above 65535 bytes, a scheme that cannot be written, and for text that is not
    Unicode.
    """
    if isinstance(authentication, SimpleAuthentication):
        username = _bytes(authentication.username, "user name")
        if len(username) > MAX_USERNAME_BYTES:
            raise ValueError(f"user name of {len(username)} bytes, limit {MAX_USERNAME_BYTES}")
        length = len(username).to_bytes(_LENGTH_SIZE, "big")
        return encode_name(SIMPLE, SCHEME_IDS) + length + username + _bytes(authentication.password, "password")
    if isinstance(authentication, BearerAuthentication):
        return encode_name(BEARER, SCHEME_IDS) + _bytes(authentication.token, "token")
    return encode_name(authentication.scheme, SCHEME_IDS) + authentication.content


def _decode_simple(data: bytes, offset: int) -> SimpleAuthentication:
    start = offset + _LENGTH_SIZE
    if start > len(data):
        left = len(data) - offset
        raise RemoteProtocolError(f"user name at offset {offset} has {left} of 2 length bytes", offset=offset)
    length = int.from_bytes(data[offset:start], "big")
    end = start + length
    if end > len(data):
        left = len(data) - start
        raise RemoteProtocolError(f"user name of {length} bytes at offset {start}, {left} left", offset=offset)
    return SimpleAuthentication(_text(data, start, end, "user name"), _text(data, end, len(data), "password"))


def _bytes(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        at = error.start
    # As below: the UnicodeEncodeError holds the secret.
    raise ValueError(f"{what} is not Unicode at character {at}")


def _text(data: bytes, start: int, end: int, what: str) -> str:
    try:
        return data[start:end].decode()
    except UnicodeDecodeError as error:
        at = start + error.start
    # Outside the handler: the UnicodeDecodeError holds the secret's bytes, and would come along as the context.
    raise RemoteProtocolError(f"{what} is not UTF-8 at offset {at}", offset=at)
