"""TLS for the peers: what they need of it, where a word of the command line names a folder with certificates."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

WORD = "certificates="
"""Stands before the path of the folder."""
AUTHORITY, CHAIN, KEY = "authority.pem", "chain.pem", "key.pem"
"""The files there: the authority that clients trust, the certificate of the server, and its private key."""


def folder() -> Path | None:
    """Return the folder that the command line names, ``None`` without TLS."""
    for word in sys.argv:
        if word.startswith(WORD):
            return Path(word.removeprefix(WORD))
    return None


def of_server() -> ssl.SSLContext | None:
    """Return the context of a server, ``None`` without TLS."""
    where = folder()
    if where is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(where / CHAIN, where / KEY)
    return context


def of_client() -> ssl.SSLContext | None:
    """Return the context of a client, ``None`` without TLS."""
    where = folder()
    return None if where is None else ssl.create_default_context(cafile=str(where / AUTHORITY))
