"""Each table says of the capture that is written by hand what can be worked out by hand, in DuckDB and in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rsocket_trio import analytics
from rsocket_trio.analytics import CaptureTables, read_capture
from rsocket_trio.analytics.views import Answer
from tests.analytics.conftest import Reported
from tests.analytics.reading import exactly, opened_in_spark, rows
from tests.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_MINUTE = MIDNIGHT + timedelta(minutes=1)
FIND, WATCH = "request_response", "request_stream"


@pytest.fixture(scope="module")
def capture(spark: SparkSession, by_hand: Path) -> CaptureTables:
    """The three tables."""
    return read_capture(spark, by_hand)


def test_red_counts_requests_and_errors_and_knows_percentiles(told: Mapping[str, Answer]) -> None:
    columns = ("t_from", "role", "interaction", "requests", "errors", "cancels", "first_p50_us", "first_p99_us")

    found = rows(told["red"], *columns, "total_p50_us", "total_p95_us", route="find")
    watched = rows(told["red"], *columns, "total_p50_us", "total_p95_us", route="watch")

    # A bucket's middle stands for what is in it.
    assert found == [
        (at(0), "requester", FIND, 2, 1, 0, 1002, 1002, 501, 1002),
        (at(0), "responder", FIND, 1, 0, 0, 596, 596, 596, 596),
        (at(1), "requester", FIND, 2, 0, 0, 2004, 4008, 2004, 4008),
        (at(60), "requester", FIND, 1, 1, 0, None, None, 298, 298),
    ]
    assert watched == [
        (at(0), "requester", WATCH, 1, 0, 0, 1002, 1002, 9955, 9955),
        (at(0), "responder", WATCH, 1, 1, 0, 101, 101, 9129, 9129),
        (at(1), "requester", WATCH, 1, 0, 1, 1002, 1002, 8016, 8016),
    ]
    assert rows(told["red"], "t_to", "per_second", "error_share", route="find", t_from=at(1)) == [(at(2), 2.0, 0.0)]


def test_stalls_are_a_share_of_the_time_of_streams_with_credit(told: Mapping[str, Answer]) -> None:
    found = rows(told["credit_stalls"], "role", "route", "requests", "stalled", "stall_us", "total_us", "stall_share")

    assert sorted(found) == [
        ("requester", "watch", 2, 1, 2_500, 18_000, 2_500 / 18_000),
        ("responder", "watch", 1, 1, 2_500, 9_000, 2_500 / 9_000),
    ]
    assert sorted(rows(told["stalled_streams"], "role", "stream_id", "route_rank", "stall_share")) == [
        ("requester", 5, 1, 0.25),
        ("responder", 5, 1, 2_500 / 9_000),
    ]


def test_who_starved_whom_is_what_the_connection_carried_in_these_seconds(told: Mapping[str, Answer]) -> None:
    found = rows(told["starved"], "stream_id", "route", "by_route", "bytes", "share")

    # Second 0 alone: the four frames of the first two requests, and the stream's own five.
    assert found == [(5, "watch", "watch", 1568, 1568 / 1994), (5, "watch", "find", 426, 426 / 1994)]


def test_cancellation_has_a_rate_and_a_time(told: Mapping[str, Answer]) -> None:
    columns = ("role", "requests", "cancels", "cancel_share", "cancel_p50_us", "cancel_p99_us")

    assert rows(told["cancellations"], *columns, route="watch") == [
        ("requester", 2, 1, 0.5, 8016, 8016),
        ("responder", 1, 0, 0.0, None, None),
    ]


def test_bytes_after_a_cancel_are_those_of_the_other_side(told: Mapping[str, Answer]) -> None:
    assert [*told["bytes_after_cancel"].rows] == [("out", "watch", 1, 1, 2, 212, 1_500)]


def test_leases_are_granted_used_expired_and_denied(told: Mapping[str, Answer]) -> None:
    columns = ("conn_id", "lease_grants", "lease_granted", "lease_used", "lease_expired", "lease_denied", "used_share")

    assert rows(told["leases"], *columns) == [("c1", 2, 10, 6, 4, 1, 0.6)]


def test_errors_have_a_name_a_level_and_a_first_time(told: Mapping[str, Answer]) -> None:
    columns = ("minute", "level", "error_code", "error_name", "route", "n", "first_seen", "example")

    assert rows(told["errors"], *columns) == [
        (MIDNIGHT, "stream", 0x201, "ApplicationError", "find", 1, at(us=2_500), "broken"),
        (NEXT_MINUTE, "connection", -2, "application", None, 1, at(60, 900), "gone"),
        (NEXT_MINUTE, "stream", 0x202, "Rejected", "find", 1, at(60, 300), "no lease"),
    ]


def test_the_timeline_knows_gaps_round_trips_and_ends(told: Mapping[str, Answer]) -> None:
    columns = ("conn_id", "resume_count", "close_reason", "keepalives", "longest_gap_s", "pongs", "rtt_p50_us")

    # Frames in seconds 0, 1, 20, 60 and 61; of three round trips two were of less than 1024 us.
    assert rows(told["connection_timeline"], *columns) == [
        ("c1", 0, "keepalive timeout", 1, 40, 3, 1024),
        ("c2", 1, "closed", None, None, 0, None),
    ]


def test_overhead_is_what_is_neither_data_nor_metadata(told: Mapping[str, Answer], by_hand: Path) -> None:
    columns = ("frames", "bytes", "overhead_bytes", "overhead_percent", "payloads", "fragmented", "pieces")

    assert rows(told["fragmentation"], *columns, frame_name="PAYLOAD") == [(7, 2042, 42, 4200 / 2042, 6, 1, 2)]
    with analytics.open_duckdb(by_hand) as engine:
        sizes = rows(engine.ask("frame_sizes"), "bucket", "n", frame_name="PAYLOAD")
    assert sizes == [(2, 1), (6, 3), (7, 1), (8, 1), (9, 1)]


def test_two_sides_of_a_stream_tell_service_from_network(told: Mapping[str, Answer]) -> None:
    columns = ("route", "streams", "outcomes_differ", "clock_skew_us", "client_p50_us", "service_p50_us")

    assert sorted(rows(told["client_server"], *columns, "network_p50_us")) == [
        ("find", 1, 0, 10_000, 1002, 596, 403),
        ("watch", 1, 1, 10_000, 9955, 9129, 1002),
    ]


def test_health_counts_what_is_not_there(told: Mapping[str, Answer]) -> None:
    columns = ("connections", "frames", "drops", "missing_rows", "requests", "interactions", "unpaired")

    # Rows 15 and 16 are missing; the last frame's time of day is 500 us behind the other clock.
    assert rows(told["capture_health"], *columns, "unreadable", "clock_drift_us") == [(1, 19, 2, 2, 6, 8, 2, 0, 500)]


def test_spark_gives_the_same_answers_to_the_same_text(
    told: Mapping[str, Answer], reported: Reported, spark: SparkSession, by_hand: Path
) -> None:
    """Those that the report asked for, and the others."""
    with opened_in_spark(spark, by_hand) as engine, Rows() as row:
        for view, answer in told.items():
            with row(view):
                assert exactly(reported.answers.get(view) or engine.ask(view)) == exactly(answer)


def test_a_table_is_derived_from_those_that_are_given(capture: CaptureTables) -> None:
    sides = {"requesters": capture.interactions, "responders": capture.interactions.limit(0)}

    assert analytics.derive("client_server_streams", **sides).count() == 0
    with pytest.raises(TypeError, match="red is made of frames, too"):
        analytics.derive("red", interactions=capture.interactions)
    with pytest.raises(KeyError, match="no table is named 'yellow'"):
        capture.table("yellow")


def at(seconds: int = 0, us: int = 0) -> datetime:
    return MIDNIGHT + timedelta(seconds=seconds, microseconds=us)
