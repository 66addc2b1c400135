"""Listens to the progress of streaming queries, and tells how far they are behind their servers."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

logger = logging.getLogger("rsocket_trio.spark")

PREFIX: Final = "rsocket_trio_spark_"
GAUGE, COUNTER = "gauge", "counter"


# What Spark tells of a query


@attrs.frozen
class Place:
    """A partition of a route: the next position to read, and the one behind the last that the server has."""

    position: int
    latest: int

    @property
    def behind(self) -> int:
        """Return the number of positions between them."""
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

    @property
    def description(self) -> str:
        """Return what Spark's own description of the source lacks."""
        return f"rsocket {self.route} at {self.server}"

    def as_json(self) -> dict[str, object]:
        """Return all of it as a JSON object."""
        partitions = {
            str(number): {"position": place.position, "latest": place.latest, "behind": place.behind}
            for number, place in sorted(self.partitions.items())
        }
        return {
            "description": self.description,
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
        """Return the query's name, or its id."""
        return self.name or self.id

    def as_json(self) -> dict[str, object]:
        """Return all of it as a JSON object."""
        return attrs.asdict(self, recurse=False) | {"routes": [route.as_json() for route in self.routes]}


# The listener


class Progress(StreamingQueryListener):
    """Tells of each query that reads ``rsocket`` how far it is behind, as log lines, JSON and for Prometheus.

    Add it with ``spark.streams.addListener(Progress())``. ``level`` is the level of its log lines, for the logger
    ``rsocket_trio.spark``. Its methods may be called in any thread.
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
        return json.dumps([state.as_json() for state in self.queries()])

    def prometheus(self) -> str:
        """Return the last progress of each query in Prometheus' text format."""
        return exposed(self.queries())

    @contextmanager
    def serving(self, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
        """Serve ``/metrics`` for Prometheus and ``/json`` over HTTP for the block. Yield the URL.

        ``port`` 0 is any that is free. ``host`` is the address to listen on: there is no authentication.
        """
        with http.server.ThreadingHTTPServer((host, port), _handler_of(self)) as server:
            thread = threading.Thread(target=server.serve_forever, name="rsocket-trio-progress", daemon=True)
            thread.start()
            try:
                yield f"http://{host}:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()


def line_of(state: QueryState, route: RouteProgress) -> str:
    """Return the log line for one route of a query."""
    behind, partitions = route.behind, len(route.partitions)
    return (
        f"query {state.shown}, batch {state.batch}: {route.rows} rows, {behind['min']} to {behind['max']} positions "
        f"behind (average {behind['average']:.1f}) in {partitions} partition{'s' * (partitions != 1)} of "
        f"route {route.route!r} at {route.server}; so far {route.read_total} rows"
    )


# Prometheus


def exposed(states: list[QueryState]) -> str:
    """Return states of queries in Prometheus' text format."""
    samples: dict[tuple[str, str, str], list[str]] = {
        ("positions_behind_latest", GAUGE, "Positions between the query and the end of a partition."): [],
        ("positions_behind_latest_min", GAUGE, "The least of them over the partitions of a route."): [],
        ("positions_behind_latest_average", GAUGE, "Their average over the partitions of a route."): [],
        ("positions_behind_latest_max", GAUGE, "The most of them over the partitions of a route."): [],
        ("read_total", COUNTER, "Positions of a route in all micro-batches that this listener saw."): [],
        ("rows_total", COUNTER, "Rows of all micro-batches of a query that this listener saw."): [],
        ("batch", GAUGE, "The number of the last micro-batch of a query."): [],
    }
    by_name = {name: lines for (name, _, _), lines in samples.items()}

    def say(name: str, value: float, **labels: object) -> None:
        shown = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        by_name[name].append(f"{PREFIX}{name}{{{shown}}} {value}")

    for state in states:
        query = {"query": state.shown, "id": state.id}
        say("rows_total", state.rows_total, **query)
        say("batch", state.batch, **query)
        for route in state.routes:
            labels = query | {"server": route.server, "route": route.route}
            for partition, place in sorted(route.partitions.items()):
                say("positions_behind_latest", place.behind, **labels, partition=partition)
            for name, value in route.behind.items():
                say(f"positions_behind_latest_{name}", value, **labels)
            say("read_total", route.read_total, **labels)
    lines: list[str] = []
    for (name, kind, meaning), values in samples.items():
        if values:
            lines += [f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} {kind}", *values]
    return "".join(f"{line}\n" for line in lines)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _handler_of(progress: Progress) -> type[http.server.BaseHTTPRequestHandler]:
    pages = {
        "/metrics": ("text/plain; version=0.0.4; charset=utf-8", progress.prometheus),
        "/json": ("application/json", progress.json),
    }

    class PageHandler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path not in pages:
                self.send_error(404, f"there are {' and '.join(pages)}")
                return
            kind, made = pages[self.path]
            body = made().encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            logger.debug("progress: %s", format % arguments)

    return PageHandler
