"""Converts frames to JSON objects and back: the keys follow from the fields of the frame classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar

import attrs

from rsocket_trio.cli.hex_lines import unhex
from rsocket_trio.connection.protocols import SHORT
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Row
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_0, REACTIVESOCKET_0_1, Dialect
from rsocket_trio.rsocket.frames import ErrorFrame, ExtensionEntry, PayloadFrame, RequestFrame, SetupFrame
from rsocket_trio.rsocket.layouts import v0_0 as layout_0_0

T = TypeVar("T")
NS_PER_MS: Final = 1_000_000


@attrs.frozen
class Conversion:
    """The conversion of a value to JSON and back.

    ``load`` raises ``ValueError`` naming the expected type. ``absent`` is the value of a key that is missing or null.
    """

    dump: Callable[[Any], object]
    load: Callable[[object], Any]
    absent: object


def _same(content: Any) -> object:
    return content


def _typed(kind: type[T], name: str) -> Callable[[object], T]:
    """Return a function that returns content of one type, and raises ``ValueError`` with the name for any other."""

    def load(content: object) -> T:
        # Not by isinstance: true and false are no numbers here.
        if type(content) is not kind:
            raise ValueError(f"{name} expected")
        return content

    return load


_load_int = _typed(int, "a whole number")
_load_text = _typed(str, "text")
_load_digits = _typed(str, "hex digits in quotes")


def _load_hex(content: object) -> bytes:
    return unhex(_load_digits(content))


def _dump_name(name: int | str | None) -> object:
    if name is None:
        return None
    return {"id": name} if isinstance(name, int) else {"text": name}


def _load_name(content: object) -> int | str:
    if isinstance(content, dict) and len(content) == 1:
        if "id" in content:
            return _load_int(content["id"])
        if "text" in content:
            return _load_text(content["text"])
    raise ValueError('{"id": a whole number} or {"text": text} expected')


def _dump_extensions(entries: tuple[ExtensionEntry, ...]) -> object:
    return [{name: key.dump(getattr(entry, name)) for name, key in ENTRY.items()} for entry in entries]


def _load_extensions(content: object) -> tuple[ExtensionEntry, ...]:
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ValueError("a list of extensions expected")
    for entry in content:
        if foreign := entry.keys() - ENTRY.keys():
            raise ValueError(f"{', '.join(sorted(foreign))}: an extension has no such key")
    return tuple(ExtensionEntry(**{name: load(name, key, entry) for name, key in ENTRY.items()}) for entry in content)


BOOL: Final = Conversion(_same, _typed(bool, "true or false"), False)
INT: Final = Conversion(_same, _load_int, 0)
TEXT: Final = Conversion(_same, _load_text, "")
NAME: Final = Conversion(_dump_name, _load_name, "")
MS_OF_NS: Final = Conversion(lambda ns: ns // NS_PER_MS, lambda content: _load_int(content) * NS_PER_MS, 0)
OF_TYPE: Final[Mapping[str, Conversion]] = {
    "bool": BOOL,
    "int": INT,
    "int | None": Conversion(_same, _load_int, None),
    "float": Conversion(lambda seconds: round(seconds * 1000), lambda content: _load_int(content) / 1000, 0.0),
    "bytes": Conversion(bytes.hex, _load_hex, b""),
    "bytes | None": Conversion(lambda content: None if content is None else content.hex(), _load_hex, None),
    "int | str": NAME,
    "str | int | None": Conversion(_dump_name, _load_name, None),
    "tuple[ExtensionEntry, ...]": Conversion(_dump_extensions, _load_extensions, ()),
}
"""Conversions by the type of a field, as its class declares it. A float is a number of seconds, shown in ms."""
NAMES: Final[Mapping[str, str]] = {
    "keepalive_interval": "keepalive_ms",
    "max_lifetime": "max_lifetime_ms",
    "time_to_live_ns": "ttl_ms",
    "number_of_requests": "requests",
    "request_n": "n",
    "code": "error_code",
    "token": "resume_token",
    "body": "ext_body",
    "has_metadata": "ext_metadata",
}
"""The keys of fields that have other names than these."""
NAMES_0_0: Final = {"major": "version", "time_to_live_ns": "ttl_ns"}
OF_EVERY_FRAME: Final = ("type", "stream_id", "ignore", "other_flags")
HEADER: Final = {"stream_id", "interaction", "ExtFrame.ignore"}
"""Fields that stand in the header of a frame."""
ONLY_IN: Final[Mapping[str, str]] = {
    "metadata_type": "0.0",
    "SetupFrame.minor": "0.1 0.2 1.0 ext",
    "keepalive_interval": "0.1 0.2 1.0",
    "max_lifetime": "0.1 0.2 1.0",
    "lease": "0.0 0.1 0.2 1.0",
    "strict": "0.1 0.2",
    "resume_token": "0.2 1.0",
    "ack": "ext",
    "extensions": "ext",
    "last_received_position": "0.2 1.0 ext",
    "RequestFrame.follows": "0.1 0.2 1.0 ext",
    "RequestFrame.complete": "REQUEST_CHANNEL",
    "initial_n": "REQUEST_STREAM REQUEST_SUB REQUEST_CHANNEL",
    "next": "PAYLOAD",
    "RequestNFrame.metadata": "0.0",
    "CancelFrame.metadata": "0.0 0.1 0.2",
    "ErrorFrame.metadata": "0.0 0.1 0.2",
    "ErrorFrame.code": "0.1 0.2 1.0 ext SETUP_ERROR",
    "ExtFrame.body": "EXT",
    "ExtFrame.has_metadata": "EXT",
    "ExtFrame.extensions": "EXT-1",
    "ExtFrame.metadata": "EXT-1",
}
"""The dialects, or the frame types, that have a field which not all have whose frames are of its class.

``EXT-1`` is the EXT of the extension draft that is not opaque.
"""
UNSAID: Final[dict[type, dict[str, object]]] = {
    SetupFrame: {"minor": 0, "keepalive_interval": 0.0, "max_lifetime": 0.0},
    ErrorFrame: {"code": layout_0_0.STREAM_ERROR},
}
"""Arguments that a frame needs and for which its dialect has no key."""


ENTRY: Final = {field.name: OF_TYPE[str(field.type)] for field in attrs.fields(ExtensionEntry)}
"""The keys of one extension, and their conversions."""


def _keys(dialect: Dialect, row: Row, ext_type: object) -> dict[str, tuple[str, Conversion]]:
    """Return the keys of a frame type with attributes and conversions; those of an EXT may depend on its type."""
    is_original = dialect.name == REACTIVESOCKET_0_0.name
    places = {dialect.name, "EXT-1" if row.name == "EXT" and dialect.entries and ext_type == 1 else row.name}
    keys = {}
    for attribute, declared in _fields(dialect, row):
        name = attribute.rpartition(".")[2]
        only_in = ONLY_IN.get(f"{row.frame.__name__}.{name}") or ONLY_IN.get(name)
        if only_in is not None and places.isdisjoint(SHORT.get(word, word) for word in only_in.split()):
            continue
        shown = (NAMES_0_0.get(name) if is_original else None) or NAMES.get(name, name)
        keys[shown] = attribute, _conversion(dialect, row, shown, declared)
    return keys


def _fields(dialect: Dialect, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the fields of a frame class and of its payload, with the types that their classes declare."""
    for field in attrs.fields(row.frame):
        if field.name == "payload":
            names = ["metadata", "data", "metadata_type"]
            if dialect.entries and row.frame in (RequestFrame, PayloadFrame):
                # A payload of the extension draft that is no part of a SETUP has MIME types of its own.
                names += ["metadata_mime", "data_mime"]
            for name in names:
                yield f"payload.{name}", Payload.__annotations__[name]
        elif HEADER.isdisjoint((field.name, f"{row.frame.__name__}.{field.name}")):
            yield field.name, str(field.type)


def _conversion(dialect: Dialect, row: Row, name: str, declared: str) -> Conversion:
    if name == "ttl_ms":
        return MS_OF_NS
    if declared == "Mime":
        return NAME if dialect.entries else TEXT
    if name == "initial_n" and row.name != "REQUEST_CHANNEL" and dialect in (REACTIVESOCKET_0_0, REACTIVESOCKET_0_1):
        # 0 is an ordinary number here, so it stands for an absent one.
        return INT
    return OF_TYPE[declared]


def load(name: str, conversion: Conversion, content: Mapping[str, object]) -> Any:
    """Return the value of a key in an object, or the key's absent value. Raise ``ValueError`` naming the key."""
    value = content.get(name)
    if value is None:
        return conversion.absent
    try:
        return conversion.load(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name}: {error}, not {value!r:.80}") from None


def to_json(dialect: Dialect, data: bytes) -> dict[str, object]:
    """Return the JSON object that describes a frame, which comes without its length prefix.

    Raise ``RemoteProtocolError`` with the offset for a frame that can't be decoded.
    """
    codec = dialect.codec
    frame = codec.decode(data)
    header = codec.header(data)
    assert header is not None  # A frame that was decoded has a header,
    row = codec.row(header.number)
    assert row is not None  # and a type.
    result: dict[str, object] = {"type": row.name}
    result["stream_id"] = frame.stream_id if row.has_stream_id else None
    result["ignore"] = row.ignorable and header.flags & codec.ignore_flag != 0
    if dialect.name == REACTIVESOCKET_0_0.name:
        result["version"] = 0
    for name, (attribute, conversion) in _keys(dialect, row, getattr(frame, "ext_type", None)).items():
        result[name] = conversion.dump(attrgetter(attribute)(frame))
    if other_flags := header.flags & codec.spare_flags(row):
        result["other_flags"] = other_flags
    return result


def from_json(dialect: Dialect, content: Mapping[str, object]) -> bytes:
    """Return the frame that an object describes, without a length prefix. Absent keys are false, null, 0 or empty.

    Raise ``ValueError`` naming the key if the object does not describe a frame, and ``LocalProtocolError`` naming the
    field if the dialect forbids the frame.
    """
    rows, name = {row.name: row for row in dialect.codec.rows}, content.get("type")
    if not isinstance(name, str) or name not in rows:
        raise ValueError(f"type: {name!r} is none of {', '.join(rows)}")
    row = rows[name]
    keys = _keys(dialect, row, content.get("ext_type"))
    for name, foreign in content.items():
        # A key with an empty value is accepted: an absent key means the same.
        if name not in keys and name not in OF_EVERY_FRAME and foreign not in (None, False, 0, "", []):
            raise ValueError(f"{name}: {row.name} has no such key")
    attributes: dict[str, object] = {**UNSAID.get(row.frame, {}), "stream_id": load("stream_id", INT, content)}
    payload: dict[str, Any] = {}
    for name, (attribute, conversion) in keys.items():
        owner, _, field = attribute.rpartition(".")
        (payload if owner else attributes)[field] = load(name, conversion, content)
    if payload:
        attributes["payload"] = Payload(**payload)
    if row.interaction is not None:
        attributes["interaction"] = row.interaction
    make: Any = row.frame
    frame = make(**attributes)
    if (written := dialect.codec.name_of(frame)) != row.name:
        raise LocalProtocolError(f"{row.name} stream_id {frame.stream_id}: that is for {written}")
    return dialect.codec.add_flags(dialect.codec.encode(frame), _header_flags(dialect, row, content))


def _header_flags(dialect: Dialect, row: Row, content: Mapping[str, object]) -> int:
    """Return the header bits that the attributes of a frame do not hold."""
    other_flags: int = load("other_flags", INT, content)
    spare = dialect.codec.spare_flags(row)
    if other_flags < 0 or other_flags & ~spare:
        raise ValueError(f"other_flags: {other_flags} has bits other than the spare ones of {row.name}, 0x{spare:X}")
    ignore = load("ignore", BOOL, content)
    if ignore and not row.ignorable:
        raise ValueError(f"ignore: {row.name} has no such flag")
    return other_flags | (dialect.codec.ignore_flag if ignore else 0)
