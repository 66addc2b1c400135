"""The payloads of the broker extension: joined routes, brokers and addresses. Nothing here routes."""

from __future__ import annotations

from typing import Final, TypeAlias

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.rsocket.codec import check, sized
from rsocket_trio.rsocket.extensions.blocks import ENTRY_LIMIT, LONGEST_TEXT, Reader, name_field
from rsocket_trio.values import value

Tags: TypeAlias = tuple[tuple[int | str, bytes], ...]
"""Pairs of a key, well-known number or text, and a value."""

ID_SIZE: Final = 16
UINT64_MAX: Final = 2**64 - 1
MORE: Final = 0x80
NO_TAG: Final = (0x00, b"")
"""The pair that stands for an empty list."""

# The forms of the payload, by nibble (RSX-BRK-01, RSX-BRK-02)
BROKER_INFO: Final = 0x0
ROUTE_JOIN: Final = 0x1
ROUTE_ADD: Final = 0x2

# How an address is meant, by bit of the nibble (RSX-BRK-03)
UNICAST: Final = 0x1
MULTICAST: Final = 0x2
SHARD: Final = 0x4
ENCRYPTED: Final = 0x8


# Tags (RSX-BRK-04)


def decode_tags(reader: Reader) -> Tags:
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


def encode_tags(tags: Tags) -> bytes:
    pairs = tags or (NO_TAG,)
    check("broker", "tag count", len(pairs), 1, ENTRY_LIMIT)
    parts: list[bytes] = []
    for left, (key, content) in zip(range(len(pairs) - 1, -1, -1), pairs, strict=True):
        if len(content) > LONGEST_TEXT:
            raise LocalProtocolError(f"broker tag value of {len(content)} bytes, limit {LONGEST_TEXT}")
        parts += (name_field(key, "broker tag key"), bytes(((MORE if left else 0) | len(content),)), content)
    return b"".join(parts)


# route join: in SETUP and in EXT (RSX-BRK-01)


@value
class RouteJoin:
    """Announces a route to a service. Ids have 16 bytes."""

    route_id: bytes
    service: str
    tags: Tags = ()


def decode_route_join(reader: Reader) -> RouteJoin:
    route_id = reader.take(ID_SIZE, "broker route id")
    return RouteJoin(route_id, _service_at(reader), decode_tags(reader))


def encode_route_join(join: RouteJoin) -> tuple[int, bytes]:
    return ROUTE_JOIN, _id_field("route_id", join.route_id) + _service_field(join.service) + encode_tags(join.tags)


# broker info: in EXT (RSX-BRK-02)


@value
class BrokerInfo:
    """Announces a broker: its id, its start time in milliseconds, and its tags."""

    broker_id: bytes
    timestamp_ms: int
    tags: Tags = ()


def decode_broker_info(reader: Reader) -> BrokerInfo:
    broker_id = reader.take(ID_SIZE, "broker id")
    return BrokerInfo(broker_id, reader.uint(8, "broker timestamp"), decode_tags(reader))


def encode_broker_info(info: BrokerInfo) -> tuple[int, bytes]:
    fields = _id_field("broker_id", info.broker_id) + _timestamp_field(info.timestamp_ms)
    return BROKER_INFO, fields + encode_tags(info.tags)


# route add: in EXT (RSX-BRK-02)


@value
class RouteAdd:
    """Announces a route of another broker."""

    broker_id: bytes
    route_id: bytes
    timestamp_ms: int
    service: str
    tags: Tags = ()


def decode_route_add(reader: Reader) -> RouteAdd:
    broker_id = reader.take(ID_SIZE, "broker id")
    route_id = reader.take(ID_SIZE, "broker route id")
    timestamp = reader.uint(8, "broker timestamp")
    return RouteAdd(broker_id, route_id, timestamp, _service_at(reader), decode_tags(reader))


def encode_route_add(route: RouteAdd) -> tuple[int, bytes]:
    ids = _id_field("broker_id", route.broker_id) + _id_field("route_id", route.route_id)
    names = _service_field(route.service) + encode_tags(route.tags)
    return ROUTE_ADD, ids + _timestamp_field(route.timestamp_ms) + names


# address: on a request (RSX-BRK-03)


@value
class Address:
    """The origin and destination of a request; exactly one of unicast, multicast and shard must be set.

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


def decode_address(reader: Reader, nibble: int) -> Address:
    origin = reader.take(ID_SIZE, "broker origin route id")
    metadata = decode_tags(reader)
    ways = (nibble & bit != 0 for bit in (UNICAST, MULTICAST, SHARD, ENCRYPTED))
    return Address(origin, metadata, decode_tags(reader), *ways)


def encode_address(address: Address) -> tuple[int, bytes]:
    if not address.has_one_way:
        raise LocalProtocolError("broker address: exactly one of unicast, multicast and shard must be set")
    ways = (UNICAST, address.unicast), (MULTICAST, address.multicast), (SHARD, address.shard)
    nibble = sum(bit for bit, chosen in ways if chosen) | (ENCRYPTED if address.encrypted else 0)
    origin = _id_field("origin_route_id", address.origin_route_id)
    return nibble, origin + encode_tags(address.metadata) + encode_tags(address.tags)


# Which of the forms it is, at the points that have several


def decode_at_setup(reader: Reader, nibble: int) -> RouteJoin | None:
    return decode_route_join(reader) if nibble == ROUTE_JOIN else None


def decode_at_ext(reader: Reader, nibble: int) -> RouteJoin | BrokerInfo | RouteAdd | None:
    if nibble == BROKER_INFO:
        return decode_broker_info(reader)
    if nibble == ROUTE_JOIN:
        return decode_route_join(reader)
    return decode_route_add(reader) if nibble == ROUTE_ADD else None


def _service_at(reader: Reader) -> str:
    name = reader.take(reader.uint(1, "broker service name length"), "broker service name")
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        reader.fail(f"broker service name is not UTF-8: {error.reason}", back=len(name) - error.start)


def _service_field(service: str) -> bytes:
    return sized(service.encode(), 1, "broker service name")


def _id_field(field: str, content: bytes) -> bytes:
    check("broker", f"{field} size", len(content), ID_SIZE, ID_SIZE)
    return content


def _timestamp_field(timestamp: int) -> bytes:
    check("broker", "timestamp_ms", timestamp, 0, UINT64_MAX)
    return timestamp.to_bytes(8, "big")
