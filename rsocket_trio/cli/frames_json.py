"""Converts frames to JSON objects and back."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from rsocket_trio.cli.frame_keys import BOOL, EVERY_FRAME, INT, KEYS, STREAM_ID, UNSAID, Key, load
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Row
from rsocket_trio.rsocket.dialect import Dialect


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
    result |= EVERY_FRAME.get(dialect.name, {})
    for key in _keys(dialect, row, getattr(frame, "ext_type", None)):
        result[key.name] = key.kind.dump(attrgetter(key.attribute)(frame))
    if other_flags := header.flags & codec.spare_flags(row):
        result["other_flags"] = other_flags
    return result


def from_json(dialect: Dialect, content: Mapping[str, object]) -> bytes:
    """Return the frame that an object describes, without a length prefix. Absent keys are false, null, 0 or empty.

    Raise ``ValueError`` naming the key if the object does not describe a frame, and ``LocalProtocolError`` naming the
    field if the dialect forbids the frame.
    """
    row = _row_named(dialect, content.get("type"))
    keys = _keys(dialect, row, content.get("ext_type"))
    _refuse_foreign_keys(row, keys, content)
    attributes: dict[str, object] = {**UNSAID.get(row.frame, {}), "stream_id": load(STREAM_ID, content)}
    payload: dict[str, Any] = {}
    for key in keys:
        owner, _, attribute = key.attribute.rpartition(".")
        (payload if owner else attributes)[attribute] = load(key, content)
    if payload:
        attributes["payload"] = Payload(**payload)
    if row.interaction is not None:
        attributes["interaction"] = row.interaction
    make: Any = row.frame
    frame = make(**attributes)
    if (written := dialect.codec.name_of(frame)) != row.name:
        raise LocalProtocolError(f"{row.name} stream_id {frame.stream_id}: that is for {written}")
    return dialect.codec.add_flags(dialect.codec.encode(frame), _header_flags(dialect, row, content))


def _keys(dialect: Dialect, row: Row, ext_type: object) -> tuple[Key, ...]:
    """Return the keys of a frame type; the keys of an EXT may depend on its extension type."""
    types = KEYS[dialect.name]
    return types.get(f"{row.name} {ext_type}") or types[row.name]


def _row_named(dialect: Dialect, name: object) -> Row:
    rows = {row.name: row for row in dialect.codec.rows}
    if not isinstance(name, str) or name not in rows:
        raise ValueError(f"type: {name!r} is none of {', '.join(rows)}")
    return rows[name]


def _refuse_foreign_keys(row: Row, keys: tuple[Key, ...], content: Mapping[str, object]) -> None:
    own = {"type", "stream_id", "ignore", "other_flags", *(key.name for key in keys)}
    for name, foreign in content.items():
        # A key with an empty value is accepted: an absent key means the same.
        if name not in own and foreign not in (None, False, 0, "", []):
            raise ValueError(f"{name}: {row.name} has no such key")


def _header_flags(dialect: Dialect, row: Row, content: Mapping[str, object]) -> int:
    """Return the header bits that the attributes of a frame do not hold."""
    other_flags: int = load(Key("other_flags", "", INT), content)
    spare = dialect.codec.spare_flags(row)
    if other_flags < 0 or other_flags & ~spare:
        raise ValueError(f"other_flags: {other_flags} has bits other than the spare ones of {row.name}, 0x{spare:X}")
    ignore = load(Key("ignore", "", BOOL), content)
    if ignore and not row.ignorable:
        raise ValueError(f"ignore: {row.name} has no such flag")
    return other_flags | (dialect.codec.ignore_flag if ignore else 0)
