"""Checks the ``Origin`` header of WebSocket handshakes, which tells the page that a browser shows.

A browser lets every page connect anywhere, with the user's cookies and from within the user's network, and says in the
``Origin`` of the handshake where the page came from (RFC 6455, 10.2). So a server has to check it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

import attrs

from rsocket_trio.errors import readable

ANY = "*"
DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[^\]]*\]|[^/?#@:\[\]\\\s*,]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
"""Scheme, host and port, and nothing else (RFC 6454, 6.2)."""
AUTHORITY = re.compile(r"(\[[^\]]*\]|[^/?#@:\[\]\\\s,]+)(?::[0-9]{0,5})?")


@attrs.frozen
class Origins:
    """The allowed origins beside pages of the server's own host: some, or with ``any`` all."""

    some: frozenset[str] = frozenset()
    any: bool = False

    def allow(self, pages: Sequence[str], hosts: Sequence[str]) -> bool:
        """Return whether a handshake with these ``Origin`` and ``Host`` headers may go on.

        A handshake without an origin comes from no page. Scheme and port of the host's own pages do not matter: often
        another server on the same machine serves them.
        """
        if self.any or not pages:
            return True
        origin = _normal(pages[0]) if len(pages) == 1 else None
        if origin is None:
            return False
        authority = AUTHORITY.fullmatch(hosts[0]) if len(hosts) == 1 else None
        own = None if authority is None else _host(authority[1])
        host = origin.partition("://")[2]
        if not host.endswith("]"):
            host = host.rpartition(":")[0] or host
        return host == own or origin in self.some


OWN = Origins()
"""Pages of the server's own host, and clients that are no page."""


def parse_origins(origins: str | Iterable[str]) -> Origins:
    """Parse origins, as in ``https://app.example:8443``, or ``"*"`` for all. Raise ``ValueError``, ``TypeError``."""
    admitted = (origins,) if isinstance(origins, str) else tuple(origins)
    some: set[str] = set()
    for origin in admitted:
        if not isinstance(origin, str):
            raise TypeError(f"origins are text, as in 'https://app.example:8443', not {origin!r}")
        if origin != ANY:
            normal = _normal(origin)
            if normal is None:
                raise ValueError(
                    f"origin {readable(origin)!r} is no scheme, host and port; write it as in "
                    "'https://app.example:8443', or '*' for all"
                )
            some.add(normal)
    return Origins(frozenset(some), ANY in admitted)


def _normal(origin: str) -> str | None:
    """Return an origin in lower case, without the scheme's own port. ``None`` if it is none."""
    parts = ORIGIN.fullmatch(origin)
    if parts is None:
        return None
    scheme, host, port = parts[1].lower(), _host(parts[2]), parts[3]
    if host is None or (port is not None and int(port) > 65535):
        return None
    if port is None or int(port) == DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{int(port)}"


def _host(host: str) -> str | None:
    """Return a host in lower case, as ASCII, without a final dot; IPv6 addresses in short. ``None`` if it is none."""
    if host.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]"
        except ValueError:
            return None
    name = host.lower().removesuffix(".")
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    return name or None
