"""What the two sides of a connection tell each other at its start: keepalive, leases, the SETUP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rsocket_trio.payload import Payload
from rsocket_trio.values import between

MAX_SECONDS = (2**31 - 1) / 1000
"""The longest time that 31 bits of milliseconds can say: a little more than 24 days."""
MAX_REQUESTS = 2**31 - 1


@attrs.frozen
class Keepalive:
    """How often the client shows that it lives, and how long silence may last, in seconds.

    The client sends KEEPALIVE every ``interval``; either side takes the other for dead when no frame at all came for
    ``max_lifetime`` (RS10-KA-07). Raises ``ValueError`` unless both are at least a millisecond and fit 31 bits.
    """

    interval: float = attrs.field(default=20.0, validator=between(0.001, MAX_SECONDS))
    max_lifetime: float = attrs.field(default=90.0, validator=between(0.001, MAX_SECONDS))


@attrs.frozen
class Lease:
    """The permission to send ``number_of_requests`` within ``time_to_live`` seconds; 0 of either stops requests.

    Raises ``ValueError`` outside of what 31 bits of requests and milliseconds can say.
    """

    number_of_requests: int = attrs.field(validator=between(0, MAX_REQUESTS, whole=True))
    time_to_live: float = attrs.field(validator=between(0, MAX_SECONDS))


@attrs.frozen(kw_only=True)
class Setup:
    """What the client said when it connected, and what the handshake told of it.

    ``payload`` is the application's own word. ``transport`` is the scheme (``tcp``, ``tls``, ``unix``, ``ws``,
    ``wss``, ``memory`` or ``stream``), ``peer`` the address, ``certificate`` the client's TLS certificate as
    ``getpeercert()`` gives it, ``path`` and ``headers`` those of the WebSocket handshake, names in lower case.

    In the extension draft ``entries`` are its extension entries, and a MIME type is its number where that is not a
    well-known one.
    """

    dialect: str
    payload: Payload = attrs.field(factory=Payload)
    data_mime: str | int = "application/octet-stream"
    metadata_mime: str | int = ""
    keepalive_interval: float = 0.0
    max_lifetime: float = 0.0
    lease: bool = False
    strict: bool = False
    resume: bool = False
    entries: tuple[Any, ...] = ()
    transport: str = "stream"
    peer: str = ""
    certificate: Mapping[str, Any] | None = None
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def header(self, name: str) -> str | None:
        """The first HTTP header of that name, whatever its case."""
        wanted = name.lower()
        return next((text for key, text in self.headers if key == wanted), None)
