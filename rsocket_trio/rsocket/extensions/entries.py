"""The extension block of the draft: entries behind one another, each with an id, flags and a payload.

An entry that may be ignored says how long its payload is; that of any other ends where its definition says. The
definitions differ by the point where a block stands, so a ``Point`` comes along. A text, here and in the payloads, is
kept byte by byte as Latin-1: ids are compared and not interpreted (RSX-TLV-09, RSX-MIME-04).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, NoReturn, TypeAlias, TypeVar, get_type_hints

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.rsocket.codec import (
    UINT31_MAX,
    UINT63_MAX,
    UINT64_MAX,
    NotUnderstood,
    Number,
    check,
    latin_1,
    ns_in_ms,
    seconds_in_ms,
    sized,
    uint,
)
from rsocket_trio.rsocket.frames import BROKER, KEEPALIVE, LEASE, RESERVED, RESUME, ExtensionEntry, name_of
from rsocket_trio.values import value

T = TypeVar("T")

# RSX-TLV-02
FOLLOWS: Final = 0x80
IGNORE: Final = 0x40
ACK: Final = 0x20
NIBBLE: Final = 0x0F

WELL_KNOWN_BIT: Final = 0x80
"""In the first byte of an id, a MIME type, a strategy or a tag's key: a number, not the length of a text."""
MAX_TEXT_BYTES: Final = 127
MAX_PAYLOAD_BYTES: Final = 2**24 - 1
ENTRY_LIMIT: Final = 1_024
"""Entries of one block, and tags of one list, unless told otherwise: the default of ``Limits.metadata_entries``."""


class MalformedExtension(NotUnderstood):
    """A block that runs past its frame, has a forbidden id, or a payload that is not as defined (RSX-TLV-08)."""


class UnknownExtension(NotUnderstood):
    """An entry that is not known at this point and may not be ignored: its end is not known (RSX-TLV-07)."""


class Reader:
    """Reads bytes from a place on. With ``end`` a payload of known length ends there.

    Reading past the end raises ``MalformedExtension``.
    """

    __slots__ = ("bounded", "data", "end", "offset")

    def __init__(self, data: bytes, offset: int = 0, end: int | None = None) -> None:
        self.data = data
        self.offset = offset
        self.bounded = end is not None
        self.end = len(data) if end is None else end

    def take(self, size: int, what: str) -> bytes:
        """The next ``size`` bytes."""
        start = self.offset
        if size > self.end - start:
            self.fail(f"{what} needs {size} bytes at offset {start}, {self.end - start} left")
        self.offset = start + size
        return self.data[start : self.offset]

    def uint(self, size: int, what: str) -> int:
        """A number of ``size`` bytes."""
        return int.from_bytes(self.take(size, what), "big")

    def name(self, what: str) -> int | str:
        """The number of something well-known, or a text behind its length."""
        first = self.uint(1, what)
        return first & ~WELL_KNOWN_BIT if first & WELL_KNOWN_BIT else self.take(first, what).decode("latin-1")

    def rest(self) -> bytes:
        """Everything up to the end of a payload of known length; nothing where that is not known."""
        return self.take(self.end - self.offset, "rest") if self.bounded else b""

    def fail(self, text: str, *, back: int = 0) -> NoReturn:
        """Raise ``MalformedExtension`` for the bytes here, or ``back`` bytes before."""
        raise MalformedExtension(text, offset=self.offset - back)


Definition: TypeAlias = Callable[[Reader, int], object]
"""Reads the payload of an extension, given its nibble: its value, or ``None`` for a form that is not defined.

A payload without a length ends where the reader was left.
"""


@attrs.frozen
class Point:
    """A place of blocks, and the extensions that are defined there. With ``ack`` its entries can ask for answers."""

    name: str
    definitions: Mapping[int | str, Definition]
    ack: bool = False

    def read(self, entry: ExtensionEntry) -> object:
        """Return the value of a decoded entry's payload, ``None`` for an extension that is unknown at this point."""
        definition = self.definitions.get(entry.ext)  # RSX-TLV-10
        return definition and definition(Reader(entry.payload, 0, len(entry.payload)), entry.nibble)


def decode_block(
    data: bytes, offset: int, point: Point, *, limit: int = ENTRY_LIMIT
) -> tuple[tuple[ExtensionEntry, ...], int]:
    """Return the entries of the block at ``offset``, unknown ones that may be ignored among them, and its end.

    Raise ``MalformedExtension`` or ``UnknownExtension``.
    """
    reader = Reader(data, offset)
    entries: dict[int | str, ExtensionEntry] = {}
    follows = True
    while follows:
        if len(entries) == limit:
            reader.fail(f"more than {limit} extension entries")
        entry, follows = _decode_entry(reader, point, entries)
        entries[entry.ext] = entry
    return tuple(entries.values()), reader.offset


def encode_block(entries: Sequence[ExtensionEntry], point: Point) -> bytes:
    """Return the entries as a block at this point. Raise ``LocalProtocolError`` for one that may not stand there."""
    if not entries:
        raise LocalProtocolError(f"{point.name} extensions: a block has at least one entry")
    if len({entry.ext for entry in entries}) < len(entries):  # RSX-TLV-05
        raise LocalProtocolError(f"{point.name} extensions {[entry.name for entry in entries]}: one is there twice")
    *others, last = entries
    return b"".join(_encode_entry(entry, FOLLOWS, point) for entry in others) + _encode_entry(last, 0, point)


def _decode_entry(
    reader: Reader, point: Point, earlier: Mapping[int | str, ExtensionEntry]
) -> tuple[ExtensionEntry, bool]:
    start = reader.offset
    ext = reader.name("extension id")
    if ext in RESERVED:
        reader.fail(f"extension id {name_of(ext)} is reserved", back=reader.offset - start)
    if ext in earlier:  # RSX-TLV-05
        reader.fail(f"extension {name_of(ext)} is there twice", back=reader.offset - start)
    flags = reader.uint(1, "extension flags")
    nibble = flags & NIBBLE
    definition = point.definitions.get(ext)
    if flags & IGNORE:
        size = reader.uint(3, f"{name_of(ext)} payload length")
        begin = reader.offset
        payload = reader.take(size, f"{name_of(ext)} payload")
        if definition is not None:
            # RSX-TLV-08: too short is malformed, and what stands behind its end is not looked at.
            definition(Reader(reader.data, begin, reader.offset), nibble)
    else:
        begin = reader.offset
        if definition is None or definition(reader, nibble) is None:
            text = f"extension {name_of(ext)} is not known in {point.name}, and may not be ignored"
            raise UnknownExtension(text, offset=start)
        payload = reader.data[begin : reader.offset]
    # RSX-TLV-03: the spare bit, and the wish for an answer where there is none, mean nothing.
    ack = point.ack and flags & ACK != 0
    return ExtensionEntry(ext, flags & IGNORE != 0, ack, nibble, payload), flags & FOLLOWS != 0


def _encode_entry(entry: ExtensionEntry, flags: int, point: Point) -> bytes:
    what = f"{point.name} extension {entry.name}"
    if entry.ext in RESERVED:
        raise LocalProtocolError(f"{what}: this id is reserved")
    check(what, "nibble", entry.nibble, 0, NIBBLE)
    if entry.ack and not point.ack:
        raise LocalProtocolError(f"{what} ack: only those of SETUP are answered")
    _check_payload(entry, point, what)
    flags |= entry.nibble | (IGNORE if entry.ignore else 0) | (ACK if entry.ack else 0)
    head = name_field(entry.ext, what) + bytes((flags,))
    return head + (len(entry.payload).to_bytes(3, "big") if entry.ignore else b"") + entry.payload  # RSX-TLV-01


def _check_payload(entry: ExtensionEntry, point: Point, what: str) -> None:
    """Hold a payload to its definition, so that the peer finds its end where it is."""
    size = len(entry.payload)
    reader = Reader(entry.payload, 0, size if entry.ignore else None)
    definition = point.definitions.get(entry.ext)
    try:
        known = definition is not None and definition(reader, entry.nibble) is not None
    except MalformedExtension as error:
        raise LocalProtocolError(f"{what} payload of {size} bytes: {error}") from None
    if entry.ignore:
        if size > MAX_PAYLOAD_BYTES:
            raise LocalProtocolError(f"{what} payload of {size} bytes, limit {MAX_PAYLOAD_BYTES}")
    elif not known:
        raise LocalProtocolError(f"{what}: it is not known there, and must be ignorable")
    elif reader.offset != size:
        raise LocalProtocolError(f"{what} payload of {size} bytes: without a length it ends after {reader.offset}")


def name_field(name: int | str, what: str) -> bytes:
    """A well-known number in one byte, or a text behind its length. Raise ``LocalProtocolError``."""
    if isinstance(name, int):
        check(what, "id", name, 0, MAX_TEXT_BYTES)
        return bytes((WELL_KNOWN_BIT | name,))
    text = latin_1(name, what)
    if len(text) > MAX_TEXT_BYTES:
        raise LocalProtocolError(f"{what} of {len(text)} bytes, limit {MAX_TEXT_BYTES}")
    return bytes((len(text),)) + text


FLAG: Final = 0x1
"""The one bit of the nibble that most extensions use."""

# Strategies of leases (RSX-LEASE-02)
REQUESTS_COUNT: Final = 0x00
CONCURRENCY_LIMIT: Final = 0x01

ID_SIZE: Final = 16
MORE: Final = 0x80
NO_TAG: Final = (0x00, b"")
"""The pair that stands for an empty list."""


# Columns


@attrs.frozen
class Column:
    """A field of a payload: from a reader and the nibble to its value, and back to bits of the nibble and bytes."""

    read: Callable[[Reader, int], Any]
    write: Callable[[Any], tuple[int, bytes]]


def number(what: str, name: str, attribute: str, form: Number, low: int = 0) -> Column:
    """Return a number in the form that frames have; none below ``low`` is read."""
    size = struct.calcsize(f">{form.format}")

    def read(reader: Reader, nibble: int) -> Any:
        content = form.load(reader.uint(size, what))
        if content < low:
            reader.fail(f"{what} is {content}", back=size)
        return content

    return Column(read, lambda content: (0, form.dump(name, attribute, content).to_bytes(size, "big")))


def flag(bit: int) -> Column:
    """Return a bit of the nibble."""
    return Column(lambda reader, nibble: nibble & bit != 0, lambda is_set: (bit if is_set else 0, b""))


def optional(column: Column) -> Column:
    """Return a field that is there only if the nibble says so, and else ``None``."""
    return Column(
        lambda reader, nibble: column.read(reader, nibble) if nibble & FLAG else None,
        lambda content: (0, b"") if content is None else (FLAG, column.write(content)[1]),
    )


def read_strategies(reader: Reader, nibble: int) -> tuple[int | str, ...]:
    count = reader.uint(1, "lease strategy count")
    if not count:
        reader.fail("lease strategy count is 0", back=1)
    return tuple(reader.name("lease strategy") for _ in range(count))


def write_strategies(names: tuple[int | str, ...]) -> tuple[int, bytes]:
    check("lease", "strategy count", len(names), 1, 0xFF)
    return 0, bytes((len(names),)) + b"".join(name_field(name, "lease strategy") for name in names)


def broker_id(what: str, attribute: str) -> Column:
    """Return an id of 16 bytes."""

    def write(content: bytes) -> tuple[int, bytes]:
        check("broker", f"{attribute} size", len(content), ID_SIZE, ID_SIZE)
        return 0, content

    return Column(lambda reader, nibble: reader.take(ID_SIZE, what), write)


def read_service(reader: Reader, nibble: int) -> str:
    name = reader.take(reader.uint(1, "broker service name length"), "broker service name")
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        reader.fail(f"broker service name is not UTF-8: {error.reason}", back=len(name) - error.start)


def read_tags(reader: Reader, nibble: int) -> tuple[tuple[int | str, bytes], ...]:
    tags: list[tuple[int | str, bytes]] = []
    more = MORE
    while more:
        if len(tags) == ENTRY_LIMIT:
            reader.fail(f"more than {ENTRY_LIMIT} broker tags")
        key = reader.name("broker tag key")
        size = reader.uint(1, "broker tag value length")
        more = size & MORE
        tags.append((key, reader.take(size & ~MORE, "broker tag value")))
    return () if tags == [NO_TAG] else tuple(tags)


def write_tags(tags: tuple[tuple[int | str, bytes], ...]) -> tuple[int, bytes]:
    pairs = tags or (NO_TAG,)
    check("broker", "tag count", len(pairs), 1, ENTRY_LIMIT)
    parts: list[bytes] = []
    for left, (key, content) in zip(range(len(pairs) - 1, -1, -1), pairs, strict=True):
        if len(content) > MAX_TEXT_BYTES:
            raise LocalProtocolError(f"broker tag value of {len(content)} bytes, limit {MAX_TEXT_BYTES}")
        parts += (name_field(key, "broker tag key"), bytes(((MORE if left else 0) | len(content),)), content)
    return 0, b"".join(parts)


def position(attribute: str) -> Column:
    """Return a position in bytes."""
    return number("resume position", "resume", attribute, uint("Q", UINT63_MAX))


TOKEN: Final = Column(
    lambda reader, nibble: reader.take(reader.uint(2, "resume token length"), "resume token"),
    lambda content: (0, sized(content, 2, "resume token")),
)
REST: Final = Column(lambda reader, nibble: reader.rest(), lambda content: (0, content))
STRATEGY: Final = Column(
    lambda reader, nibble: reader.name("lease strategy"), lambda name: (0, name_field(name, "lease strategy"))
)
MILLISECONDS: Final = seconds_in_ms(UINT31_MAX, zero=False)
RouteId: TypeAlias = Annotated[bytes, broker_id("broker route id", "route_id")]
BrokerId: TypeAlias = Annotated[bytes, broker_id("broker id", "broker_id")]
Started: TypeAlias = Annotated[int, number("broker timestamp", "broker", "timestamp_ms", uint("Q", UINT64_MAX))]
ServiceName: TypeAlias = Annotated[
    str, Column(read_service, lambda name: (0, sized(name.encode(), 1, "broker service name")))
]
Tags: TypeAlias = Annotated[tuple[tuple[int | str, bytes], ...], Column(read_tags, write_tags)]
"""Pairs of a key, well-known number or text, and a value (RSX-BRK-04)."""


@attrs.frozen
class Form:
    """A form of an extension's payload: its value's class, and its columns in the order of their bytes, by attribute.

    ``nibble`` says which form it is, where an extension has several; else the columns have its bits.
    """

    ext: int
    kind: type
    columns: dict[str, Column]
    nibble: int | None

    def read(self, reader: Reader, nibble: int) -> object:
        """Return the value of the payload that the reader stands at."""
        return self.kind(**{name: column.read(reader, nibble) for name, column in self.columns.items()})

    def write(self, content: object) -> tuple[int, bytes]:
        """Return nibble and payload. Raise ``LocalProtocolError`` for numbers out of range."""
        nibble, payload = self.nibble or 0, b""
        for name, column in self.columns.items():
            bits, part = column.write(getattr(content, name))
            nibble |= bits
            payload += part
        return nibble, payload


FORMS: Final[dict[type, Form]] = {}
"""The forms of all payloads, by the classes of their values."""


def form(ext: int, nibble: int | None = None) -> Callable[[type[T]], type[T]]:
    """Note the class of a value as a form of an extension: the annotations of its attributes are the columns."""

    def note(kind: type[T]) -> type[T]:
        hints = get_type_hints(kind, include_extras=True)
        FORMS[kind] = Form(ext, kind, {name: hint.__metadata__[0] for name, hint in hints.items()}, nibble)
        return kind

    return note


# The values


@form(KEEPALIVE)
@value
class KeepaliveTerms:
    """The client's keepalive interval and the longest silence that it accepts, in seconds: in SETUP and SETUP_OK.

    Received ones may be 0, which is forbidden (RSX-KA-02).
    """

    interval: Annotated[float, number("keepalive interval", "keepalive", "interval", MILLISECONDS)]
    max_lifetime: Annotated[float, number("keepalive lifetime", "keepalive", "lifetime", MILLISECONDS)]


@form(KEEPALIVE)
@value
class Beat:
    """A sign of life; with ``respond`` it asks for one. Its data needs an entry with a length (RSX-KA-04)."""

    respond: Annotated[bool, flag(FLAG)]
    data: Annotated[bytes, REST] = b""


@form(RESUME)
@value
class ResumeRequest:
    """A client's request for a resumable session; with a position, to resume one (RSX-RES-01, RSX-RES-02)."""

    token: Annotated[bytes, TOKEN] = attrs.field(repr=False)
    last_received_server_position: Annotated[int | None, optional(position("last_received_server_position"))] = None


@form(RESUME)
@value
class ResumeGrant:
    """The server's grant of resumption; with its received position when a session is resumed (RSX-RES-03)."""

    last_received_client_position: Annotated[int | None, optional(position("last_received_client_position"))] = None


@form(RESUME)
@value
class ResumePosition:
    """The received position in bytes: the peer need not keep earlier frames (RSX-RES-05)."""

    last_received_position: Annotated[int, position("last_received_position")]


@form(RESUME)
@value
class Resumable:
    """Marks a new stream as resumable or not: a resumable one outlives its transport (RSX-RES-06)."""

    resumable: Annotated[bool, flag(FLAG)] = True


@form(LEASE)
@value
class Strategies:
    """The strategies for counting permits of a lease: well-known numbers or names (RSX-LEASE-01, RSX-LEASE-03).

    Selected ones: the first is for the client's requests, the last for the server's.
    """

    names: Annotated[tuple[int | str, ...], Column(read_strategies, write_strategies)]


@form(LEASE)
@value
class Permits:
    """A lease: permits of a strategy for a time to live in nanoseconds, as in ``LeaseFrame`` (RSX-LEASE-04)."""

    strategy: Annotated[int | str, STRATEGY]
    time_to_live_ns: Annotated[int, number("lease time to live", "lease", "time_to_live_ns", ns_in_ms(UINT31_MAX))]
    number: Annotated[int, number("lease permits", "lease", "number", uint("I", UINT31_MAX))]


@form(LEASE)
@value
class Complexity:
    """The cost of this request in permits (RSX-LEASE-05)."""

    permits: Annotated[int, number("lease complexity", "lease", "complexity", uint("I", UINT31_MAX, 1), low=1)] = 1


@form(BROKER, 0x1)
@value
class RouteJoin:
    """Announces a route to a service (RSX-BRK-01). Ids have 16 bytes."""

    route_id: RouteId
    service: ServiceName
    tags: Tags = ()


@form(BROKER, 0x0)
@value
class BrokerInfo:
    """Announces a broker: its id, its start time in milliseconds, and its tags (RSX-BRK-02)."""

    broker_id: BrokerId
    timestamp_ms: Started
    tags: Tags = ()


@form(BROKER, 0x2)
@value
class RouteAdd:
    """Announces a route of another broker (RSX-BRK-02)."""

    broker_id: BrokerId
    route_id: RouteId
    timestamp_ms: Started
    service: ServiceName
    tags: Tags = ()


@form(BROKER)
@value
class Address:
    """The origin and destination of a request; exactly one of unicast, multicast and shard must be set (RSX-BRK-03).

    A received one may say none or several, which is for the receiver to refuse.
    """

    origin_route_id: Annotated[bytes, broker_id("broker origin route id", "origin_route_id")]
    metadata: Tags = ()
    tags: Tags = ()
    unicast: Annotated[bool, flag(0x1)] = False
    multicast: Annotated[bool, flag(0x2)] = False
    shard: Annotated[bool, flag(0x4)] = False
    encrypted: Annotated[bool, flag(0x8)] = False

    @property
    def has_one_way(self) -> bool:
        """Return whether exactly one of unicast, multicast and shard is set."""
        return self.unicast + self.multicast + self.shard == 1


def defined(*kinds: type) -> dict[int | str, Definition]:
    """Return what reads these forms, by extension; it returns ``None`` for a nibble that says no form."""

    def reader_of(forms: list[Form]) -> Definition:
        def read(reader: Reader, nibble: int) -> object:
            form = next((form for form in forms if form.nibble in (None, nibble)), None)
            return form and form.read(reader, nibble)

        return read

    forms = [FORMS[kind] for kind in kinds]
    return {form.ext: reader_of([other for other in forms if other.ext == form.ext]) for form in forms}


AT_SETUP: Final = Point("SETUP", defined(KeepaliveTerms, ResumeRequest, Strategies, RouteJoin), ack=True)
AT_OK: Final = Point("SETUP_OK", defined(KeepaliveTerms, ResumeGrant, Strategies))
AT_EXT: Final = Point("EXT", defined(Beat, ResumePosition, Permits, BrokerInfo, RouteJoin, RouteAdd))
AT_STREAM: Final = Point("REQUEST", defined(Resumable, Complexity, Address))


def entry_of(content: object, *, ignore: bool = False, ack: bool = False) -> ExtensionEntry:
    """Return the entry that carries one of the values above. Raise ``LocalProtocolError`` for numbers out of range."""
    form = FORMS.get(type(content))
    if form is None:
        raise LocalProtocolError(f"no extension says {type(content).__name__}")
    if isinstance(content, Address) and not content.has_one_way:
        raise LocalProtocolError("broker address: exactly one of unicast, multicast and shard must be set")
    nibble, payload = form.write(content)
    return ExtensionEntry(form.ext, ignore, ack, nibble, payload)
