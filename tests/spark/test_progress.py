"""The progress of queries: what Spark's events say, as log lines, JSON and for Prometheus."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from rsocket_trio.spark import Progress
from rsocket_trio.spark.progress import routes_of

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

    assert (found.server, found.route, found.behind, found.read) == (
        "tcp://127.0.0.1:7878",
        "orders",
        {0: 6, 1: 0},
        11,
    )


def test_positions_of_several_routes_are_told_apart() -> None:
    latest = LATEST | {"p": {"a": {"0": 9}, "b": {"0": 3, "1": 2}}, "routes": ["a", "b"]}
    start = {"p": {"a": {"0": 5}, "b": {"0": 3}}}
    a, b = routes_of(source({"p": {"a": {"0": 7}, "b": {"0": 3}}}, latest, start=start))

    assert (a.route, a.behind, a.read) == ("a", {0: 2}, 2)
    assert (b.route, b.behind, b.read) == ("b", {0: 0, 1: 2}, 0)


def test_a_batch_with_a_beginning_of_its_own_is_counted_from_there() -> None:
    [found] = routes_of(source({"p": {"0": 7}, "i": {"0": 5}}, start={"p": {"0": 1}}))

    assert found.read == 2


def test_a_live_stream_has_one_partition() -> None:
    latest = {"v": 1, "f": "x", "n": 9, "server": "tcp://h:1", "routes": ["ticks"]}

    [found] = routes_of(source({"v": 1, "f": "x", "n": 2}, latest))

    assert found.behind == {0: 7}


@pytest.mark.parametrize("latest", [{"topic": {"0": 4}}, None, 17, "2026", {"server": "x"}])
def test_another_source_is_none_of_ours(latest: object) -> None:
    assert routes_of(source(latest=latest)) == []


def test_a_partition_that_went_back_is_not_behind() -> None:
    [found] = routes_of(source({"p": {"0": 99, "1": 7}}))

    assert found.behind == {0: 0, 1: 0}


def test_each_micro_batch_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress()
    with caplog.at_level(logging.INFO, "rsocket_trio.spark"):
        progress.onQueryStarted(event())
        progress.onQueryProgress(event())
        progress.onQueryIdle(event())
        progress.onQueryTerminated(SimpleNamespace(id="i1", runId="r1"))  # type: ignore[arg-type]

    assert caplog.messages == [
        (
            "query q, batch 3: 11 rows, 0 to 6 positions behind (average 3.0) in 2 partitions of route 'orders' at "
            "tcp://127.0.0.1:7878; so far 11 rows"
        ),
        "query q has ended after batch 3",
    ]


def test_what_a_route_has_read_adds_up_over_micro_batches() -> None:
    progress = Progress()
    for one in (event(source(), source(latest={"topic": {"0": 4}})), event(batch=4), event(run="r2", name=None)):
        progress.onQueryProgress(one)
    first, second = progress.queries()

    assert (first.label, first.batch, second.label) == ("q", 4, "i1")
    assert [(route.read, route.read_total) for route in first.routes] == [(11, 22)]
    assert json.loads(json.dumps(attrs.asdict(first)))["routes"][0]["behind"] == {"0": 6, "1": 0}


def test_prometheus_gets_gauges_and_counters_with_their_labels() -> None:
    progress = Progress()
    progress.onQueryProgress(event(name='a "b"\\\n'))
    lines = progress.prometheus().splitlines()

    query = r'query="a \"b\"\\\n",id="i1"'
    route = f'{query},server="tcp://127.0.0.1:7878",route="orders"'
    samples = [line for line in lines if not line.startswith("#")]
    assert samples == [
        f'rsocket_trio_spark_positions_behind_latest{{{route},partition="0"}} 6',
        f'rsocket_trio_spark_positions_behind_latest{{{route},partition="1"}} 0',
        f"rsocket_trio_spark_read_total{{{route}}} 11",
        f"rsocket_trio_spark_batch{{{query}}} 3",
    ]
    assert "# TYPE rsocket_trio_spark_positions_behind_latest gauge" in lines
    assert "# TYPE rsocket_trio_spark_read_total counter" in lines
    progress.onQueryTerminated(SimpleNamespace(id="i1", runId="r1"))  # type: ignore[arg-type]
    assert progress.prometheus() == ""
