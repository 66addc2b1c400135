"""The plan of a load: target, rate, requests and connection terms in one value, checked before the load starts."""

from __future__ import annotations

import math
import ssl
from typing import Any, TypedDict

import attrs

from rsocket_trio import Keepalive, Payload
from rsocket_trio.client.options import DATA_MIME, DIALECT, KEEPALIVE, METADATA_MIME, ConnectionOptions
from rsocket_trio.connection.connection import INITIAL_REQUEST_N
from rsocket_trio.connection.protocols import ALL, SHORT, peer_and_dialect
from rsocket_trio.loadgen.mix import CLOSED, Share, check_names, count, more_than_zero, one_of
from rsocket_trio.loadgen.stages import Stage, seconds_of
from rsocket_trio.metadata import (
    AUTHENTICATION,
    COMPOSITE_METADATA,
    Credentials,
    Entry,
    encode_authentication,
    encode_composite,
    with_route,
)
from rsocket_trio.payload import PayloadLike
from rsocket_trio.rsocket.peers import PEERS
from rsocket_trio.signatures import declared
from rsocket_trio.transports.connect import HeadersLike, as_headers
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.values import Unsaid

ARRIVALS = ("constant", "poisson", CLOSED)
IN_FLIGHT = 1024
"""Requests of a task that may wait for their answers in an open loop, by default."""
MOST_OF_A_TASK = 1_000_000
"""Requests per second of a task at most: more than any can make, and few enough for the schedule to end."""
OF_SHARES = ("interaction", "route", "data", "sizes", "items", "take")
"""Fields of a plan that describe its requests: in a mix each share has its own."""


class UnsaidSeconds(Unsaid, float):
    """A time that is a default."""

    __slots__ = ()


SECONDS = UnsaidSeconds(10.0)
"""Seconds that are measured, by default."""


class Terms(TypedDict, total=False):
    """The arguments of ``run`` beside the URI: the fields of ``Plan``, by their names."""

    rate: float | None
    seconds: float
    requests: int | None
    stages: tuple[Stage, ...]
    mix: tuple[Share, ...]
    tasks: int
    connections: int
    interaction: str
    route: str | None
    data: bytes
    sizes: tuple[int, ...]
    metadata: bytes | None
    auth: Credentials | None
    items: int
    take: int | None
    credit: int
    arrivals: str
    in_flight: int | None
    timeout: float
    warm_up: float
    seed: int | None
    probe: bool
    connect_timeout: float
    dialect: str
    quirks: tuple[str, ...]
    peer: str | None
    setup: Payload
    data_mime: str
    metadata_mime: str
    keepalive: Keepalive
    lease: bool
    headers: HeadersLike
    trust: str | None
    untrusted: bool
    cert: str | None
    key: str | None


def in_full(dialect: str) -> str:
    """Return the full name of a dialect that is given by its short or full name."""
    return SHORT.get(dialect, dialect)


@attrs.frozen(kw_only=True)
class Plan:
    """The plan of a load: its target and its terms. Raise ``ValueError`` that names an invalid term and the reason.

    ``uri`` is the target. ``route`` and ``metadata`` are sent with each request. ``dialect``, ``quirks``, ``peer``,
    ``setup``, ``data_mime``, ``metadata_mime``, ``keepalive``, ``lease`` and ``headers`` are those of
    ``open_connection``. ``cert`` and ``key`` are PEM files of the client.
    """

    uri: str
    rate: float | None = None
    """Requests per second of all tasks together; none for a closed loop, and with stages."""
    seconds: float = SECONDS
    """Seconds that are measured: with stages those of all of them. With ``requests`` those in which they are due at
    the rate; in a closed loop infinite, since it ends with the last answer."""
    requests: int | None = None
    """Requests of all tasks together, instead of ``seconds``, without those of ``warm_up``."""
    stages: tuple[Stage, ...] = ()
    """Rates over time, of all tasks together, instead of one."""
    mix: tuple[Share, ...] = ()
    """Kinds of requests, instead of one; each has fields of its own for what it is and carries."""
    tasks: int = 1
    """Processes, or tasks of Spark, that make the load, all at the same time."""
    connections: int = 1
    """Connections of each task, which take turns."""
    interaction: str = "response"
    """``response``, ``stream``, ``fnf`` or ``channel``."""
    route: str | None = None
    data: bytes = b""
    """The data of each request."""
    sizes: tuple[int, ...] = ()
    """Sizes in bytes, instead of ``data``: each request carries random bytes of a size drawn from these."""
    metadata: bytes | None = attrs.field(default=None, repr=False)
    auth: Credentials | None = attrs.field(default=None, repr=False)
    """Credentials, sent with each request, in composite metadata."""
    items: int = 1
    """Payloads that a request of a channel sends; the first one opens it."""
    take: int | None = None
    """Items after which a stream or channel is cancelled and counts as answered; all by default."""
    credit: int = INITIAL_REQUEST_N
    """Initial credit of a stream or channel in items; topped up at half."""
    arrivals: str = "constant"
    """``constant`` or ``poisson`` distances between requests; or ``closed``: each after the answer before it."""
    in_flight: int | None = None
    """Requests of a task that may wait for their answers: 1024, and in a closed loop one for each connection."""
    timeout: float = 10.0
    """Seconds that a request may take. One that waits as long for its turn is dropped."""
    warm_up: float = 0.0
    """Seconds of the same load before measuring begins."""
    seed: int | None = None
    """Seed of all random choices; drawn by default. The summary holds it."""
    probe: bool = True
    """True if each task makes one request beforehand; if that fails there is no load."""
    connect_timeout: float = 10.0
    """Seconds within which all connections of a task must be made."""
    dialect: str = attrs.field(default=DIALECT, converter=in_full)
    quirks: tuple[str, ...] = ()
    peer: str | None = None
    setup: Payload = attrs.field(factory=Payload, repr=False)
    data_mime: str = DATA_MIME
    metadata_mime: str = METADATA_MIME
    keepalive: Keepalive = KEEPALIVE
    lease: bool = False
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=as_headers, repr=False)
    trust: str | None = None
    """PEM file of certificates to trust. Each executor must have it, as well as ``cert`` and ``key``."""
    untrusted: bool = False
    """Trust every certificate."""
    cert: str | None = None
    key: str | None = None

    def __attrs_post_init__(self) -> None:
        parse_uri(self.uri)
        one_of("arrivals", self.arrivals, ARRIVALS)
        one_of("dialect", self.dialect, tuple(ALL))
        count("requests", self.requests)
        if self.stages:
            self._take_seconds_of_stages()
        for name in ("seconds", "timeout", "connect_timeout"):
            more_than_zero(name, getattr(self, name))
        for name in ("tasks", "connections", "credit", "in_flight"):
            count(name, getattr(self, name))
        if not 0 <= self.warm_up < float("inf"):
            raise ValueError(f"warm_up of {self.warm_up}: 0 or more seconds")
        self._check_rate()
        if self.requests is not None:
            self._take_seconds_of_requests(self.requests)
        if self.mix:
            for field in attrs.fields(type(self)):
                if field.name in OF_SHARES and getattr(self, field.name) != field.default:
                    raise ValueError(f"mix and {field.name} exclude each other: each share has its own")
            check_names(self.mix)
        self._check_fit()

    def _take_seconds_of_stages(self) -> None:
        seconds = seconds_of(self.stages)
        if not isinstance(self.seconds, Unsaid) and self.seconds != seconds:
            raise ValueError(f"seconds of {self.seconds:g}: the stages have {seconds:g}")
        object.__setattr__(self, "seconds", seconds)

    def _take_seconds_of_requests(self, requests: int) -> None:
        if self.stages:
            raise ValueError("requests and stages exclude each other: the stages say how many are due")
        seconds = math.inf if self.rate is None else requests / self.rate
        if not isinstance(self.seconds, Unsaid) and self.seconds != seconds:
            raise ValueError("requests and seconds exclude each other")
        object.__setattr__(self, "seconds", seconds)

    def _check_rate(self) -> None:
        if self.arrivals == CLOSED:
            if self.rate is not None or self.stages:
                raise ValueError("a closed loop has no rate: its requests wait for the answers before them")
        elif self.stages:
            if self.rate is not None:
                raise ValueError("rate and stages exclude each other: each stage has its own")
            if not sum(stage._count for stage in self.stages):
                raise ValueError("stages of rate 0 only: no request is due")
        elif self.rate is None:
            raise ValueError("rate is missing: requests per second of all workers or tasks together")
        else:
            more_than_zero("rate", self.rate)
        fastest = max((rate for stage in self._schedule for rate in (stage.rate, stage._end)), default=0.0)
        if fastest > MOST_OF_A_TASK * self.tasks:
            raise ValueError(f"rate of {fastest:g}: at most {MOST_OF_A_TASK:g} requests per second for each task")

    def _check_fit(self) -> None:
        shares = self.shares
        known, _ = peer_and_dialect(self.peer, self.dialect)
        mime = self.metadata_mime
        if known is not None and known.mime is not None and isinstance(mime, Unsaid):
            mime = known.mime
        if self.auth is not None and mime != COMPOSITE_METADATA:
            raise ValueError(f"auth needs composite metadata, not {mime}")
        for share in shares:
            if share.route is not None:
                with_route(share.route, self._request_metadata, mime)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Return the kinds of requests: those of the mix, or the only one, which has no name."""
        return self.mix or (Share(name="", **{name: getattr(self, name) for name in OF_SHARES}),)

    @property
    def _schedule(self) -> tuple[Stage, ...]:
        """Return the rates over time, warm-up included, at the first of them; none for a closed loop."""
        if self.rate is not None:
            return (Stage(self.rate, self.warm_up + self.seconds),)
        warming = (Stage(self.stages[0].rate, self.warm_up),) if self.stages and self.warm_up else ()
        return warming + self.stages

    @property
    def bound(self) -> int:
        """Return how many requests of a task may wait for their answers."""
        if self.in_flight is not None:
            return self.in_flight
        return self.connections if self.arrivals == CLOSED else IN_FLIGHT

    @property
    def _first_credit(self) -> int:
        """Return the initial credit of a stream or channel: the plan's, or by default the one that the peer needs."""
        needed = PEERS[self.peer].initial_request_n if self.peer is not None else None
        return self.credit if needed is None or not isinstance(self.credit, Unsaid) else needed

    @property
    def _request_metadata(self) -> bytes | None:
        """Return the metadata of each request, without its route."""
        if self.auth is None:
            return self.metadata
        entry = encode_composite([Entry(AUTHENTICATION, encode_authentication(self.auth))])
        return entry + (self.metadata or b"")

    def _connection_options(self) -> ConnectionOptions[PayloadLike, HeadersLike]:
        """Return the options of ``open_connection`` that the plan has. Raise ``ValueError`` for unusable files."""
        options: Any = {name: getattr(self, name) for name in declared(ConnectionOptions) if hasattr(self, name)}
        options["ssl_context"] = self._ssl_context()
        result: ConnectionOptions[PayloadLike, HeadersLike] = options
        return result

    def _ssl_context(self) -> ssl.SSLContext | None:
        if not (self.trust or self.cert or self.untrusted):
            return None
        file = self.trust
        try:
            context = ssl.create_default_context(cafile=self.trust)
            file = self.cert
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise ValueError(f"cannot use the certificates of {file}: {error.strerror or 'no PEM file'}") from None
        if self.untrusted:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
