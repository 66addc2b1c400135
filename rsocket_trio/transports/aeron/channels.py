"""URIs of Aeron, and the channels that are made of them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence

import attrs
import trio

from rsocket_trio.transports.schemes import Endpoint, parse_host_and_port

PUBLISHING = ("term-length", "mtu", "linger", "sparse", "so-sndbuf", "pub-wnd")
"""Parameters of what this side sends."""
RECEIVING = ("so-rcvbuf", "rcv-wnd", "nak-delay")
"""Parameters of what this side receives."""
KNOWN = ("endpoint", "control", "directory", *PUBLISHING, *RECEIVING)
"""All parameters. ``directory`` is none of Aeron's."""
NEAR = "16k"
"""The mtu within a machine, where nothing cuts large datagrams, if the URI gives none."""
SMALL = "64k"
"""The term-length of a publication with one message."""
EXAMPLE = "aeron:udp?endpoint=host:7878"


def parse_channel(uri: str, scheme: str, rest: str) -> Endpoint:
    """Return the endpoint of ``aeron:udp?endpoint=host:port`` or ``aeron:ipc``. Raise ``ValueError``."""
    media, _, query = rest.partition("?")
    if media not in ("udp", "ipc"):
        raise ValueError(f"{uri!r}: an Aeron channel begins with aeron:udp? or is aeron:ipc, not {media!r}")
    parameters: dict[str, str] = {}
    for part in filter(None, query.split("|")):
        name, _, text = part.partition("=")
        if not text:
            raise ValueError(f"{uri!r}: the parameter {part!r} has no value, as in name=value, and | between two")
        if name not in KNOWN:
            raise ValueError(f"{uri!r}: the parameter {name!r} is not known here, only {', '.join(KNOWN)}")
        if name in parameters:
            raise ValueError(f"{uri!r}: the parameter {name!r} is there twice")
        if name in ("endpoint", "control"):
            if media == "ipc":
                raise ValueError(f"{uri!r}: {name} is a parameter of udp, and ipc has no address")
            parse_host_and_port(uri, text, EXAMPLE)
        parameters[name] = text
    if media == "ipc":
        return Endpoint(scheme, path=_written(media, parameters))
    if "endpoint" not in parameters:
        raise ValueError(f"{uri!r}: the endpoint is missing, as in {EXAMPLE}")
    host, port = parse_host_and_port(uri, parameters["endpoint"], EXAMPLE)
    return Endpoint(scheme, host, port, _written(media, parameters))


def _written(media: str, parameters: Mapping[str, object]) -> str:
    query = "|".join(f"{name}={value}" for name, value in parameters.items() if value is not None)
    return f"{media}?{query}" if query else media


def _read(channel: str) -> tuple[str, dict[str, str]]:
    media, _, query = channel.partition("?")
    return media, dict(part.partition("=")[::2] for part in filter(None, query.split("|")))


@attrs.frozen
class AeronChannel:
    """An Aeron URI: whether it is of shared memory, the server's address, and the parameters."""

    is_ipc: bool
    endpoint: str
    parameters: Mapping[str, str]

    @classmethod
    def of(cls, endpoint: Endpoint) -> AeronChannel:
        """Return the channel of an endpoint that was parsed already."""
        media, parameters = _read(endpoint.path)
        return cls(media == "ipc", parameters.get("endpoint", ""), parameters)

    def to(self, address: str, session: int | None = None) -> str:
        """Return the channel for a publication to an address: of frames in a session, or of messages of a handshake."""
        parameters = self._chosen(PUBLISHING)
        if session is None:
            parameters["term-length"] = SMALL
        elif self.is_ipc or address.startswith(("127.", "[::1]")):
            parameters.setdefault("mtu", NEAR)
        return self.address(address, {"session-id": session, **parameters})

    def at(self, address: str, session: int | None = None, tag: int | None = None) -> str:
        """Return the channel for a subscription at an address, to one session if it is given.

        ``tag`` names the socket: subscriptions with it share one, whatever port the system chose.
        """
        tags = None if self.is_ipc else tag
        return self.address(address, {"session-id": session, "tags": tags, **self._chosen(RECEIVING)})

    def address(self, address: str, parameters: Mapping[str, object] | None = None) -> str:
        """Return the channel that says where something is, with these parameters."""
        where = None if self.is_ipc else address
        return _written("aeron:ipc" if self.is_ipc else "aeron:udp", {"endpoint": where, **(parameters or {})})

    def _chosen(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self.parameters[name] for name in names if name in self.parameters}


def with_port(endpoint: Endpoint, port: int) -> Endpoint:
    """Return an endpoint with the port that was bound."""
    bound = attrs.evolve(endpoint, port=port)
    media, parameters = _read(endpoint.path)
    return attrs.evolve(bound, path=_written(media, {**parameters, "endpoint": bound.authority}))


def address_of(channel: str) -> str:
    """Return the address in a channel that a peer or the driver wrote. Raise ``ValueError`` if it is none over UDP.

    A name instead of an address is refused: Aeron would stop the loop while it resolves what a peer made up.
    """
    media, parameters = _read(channel)
    if media != "aeron:udp" or "endpoint" not in parameters:
        raise ValueError(f"the channel {channel[:100]!r} has no endpoint over UDP")
    host, port = parse_host_and_port(channel[:100], parameters["endpoint"], EXAMPLE)
    ipaddress.ip_address(host)
    return written(host, port)


async def resolved(host: str, port: int) -> tuple[tuple[str, int], int]:
    """Return the first address of a host, and its family. Aeron would stop the loop while it resolves names."""
    family, _, _, _, address = (await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
    return (str(address[0]), int(address[1])), family


def written(host: str, port: int) -> str:
    """Return an address as it is written in a channel."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
