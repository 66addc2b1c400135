"""Converts frames to JSON objects and back: the keys follow from the fields of the frame classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Row
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_0, REACTIVESOCKET_0_1, Dialect
from rsocket_trio.rsocket.frames import ExtensionEntry, Frame

NS_PER_MS: Final = 1_000_000


@attrs.frozen
class Conversion:
    """The conversion of a value to JSON and back. ``dump`` and ``load`` are of values that are there.

    ``form`` is the type that JSON has, and ``says`` how it is called. ``load`` may raise ``ValueError``.
    ``absent`` is the value of a key that is missing or null.
    """

    form: type
    says: str
    absent: object
    dump: Callable[[Any], object] = lambda content: content
    load: Callable[[Any], object] = lambda content: content

    def loaded(self, content: object) -> object:
        """Return the value of content in JSON. Raise ``ValueError`` for content of another form."""
        # Not by isinstance: true and false are no numbers here.
        if type(content) is not self.form:
            raise ValueError(f"{self.says} expected")
        return self.load(content)


def unhex(text: str) -> bytes:
    """Return the bytes of hex digits; white space may be anywhere. Raise ``ValueError`` that names the fault."""
    digits = "".join(text.split())
    try:
        return bytes.fromhex(digits)
    except ValueError:
        for place, digit in enumerate(digits):
            if digit not in "0123456789abcdefABCDEF":
                raise ValueError(f"not hex: {digit!r} at digit {place}") from None
        raise ValueError(f"not hex: {len(digits)} digits, which is odd") from None


def _dump_name(name: int | str) -> object:
    return {"id": name} if isinstance(name, int) else {"text": name}


def _load_name(content: dict[str, object]) -> object:
    [(key, name)] = content.items() if len(content) == 1 else [("", None)]
    conversion = {"id": INT, "text": TEXT}.get(key)
    if conversion is None:
        raise ValueError(f"{NAME.says} expected")
    return conversion.loaded(name)


def _dump_extensions(entries: tuple[ExtensionEntry, ...]) -> object:
    return [{name: key.dump(getattr(entry, name)) for name, key in ENTRY.items()} for entry in entries]


def _load_extensions(content: list[object]) -> object:
    entries: list[ExtensionEntry] = []
    for entry in content:
        if not isinstance(entry, dict):
            raise ValueError("a list of extensions expected")  # noqa: TRY004 - it is what came
        if foreign := entry.keys() - ENTRY.keys():
            raise ValueError(f"{', '.join(sorted(foreign))}: an extension has no such key")
        entries.append(ExtensionEntry(**{name: load(name, key, entry) for name, key in ENTRY.items()}))
    return tuple(entries)


BOOL: Final = Conversion(bool, "true or false", False)
INT: Final = Conversion(int, "a whole number", 0)
TEXT: Final = Conversion(str, "text", "")
NAME: Final = Conversion(dict, '{"id": a whole number} or {"text": text}', "", _dump_name, _load_name)
HEX: Final = Conversion(str, "hex digits in quotes", b"", bytes.hex, unhex)
MS_OF_NS: Final = Conversion(int, INT.says, 0, lambda ns: ns // NS_PER_MS, lambda ms: ms * NS_PER_MS)
OF_TYPE: Final[Mapping[str, Conversion]] = {
    "bool": BOOL,
    "int": INT,
    "float": Conversion(int, INT.says, 0.0, lambda seconds: round(seconds * 1000), lambda ms: ms / 1000),
    "bytes": HEX,
    "int | str": NAME,
    "str | int": NAME,
    "tuple[ExtensionEntry, ...]": Conversion(list, "a list of extensions", (), _dump_extensions, _load_extensions),
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
PAYLOAD: Final[Mapping[str, str]] = {
    "metadata": "bytes | None",
    "data": "bytes",
    "metadata_type": "int",
    "metadata_mime": "str | int | None",
    "data_mime": "str | int | None",
}
"""The keys of a payload with their types, in their order."""
OPAQUE_BUT: Final = 1
"""The type of an EXT that is not opaque, in the extension draft."""


ENTRY: Final = {field.name: OF_TYPE[str(field.type)] for field in attrs.fields(ExtensionEntry)}
"""The keys of one extension, and their conversions."""


def _keys(dialect: Dialect, row: Row, ext_type: object) -> dict[str, tuple[str, Conversion]]:
    """Return the keys of a frame type with attributes and conversions; those of an EXT may depend on its type."""
    row = row if row.opaque is None or ext_type == OPAQUE_BUT else row.opaque
    names = {**NAMES, **NAMES_0_0} if dialect.name == REACTIVESOCKET_0_0.name else NAMES
    keys = {}
    for attribute, declared in _declared(row.frame):
        if attribute in row.attributes and attribute not in OF_EVERY_FRAME:
            name = attribute.removeprefix("payload.")
            shown = names.get(name, name)
            keys[shown] = attribute, _conversion(dialect, row, shown, declared)
    return keys


def _declared(frame: type[Frame]) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a frame class and of its payload, with the types that their classes declare."""
    for field in attrs.fields(frame):
        if field.name == "payload":
            yield from ((f"payload.{name}", kind) for name, kind in PAYLOAD.items())
        else:
            yield field.name, str(field.type)


def _conversion(dialect: Dialect, row: Row, name: str, declared: str) -> Conversion:
    if name == "ttl_ms":
        return MS_OF_NS
    if declared == "Mime":
        return NAME if dialect.entries else TEXT
    if name == "initial_n" and row.name != "REQUEST_CHANNEL" and dialect in (REACTIVESOCKET_0_0, REACTIVESOCKET_0_1):
        # 0 is an ordinary number here, so it stands for an absent one.
        return INT
    conversion = OF_TYPE[declared.removesuffix(" | None")]
    return attrs.evolve(conversion, absent=None) if declared.endswith(" | None") else conversion


def load(name: str, conversion: Conversion, content: Mapping[str, object]) -> Any:
    """Return the value of a key in an object, or the key's absent value. Raise ``ValueError`` naming the key."""
    value = content.get(name)
    if value is None:
        return conversion.absent
    try:
        return conversion.loaded(value)
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
        value = attrgetter(attribute)(frame)
        result[name] = None if value is None else conversion.dump(value)
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
    # What the frame's class needs and the dialect has no key for is 0.
    attributes: dict[str, object] = {
        field.name: 0 for field in attrs.fields(row.frame) if field.default is attrs.NOTHING
    }
    attributes["stream_id"] = load("stream_id", INT, content)
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
