"""The progress of queries: what Spark's events say, as log lines, JSON and for Prometheus."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from prometheus_client import CollectorRegistry

from rsocket_trio.spark import Progress
from rsocket_trio.spark.progress import Place, QueryState, RouteProgress, line_of, routes_of

LATEST = {
    "v": 1,
    "f": "0123456789abcdef",
    "p": {"0": 10, "1": 7},
    "server": "tcp://127.0.0.1:7878",
    "routes": ["orders"],
}


def source(end: object = None, latest: object = LATEST, rows: int = 5, start: object = None) -> Any:
    """A source of an event, with its offsets as JSON."""
    end = {"v": 1, "f": "0123456789abcdef", "p": {"0": 4, "1": 7}} if end is None else end
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return SimpleNamespace(**{name: json.dumps(offset) for name, offset in offsets.items()}, numInputRows=rows)


def event(*sources: Any, run: str = "r1", name: str | None = "q", batch: int = 3) -> Any:
    """An event of a query's progress."""
    progress = SimpleNamespace(
        id="i1", runId=run, name=name, batchId=batch, timestamp="2026-11-23T13:32:49.420Z", numInputRows=5
    )
    progress.sources = sources or (source(),)
    return SimpleNamespace(progress=progress)


def test_a_source_is_told_by_route_and_partition() -> None:
    [found] = routes_of(source())

    assert found.partitions == {0: Place(4, 10), 1: Place(7, 7)}
    assert found.behind == {"min": 0, "average": 3.0, "max": 6}
    assert (found.rows, found.read) == (5, 11)


def test_positions_of_several_routes_are_told_apart() -> None:
    latest = LATEST | {"p": {"a": {"0": 9}, "b": {"0": 3, "1": 2}}, "routes": ["a", "b"]}
    start = {"p": {"a": {"0": 5}, "b": {"0": 3}}}
    a, b = routes_of(source({"p": {"a": {"0": 7}, "b": {"0": 3}}}, latest, start=start))

    assert (a.route, a.partitions, a.read) == ("a", {0: Place(7, 9)}, 2)
    assert (b.route, b.partitions, b.read) == ("b", {0: Place(3, 3), 1: Place(0, 2)}, 0)


def test_a_batch_with_a_beginning_of_its_own_is_counted_from_there() -> None:
    [found] = routes_of(source({"p": {"0": 7}, "i": {"0": 5}}, start={"p": {"0": 1}}))

    assert found.read == 2


def test_a_live_stream_has_one_partition() -> None:
    latest = {"v": 1, "f": "x", "n": 9, "server": "tcp://h:1", "routes": ["ticks"]}

    [found] = routes_of(source({"v": 1, "f": "x", "n": 2}, latest))

    assert found.partitions == {0: Place(2, 9)}


@pytest.mark.parametrize("latest", [{"topic": {"0": 4}}, None, 17, "2026", {"server": "x"}])
def test_another_source_is_none_of_ours(latest: object) -> None:
    assert routes_of(source(latest=latest)) == []


def test_a_partition_that_went_back_is_not_behind() -> None:
    assert Place(9, 4).behind == 0
    assert RouteProgress("tcp://h:1", "orders", {}, 0).behind == {"min": 0, "average": 0.0, "max": 0}


def test_each_micro_batch_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress()
    with caplog.at_level(logging.INFO, "rsocket_trio.spark"):
        progress.onQueryStarted(event())
        progress.onQueryProgress(event())
        progress.onQueryIdle(event())
        progress.onQueryTerminated(SimpleNamespace(id="i1", runId="r1"))  # type: ignore[arg-type]

    assert caplog.messages == [
        (
            "query q, batch 3: 5 rows, 0 to 6 positions behind (average 3.0) in 2 partitions of route 'orders' at "
            "tcp://127.0.0.1:7878; so far 11 rows"
        ),
        "query q has ended after batch 3",
    ]


def test_what_a_route_has_read_adds_up_over_micro_batches() -> None:
    progress = Progress()
    progress.onQueryProgress(event(name=None))
    later = {"p": {"0": 6, "1": 7}}
    progress.onQueryProgress(event(source(later, start={"p": {"0": 4, "1": 7}}), name=None))
    [state] = progress.queries()

    assert line_of(state, state.routes[0]).startswith("query i1, batch 3: 5 rows, 0 to 4 positions behind")
    assert line_of(state, state.routes[0]).endswith("so far 13 rows")


def test_rows_of_other_sources_in_the_same_query_are_left_out() -> None:
    progress = Progress()
    progress.onQueryProgress(event(source(rows=5), source(latest={"topic": {"0": 4}}, rows=70)))

    assert [state.rows_total for state in progress.queries()] == [5]


def test_the_last_progress_of_each_query_is_json() -> None:
    progress = Progress()
    for one in (event(), event(batch=4), event(run="r2", name=None)):
        progress.onQueryProgress(one)
    first, second = json.loads(progress.json())

    assert (first["name"], first["batch"], first["rows_total"], second["name"]) == ("q", 4, 10, None)
    assert set(first) == {field.name for field in attrs.fields(QueryState)}
    assert first["routes"] == [
        {
            "description": "rsocket orders at tcp://127.0.0.1:7878",
            "server": "tcp://127.0.0.1:7878",
            "route": "orders",
            "rows": 5,
            "read": 11,
            "read_total": 22,
            "behind": {"min": 0, "average": 3.0, "max": 6},
            "partitions": {
                "0": {"position": 4, "latest": 10, "behind": 6},
                "1": {"position": 7, "latest": 7, "behind": 0},
            },
        }
    ]


def test_prometheus_gets_gauges_and_counters_with_their_labels() -> None:
    progress, registry = Progress(), CollectorRegistry()
    registry.register(progress)
    progress.onQueryProgress(event())

    query = {"query": "q", "id": "i1"}
    route = {**query, "server": "tcp://127.0.0.1:7878", "route": "orders"}
    samples = [(sample.name, sample.labels, sample.value) for family in registry.collect() for sample in family.samples]
    assert samples == [
        ("rsocket_trio_spark_positions_behind_latest", {**route, "partition": "0"}, 6),
        ("rsocket_trio_spark_positions_behind_latest", {**route, "partition": "1"}, 0),
        ("rsocket_trio_spark_positions_behind_latest_min", route, 0),
        ("rsocket_trio_spark_positions_behind_latest_average", route, 3.0),
        ("rsocket_trio_spark_positions_behind_latest_max", route, 6),
        ("rsocket_trio_spark_read_total", route, 11),
        ("rsocket_trio_spark_rows_total", query, 5),
        ("rsocket_trio_spark_batch", query, 3),
    ]
    progress.onQueryTerminated(SimpleNamespace(id="i1", runId="r1"))  # type: ignore[arg-type]
    assert not any(family.samples for family in registry.collect())
