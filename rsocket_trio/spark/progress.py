"""Listens to the progress of streaming queries, and tells how far they are behind their servers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from prometheus_client import Metric
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

logger = logging.getLogger("rsocket_trio.spark")

PREFIX: Final = "rsocket_trio_spark_"
OF_QUERY: Final = ("query", "id")
OF_ROUTE: Final = (*OF_QUERY, "server", "route")
"""Labels of what is told of a query, and of one of its routes."""


# What Spark tells of a query


@attrs.frozen
class Place:
    """A partition of a route: the next position to read, and the one behind the last that the server has."""

    position: int
    latest: int

    @property
    def behind(self) -> int:
        return max(self.latest - self.position, 0)


@attrs.frozen
class RouteProgress:
    """The progress of a query on one route.

    ``server`` is the URIs without their queries. ``partitions`` are by number. ``rows`` are those of the last
    micro-batch, for the whole source; ``read`` are the positions of this route in it, and ``read_total`` in all
    micro-batches that the listener saw.
    """

    server: str
    route: str
    partitions: Mapping[int, Place]
    rows: int
    read: int = 0
    read_total: int = 0

    @property
    def behind(self) -> dict[str, float]:
        """Return how many positions the partitions are behind: ``min``, ``average`` and ``max`` of them."""
        counts = [place.behind for place in self.partitions.values()] or [0]
        return {"min": min(counts), "average": sum(counts) / len(counts), "max": max(counts)}

    def as_json(self) -> dict[str, object]:
        partitions = {
            str(number): {"position": place.position, "latest": place.latest, "behind": place.behind}
            for number, place in sorted(self.partitions.items())
        }
        return {
            "description": f"rsocket {self.route} at {self.server}",
            **attrs.asdict(self, filter=attrs.filters.exclude("partitions")),
            "behind": self.behind,
            "partitions": partitions,
        }


def routes_of(source: SourceProgress) -> list[RouteProgress]:
    """Return the routes of one source of a query's progress: none for another kind of source.

    Spark shows no more of a source in Python than its offsets, so everything else is in ``latestOffset``. This is the
    one place that reads offsets of progress.
    """
    latest, start, end = (_offset(written) for written in (source.latestOffset, source.startOffset, source.endOffset))
    if "server" not in latest or not isinstance(latest.get("routes"), list):
        return []
    if "i" in end:
        start = {"p": end["i"]}  # of a batch with a beginning of its own
    routes = []
    for route in latest["routes"]:
        tops, starts, ends = (_positions(offset, route) for offset in (latest, start, end))
        places = {partition: Place(ends.get(partition, 0), top) for partition, top in tops.items()}
        read = sum(max(position - starts.get(partition, 0), 0) for partition, position in ends.items())
        routes.append(RouteProgress(str(latest["server"]), route, places, int(source.numInputRows), read))
    return routes


def _offset(written: object) -> Mapping[str, Any]:
    try:
        offset = json.loads(written) if isinstance(written, str) else written
    except ValueError:
        offset = None
    return offset if isinstance(offset, Mapping) else {}


def _positions(offset: Mapping[str, Any], route: str) -> dict[int, int]:
    """Return the positions in an offset: by partition, those of one route, or the one number of a live stream."""
    positions = offset.get("p", {0: offset.get("n")})
    if isinstance(positions.get(route), Mapping):
        positions = positions[route]
    return {int(partition): position for partition, position in positions.items() if type(position) is int}


@attrs.define
class QueryState:
    """The last progress of a query that runs, and the rows that it read since the listener heard of it."""

    id: str
    run: str
    name: str | None
    batch: int
    timestamp: str
    routes: list[RouteProgress]
    rows_total: int = 0

    @property
    def shown(self) -> str:
        return self.name or self.id


# The listener


class Progress(StreamingQueryListener):
    """Tells of each query that reads ``rsocket`` how far it is behind, as log lines, JSON and for Prometheus.

    Add it with ``spark.streams.addListener(Progress())``. ``level`` is the level of its log lines, for the logger
    ``rsocket_trio.spark``. It is a collector, too: ``prometheus_client.REGISTRY.register(progress)``, with the extra
    ``metrics``. Its methods may be called in any thread.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self._lock = threading.Lock()
        self._queries: dict[str, QueryState] = {}

    # Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing with ``event``: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the progress of a query from ``event``, and log a line for each route."""
        progress = event.progress
        sources = [(int(source.numInputRows), routes_of(source)) for source in progress.sources]
        routes = [route for _, of_source in sources for route in of_source]
        if not routes:
            return
        state = QueryState(
            str(progress.id), str(progress.runId), progress.name, progress.batchId, progress.timestamp, routes
        )
        with self._lock:
            before = self._queries.get(state.run)
            # Those of other kinds of sources in the same query are left out.
            state.rows_total = sum(rows for rows, of_source in sources if of_source)
            state.rows_total += 0 if before is None else before.rows_total
            known = {} if before is None else {(route.server, route.route): route.read_total for route in before.routes}
            state.routes = routes = [
                attrs.evolve(route, read_total=route.read + known.get((route.server, route.route), 0))
                for route in routes
            ]
            self._queries[state.run] = state
        for route in routes:
            logger.log(self._level, "%s", line_of(state, route))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing with ``event``: the last progress still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query of ``event``, which has ended."""
        with self._lock:
            ended = self._queries.pop(str(event.runId), None)
        if ended is not None:
            logger.log(self._level, "query %s has ended after batch %d", ended.shown, ended.batch)

    # Users

    def queries(self) -> list[QueryState]:
        """Return the last progress of each query that runs and reads ``rsocket``."""
        with self._lock:
            return list(self._queries.values())

    def json(self) -> str:
        """Return the last progress of each query as a JSON array."""
        return json.dumps(
            [
                attrs.asdict(state, recurse=False) | {"routes": [route.as_json() for route in state.routes]}
                for state in self.queries()
            ]
        )

    def collect(self) -> Iterable[Metric]:
        """Return the last progress of each query as metrics, for a registry of ``prometheus_client``."""
        return metrics_of(self.queries())


def line_of(state: QueryState, route: RouteProgress) -> str:
    behind, partitions = route.behind, len(route.partitions)
    return (
        f"query {state.shown}, batch {state.batch}: {route.rows} rows, {behind['min']} to {behind['max']} positions "
        f"behind (average {behind['average']:.1f}) in {partitions} partition{'s' * (partitions != 1)} of "
        f"route {route.route!r} at {route.server}; so far {route.read_total} rows"
    )


def metrics_of(states: Iterable[QueryState]) -> list[Metric]:
    """Return states of queries as metrics of Prometheus."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name, of_partition = f"{PREFIX}positions_behind_latest", (*OF_ROUTE, "partition")
    behind = GaugeMetricFamily(name, "Positions between the query and the end of a partition", labels=of_partition)
    over_partitions = {
        which: GaugeMetricFamily(f"{name}_{which}", f"Their {which} over the partitions of a route", labels=OF_ROUTE)
        for which in ("min", "average", "max")
    }
    read = CounterMetricFamily(f"{PREFIX}read", "Positions of a route in micro-batches so far", labels=OF_ROUTE)
    rows = CounterMetricFamily(f"{PREFIX}rows", "Rows of a query's micro-batches so far", labels=OF_QUERY)
    batch = GaugeMetricFamily(f"{PREFIX}batch", "The number of a query's last micro-batch", labels=OF_QUERY)
    for state in states:
        query = (state.shown, state.id)
        rows.add_metric(query, state.rows_total)
        batch.add_metric(query, state.batch)
        for route in state.routes:
            labels = (*query, route.server, route.route)
            for partition, place in sorted(route.partitions.items()):
                behind.add_metric((*labels, str(partition)), place.behind)
            for which, number in route.behind.items():
                over_partitions[which].add_metric(labels, number)
            read.add_metric(labels, route.read_total)
    return [behind, *over_partitions.values(), read, rows, batch]
