"""Converts frames to JSON objects and back, by a table of the keys of each frame type in each dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

import attrs

from rsocket_trio.cli.hex_lines import unhex
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Row
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import (
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
    RSOCKET_2_0_DRAFT,
)
from rsocket_trio.rsocket.frames import ErrorFrame, ExtensionEntry, SetupFrame
from rsocket_trio.rsocket.layouts import v0_0 as layout_0_0

NS_PER_MS: Final = 1_000_000


@attrs.frozen
class Kind:
    """The conversion of a value to JSON and back.

    ``load`` raises ``ValueError`` naming the expected type. ``absent`` is the value of a key that is missing or null.
    """

    dump: Callable[[Any], object]
    load: Callable[[object], Any]
    absent: object


def _same(content: Any) -> object:
    return content


def _load_bool(content: object) -> bool:
    if isinstance(content, bool):
        return content
    raise ValueError("true or false expected")


def _load_int(content: object) -> int:
    if isinstance(content, int) and not isinstance(content, bool):
        return content
    raise ValueError("a whole number expected")


def _load_text(content: object) -> str:
    if isinstance(content, str):
        return content
    raise ValueError("text expected")


def _load_hex(content: object) -> bytes:
    if isinstance(content, str):
        return unhex(content)
    raise ValueError("hex digits in quotes expected")


def _dump_optional_hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()


def _dump_name(name: int | str) -> object:
    return {"id": name} if isinstance(name, int) else {"text": name}


def _dump_optional_name(name: int | str | None) -> object:
    return None if name is None else _dump_name(name)


def _load_name(content: object) -> int | str:
    if isinstance(content, dict) and len(content) == 1:
        if "id" in content:
            return _load_int(content["id"])
        if "text" in content:
            return _load_text(content["text"])
    raise ValueError('{"id": a whole number} or {"text": text} expected')


def _dump_extensions(entries: tuple[ExtensionEntry, ...]) -> object:
    return [{key.name: key.kind.dump(getattr(entry, key.attribute)) for key in ENTRY} for entry in entries]


def _load_extensions(content: object) -> tuple[ExtensionEntry, ...]:
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ValueError("a list of extensions expected")
    known = {key.name for key in ENTRY}
    for entry in content:
        if foreign := entry.keys() - known:
            raise ValueError(f"{', '.join(sorted(foreign))}: an extension has no such key")
    return tuple(ExtensionEntry(**{key.attribute: load(key, entry) for key in ENTRY}) for entry in content)


BOOL: Final = Kind(_same, _load_bool, False)
INT: Final = Kind(_same, _load_int, 0)
OPTIONAL_INT: Final = Kind(_same, _load_int, None)
TEXT: Final = Kind(_same, _load_text, "")
HEX: Final = Kind(bytes.hex, _load_hex, b"")
OPTIONAL_HEX: Final = Kind(_dump_optional_hex, _load_hex, None)
MS_OF_SECONDS: Final = Kind(lambda seconds: round(seconds * 1000), lambda content: _load_int(content) / 1000, 0.0)
MS_OF_NS: Final = Kind(lambda ns: ns // NS_PER_MS, lambda content: _load_int(content) * NS_PER_MS, 0)
NAME: Final = Kind(_dump_name, _load_name, "")
OPTIONAL_NAME: Final = Kind(_dump_optional_name, _load_name, None)
EXTENSION_LIST: Final = Kind(_dump_extensions, _load_extensions, ())


@attrs.frozen
class Key:
    """One key of a frame's JSON: its name, the attribute of the frame that it shows, and its conversion."""

    name: str
    attribute: str
    kind: Kind


# fmt: off
STREAM_ID: Final        = Key("stream_id", "stream_id", INT)
FOLLOWS: Final          = Key("follows", "follows", BOOL)
COMPLETE: Final         = Key("complete", "complete", BOOL)
NEXT: Final             = Key("next", "next", BOOL)
INITIAL_N: Final        = Key("initial_n", "initial_n", OPTIONAL_INT)
METADATA: Final         = Key("metadata", "metadata", OPTIONAL_HEX)
DATA: Final             = Key("data", "data", HEX)
PAYLOAD_METADATA: Final = Key("metadata", "payload.metadata", OPTIONAL_HEX)
PAYLOAD_DATA: Final     = Key("data", "payload.data", HEX)
PAYLOAD: Final          = (PAYLOAD_METADATA, PAYLOAD_DATA)
VERSION: Final          = (Key("major", "major", INT), Key("minor", "minor", INT))
SETUP: Final = (
    *VERSION,
    Key("keepalive_ms", "keepalive_interval", MS_OF_SECONDS),
    Key("max_lifetime_ms", "max_lifetime", MS_OF_SECONDS),
    Key("lease", "lease", BOOL),
    Key("resume_token", "resume_token", OPTIONAL_HEX),
    Key("metadata_mime", "metadata_mime", TEXT),
    Key("data_mime", "data_mime", TEXT),
    *PAYLOAD,
)
ERROR_CODE: Final       = Key("error_code", "code", INT)

KEYS_1_0: Final[dict[str, tuple[Key, ...]]] = {
    "SETUP":            SETUP,
    "LEASE":            (
        Key("ttl_ms", "time_to_live_ns", MS_OF_NS),
        Key("requests", "number_of_requests", INT),
        METADATA,
    ),
    "KEEPALIVE":        (
        Key("respond", "respond", BOOL),
        Key("last_received_position", "last_received_position", INT),
        DATA,
    ),
    "REQUEST_RESPONSE": (FOLLOWS, *PAYLOAD),
    "REQUEST_FNF":      (FOLLOWS, *PAYLOAD),
    "REQUEST_STREAM":   (FOLLOWS, INITIAL_N, *PAYLOAD),
    "REQUEST_CHANNEL":  (FOLLOWS, COMPLETE, INITIAL_N, *PAYLOAD),
    "REQUEST_N":        (Key("n", "request_n", INT),),
    "CANCEL":           (),
    "PAYLOAD":          (FOLLOWS, COMPLETE, NEXT, *PAYLOAD),
    "ERROR":            (ERROR_CODE, DATA),
    "METADATA_PUSH":    (Key("metadata", "metadata", HEX),),
    "RESUME":           (
        *VERSION,
        Key("resume_token", "token", HEX),
        Key("last_received_server_position", "last_received_server_position", INT),
        Key("first_available_client_position", "first_available_client_position", INT),
    ),
    "RESUME_OK":        (Key("last_received_client_position", "last_received_client_position", INT),),
    "EXT":              (
        Key("ext_type", "ext_type", INT),
        Key("ext_body", "body", HEX),
        Key("ext_metadata", "has_metadata", BOOL),
    ),
}
KEYS_0_2: Final = {
    **KEYS_1_0,
    "SETUP":            (*SETUP, Key("strict", "strict", BOOL)),
    "CANCEL":           (METADATA,),
    "ERROR":            (ERROR_CODE, METADATA, DATA),
}
EXTENSIONS: Final       = Key("extensions", "extensions", EXTENSION_LIST)
MIMES: Final = (
    Key("metadata_mime", "payload.metadata_mime", OPTIONAL_NAME),
    Key("data_mime", "payload.data_mime", OPTIONAL_NAME),
)
ENTRY: Final = (
    Key("ext", "ext", NAME),
    Key("ignore", "ignore", BOOL),
    Key("ack", "ack", BOOL),
    Key("nibble", "nibble", INT),
    Key("payload", "payload", HEX),
)
"""The keys of one extension."""
KEYS_2_0_DRAFT: Final = {
    **KEYS_1_0,
    "SETUP":            (
        *VERSION,
        Key("ack", "ack", BOOL),
        Key("metadata_mime", "metadata_mime", NAME),
        Key("data_mime", "data_mime", NAME),
        EXTENSIONS,
        *PAYLOAD,
    ),
    "SETUP_OK":         (EXTENSIONS, *PAYLOAD),
    **{
        name: (*KEYS_1_0[name], *MIMES, EXTENSIONS)
        for name in ("REQUEST_RESPONSE", "REQUEST_FNF", "REQUEST_STREAM", "REQUEST_CHANNEL")
    },
    "PAYLOAD":          (*KEYS_1_0["PAYLOAD"], *MIMES),
    "EXT 1":            (Key("ext_type", "ext_type", INT), EXTENSIONS, METADATA),
}
# 0 is an ordinary number here, so it stands for an absent one.
COUNT: Final            = Key("initial_n", "initial_n", INT)
KEYS_0_1: Final = {
    "SETUP":            (
        *VERSION,
        Key("keepalive_ms", "keepalive_interval", MS_OF_SECONDS),
        Key("max_lifetime_ms", "max_lifetime", MS_OF_SECONDS),
        Key("lease", "lease", BOOL),
        Key("strict", "strict", BOOL),
        Key("metadata_mime", "metadata_mime", TEXT),
        Key("data_mime", "data_mime", TEXT),
        *PAYLOAD,
    ),
    "LEASE":            KEYS_1_0["LEASE"],
    "KEEPALIVE":        (Key("respond", "respond", BOOL), DATA),
    "REQUEST_RESPONSE": (FOLLOWS, *PAYLOAD),
    "REQUEST_FNF":      (FOLLOWS, *PAYLOAD),
    "REQUEST_STREAM":   (FOLLOWS, COUNT, *PAYLOAD),
    "REQUEST_SUB":      (FOLLOWS, COUNT, *PAYLOAD),
    "REQUEST_CHANNEL":  (FOLLOWS, COMPLETE, INITIAL_N, *PAYLOAD),
    "REQUEST_N":        KEYS_1_0["REQUEST_N"],
    "CANCEL":           (METADATA,),
    "RESPONSE":         (FOLLOWS, COMPLETE, *PAYLOAD),
    "ERROR":            (ERROR_CODE, METADATA, DATA),
    "METADATA_PUSH":    KEYS_1_0["METADATA_PUSH"],
    "EXT":              KEYS_1_0["EXT"],
}

METADATA_TYPE: Final    = Key("metadata_type", "metadata_type", INT)
TYPED_PAYLOAD: Final    = (*PAYLOAD, Key("metadata_type", "payload.metadata_type", INT))
KEYS_0_0: Final = {
    "SETUP":            (
        Key("version", "major", INT),
        Key("lease", "lease", BOOL),
        Key("metadata_mime", "metadata_mime", TEXT),
        Key("data_mime", "data_mime", TEXT),
        *TYPED_PAYLOAD,
    ),
    "SETUP_ERROR":      (ERROR_CODE, METADATA, METADATA_TYPE, DATA),
    "LEASE":            (
        Key("ttl_ns", "time_to_live_ns", INT),
        Key("requests", "number_of_requests", INT),
        METADATA,
        METADATA_TYPE,
    ),
    "REQUEST_RESPONSE": TYPED_PAYLOAD,
    "REQUEST_FNF":      TYPED_PAYLOAD,
    "REQUEST_STREAM":   (COUNT, *TYPED_PAYLOAD),
    "REQUEST_SUB":      (COUNT, *TYPED_PAYLOAD),
    "REQUEST_N":        (*KEYS_1_0["REQUEST_N"], METADATA, METADATA_TYPE),
    "CANCEL":           (METADATA, METADATA_TYPE),
    "RESPONSE":         (FOLLOWS, COMPLETE, *TYPED_PAYLOAD),
    "ERROR":            (METADATA, METADATA_TYPE, DATA),
    "METADATA_PUSH":    (*KEYS_1_0["METADATA_PUSH"], METADATA_TYPE),
    "EXT":              KEYS_1_0["EXT"],
}
KEYS: Final = {
    RSOCKET_2_0_DRAFT.name:  KEYS_2_0_DRAFT,
    RSOCKET_1_0.name:        KEYS_1_0,
    REACTIVESOCKET_0_2.name: KEYS_0_2,
    REACTIVESOCKET_0_1.name: KEYS_0_1,
    REACTIVESOCKET_0_0.name: KEYS_0_0,
}
EVERY_FRAME: Final[dict[str, dict[str, object]]] = {REACTIVESOCKET_0_0.name: {"version": 0}}
"""Keys of every frame of a dialect, unless its type has a key of that name."""
UNSAID: Final[dict[type, dict[str, object]]] = {
    SetupFrame: {"minor": 0, "keepalive_interval": 0.0, "max_lifetime": 0.0},
    ErrorFrame: {"code": layout_0_0.STREAM_ERROR},
}
"""Arguments that a frame needs and for which its dialect has no key."""
# fmt: on


def load(key: Key, content: Mapping[str, object]) -> Any:
    """Return the value of this key in an object, or the key's absent value. Raise ``ValueError`` naming the key."""
    found = content.get(key.name)
    if found is None:
        return key.kind.absent
    try:
        return key.kind.load(found)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{key.name}: {error}, not {found!r:.80}") from None


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
