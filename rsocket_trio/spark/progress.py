"""Listens to the progress of streaming queries, and tells how far they are behind their servers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger("rsocket_trio.spark")

METRICS: Final = {
    "positions_behind_latest": ("gauge", "Positions between the query and the end of a partition."),
    "read_total": ("counter", "Positions of a route in all micro-batches that this listener saw."),
    "batch": ("gauge", "The number of the last micro-batch of a query."),
}
"""By the end of a metric's name: its type and its meaning."""


@attrs.frozen
class RouteProgress:
    """The progress of a query on one route.

    ``server`` is the URIs without their queries. ``behind`` has by partition the number of positions between the query
    and the end. ``read`` is the number of positions in the last micro-batch, ``read_total`` that in all which the
    listener saw.
    """

    server: str
    route: str
    behind: Mapping[int, int]
    read: int = 0
    read_total: int = 0


@attrs.frozen
class QueryProgress:
    """The last progress of a query that runs, by the ``id`` of the query and of its ``run``."""

    id: str
    run: str
    name: str | None
    batch: int
    timestamp: str
    routes: list[RouteProgress]

    @property
    def label(self) -> str:
        """Return the query's name, or its id."""
        return self.name or self.id


def routes_of(source: Any) -> list[RouteProgress]:
    """Return the routes of one source of a query's progress: none for another kind of source.

    Spark shows no more of a source in Python than its offsets, so everything else is in ``latestOffset``. This is the
    one place that reads offsets of progress.
    """
    latest, start, end = (_offset(one) for one in (source.latestOffset, source.startOffset, source.endOffset))
    if "server" not in latest or not isinstance(latest.get("routes"), list):
        return []
    if "i" in end:
        start = {"p": end["i"]}  # of a batch with a beginning of its own
    found = []
    for route in latest["routes"]:
        tops, starts, ends = (_positions(offset, route) for offset in (latest, start, end))
        behind = {partition: max(top - ends.get(partition, 0), 0) for partition, top in sorted(tops.items())}
        read = sum(max(position - starts.get(partition, 0), 0) for partition, position in ends.items())
        found.append(RouteProgress(str(latest["server"]), route, behind, read))
    return found


def _offset(written: object) -> Mapping[str, Any]:
    try:
        found = json.loads(written) if isinstance(written, str) else written
    except ValueError:
        found = None
    return found if isinstance(found, Mapping) else {}


def _positions(offset: Mapping[str, Any], route: str) -> dict[int, int]:
    """Return the positions in an offset: by partition, those of one route, or the one number of a live stream."""
    found = offset.get("p", {0: offset.get("n")})
    if isinstance(found.get(route), Mapping):
        found = found[route]
    return {int(partition): position for partition, position in found.items() if type(position) is int}


class Progress(StreamingQueryListener):
    """Tells of each query that reads ``rsocket`` how far it is behind, as log lines, objects and for Prometheus.

    Add it with ``spark.streams.addListener(Progress())``. ``level`` is the level of its log lines, for the logger
    ``rsocket_trio.spark``. Its methods may be called in any thread.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self._lock = threading.Lock()
        self._queries: dict[str, QueryProgress] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing with ``event``: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the progress of a query from ``event``, and log a line for each route."""
        progress, run = event.progress, str(event.progress.runId)
        with self._lock:
            before = self._queries.get(run)
            totals = {(one.server, one.route): one.read_total for one in before.routes} if before is not None else {}
            routes = [
                attrs.evolve(one, read_total=one.read + totals.get((one.server, one.route), 0))
                for source in progress.sources
                for one in routes_of(source)
            ]
            if not routes:
                return
            query = QueryProgress(str(progress.id), run, progress.name, progress.batchId, progress.timestamp, routes)
            self._queries[run] = query
        for route in routes:
            logger.log(self._level, "%s", line_of(query, route))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing with ``event``: the last progress still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query of ``event``, which has ended."""
        with self._lock:
            ended = self._queries.pop(str(event.runId), None)
        if ended is not None:
            logger.log(self._level, "query %s has ended after batch %d", ended.label, ended.batch)

    def queries(self) -> list[QueryProgress]:
        """Return the last progress of each query that runs and reads ``rsocket``."""
        with self._lock:
            return list(self._queries.values())

    def prometheus(self) -> str:
        """Return the last progress of each query in Prometheus' text format."""
        samples: dict[str, list[str]] = {name: [] for name in METRICS}

        def add(name: str, value: float, **labels: object) -> None:
            shown = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
            samples[name].append(f"rsocket_trio_spark_{name}{{{shown}}} {value}")

        for query in self.queries():
            of_query = {"query": query.label, "id": query.id}
            add("batch", query.batch, **of_query)
            for route in query.routes:
                labels = of_query | {"server": route.server, "route": route.route}
                add("read_total", route.read_total, **labels)
                for partition, behind in route.behind.items():
                    add("positions_behind_latest", behind, **labels, partition=partition)
        lines: list[str] = []
        for name, (kind, meaning) in METRICS.items():
            if samples[name]:
                head = f"rsocket_trio_spark_{name}"
                lines += [f"# HELP {head} {meaning}", f"# TYPE {head} {kind}", *samples[name]]
        return "".join(f"{line}\n" for line in lines)


def line_of(query: QueryProgress, route: RouteProgress) -> str:
    """Return the log line for one route of a query."""
    behind = list(route.behind.values()) or [0]
    return (
        f"query {query.label}, batch {query.batch}: {route.read} rows, {min(behind)} to {max(behind)} positions behind "
        f"(average {sum(behind) / len(behind):.1f}) in {len(behind)} partition{'s' * (len(behind) != 1)} of route "
        f"{route.route!r} at {route.server}; so far {route.read_total} rows"
    )


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
