"""The payloads of the keepalive, resumption and lease extensions, and the points where each is defined.

A decoder takes a reader at the start of the payload and the nibble; its encoder, right below it, returns nibble and
payload. The sender decides whether an entry may be ignored or asks for an answer: see ``entry_of``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.rsocket.codec import UINT31_MAX, UINT63_MAX, check, sized
from rsocket_trio.rsocket.extensions import broker
from rsocket_trio.rsocket.extensions.blocks import Point, Reader, name_field
from rsocket_trio.rsocket.frames import BROKER, KEEPALIVE, LEASE, RESUME, ExtensionEntry
from rsocket_trio.rsocket.layouts.fields_24 import NS_PER_MS, milliseconds
from rsocket_trio.values import value

FLAG: Final = 0x1
"""The one bit of the nibble that these extensions use."""

# Strategies of leases (RSX-LEASE-02)
REQUESTS_COUNT: Final = 0x00
CONCURRENCY_LIMIT: Final = 0x01


# keepalive: the terms in SETUP, and the same in SETUP_OK (RSX-KA-01, RSX-KA-03)


@value
class KeepaliveTerms:
    """The client's keepalive interval and the longest silence that it accepts, in seconds.

    Received ones may be 0, which is forbidden (RSX-KA-02).
    """

    interval: float
    max_lifetime: float


def decode_keepalive_terms(reader: Reader, nibble: int) -> KeepaliveTerms:
    interval = reader.uint31("keepalive interval")
    return KeepaliveTerms(interval / 1000, reader.uint31("keepalive lifetime") / 1000)


def encode_keepalive_terms(terms: KeepaliveTerms) -> tuple[int, bytes]:
    interval = milliseconds("keepalive interval", terms.interval)
    return 0, interval.to_bytes(4, "big") + milliseconds("keepalive lifetime", terms.max_lifetime).to_bytes(4, "big")


# keepalive: a sign of life in EXT; its data needs an entry with a length (RSX-KA-04)


@value
class Beat:
    """A sign of life; with ``respond`` it asks for one."""

    respond: bool
    data: bytes = b""


def decode_beat(reader: Reader, nibble: int) -> Beat:
    return Beat(nibble & FLAG != 0, reader.rest())


def encode_beat(beat: Beat) -> tuple[int, bytes]:
    return FLAG if beat.respond else 0, beat.data


# resume: in SETUP the token, and the position if a session is to go on (RSX-RES-01, RSX-RES-02)


@value
class ResumeRequest:
    """A client's request for a resumable session; with a position, to resume one."""

    token: bytes = attrs.field(repr=False)
    last_received_server_position: int | None = None


def decode_resume_request(reader: Reader, nibble: int) -> ResumeRequest:
    token = reader.take(reader.uint(2, "resume token length"), "resume token")
    return ResumeRequest(token, reader.uint63("resume position") if nibble & FLAG else None)


def encode_resume_request(request: ResumeRequest) -> tuple[int, bytes]:
    nibble, position = _optional_position(request.last_received_server_position, "last_received_server_position")
    return nibble, sized(request.token, 2, "resume token") + position


# resume: the answer in SETUP_OK (RSX-RES-03)


@value
class ResumeGrant:
    """The server's grant of resumption; with its received position when a session is resumed."""

    last_received_client_position: int | None = None


def decode_resume_grant(reader: Reader, nibble: int) -> ResumeGrant:
    return ResumeGrant(reader.uint63("resume position") if nibble & FLAG else None)


def encode_resume_grant(grant: ResumeGrant) -> tuple[int, bytes]:
    return _optional_position(grant.last_received_client_position, "last_received_client_position")


def _optional_position(position: int | None, field: str) -> tuple[int, bytes]:
    if position is None:
        return 0, b""
    check("resume", field, position, 0, UINT63_MAX)
    return FLAG, position.to_bytes(8, "big")


# resume: how far this side got, in EXT (RSX-RES-05)


@value
class ResumePosition:
    """The received position in bytes: the peer need not keep earlier frames."""

    last_received_position: int


def decode_resume_position(reader: Reader, nibble: int) -> ResumePosition:
    return ResumePosition(reader.uint63("resume position"))


def encode_resume_position(position: ResumePosition) -> tuple[int, bytes]:
    check("resume", "last_received_position", position.last_received_position, 0, UINT63_MAX)
    return 0, position.last_received_position.to_bytes(8, "big")


# resume: on a request (RSX-RES-06)


@value
class Resumable:
    """Marks a new stream as resumable or not: a resumable one outlives its transport."""

    resumable: bool = True


def decode_resumable(reader: Reader, nibble: int) -> Resumable:
    return Resumable(nibble & FLAG != 0)


def encode_resumable(stream: Resumable) -> tuple[int, bytes]:
    return FLAG if stream.resumable else 0, b""


# lease: strategies, offered in SETUP and selected in SETUP_OK (RSX-LEASE-01, RSX-LEASE-03)


@value
class Strategies:
    """The strategies for counting permits of a lease: well-known numbers or names.

    Selected ones: the first is for the client's requests, the last for the server's.
    """

    names: tuple[int | str, ...]


def decode_strategies(reader: Reader, nibble: int) -> Strategies:
    count = reader.uint(1, "lease strategy count")
    if not count:
        reader.fail("lease strategy count is 0", back=1)
    return Strategies(tuple(reader.name("lease strategy") for _ in range(count)))


def encode_strategies(strategies: Strategies) -> tuple[int, bytes]:
    check("lease", "strategy count", len(strategies.names), 1, 0xFF)
    fields = (name_field(name, "lease strategy") for name in strategies.names)
    return 0, bytes((len(strategies.names),)) + b"".join(fields)


# lease: permits in EXT (RSX-LEASE-04)


@value
class Permits:
    """A lease: permits of a strategy for a time to live in nanoseconds, as in ``LeaseFrame``."""

    strategy: int | str
    time_to_live_ns: int
    number: int


def decode_permits(reader: Reader, nibble: int) -> Permits:
    strategy = reader.name("lease strategy")
    time_to_live = reader.uint31("lease time to live")
    return Permits(strategy, time_to_live * NS_PER_MS, reader.uint31("lease permits"))


def encode_permits(permits: Permits) -> tuple[int, bytes]:
    check("lease", "time_to_live_ns", permits.time_to_live_ns, 0, UINT31_MAX * NS_PER_MS)
    check("lease", "number", permits.number, 0, UINT31_MAX)
    time_to_live = (permits.time_to_live_ns // NS_PER_MS).to_bytes(4, "big")
    return 0, name_field(permits.strategy, "lease strategy") + time_to_live + permits.number.to_bytes(4, "big")


# lease: on a request (RSX-LEASE-05)


@value
class Complexity:
    """The cost of this request in permits."""

    permits: int = 1


def decode_complexity(reader: Reader, nibble: int) -> Complexity:
    permits = reader.uint31("lease complexity")
    if not permits:
        reader.fail("lease complexity is 0", back=4)
    return Complexity(permits)


def encode_complexity(complexity: Complexity) -> tuple[int, bytes]:
    check("lease", "complexity", complexity.permits, 1, UINT31_MAX)
    return 0, complexity.permits.to_bytes(4, "big")


# fmt: off
#                      extension  what its payload says
AT_SETUP: Final = Point("SETUP", {
                       KEEPALIVE: decode_keepalive_terms,
                       RESUME:    decode_resume_request,
                       LEASE:     decode_strategies,
                       BROKER:    broker.decode_at_setup,
}, ack=True)
AT_OK: Final = Point("SETUP_OK", {
                       KEEPALIVE: decode_keepalive_terms,
                       RESUME:    decode_resume_grant,
                       LEASE:     decode_strategies,
})
AT_EXT: Final = Point("EXT", {
                       KEEPALIVE: decode_beat,
                       RESUME:    decode_resume_position,
                       LEASE:     decode_permits,
                       BROKER:    broker.decode_at_ext,
})
AT_STREAM: Final = Point("REQUEST", {
                       RESUME:    decode_resumable,
                       LEASE:     decode_complexity,
                       BROKER:    broker.decode_address,
})

ENCODERS: Final[dict[type, tuple[int, Callable[[Any], tuple[int, bytes]]]]] = {
    # what it says          extension  how it is written
    KeepaliveTerms:         (KEEPALIVE, encode_keepalive_terms),
    Beat:                   (KEEPALIVE, encode_beat),
    ResumeRequest:          (RESUME,    encode_resume_request),
    ResumeGrant:            (RESUME,    encode_resume_grant),
    ResumePosition:         (RESUME,    encode_resume_position),
    Resumable:              (RESUME,    encode_resumable),
    Strategies:             (LEASE,     encode_strategies),
    Permits:                (LEASE,     encode_permits),
    Complexity:             (LEASE,     encode_complexity),
    broker.RouteJoin:       (BROKER,    broker.encode_route_join),
    broker.BrokerInfo:      (BROKER,    broker.encode_broker_info),
    broker.RouteAdd:        (BROKER,    broker.encode_route_add),
    broker.Address:         (BROKER,    broker.encode_address),
}
# fmt: on


def entry_of(content: object, *, ignore: bool = False, ack: bool = False) -> ExtensionEntry:
    """Return the entry that carries one of the values above. Raise ``LocalProtocolError`` for numbers out of range."""
    try:
        ext, encode = ENCODERS[type(content)]
    except KeyError:
        raise LocalProtocolError(f"no extension says {type(content).__name__}") from None
    nibble, payload = encode(content)
    return ExtensionEntry(ext, ignore, ack, nibble, payload)
