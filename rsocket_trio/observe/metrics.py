"""Metrics of calls and connections for Prometheus: counts, times, and the errors that ended connections."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import trio
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from rsocket_trio.responder import MAX_ROUTE_BYTES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.errors import RSocketError
    from rsocket_trio.services.calls.context import Call

OTHER: Final = "other"
"""The route of calls that no handler matches, and of those beyond ``MAX_CLIENT_ROUTES``."""
MAX_CLIENT_ROUTES: Final = 100
"""Routes that requests of this process name, each with time series of its own."""
CALL_LABELS: Final = ("interaction", "route", "side")
ONE_ANSWER: Final = ("request_response", "fire_and_forget")

_metrics: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()


def metrics_in(registry: CollectorRegistry | None) -> Metrics:
    """Return the metrics of a registry, made with the first call for it."""
    registry = REGISTRY if registry is None else registry
    known = _metrics.get(registry)
    if known is None:
        known = _metrics[registry] = Metrics(registry)
    return known


def is_sendable(route: str) -> bool:
    """Return whether a request can name this route: one that can't fails, and has no time series of its own."""
    try:
        return len(route.encode()) <= MAX_ROUTE_BYTES
    except (AttributeError, UnicodeEncodeError):
        return False


class Series:
    """The time series of the calls of one interaction, route and side; looked up once."""

    __slots__ = ("first_item", "outcomes", "seconds")

    def __init__(self, metrics: Metrics, labels: tuple[str, str, str]) -> None:
        self.outcomes = {each: metrics.requests.labels(*labels, each) for each in ("completed", "failed", "cancelled")}
        self.seconds = metrics.seconds.labels(*labels)
        self.first_item = None if labels[0] in ONE_ANSWER else metrics.first_item.labels(*labels)


class Metrics:
    """An observer that counts calls and connections. Made by ``observe.prometheus``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, CALL_LABELS, registry=registry)

        self.requests = counter("rsocket_requests", "Requests that ended", *CALL_LABELS, "outcome")
        self.seconds = histogram("rsocket_request_seconds", "Seconds from a request to its end")
        self.first_item = histogram("rsocket_first_item_seconds", "Seconds from a request to the first item")
        items = counter("rsocket_items", "Answers and items, without requests", "direction")
        self.sent, self.received = items.labels("sent"), items.labels("received")
        self.connections = Gauge(
            "rsocket_connections", "Open connections", registry=registry, multiprocess_mode="livesum"
        )
        self.ended_by = counter(
            "rsocket_connections_ended", "Connections that ended, by the class of the error", "cause"
        )
        self.faults = counter("rsocket_faults", "Faults of peers and failures of handlers", "kind")
        self.waiting = counter("rsocket_waiting_for_credit_seconds", "Seconds that senders waited for credit")
        self._series: dict[tuple[str, str | None, str], Series] = {}
        self._client_routes: set[str] = set()

    def connected(self, connection: Connection) -> None:
        """Count a connection."""
        self.connections.inc()

    def ended(self, connection: Connection, cause: RSocketError) -> None:
        """Count the end of a connection."""
        self.connections.dec()
        self.ended_by.labels(type(cause).__name__).inc()

    def fault(self, kind: str) -> None:
        """Count a fault: ``kind`` is one of the names of ``Fault``."""
        self.faults.labels(kind).inc()

    def call_ended(self, call: Call) -> None:
        """Add what a call has counted."""
        series, began_at, first_item_at = self.series_of(call), call.began_at, call.first_item_at
        series.outcomes[call.outcome].inc()
        # The request itself is no item.
        if call.side == "server":
            sent, received = call.items_sent, call.items_received - 1
        else:
            sent, received = call.items_sent - 1, call.items_received
        if sent > 0:
            self.sent.inc(sent)
        if received > 0:
            self.received.inc(received)
        if series.first_item is None and first_item_at < math.inf:
            series.seconds.observe(first_item_at - began_at)  # its one answer was its end
            return
        series.seconds.observe(trio.current_time() - began_at)
        if series.first_item is not None:
            if first_item_at < math.inf:
                series.first_item.observe(first_item_at - began_at)
            if call.credit_seconds:
                self.waiting.inc(call.credit_seconds)

    def series_of(self, call: Call) -> Series:
        """Return the time series that a call counts in."""
        route = call.pattern if call.side == "server" else call.route
        key = (call.interaction, route, call.side)
        series = self._series.get(key)
        if series is None:
            if call.side == "client" and route is not None and route not in self._client_routes:
                if len(self._client_routes) >= MAX_CLIENT_ROUTES or not is_sendable(route):
                    return self._known((call.interaction, None, call.side))
                self._client_routes.add(route)
            series = self._known(key)
        return series

    def _known(self, key: tuple[str, str | None, str]) -> Series:
        if key not in self._series:
            interaction, route, side = key
            self._series[key] = Series(self, (interaction, OTHER if route is None else route, side))
        return self._series[key]
