"""Cells of time, the names of routes and peers, and the slowest requests: in DuckDB, and in Spark by ``make gate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from qa.synthetic import write_capture
from rsocket_trio.analytics.sql import OTHER_PEERS, OTHER_ROUTES
from rsocket_trio.analytics.views import REPORT_TABLES, open_duckdb
from tests.analytics.handwritten import MINUTE
from tests.analytics.reading import exactly, opened_in_spark, rows
from tests.analytics.writing import Cells, connection, frame, interaction, write_parquet
from tests.each_row import ALL_CASES, whole
from tests.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Open: TypeAlias = Callable[..., AbstractContextManager[Any]]
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
TRACE = bytes(range(16))
RATE, LASTS = 284, 75


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=whole)])
def opened(request: pytest.FixtureRequest) -> Open:
    """Opens a capture in one engine, and in the other where all is played."""
    if request.param == "duckdb":
        return open_duckdb
    return partial(opened_in_spark, request.getfixturevalue("spark"))


def load(begins: int, rate: int, seconds: float, takes: int = 3_000) -> list[Cells]:
    """Interactions at a constant rate, by turns of two routes."""
    return [
        interaction(2 * n + 1, "request_response", ("one", "two")[n % 2], begins + round(n * SECOND / rate), takes)
        for n in range(round(rate * seconds))
    ]


def frames_of(interactions: list[Cells]) -> list[Cells]:
    """The frames that they consist of."""
    found = []
    for row in interactions:
        begun, number = row["t_start"] - interaction(1, "", None, 0, 0)["t_start"], row["stream_id"]
        asked = {"interaction": "request_response", "route": row["route"], "fragments": 1}
        found.append((begun, frame(begun, 0, "out", number, 4, 0x100, **asked)))
        done = begun + row["total_us"]
        found.append((done, frame(done, 0, "in", number, 10, 0x60, of=row["route"], fragments=1)))
    return [{**row, "seq": seq} for seq, (_, row) in enumerate(sorted(found, key=lambda pair: pair[0]))]


def capture_of(directory: Path, interactions: list[Cells], frames: list[Cells], **about: Any) -> Path:
    first = min(row["t_start"] for row in interactions)
    last = max(row["t_end"] for row in interactions)
    ends = {"t_start": first, "t_end": last, **about}
    tables = {"frames": frames, "interactions": interactions, "connections": [connection(**ends)]}
    return write_parquet(directory, tables)


def test_a_constant_load_is_level_in_whole_cells(opened: Open, tmp_path: Path) -> None:
    made = load(MINUTE + 30 * SECOND, RATE, LASTS)

    with opened(capture_of(tmp_path, made, frames_of(made[:10]))) as engine:
        red, rated = engine.ask("red"), engine.ask("rate_cells")

    by_cell: Counter[datetime] = Counter()
    for t_from, per_second in rows(red, "t_from", "per_second", cut=False):
        by_cell[t_from] += per_second
    assert sorted(by_cell) == [MIDNIGHT + timedelta(seconds=90 + n) for n in range(LASTS - 1)]
    assert set(by_cell.values()) == {float(RATE)}
    assert {rate for (rate,) in rows(rated, "per_second", cut=False)} == {RATE / 2}


def test_routes_and_peers_beyond_the_busiest_share_a_name(opened: Open, tmp_path: Path) -> None:
    made, connections = [], []
    for n in range(30):
        ours = {"conn_id": f"c{n:02}"}
        made += [interaction(1, "request_response", f"route {n:02}", 0, 5, **ours)] * (30 - n)
        connections.append(connection(**ours, peer=f"192.0.2.{n % 14}:{5000 + n}"))
    frames = [frame(0, 0, "out", 0, 3)]
    tables = {"frames": frames, "interactions": made, "connections": connections}

    with opened(write_parquet(tmp_path, tables)) as engine:
        rates, latencies = engine.ask("rate_cells"), engine.ask("latency_cells")

    routes, peers = ({name for (name,) in rows(rates, column)} for column in ("route", "peer"))
    assert routes == {*(f"route {n:02}" for n in range(24)), OTHER_ROUTES}
    assert peers == {*(f"192.0.2.{n}" for n in range(12)), OTHER_PEERS}
    assert sum(n for (n,) in rows(rates, "requests")) == sum(n for (n,) in rows(latencies, "n", metric="total"))
    assert sum(n for (n,) in rows(rates, "requests", route=OTHER_ROUTES)) == 6 + 5 + 4 + 3 + 2 + 1


def test_the_slowest_requests_have_their_trace_and_their_frames(opened: Open, tmp_path: Path) -> None:
    made = load(0, 20, 3)
    frames = frames_of(made)
    slow = interaction(1001, "request_stream", "slow", 2_000_000, 900_000, first=100_000, stall_us=300_000, stalls=1)
    more = {"interaction": "request_stream", "route": "slow", "trace_id": TRACE, "request_n": 1, "credit_after": 1}
    frames += [
        frame(2_000_000, 900, "out", 1001, 6, 0x180, interaction="request_stream", fragments=0, request_n=1),
        frame(2_010_000, 901, "out", 1001, 10, 0x20, fragments=2, **more),
        frame(2_100_000, 902, "in", 1001, 10, 0x20, of="slow", fragments=1, credit_after=0),
        frame(2_400_000, 903, "out", 1001, 8, of="slow", request_n=80, credit_after=80),
        *(frame(2_400_001 + n, 904 + n, "in", 1001, 10, 0x20, of="slow", fragments=1) for n in range(80)),
        frame(2_900_000, 990, "in", 1001, 10, 0x40, of="slow"),
    ]

    with opened(capture_of(tmp_path, [*made, slow], frames)) as engine:
        requests, found = engine.ask("slow_requests"), engine.ask("slow_frames")

    columns = ("place", "route", "total_us", "sent_us", "first_us", "last_item_us", "stall_us", "trace_id")
    assert rows(requests, *columns, place=1) == [(1, "slow", 900_000, 10_000, 100_000, 400_080, 300_000, TRACE.hex())]
    # Ten of each peer, and of each second two at least.
    assert Counter(route for (route,) in rows(requests, "route")) == {"slow": 1, "one": 14, "two": 14}
    seen = rows(found, "at_us", "dir", "frame_name", "credit_after", "is_item", place=1)
    assert seen[:4] == [
        (0, "out", "REQUEST_STREAM", None, False),
        (10_000, "out", "PAYLOAD", 1, True),
        (100_000, "in", "PAYLOAD", 0, True),
        (400_000, "out", "REQUEST_N", 80, False),
    ]
    assert (len(seen), seen[-1][0]) == (61, 900_000)


FIVE = ("red", "route_latency", "errors", "connection_timeline", "capture_health")


def test_both_engines_answer_alike(spark: SparkSession, tmp_path: Path) -> None:
    """Five tables; ``make gate`` compares all."""
    write_capture(tmp_path, 4000)
    views = [asked.view for asked in REPORT_TABLES] if ALL_CASES else FIVE

    with open_duckdb(tmp_path) as ours, opened_in_spark(spark, tmp_path) as theirs, Rows() as row:
        for view in views:
            with row(view):
                answer = ours.ask(view)
                assert answer.rows or view not in FIVE
                assert exactly(answer) == exactly(theirs.ask(view))
