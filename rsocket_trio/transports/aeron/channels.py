"""URIs of Aeron, and the channels that are made of them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping

import attrs
import trio

from rsocket_trio.transports.schemes import Endpoint, parse_host_and_port

PUBLISHING = ("term-length", "mtu", "linger", "sparse", "so-sndbuf", "pub-wnd")
"""Parameters of what this side sends."""
RECEIVING = ("so-rcvbuf", "rcv-wnd", "nak-delay")
"""Parameters of what this side receives."""
OWN = ("endpoint", "control", "directory")
"""Parameters that are read here. ``directory`` is none of Aeron's."""
NEAR = "mtu=16k"
"""The size of datagrams within a machine, where nothing cuts large ones, if the URI gives none."""
SMALL = "term-length=64k"
"""The terms of a publication with one message."""
EXAMPLE = "aeron:udp?endpoint=host:7878"


def parse_channel(uri: str, scheme: str, rest: str) -> Endpoint:
    """Return the endpoint of ``aeron:udp?endpoint=host:port`` or ``aeron:ipc``. Raise ``ValueError``."""
    media, _, query = rest.partition("?")
    found = _parameters(uri, query)
    if media == "ipc":
        for name in ("endpoint", "control"):
            if name in found:
                raise ValueError(f"{uri!r}: {name} is a parameter of udp, and ipc has no address")
        return Endpoint(scheme, path=_written("ipc", found))
    if media != "udp":
        raise ValueError(f"{uri!r}: an Aeron channel begins with aeron:udp? or is aeron:ipc, not {media!r}")
    if "endpoint" not in found:
        raise ValueError(f"{uri!r}: the endpoint is missing, as in {EXAMPLE}")
    host, port = parse_host_and_port(uri, found["endpoint"], EXAMPLE)
    if "control" in found:
        parse_host_and_port(uri, found["control"], EXAMPLE)
    return Endpoint(scheme, host, port, _written("udp", found))


def _parameters(uri: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    known = (*OWN, *PUBLISHING, *RECEIVING)
    for part in filter(None, query.split("|")):
        name, equals, text = part.partition("=")
        if not equals or not text:
            raise ValueError(f"{uri!r}: the parameter {part!r} has no value, as in name=value, and | between two")
        if name not in known:
            raise ValueError(f"{uri!r}: the parameter {name!r} is not known here, only {', '.join(known)}")
        if name in found:
            raise ValueError(f"{uri!r}: the parameter {name!r} is there twice")
        found[name] = text
    return found


def _written(media: str, parameters: Mapping[str, str]) -> str:
    query = "|".join(f"{name}={text}" for name, text in parameters.items())
    return f"{media}?{query}" if query else media


@attrs.frozen
class Channel:
    """The parts of an Aeron URI: its addresses, and the parameters of publications and subscriptions."""

    is_ipc: bool
    endpoint: str
    control: str | None
    directory: str | None
    publishing: tuple[str, ...]
    receiving: tuple[str, ...]

    @classmethod
    def of(cls, endpoint: Endpoint) -> Channel:
        """Return the channel of an endpoint that was parsed already."""
        media, _, query = endpoint.path.partition("?")
        found = _parameters(endpoint.path, query)
        return cls(
            media == "ipc",
            found.get("endpoint", ""),
            found.get("control"),
            found.get("directory"),
            tuple(f"{name}={found[name]}" for name in PUBLISHING if name in found),
            tuple(f"{name}={found[name]}" for name in RECEIVING if name in found),
        )

    def to(self, address: str, session: int | None = None) -> str:
        """Return the channel for a publication to an address: of frames in a session, or of messages of a handshake."""
        parts = self.publishing
        if session is None:
            parts = (*(part for part in parts if not part.startswith("term-length=")), SMALL)
        elif (self.is_ipc or address.startswith(("127.", "[::1]"))) and not any(
            part.startswith("mtu=") for part in parts
        ):
            parts = (*parts, NEAR)
        return self._channel(address, parts, session)

    def at(self, address: str, session: int | None = None, tag: int | None = None) -> str:
        """Return the channel for a subscription at an address, to one session if it is given.

        ``tag`` names the socket: subscriptions with it share one, whatever port the system chose.
        """
        return self._channel(address, self.receiving, session, tag)

    def address(self, address: str) -> str:
        """Return the channel that says where something is, and nothing of how it is sent."""
        return self._channel(address, (), None)

    def _channel(self, address: str, more: Iterable[str], session: int | None, tag: int | None = None) -> str:
        parts = [] if self.is_ipc else [f"endpoint={address}"]
        if session is not None:
            parts.append(f"session-id={session}")
        if tag is not None and not self.is_ipc:
            parts.append(f"tags={tag}")
        query = "|".join([*parts, *more])
        media = "aeron:ipc" if self.is_ipc else "aeron:udp"
        return f"{media}?{query}" if query else media


def with_port(endpoint: Endpoint, port: int) -> Endpoint:
    """Return an endpoint with the port that was bound."""
    bound = attrs.evolve(endpoint, port=port)
    media, _, query = endpoint.path.partition("?")
    found = _parameters(endpoint.path, query)
    return attrs.evolve(bound, path=_written(media, {**found, "endpoint": bound.authority}))


def address_of(channel: str) -> str:
    """Return the address in a channel that a peer or the driver wrote. Raise ``ValueError`` if it is none over UDP.

    A name instead of an address is refused: Aeron would stop the loop while it resolves what a peer made up.
    """
    media, _, query = channel.partition("?")
    found = dict(part.partition("=")[::2] for part in query.split("|"))
    if media != "aeron:udp" or "endpoint" not in found:
        raise ValueError(f"the channel {channel[:100]!r} has no endpoint over UDP")
    host, port = parse_host_and_port(channel[:100], found["endpoint"], EXAMPLE)
    ipaddress.ip_address(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolved(host: str, port: int) -> tuple[tuple[str, int], int]:
    """Return the first address of a host, and its family. Aeron would stop the loop while it resolves names."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, _, _, _, address = found[0]
    return (str(address[0]), int(address[1])), family


def written(host: str, port: int | None = None) -> str:
    """Return an address as it is written in a channel."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
