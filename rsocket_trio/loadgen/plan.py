"""The plan of a load: target, rate, requests and connection terms in one value, checked before the load starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import in_, optional

from rsocket_trio.client.options import ConnectionOptions
from rsocket_trio.connection.connection import INITIAL_REQUEST_N
from rsocket_trio.rsocket.quirks import PEERS
from rsocket_trio.terms import MAX_REQUESTS
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.transports.sockets import client_context
from rsocket_trio.values import Unsaid, between

if TYPE_CHECKING:
    from rsocket_trio.client.reconnecting import ReconnectOptions

ARRIVALS = ("constant", "poisson")
INTERACTIONS = ("response", "stream", "fnf", "channel")
MAX_RATE = 1_000_000
"""Requests per second of a task at most: more than any can make, and few enough for the schedule to end."""
MIN_NUMBER = 1e-6
"""The least rate, and the least time in seconds."""
MAX_SECONDS = 1e9
COUNT = between(1, MAX_REQUESTS, whole=True)


@attrs.frozen(kw_only=True)
class Plan:
    """The plan of a load: its target and its terms. Raise ``ValueError`` that names an invalid term and the reason.

    ``uri`` is the target. ``route`` and ``metadata`` are sent with each request. ``cert`` and ``key`` are PEM files of
    the client.
    """

    uri: str
    rate: float = attrs.field(validator=between(MIN_NUMBER))
    """Requests per second of all tasks together."""
    seconds: float = attrs.field(default=10.0, validator=between(MIN_NUMBER))
    """Seconds that are measured, without ``requests``."""
    requests: int | None = attrs.field(default=None, validator=optional(COUNT))
    """Requests of all tasks together, instead of ``seconds``, without those of ``warm_up``."""
    tasks: int = attrs.field(default=1, validator=COUNT)
    """Processes, or tasks of Spark, that make the load, all at the same time."""
    connections: int = attrs.field(default=1, validator=COUNT)
    """Connections of each task, which take turns."""
    interaction: str = attrs.field(default="response", validator=in_(INTERACTIONS))
    """``response``, ``stream``, ``fnf`` or ``channel``."""
    route: str | None = None
    data: bytes = b""
    """The data of each request."""
    sizes: tuple[int, ...] = ()
    """Sizes in bytes, instead of ``data``: each request carries random bytes of a size drawn from these."""
    metadata: bytes | None = attrs.field(default=None, repr=False)
    items: int = attrs.field(default=1, validator=COUNT)
    """Payloads that a request of a channel sends; the first one opens it."""
    take: int | None = attrs.field(default=None, validator=optional(COUNT))
    """Items after which a stream or channel is cancelled and counts as answered; all by default."""
    credit: int = attrs.field(default=INITIAL_REQUEST_N, validator=COUNT)
    """Initial credit of a stream or channel in items; topped up at half."""
    arrivals: str = attrs.field(default="constant", validator=in_(ARRIVALS))
    """``constant`` or ``poisson`` distances between requests."""
    in_flight: int = attrs.field(default=1024, validator=COUNT)
    """Requests of a task that may wait for their answers."""
    timeout: float = attrs.field(default=10.0, validator=between(MIN_NUMBER, MAX_SECONDS))
    """Seconds that a request may take. One that waits as long for its turn is dropped."""
    warm_up: float = attrs.field(default=0.0, validator=between(0, MAX_SECONDS))
    """Seconds of the same load before measuring begins."""
    seed: int | None = None
    """Seed of all random choices; drawn by default. The summary holds it."""
    probe: bool = True
    """True if each task makes one request beforehand; if that fails there is no load."""
    connect_timeout: float = attrs.field(default=10.0, validator=between(MIN_NUMBER, MAX_SECONDS))
    """Seconds within which all connections of a task must be made."""
    connection: ReconnectOptions = attrs.field(factory=ConnectionOptions[Any, Any], repr=False)
    """Options of ``open_connection``, of those that can be pickled: ``trust`` and those below make a TLS context."""
    trust: str | None = None
    """PEM file of certificates to trust. Each executor must have it, as well as ``cert`` and ``key``."""
    untrusted: bool = False
    """Trust every certificate."""
    cert: str | None = None
    key: str | None = None

    def __attrs_post_init__(self) -> None:
        parse_uri(self.uri)
        if self.rate > MAX_RATE * self.tasks:
            raise ValueError(f"rate of {self.rate:g}: at most {MAX_RATE:g} requests per second for each task")
        if any(size < 0 for size in self.sizes):
            raise ValueError(f"sizes of {self.sizes}: each is 0 or more bytes")
        if self.data and self.sizes:
            raise ValueError("data and sizes exclude each other")
        if self.items > 1 and self.interaction != "channel":
            raise ValueError(f"items is for channels: a {self.interaction} sends one payload")
        if self.take is not None and self.interaction not in ("stream", "channel"):
            raise ValueError(f"take is for streams and channels: a {self.interaction} has no items")

    @property
    def _length(self) -> float:
        """Return the seconds that are measured: with ``requests`` those of the rate."""
        return self.seconds if self.requests is None else self.requests / self.rate

    @property
    def _first_credit(self) -> int:
        """Return the initial credit of a stream or channel: the plan's, or by default the one that the peer needs."""
        peer = self.connection.get("peer")
        needed = None if peer is None else PEERS[peer].initial_request_n
        return self.credit if needed is None or not isinstance(self.credit, Unsaid) else needed

    def _connection_options(self) -> ReconnectOptions:
        """Return the options of ``open_connection``. Raise ``OSError`` for unusable files."""
        context = client_context(self.trust, self.cert, self.key, untrusted=self.untrusted)
        return {**self.connection, "connect_timeout": self.connect_timeout, "ssl_context": context}
