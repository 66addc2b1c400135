"""Composes the metadata of a request from route, credentials and texts for one metadata MIME type."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import repeat

import attrs

from rsocket_trio.metadata import (
    AUTHENTICATION,
    COMPOSITE_METADATA,
    ROUTING,
    BearerAuthentication,
    Credentials,
    Entry,
    SimpleAuthentication,
    encode_authentication,
    encode_composite,
)


@attrs.frozen
class Metadata:
    """Composed metadata. ``mime`` is that of the connection; the library adds ``route`` to ``content``."""

    mime: str
    route: str | None
    content: bytes | None = attrs.field(repr=False)
    setup: bytes | None = attrs.field(repr=False)


def compose(
    texts: Sequence[str],
    mimes: Sequence[str],
    *,
    default_mime: str,
    bare_mime: str = COMPOSITE_METADATA,
    route: str | None = None,
    credentials: Credentials | None = None,
    setup_only: bool = False,
    setup_text: str | None = None,
    setup_mime: str | None = None,
) -> Metadata:
    """Compose the metadata. The ``mimes`` belong to the ``texts`` in order; the last one applies to all that follow.

    One text alone is the metadata as it stands, in its own MIME type. A route, credentials, several texts, or a SETUP
    in another type make it composite metadata, where each is an entry; a text whose type is composite metadata itself
    is taken as ready entries. Credentials are an entry of the content and of the SETUP, unless ``setup_text`` has its
    own; with ``setup_only`` they are one of the SETUP alone. ``bare_mime`` is for a connection that composes nothing,
    except for a route. Raise ``ValueError`` for metadata that cannot be encoded.
    """
    last = mimes[-1] if mimes else default_mime
    pairs = list(zip([*mimes, *repeat(last, len(texts))], texts, strict=False))
    alone = _alone(pairs, mimes, route, credentials)
    if alone is not None and (setup_mime is None or setup_mime == alone):
        content = _content(*pairs[0]) if pairs else None
        return Metadata(alone, route, content, None if setup_text is None else _content(alone, setup_text))
    bare = credentials is None and not pairs and not mimes and setup_mime in (None, bare_mime)
    if bare and bare_mime != COMPOSITE_METADATA:
        return Metadata(bare_mime, route, None, None if setup_text is None else _content(bare_mime, setup_text))
    secrets = [] if credentials is None else [(AUTHENTICATION, encode_authentication(credentials))]
    entries = [*([] if setup_only else secrets), *((mime, _content(mime, text)) for mime, text in pairs)]
    setup = secrets
    if setup_text is not None:
        mime = setup_mime or default_mime
        setup = [(mime, _content(mime, setup_text)), *([] if mime == AUTHENTICATION else secrets)]
    return Metadata(COMPOSITE_METADATA, route, _joined(entries), _joined(setup))


def _alone(
    pairs: Sequence[tuple[str, str]], mimes: Sequence[str], route: str | None, credentials: Credentials | None
) -> str | None:
    """Return the MIME type of the connection if nothing needs to be composed, else ``None``."""
    if credentials is not None or len(pairs) > 1:
        return None
    if route is not None:
        return ROUTING if not pairs and tuple(mimes) == (ROUTING,) else None
    if pairs:
        return pairs[0][0]
    return mimes[0] if mimes else None


def _joined(entries: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Return composite metadata with these entries, ``None`` without any."""
    return b"".join(_entry(mime, content) for mime, content in entries) if entries else None


def _entry(mime: str, content: bytes) -> bytes:
    return content if mime == COMPOSITE_METADATA else encode_composite([Entry(mime, content)])


def _content(mime: str, text: str) -> bytes:
    """Return the bytes of a text; credentials are written ``simple:user:password`` or ``bearer:token``."""
    scheme, separator, rest = text.partition(":")
    if mime == AUTHENTICATION and separator:
        if scheme == "simple":
            return encode_authentication(simple(rest))
        if scheme == "bearer":
            return encode_authentication(BearerAuthentication(rest))
    return os.fsencode(text)


def simple(text: str) -> SimpleAuthentication:
    """Parse ``user:password``; the password may have colons. Raise ``ValueError`` that does not show the text."""
    user, separator, password = text.partition(":")
    if not separator:
        raise ValueError("credentials are written user:password")
    return SimpleAuthentication(user, password)
