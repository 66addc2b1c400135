"""Keepalive, lease, resumption and reconnect parameters, and the SETUP of a connection with its handshake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rsocket_trio.masking import shown_headers
from rsocket_trio.payload import Payload, without_metadata
from rsocket_trio.values import between

MAX_SECONDS = (2**31 - 1) / 1000
"""The longest time that 31 bits of milliseconds can hold: a little more than 24 days."""
MAX_REQUESTS = 2**31 - 1


@attrs.frozen
class Keepalive:
    """The interval of the client's KEEPALIVE frames, and how long silence may last, in seconds.

    The client sends KEEPALIVE every ``interval``; either side takes the other for dead when no frame at all came for
    ``max_lifetime`` (RS10-KA-07). Raise ``ValueError`` unless both are at least a millisecond and fit 31 bits, and the
    lifetime is no less than the interval: the peer would take this side for dead between two frames.
    """

    interval: float = attrs.field(default=20.0, validator=between(0.001, MAX_SECONDS))
    max_lifetime: float = attrs.field(default=90.0, validator=between(0.001, MAX_SECONDS))

    def __attrs_post_init__(self) -> None:
        if self.interval > self.max_lifetime:
            raise ValueError(
                f"Keepalive: an interval of {self.interval:g} s is above the max_lifetime of {self.max_lifetime:g} s"
            )


@attrs.frozen
class Lease:
    """The permission to send ``number_of_requests`` within ``time_to_live`` seconds; 0 of either stops requests.

    Raise ``ValueError`` if 31 bits of requests or milliseconds can't hold them.
    """

    number_of_requests: int = attrs.field(validator=between(0, MAX_REQUESTS, whole=True))
    time_to_live: float = attrs.field(validator=between(0, MAX_SECONDS))


@attrs.frozen(kw_only=True)
class Backoff:
    """Delays of a client that reconnects, in seconds. Raise ``ValueError`` for a value out of range."""

    first_delay: float = attrs.field(default=0.1, validator=between(0.001))
    """Before the first try after a loss; each further one waits twice as long."""
    longest_delay: float = attrs.field(default=10.0, validator=between(0.001))
    """The most that a client waits between two tries. A connection that held longer begins with the first delay."""
    jitter: float = attrs.field(default=0.2, validator=between(0.0, 1.0))
    """By what part a delay is shortened at random, so that many clients do not come back at once."""

    def delay(self, tries: int, chance: float) -> float:
        """Return the seconds to wait after so many ``tries``: twice as many with each, up to the longest delay.

        ``chance`` is a random number from 0 to 1, by which they are shortened.
        """
        whole = min(self.first_delay * 2.0 ** min(tries, 60), self.longest_delay)
        return whole * (1.0 - self.jitter * chance)


@attrs.frozen(kw_only=True)
class ResumeOptions(Backoff):
    """Options of resumption. Sizes are bytes, times seconds. Raise ``ValueError`` for a value out of range.

    A client resumes by itself; a server lets those clients resume that asked for it when they connected.
    """

    store_bytes: int = attrs.field(default=4 * 2**20, validator=between(1024, whole=True))
    """Frames that were sent and may have to be sent again. A full store stalls the sender."""
    session_seconds: float = attrs.field(default=60.0, validator=between(0.001))
    """Seconds that a session waits for its client to come back, and that a client tries. Then it is lost."""
    answer_seconds: float = attrs.field(default=5.0, validator=between(0.001))
    """Seconds that a client waits for a new transport and for the answer to RESUME before it tries another one."""
    first_delay: float = attrs.field(default=0.1, validator=between(0.0))
    """Before a client's first try; each further one waits twice as long, also behind a transport that lived for
    less than ``longest_delay`` and passed nothing of the streams."""
    longest_delay: float = attrs.field(default=10.0, validator=between(0.0))
    """The most that a client waits between two tries, and a quarter of ``session_seconds`` if that is less."""
    sessions: int = attrs.field(default=1_000, validator=between(1, whole=True))
    """Sessions of a server that wait for their clients. Beyond: the one that waits longest ends."""
    sessions_bytes: int = attrs.field(default=64 * 2**20, validator=between(1, whole=True))
    """Bytes that all of those keep, SETUPs and tokens among them. Beyond: the one that waits longest ends."""
    live_bytes: int = attrs.field(default=256 * 2**20, validator=between(1, whole=True))
    """Bytes that the connected sessions of a server keep together, to send or to send again. Near this limit the
    senders of those sessions wait that keep most: more than eight times the bytes left. No session is ended for it."""


@attrs.frozen(kw_only=True)
class Setup:
    """The SETUP of a client, and the facts that the handshake told of the client.

    ``dialect`` is the name of the protocol, ``payload`` the application's own data, ``data_mime`` and ``metadata_mime``
    the MIME types of the connection. ``keepalive_interval`` and ``max_lifetime`` are seconds. ``lease``, ``strict`` and
    ``resume`` are flags.

    ``transport`` is the scheme (``tcp``, ``tls``, ``unix``, ``ws``, ``wss``, ``h2``, ``h2s``, ``memory`` or
    ``stream``), ``peer_address`` the address, ``certificate`` the client's TLS certificate as ``getpeercert()`` gives
    it, ``path`` and ``headers`` those of the request that opened a WebSocket or a stream of HTTP/2, names in lower
    case.

    In the extension draft ``extension_entries`` are its own, and a MIME type is its number if that is not a
    well-known one.
    """

    dialect: str
    payload: Payload = attrs.field(factory=Payload, repr=without_metadata)
    data_mime: str | int = "application/octet-stream"
    metadata_mime: str | int = ""
    keepalive_interval: float = 0.0
    max_lifetime: float = 0.0
    lease: bool = False
    strict: bool = False
    resume: bool = False
    extension_entries: tuple[Any, ...] = ()
    transport: str = "stream"
    peer_address: str = ""
    certificate: Mapping[str, Any] | None = None
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=shown_headers)

    def header(self, name: str) -> str | None:
        """Return the first HTTP header called ``name``, whatever its case, or ``None``."""
        lower_name = name.lower()
        return next((text for key, text in self.headers if key == lower_name), None)
