"""Parses a URI into the transport and the address that it names."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from rsocket_trio.values import value

SCHEMES = {"tcp": "tcp", "tls": "tls", "tcp+tls": "tls", "unix": "unix", "ws": "ws", "wss": "wss", "memory": "memory"}
"""The schemes that may stand before ``://``, and the transport of each."""
DEFAULT_PORTS = {"ws": 80, "wss": 443}
TLS_SCHEMES = frozenset({"tls", "wss"})
WEBSOCKET_SCHEMES = frozenset({"ws", "wss"})


@value
class Endpoint:
    """The transport and address of a URI. ``str()`` gives the URI back.

    ``host`` is without brackets, and the name for ``memory``; ``port`` is 0 if there is none; ``path`` is that of
    the socket for ``unix``, and path and query as they were written for ``ws`` and ``wss``.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def uses_tls(self) -> bool:
        """Whether the bytes are encrypted."""
        return self.scheme in TLS_SCHEMES

    @property
    def is_websocket(self) -> bool:
        """Whether frames are WebSocket messages."""
        return self.scheme in WEBSOCKET_SCHEMES

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 address in brackets, the scheme's own port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port == DEFAULT_PORTS.get(self.scheme):
            return host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.scheme == "memory":
            return f"memory://{self.host}"
        if self.scheme == "unix":
            return f"unix://{self.path}"
        return f"{self.scheme}://{self.authority}{self.path}"


@lru_cache(maxsize=256)
def parse_uri(uri: str) -> Endpoint:
    """Return the endpoint that a URI names.

    ::

        tcp://host:port     tls://host:port (also tcp+tls)     unix:///path
        ws://host:port/path     wss://host:port/path     memory://name

    Raise ``ValueError`` with the URI and its fault.
    """
    written, separator, rest = uri.partition("://")
    scheme = SCHEMES.get(written.lower())
    if not separator:
        raise ValueError(f"{uri!r}: not a URI like tcp://host:port")
    if scheme is None:
        raise ValueError(f"{uri!r}: unknown scheme {written!r}, known are {', '.join(SCHEMES)}")
    if " " in rest or not rest.isprintable():
        raise ValueError(f"{uri!r}: has spaces or control characters")
    if scheme == "memory":
        if not rest or "/" in rest:
            raise ValueError(f"{uri!r}: a name is needed, as in memory://name")
        return Endpoint(scheme, host=rest)
    if scheme == "unix":
        if not rest.startswith("/") or rest.endswith("/"):
            raise ValueError(f"{uri!r}: an absolute path is needed, as in unix:///run/name.sock")
        return Endpoint(scheme, path=rest)
    return _parse_network(uri, scheme, rest)


def _parse_network(uri: str, scheme: str, rest: str) -> Endpoint:
    cut = min((rest.index(mark) for mark in "/?#" if mark in rest), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    if "#" in path:
        raise ValueError(f"{uri!r}: a fragment (#) names nothing here")
    if scheme not in WEBSOCKET_SCHEMES:
        if path.strip("/"):
            raise ValueError(f"{uri!r}: {scheme} has no path")
        path = ""
    elif path.startswith("?"):
        path = "/" + path
    if "@" in authority:
        raise ValueError("a URI with '@' in its host: user names and passwords do not belong into it")
    host, port = _split_authority(uri, authority)
    if not port and scheme in DEFAULT_PORTS:
        return Endpoint(scheme, host, DEFAULT_PORTS[scheme], path)
    if not port:
        raise ValueError(f"{uri!r}: the port is missing, as in {scheme}://host:7878")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{uri!r}: port {port!r} is not a number from 0 to 65535")
    return Endpoint(scheme, host, int(port), path)


def _split_authority(uri: str, authority: str) -> tuple[str, str]:
    """Return host and port, still text; the port is empty if none was given."""
    if authority.startswith("["):
        host, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ValueError(f"{uri!r}: an IPv6 address looks like [::1]:7878")
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{uri!r}: {host!r} is not an IPv6 address") from None
        return host, after[1:]
    host, _, port = authority.partition(":")
    if ":" in port:
        raise ValueError(f"{uri!r}: an IPv6 address needs brackets, as in [::1]:7878")
    if not host:
        raise ValueError(f"{uri!r}: the host is missing, 0.0.0.0 or [::] means every address")
    return host, port
