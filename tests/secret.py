"""A secret for tests, and whether a text shows any part of it."""

from __future__ import annotations

import base64
import re

from rsocket_trio.metadata import AUTHENTICATION

SECRET = "".join(f"Zq{number}wK{number * 7}pXv" for number in range(10, 40))
"""Longer than a fragment, and without repetition: every eight characters of it stand there once."""
WINDOW = 8


def by_text(content: bytes) -> bytes:
    """Return composite metadata with one authentication entry, whose type is spelt out."""
    return bytes((len(AUTHENTICATION) - 1,)) + AUTHENTICATION.encode() + len(content).to_bytes(3, "big") + content


def shows(text: str) -> bool:
    """Return whether eight bytes of the secret are in ``text``: as text, as hex with or without spaces, as base64."""
    dense = re.sub(r"[\s:]", "", text)
    hexed = dense.lower()
    for start in range(len(SECRET) - WINDOW + 1):
        part = SECRET[start : start + WINDOW]
        # Whatever stands before the part, six of its bytes fill whole groups of base64.
        encoded = (base64.b64encode(part[skip : skip + 6].encode()).decode() for skip in range(3))
        if part in dense or part.encode().hex() in hexed or any(one in dense for one in encoded):
            return True
    return False
