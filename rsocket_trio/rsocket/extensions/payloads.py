"""The payloads of the draft's extensions, each a row of columns, and the points where each is defined.

The sender decides whether an entry may be ignored or asks for an answer: see ``entry_of``. Nothing here routes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.rsocket.codec import UINT31_MAX, UINT63_MAX, check, sized
from rsocket_trio.rsocket.extensions.blocks import ENTRY_LIMIT, LONGEST_TEXT, Point, Reader, name_field
from rsocket_trio.rsocket.frames import BROKER, KEEPALIVE, LEASE, RESUME, ExtensionEntry
from rsocket_trio.rsocket.layouts.fields import NS_PER_MS, UINT64_MAX, milliseconds
from rsocket_trio.values import value

FLAG: Final = 0x1
"""The one bit of the nibble that most extensions use."""

# Strategies of leases (RSX-LEASE-02)
REQUESTS_COUNT: Final = 0x00
CONCURRENCY_LIMIT: Final = 0x01

# The forms of the broker's payload, by nibble (RSX-BRK-01, RSX-BRK-02)
BROKER_INFO: Final = 0x0
ROUTE_JOIN: Final = 0x1
ROUTE_ADD: Final = 0x2

# How an address is meant, by bit of the nibble (RSX-BRK-03)
UNICAST: Final = 0x1
MULTICAST: Final = 0x2
SHARD: Final = 0x4
ENCRYPTED: Final = 0x8

Tags: TypeAlias = tuple[tuple[int | str, bytes], ...]
"""Pairs of a key, well-known number or text, and a value."""
ID_SIZE: Final = 16
MORE: Final = 0x80
NO_TAG: Final = (0x00, b"")
"""The pair that stands for an empty list."""


# The values


@value
class KeepaliveTerms:
    """The client's keepalive interval and the longest silence that it accepts, in seconds: in SETUP and SETUP_OK.

    Received ones may be 0, which is forbidden (RSX-KA-02).
    """

    interval: float
    max_lifetime: float


@value
class Beat:
    """A sign of life; with ``respond`` it asks for one. Its data needs an entry with a length (RSX-KA-04)."""

    respond: bool
    data: bytes = b""


@value
class ResumeRequest:
    """A client's request for a resumable session; with a position, to resume one (RSX-RES-01, RSX-RES-02)."""

    token: bytes = attrs.field(repr=False)
    last_received_server_position: int | None = None


@value
class ResumeGrant:
    """The server's grant of resumption; with its received position when a session is resumed (RSX-RES-03)."""

    last_received_client_position: int | None = None


@value
class ResumePosition:
    """The received position in bytes: the peer need not keep earlier frames (RSX-RES-05)."""

    last_received_position: int


@value
class Resumable:
    """Marks a new stream as resumable or not: a resumable one outlives its transport (RSX-RES-06)."""

    resumable: bool = True


@value
class Strategies:
    """The strategies for counting permits of a lease: well-known numbers or names (RSX-LEASE-01, RSX-LEASE-03).

    Selected ones: the first is for the client's requests, the last for the server's.
    """

    names: tuple[int | str, ...]


@value
class Permits:
    """A lease: permits of a strategy for a time to live in nanoseconds, as in ``LeaseFrame`` (RSX-LEASE-04)."""

    strategy: int | str
    time_to_live_ns: int
    number: int


@value
class Complexity:
    """The cost of this request in permits (RSX-LEASE-05)."""

    permits: int = 1


@value
class RouteJoin:
    """Announces a route to a service (RSX-BRK-01). Ids have 16 bytes."""

    route_id: bytes
    service: str
    tags: Tags = ()


@value
class BrokerInfo:
    """Announces a broker: its id, its start time in milliseconds, and its tags (RSX-BRK-02)."""

    broker_id: bytes
    timestamp_ms: int
    tags: Tags = ()


@value
class RouteAdd:
    """Announces a route of another broker (RSX-BRK-02)."""

    broker_id: bytes
    route_id: bytes
    timestamp_ms: int
    service: str
    tags: Tags = ()


@value
class Address:
    """The origin and destination of a request; exactly one of unicast, multicast and shard must be set (RSX-BRK-03).

    A received one may say none or several, which is for the receiver to refuse.
    """

    origin_route_id: bytes
    metadata: Tags = ()
    tags: Tags = ()
    unicast: bool = False
    multicast: bool = False
    shard: bool = False
    encrypted: bool = False

    @property
    def has_one_way(self) -> bool:
        """Return whether exactly one of unicast, multicast and shard is set."""
        return self.unicast + self.multicast + self.shard == 1


# Columns


@attrs.frozen
class Column:
    """A field of a payload: from a reader and the nibble to its value, and back to bits of the nibble and bytes."""

    read: Callable[[Reader, int], Any]
    write: Callable[[Any], tuple[int, bytes]]


def uint(what: str, name: str, attribute: str, high: int = UINT31_MAX, low: int = 0) -> Column:
    """Return a number from ``low`` to ``high``, read with its reserved bit masked off (ALL-RCT-06)."""
    size = (high.bit_length() + 7) // 8

    def read(reader: Reader, nibble: int) -> int:
        number = reader.uint(size, what) & high
        if number < low:
            reader.fail(f"{what} is {number}", back=size)
        return number

    def write(number: int) -> tuple[int, bytes]:
        check(name, attribute, number, low, high)
        return 0, number.to_bytes(size, "big")

    return Column(read, write)


def seconds(what: str) -> Column:
    """Return a time in seconds, in milliseconds on the wire."""
    return Column(
        lambda reader, nibble: reader.uint31(what) / 1000,
        lambda time: (0, milliseconds(what, time, UINT31_MAX).to_bytes(4, "big")),
    )


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


def read_time_to_live(reader: Reader, nibble: int) -> int:
    return reader.uint31("lease time to live") * NS_PER_MS


def write_time_to_live(nanoseconds: int) -> tuple[int, bytes]:
    check("lease", "time_to_live_ns", nanoseconds, 0, UINT31_MAX * NS_PER_MS)
    return 0, (nanoseconds // NS_PER_MS).to_bytes(4, "big")


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


def read_tags(reader: Reader, nibble: int) -> Tags:
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


def write_tags(tags: Tags) -> tuple[int, bytes]:
    pairs = tags or (NO_TAG,)
    check("broker", "tag count", len(pairs), 1, ENTRY_LIMIT)
    parts: list[bytes] = []
    for left, (key, content) in zip(range(len(pairs) - 1, -1, -1), pairs, strict=True):
        if len(content) > LONGEST_TEXT:
            raise LocalProtocolError(f"broker tag value of {len(content)} bytes, limit {LONGEST_TEXT}")
        parts += (name_field(key, "broker tag key"), bytes(((MORE if left else 0) | len(content),)), content)
    return 0, b"".join(parts)


TOKEN: Final = Column(
    lambda reader, nibble: reader.take(reader.uint(2, "resume token length"), "resume token"),
    lambda content: (0, sized(content, 2, "resume token")),
)
REST: Final = Column(lambda reader, nibble: reader.rest(), lambda content: (0, content))
STRATEGY: Final = Column(
    lambda reader, nibble: reader.name("lease strategy"), lambda name: (0, name_field(name, "lease strategy"))
)
ROUTE_ID: Final = broker_id("broker route id", "route_id")
OWN_ID: Final = broker_id("broker id", "broker_id")
STARTED: Final = uint("broker timestamp", "broker", "timestamp_ms", UINT64_MAX)
SERVICE: Final = Column(read_service, lambda name: (0, sized(name.encode(), 1, "broker service name")))
TAGS: Final = Column(read_tags, write_tags)  # RSX-BRK-04


def position(attribute: str) -> Column:
    """Return a position in bytes."""
    return uint("resume position", "resume", attribute, UINT63_MAX)


# Rows


@attrs.frozen
class Form:
    """A form of an extension's payload: its value's class, and its columns in the order of their bytes, by attribute.

    ``nibble`` says which form it is, where an extension has several.
    """

    ext: int
    kind: type
    columns: dict[str, Column]
    nibble: int = 0

    def read(self, reader: Reader, nibble: int) -> object:
        """Return the value of the payload that the reader stands at."""
        return self.kind(**{name: column.read(reader, nibble) for name, column in self.columns.items()})

    def write(self, content: object) -> tuple[int, bytes]:
        """Return nibble and payload. Raise ``LocalProtocolError`` for numbers out of range."""
        nibble, payload = self.nibble, b""
        for name, column in self.columns.items():
            bits, part = column.write(getattr(content, name))
            nibble |= bits
            payload += part
        return nibble, payload


# fmt: off
KEEPALIVE_TERMS = Form(KEEPALIVE, KeepaliveTerms, {
    "interval": seconds("keepalive interval"), "max_lifetime": seconds("keepalive lifetime"),
})
BEAT = Form(KEEPALIVE, Beat, {"respond": flag(FLAG), "data": REST})
RESUME_REQUEST = Form(RESUME, ResumeRequest, {
    "token": TOKEN, "last_received_server_position": optional(position("last_received_server_position")),
})
RESUME_GRANT = Form(RESUME, ResumeGrant, {
    "last_received_client_position": optional(position("last_received_client_position")),
})
RESUME_POSITION = Form(RESUME, ResumePosition, {"last_received_position": position("last_received_position")})
RESUMABLE = Form(RESUME, Resumable, {"resumable": flag(FLAG)})
STRATEGIES = Form(LEASE, Strategies, {"names": Column(read_strategies, write_strategies)})
PERMITS = Form(LEASE, Permits, {
    "strategy": STRATEGY,
    "time_to_live_ns": Column(read_time_to_live, write_time_to_live),
    "number": uint("lease permits", "lease", "number"),
})
COMPLEXITY = Form(LEASE, Complexity, {"permits": uint("lease complexity", "lease", "complexity", low=1)})
JOIN = Form(BROKER, RouteJoin, {"route_id": ROUTE_ID, "service": SERVICE, "tags": TAGS}, ROUTE_JOIN)
INFO = Form(BROKER, BrokerInfo, {"broker_id": OWN_ID, "timestamp_ms": STARTED, "tags": TAGS}, BROKER_INFO)
ADD = Form(BROKER, RouteAdd, {
    "broker_id": OWN_ID, "route_id": ROUTE_ID, "timestamp_ms": STARTED, "service": SERVICE, "tags": TAGS,
}, ROUTE_ADD)
ADDRESS = Form(BROKER, Address, {
    "origin_route_id": broker_id("broker origin route id", "origin_route_id"), "metadata": TAGS, "tags": TAGS,
    "unicast": flag(UNICAST), "multicast": flag(MULTICAST), "shard": flag(SHARD), "encrypted": flag(ENCRYPTED),
})
# fmt: on


def one_of(*forms: Form) -> Callable[[Reader, int], object]:
    """Return what reads the form that the nibble names, and returns ``None`` for any other."""
    by_nibble = {form.nibble: form for form in forms}

    def read(reader: Reader, nibble: int) -> object:
        form = by_nibble.get(nibble)
        return form and form.read(reader, nibble)

    return read


# fmt: off
AT_SETUP: Final = Point("SETUP", {
    KEEPALIVE: KEEPALIVE_TERMS.read, RESUME: RESUME_REQUEST.read, LEASE: STRATEGIES.read, BROKER: one_of(JOIN),
}, ack=True)
AT_OK: Final = Point("SETUP_OK", {
    KEEPALIVE: KEEPALIVE_TERMS.read, RESUME: RESUME_GRANT.read, LEASE: STRATEGIES.read,
})
AT_EXT: Final = Point("EXT", {
    KEEPALIVE: BEAT.read, RESUME: RESUME_POSITION.read, LEASE: PERMITS.read, BROKER: one_of(INFO, JOIN, ADD),
})
AT_STREAM: Final = Point("REQUEST", {RESUME: RESUMABLE.read, LEASE: COMPLEXITY.read, BROKER: ADDRESS.read})
# fmt: on

FORMS: Final = {
    form.kind: form
    for form in (
        *(KEEPALIVE_TERMS, BEAT, RESUME_REQUEST, RESUME_GRANT, RESUME_POSITION, RESUMABLE),
        *(STRATEGIES, PERMITS, COMPLEXITY, JOIN, INFO, ADD, ADDRESS),
    )
}


def entry_of(content: object, *, ignore: bool = False, ack: bool = False) -> ExtensionEntry:
    """Return the entry that carries one of the values above. Raise ``LocalProtocolError`` for numbers out of range."""
    form = FORMS.get(type(content))
    if form is None:
        raise LocalProtocolError(f"no extension says {type(content).__name__}")
    if isinstance(content, Address) and not content.has_one_way:
        raise LocalProtocolError("broker address: exactly one of unicast, multicast and shard must be set")
    nibble, payload = form.write(content)
    return ExtensionEntry(form.ext, ignore, ack, nibble, payload)
