"""The entries of distributed tracing: ``traceparent``, ``tracestate`` and ``baggage`` of W3C, and that of Zipkin.

Each of W3C's headers is one entry, whose MIME type is the name of the header and whose content its text. An entry that
is malformed counts as absent, as W3C asks: tracing must not break the call that it observes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, unquote

import attrs
from attrs.validators import matches_re, optional

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.composite import Entry
from rsocket_trio.metadata.mime import BAGGAGE, TRACE_MIMES, TRACEPARENT, TRACESTATE, TRACING_ZIPKIN

TRACEPARENT_LIMIT: Final = 512
"""Characters. Version 00 has 55; later versions may append to them."""
TRACESTATE_LIMIT: Final = 1024
"""Characters. W3C asks for 512 at least."""
TRACESTATE_MEMBERS: Final = 32
BAGGAGE_LIMIT: Final = 8192
"""Bytes."""

_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-[ -~]*)?"
)
_SAMPLED: Final = 0x01
_STATE_MEMBER: Final = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[!-+\--<>-~]")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BAGGAGE_SAFE: Final = "!#$&'()*+-./:<=>?@[]^_`{|}~"
"""Characters beside letters and digits that a value of baggage shows as they are."""

_IDS_SET: Final = 0x80
_DEBUG: Final = 0x40
_SAMPLE: Final = 0x20
_NOT_SAMPLED: Final = 0x10
_LONG_TRACE_ID: Final = 0x08
_PARENT: Final = 0x04
_ID_SIZE: Final = 8


@attrs.frozen(kw_only=True)
class ZipkinTrace:
    """The ids and the sampling decision that Zipkin passes on, as in B3.

    ``trace_id`` has 16 or 32 hexadecimal digits, ``span_id`` and ``parent_id`` 16; they are ``None`` where only the
    decision travels, and ``parent_id`` is where the span is the first one. ``sampled`` is ``None`` if nobody has
    decided yet. ``debug`` forces the trace to be kept, whatever ``sampled`` is. Raise ``ValueError`` for malformed ids,
    and for one of ``trace_id`` and ``span_id`` without the other.
    """

    trace_id: str | None = attrs.field(default=None, validator=optional(matches_re("([0-9a-f]{16}){1,2}")))
    span_id: str | None = attrs.field(default=None, validator=optional(matches_re("[0-9a-f]{16}")))
    parent_id: str | None = attrs.field(default=None, validator=optional(matches_re("[0-9a-f]{16}")))
    sampled: bool | None = None
    debug: bool = False

    def __attrs_post_init__(self) -> None:
        if (self.trace_id is None) != (self.span_id is None) or (self.trace_id is None and self.parent_id is not None):
            raise ValueError("ZipkinTrace: trace_id and span_id go together, and parent_id needs both")


def decode_zipkin(data: bytes) -> ZipkinTrace:
    """Return the ids and the decision in ``data``, the content of a ``TRACING_ZIPKIN`` entry.

    Debugging counts as sampled. Bytes behind the last id are ignored. Raise ``RemoteProtocolError`` if it is cut short.
    """
    flags = data[0] if data else 0
    span = _ID_SIZE * 2 if flags & _LONG_TRACE_ID else _ID_SIZE
    parent = span + _ID_SIZE
    size = 1 + (0 if not flags & _IDS_SET else parent + _ID_SIZE if flags & _PARENT else parent)
    if len(data) < size:
        raise RemoteProtocolError(f"Zipkin trace of {len(data)} bytes, {size} needed", offset=0)
    debug = flags & _DEBUG != 0
    sampled = True if debug or flags & _SAMPLE else False if flags & _NOT_SAMPLED else None
    if not flags & _IDS_SET:
        return ZipkinTrace(sampled=sampled, debug=debug)
    ids = data[1:size]
    trace_id, span_id, parent_id = ids[:span].hex(), ids[span:parent].hex(), ids[parent:].hex() or None
    return ZipkinTrace(trace_id=trace_id, span_id=span_id, parent_id=parent_id, sampled=sampled, debug=debug)


def encode_zipkin(trace: ZipkinTrace) -> bytes:
    """Return ``trace`` as the content of a ``TRACING_ZIPKIN`` entry."""
    flags = _DEBUG if trace.debug else 0 if trace.sampled is None else _SAMPLE if trace.sampled else _NOT_SAMPLED
    if trace.trace_id is None or trace.span_id is None:
        return bytes((flags,))
    flags |= _IDS_SET
    if len(trace.trace_id) > 2 * _ID_SIZE:
        flags |= _LONG_TRACE_ID
    if trace.parent_id is not None:
        flags |= _PARENT
    return bytes((flags,)) + bytes.fromhex(trace.trace_id + trace.span_id + (trace.parent_id or ""))


def _is_sound(header: str, text: str) -> bool:
    """Return whether W3C allows the text for a header of its own, and it is within the limits."""
    if header == TRACEPARENT:
        parts = _TRACEPARENT.fullmatch(text)
        # Versions behind the first one may append to it.
        return parts is not None and len(text) <= TRACEPARENT_LIMIT and not (parts["version"] == "00" and parts["more"])
    if header == TRACESTATE:
        members = [stripped for member in text.split(",") if (stripped := member.strip(" \t"))]
        is_short = len(text) <= TRACESTATE_LIMIT and 0 < len(members) <= TRACESTATE_MEMBERS
        return is_short and all(map(_STATE_MEMBER.fullmatch, members))
    is_short = len(text.encode()) <= BAGGAGE_LIMIT
    return is_short and text.replace("\t", " ").isprintable() and bool(decode_baggage(text))


def decode_baggage(text: str) -> dict[str, str]:
    """Return the items of ``text``, a W3C baggage: key to value, with percent escapes resolved.

    Properties of an item are left out, and so are members that are malformed. The last one of equal keys counts.
    """
    items = {}
    for member in text.split(","):
        key, equals, content = member.partition(";")[0].partition("=")
        if equals and _TOKEN.fullmatch(key := key.strip(" \t")):
            items[key] = unquote(content.strip(" \t"))
    return items


def encode_baggage(items: Mapping[str, str]) -> str:
    """Return ``items``, key to value, as W3C baggage; characters of values that it cannot hold are escaped.

    Raise ``ValueError`` for a key that is no token of HTTP, and for more than 8192 bytes.
    """
    for key in items:
        if not _TOKEN.fullmatch(key):
            raise ValueError(f"baggage key {key!r}: letters, digits and some of the signs, as in an HTTP header's name")
    text = ",".join(f"{key}={quote(content, safe=_BAGGAGE_SAFE)}" for key, content in items.items())
    if len(text) > BAGGAGE_LIMIT:
        raise ValueError(f"baggage of {len(text)} bytes, limit {BAGGAGE_LIMIT}")
    return text


def _check_header(instance: object, attribute: attrs.Attribute[str | None], text: str | None) -> None:
    if text is not None and not _is_sound(attribute.name, text):
        raise ValueError(f"{attribute.name} of {len(text)} characters: not as W3C has it, or too long")


@attrs.frozen(kw_only=True)
class Trace:
    """The tracing context of a call, which the calls made on its behalf pass on.

    ``traceparent``, ``tracestate`` and ``baggage`` are the headers of W3C as text, ``zipkin`` the ids of Zipkin; each
    is ``None`` if there is no such entry. Raise ``ValueError`` for a text that W3C does not allow, a ``tracestate``
    above 1024 characters, and ``baggage`` above 8192 bytes.
    """

    traceparent: str | None = attrs.field(default=None, validator=_check_header)
    tracestate: str | None = attrs.field(default=None, validator=_check_header)
    baggage: str | None = attrs.field(default=None, validator=_check_header)
    zipkin: ZipkinTrace | None = None

    @property
    def trace_id(self) -> str | None:
        """Return the id of the trace as 32 hexadecimal digits, or as 16 where Zipkin's is that short."""
        if self.traceparent is not None:
            return self.traceparent[3:35]
        return self.zipkin.trace_id if self.zipkin is not None else None

    @property
    def span_id(self) -> str | None:
        """Return the id of the caller's span as 16 hexadecimal digits."""
        if self.traceparent is not None:
            return self.traceparent[36:52]
        return self.zipkin.span_id if self.zipkin is not None else None

    @property
    def sampled(self) -> bool | None:
        """Return whether the caller records its span; ``None`` if nobody has decided."""
        if self.traceparent is not None:
            return int(self.traceparent[53:55], 16) & _SAMPLED != 0
        return self.zipkin.sampled if self.zipkin is not None else None

    @property
    def baggage_items(self) -> dict[str, str]:
        """Return the baggage, key to value, with percent escapes resolved and without properties."""
        return decode_baggage(self.baggage) if self.baggage is not None else {}


def sound_entries(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the ``entries`` of tracing that are well-formed, as they are: what a call passes on.

    The first entry of each type counts, and a ``tracestate`` only beside the ``traceparent`` that it belongs to.
    """
    first: dict[str | int, Entry] = {}
    for entry in entries:
        if entry.mime in TRACE_MIMES:
            first.setdefault(entry.mime, entry)
    sound = {mime: entry for mime, entry in first.items() if _is_sound_entry(entry)}
    if TRACEPARENT not in sound:
        sound.pop(TRACESTATE, None)
    return tuple(sound.values())


def _is_sound_entry(entry: Entry) -> bool:
    if len(entry.content) > BAGGAGE_LIMIT:
        return False
    try:
        if entry.mime == TRACING_ZIPKIN:
            decode_zipkin(entry.content)
            return bool(entry.content)
        return _is_sound(str(entry.mime), entry.content.decode())
    except (RemoteProtocolError, UnicodeDecodeError):
        return False


def decode_trace(entries: Iterable[Entry]) -> Trace | None:
    """Return the tracing context in the sound ``entries`` of composite metadata, or ``None`` if they have none."""
    sound = {str(entry.mime): entry.content for entry in sound_entries(entries)}
    if not sound:
        return None
    zipkin = sound.pop(TRACING_ZIPKIN, None)
    texts = {name: content.decode() for name, content in sound.items()}
    return Trace(**texts, zipkin=None if zipkin is None else decode_zipkin(zipkin))


def trace_entries(trace: Trace) -> tuple[Entry, ...]:
    """Return ``trace`` as entries of composite metadata."""
    texts = ((TRACEPARENT, trace.traceparent), (TRACESTATE, trace.tracestate), (BAGGAGE, trace.baggage))
    entries = [Entry(mime, text.encode()) for mime, text in texts if text is not None]
    if trace.zipkin is not None:
        entries.append(Entry(TRACING_ZIPKIN, encode_zipkin(trace.zipkin)))
    return tuple(entries)
