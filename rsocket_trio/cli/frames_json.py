"""How a frame reads as JSON: which keys each type has in each dialect, and what stands in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

import attrs

from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Row
from rsocket_trio.rsocket.dialects import REACTIVESOCKET_0_2, RSOCKET_1_0, Dialect

NS_PER_MS: Final = 1_000_000


@attrs.frozen
class Kind:
    """How a value is written in JSON, and read back.

    ``load`` raises ``ValueError`` saying what it expected. ``absent`` stands for a key that is not there, or null.
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


BOOL: Final = Kind(_same, _load_bool, False)
INT: Final = Kind(_same, _load_int, 0)
OPTIONAL_INT: Final = Kind(_same, _load_int, None)
TEXT: Final = Kind(_same, _load_text, "")
HEX: Final = Kind(bytes.hex, _load_hex, b"")
OPTIONAL_HEX: Final = Kind(_dump_optional_hex, _load_hex, None)
MS_OF_SECONDS: Final = Kind(lambda seconds: round(seconds * 1000), lambda content: _load_int(content) / 1000, 0.0)
MS_OF_NS: Final = Kind(lambda ns: ns // NS_PER_MS, lambda content: _load_int(content) * NS_PER_MS, 0)


@attrs.frozen
class Key:
    """One key of a frame's JSON: its name, the attribute of the frame that it shows, and how."""

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
KEYS: Final = {
    RSOCKET_1_0.name:        KEYS_1_0,
    REACTIVESOCKET_0_2.name: KEYS_0_2,
}
# fmt: on


def to_json(dialect: Dialect, data: bytes) -> dict[str, object]:
    """A frame, without its length prefix, as the object that describes it.

    Raises ``RemoteProtocolError`` with the offset for a frame that can't be decoded.
    """
    codec = dialect.codec
    frame = codec.decode(data)
    header = codec.header(data)
    row = codec.row_of(frame)
    assert header is not None  # What was decoded has a header.
    result: dict[str, object] = {"type": row.name}
    result["stream_id"] = frame.stream_id
    result["ignore"] = row.ignorable and header.flags & codec.ignore_flag != 0
    for key in KEYS[dialect.name][row.name]:
        result[key.name] = key.kind.dump(attrgetter(key.attribute)(frame))
    if other_flags := header.flags & codec.spare_flags(row):
        result["other_flags"] = other_flags
    return result


def from_json(dialect: Dialect, content: Mapping[str, object]) -> bytes:
    """The frame that an object describes, without a length prefix. Absent keys are false, null, 0 or empty.

    Raises ``ValueError`` naming the key for what does not describe a frame, and ``LocalProtocolError`` naming the
    field for a frame that the dialect forbids.
    """
    row = _row_named(dialect, content.get("type"))
    keys = KEYS[dialect.name][row.name]
    _refuse_foreign_keys(row, keys, content)
    attributes: dict[str, object] = {"stream_id": _load(STREAM_ID, content)}
    payload: dict[str, Any] = {}
    for key in keys:
        owner, _, attribute = key.attribute.rpartition(".")
        (payload if owner else attributes)[attribute] = _load(key, content)
    if payload:
        attributes["payload"] = Payload(**payload)
    if row.interaction is not None:
        attributes["interaction"] = row.interaction
    frame: Any = row.frame
    return dialect.codec.add_flags(dialect.codec.encode(frame(**attributes)), _header_flags(dialect, row, content))


def unhex(text: str) -> bytes:
    """The bytes that hex digits stand for; white space may be anywhere. Raises ``ValueError`` saying what is wrong."""
    digits = "".join(text.split())
    try:
        return bytes.fromhex(digits)
    except ValueError:
        for place, digit in enumerate(digits):
            if digit not in "0123456789abcdefABCDEF":
                raise ValueError(f"not hex: {digit!r} at digit {place}") from None
        raise ValueError(f"not hex: {len(digits)} digits, which is odd") from None


def _row_named(dialect: Dialect, name: object) -> Row:
    rows = {row.name: row for row in dialect.codec.rows}
    if not isinstance(name, str) or name not in rows:
        raise ValueError(f"type: {name!r} is none of {', '.join(rows)}")
    return rows[name]


def _refuse_foreign_keys(row: Row, keys: tuple[Key, ...], content: Mapping[str, object]) -> None:
    own = {"type", "stream_id", "ignore", "other_flags", *(key.name for key in keys)}
    for name, foreign in content.items():
        # A key that says nothing is let pass: absent keys mean the same.
        if name not in own and foreign not in (None, False, 0, ""):
            raise ValueError(f"{name}: {row.name} has no such key")


def _header_flags(dialect: Dialect, row: Row, content: Mapping[str, object]) -> int:
    """The bits of the header that no frame's value tells."""
    other_flags: int = _load(Key("other_flags", "", INT), content)
    spare = dialect.codec.spare_flags(row)
    if other_flags < 0 or other_flags & ~spare:
        raise ValueError(f"other_flags: {other_flags} has bits other than the spare ones of {row.name}, 0x{spare:X}")
    ignore = _load(Key("ignore", "", BOOL), content)
    if ignore and not row.ignorable:
        raise ValueError(f"ignore: {row.name} has no such flag")
    return other_flags | (dialect.codec.ignore_flag if ignore else 0)


def _load(key: Key, content: Mapping[str, object]) -> Any:
    found = content.get(key.name)
    if found is None:
        return key.kind.absent
    try:
        return key.kind.load(found)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{key.name}: {error}, not {found!r:.80}") from None
