"""The golden capture means what its bytes say: every row of it is written here by hand."""

from __future__ import annotations

import json
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq

from rsocket_trio.capture.schema import TABLES, Outcome, type_names
from tests.capture import golden
from tests.capture.golden import START_US

ORDERS_GET = -1393431455782772139
ORDERS_PUT = 7739050948782122473
TICKS = -8838372793120307241
LOG = -4342967183940063355
FEED = 6454727695929855030
SESSION = "a180dbaaa7a581d730cd7d34e8d9ad4f"

# fmt: off
FRAMES_OF_A = [
    # us     dir   stream name               route         route_id    request_n frame data metadata fragments credit
    (    10, "out",  0, "SETUP",            None,         None,       None, 75,    0, None, None, None),
    (  1000, "in",   0, "LEASE",            None,         None,       None, 14, None, None, None, None),
    (  2000, "out",  1, "REQUEST_RESPONSE", "orders.get", ORDERS_GET, None, 58,    5,   44,    1, None),
    (  2800, "in",   1, "PAYLOAD",          None,         ORDERS_GET, None, 16,   10, None,    1, None),
    (  3000, "out",  3, "REQUEST_STREAM",   "ticks",      TICKS,         2, 23,    0,   10,    1,    2),
    (  3500, "in",   3, "PAYLOAD",          None,         TICKS,      None, 10,    4, None,    1,    1),
    (  4000, "in",   3, "PAYLOAD",          None,         TICKS,      None, 10,    4, None,    1,    0),
    (  6000, "out",  3, "REQUEST_N",        None,         TICKS,         2, 10, None, None, None,    2),
    (  6500, "in",   3, "PAYLOAD",          None,         TICKS,      None, 10,    4, None,    1,    1),
    (  7000, "out",  5, "REQUEST_RESPONSE", "orders.get", ORDERS_GET, None, 24,    0,   15,    1, None),
    (  7900, "in",   5, "ERROR",            None,         ORDERS_GET, None, 23,   13, None, None, None),
    (  8000, "out",  7, "REQUEST_RESPONSE", "orders.put", ORDERS_PUT, None, 24,    0,   15,    1, None),
    (  8400, "in",   7, "ERROR",            None,         ORDERS_PUT, None, 14,    4, None, None, None),
    (  8500, "out",  9, "REQUEST_STREAM",   "ticks",      TICKS,        10, 23,    0,   10,    1,   10),
    (  9000, "out",  9, "CANCEL",           None,         TICKS,      None,  6, None, None, None, None),
    (  9100, "in",   9, "PAYLOAD",          None,         TICKS,      None, 10,    4, None, None, None),
    (  9200, "out", 11, "REQUEST_FNF",      None,         None,       None, 21,    4,    8,    0, None),
    (  9200, "out", 11, "PAYLOAD",          "log",        LOG,        None, 10,    4, None,    2, None),
    ( 10000, "out",  0, "KEEPALIVE",        None,         None,       None, 14,    0, None, None, None),
    ( 10300, "in",   0, "KEEPALIVE",        None,         None,       None, 14,    0, None, None, None),
    ( 10500, "out", 13, "REQUEST_RESPONSE", "orders.get", ORDERS_GET, None, 24,    0,   15,    1, None),
    ( 10700, "in",  13, "ERROR",            None,         ORDERS_GET, None, 35,   25, None, None, None),
    ( 10800, "out", 15, "REQUEST_CHANNEL",  None,         None,          1, 12,    2, None,    1,    1),
]
INTERACTIONS = [
    # stream, route, interaction, start, first_us, total_us, n_in, n_out, in, out, asked, stall_us, stalls, gap, outcome
    ( 1, "orders.get", "request_response",  2000,  800,   800, 1, 1, 16, 58, None,    0, 0,  None, "complete"),
    ( 3, "ticks",      "request_stream",    3000,  500,  3500, 3, 1, 30, 33,    4, 2000, 1,  2500, "complete"),
    ( 5, "orders.get", "request_response",  7000, None,   900, 0, 1, 23, 24, None,    0, 0,  None, "error"),
    ( 7, "orders.put", "request_response",  8000, None,   400, 0, 1, 14, 24, None,    0, 0,  None, "rejected"),
    ( 9, "ticks",      "request_stream",    8500, None,   500, 0, 1,  0, 29,   10,    0, 0,  None, "cancel"),
    (11, "log",        "fire_and_forget",   9200, None,     0, 0, 1,  0, 31, None,    0, 0,  None, "complete"),
    (13, "orders.get", "request_response", 10500, None,   200, 0, 1, 35, 24, None,    0, 0,  None, "lease_denied"),
    (15, None,         "request_channel",  10800, None,  9200, 0, 1,  0, 12,    1,    0, 0,  None, "conn_lost"),
    ( 1, "feed",       "request_stream",   30000, 1000, 12000, 2, 1, 18, 32,    8,    0, 0, 11000, "complete"),
]
# fmt: on


def table(name: str, run: str = "client") -> list[dict[str, Any]]:
    """The rows of the golden capture, cells by column."""
    columns = [column.name for column in TABLES[name]]
    return [dict(zip(columns, row, strict=True)) for row in golden.rows(run)[name]]


def test_every_frame_has_its_row() -> None:
    names = type_names("rsocket/1.0")
    sizes = ("frame_bytes", "data_bytes", "metadata_bytes", "fragments", "credit_after")
    keys = ("route", "route_id", "request_n", *sizes)
    seen = [
        (row["mono_ns"] // 1000, row["dir"], row["stream_id"], names[row["frame_type"]], *(row[key] for key in keys))
        for row in table("frames")
        if row["conn_id"] == "client-0"
    ]

    assert seen == FRAMES_OF_A


def test_every_stream_has_its_row() -> None:
    keys = (
        *("first_us", "total_us", "n_in", "n_out", "bytes_in", "bytes_out", "requested_n"),
        *("stall_us", "stalls", "max_gap_us", "outcome"),
    )
    seen = [
        (row["stream_id"], row["route"], row["interaction"], row["t_start"] - START_US, *(row[key] for key in keys))
        for row in table("interactions")
    ]

    assert seen == INTERACTIONS
    assert {row["role"] for row in table("interactions")} == {"requester"}
    assert {row["outcome"] for row in table("interactions")} | {"unknown"} == set(get_args(Outcome))


def test_every_connection_has_its_row() -> None:
    [first, second, third] = table("connections")

    assert (first["metadata_mime"], first["data_mime"]) == (golden.COMPOSITE.decode(), "application/json")
    assert (first["keepalive_interval_ms"], first["max_lifetime_ms"], first["lease"], first["resume"]) == (
        *(20000, 90000, True, False),
    )
    assert (first["frames_in"], first["frames_out"], first["bytes_in"], first["bytes_out"]) == (10, 13, 156, 324)
    assert first["streams"] == 8
    assert {place: count for place, count in enumerate(first["keepalive_rtt"]) if count} == {9: 1}, "256 to 511 us"
    assert [first[f"lease_{what}"] for what in ("grants", "granted", "used", "expired")] == [1, 6, 6, 0]
    assert [row["close_reason"] for row in (first, second, third)] == [
        "the peer closed the transport",
        "the transport broke: connection reset",
        "the connection was closed by this side",
    ]
    assert [row["resume_count"] for row in (first, second, third)] == [0, 0, 1]
    assert [row["session_id"] for row in (first, second, third)] == ["client-0", SESSION, SESSION]


def test_a_frame_that_is_sent_again_counts_once_in_its_stream() -> None:
    again = [row for row in table("frames") if row["conn_id"] == "client-2"]

    assert [(row["stream_id"], row["route_id"], row["request_n"], row["credit_after"]) for row in again] == [
        (0, None, None, None),
        (0, None, None, None),
        (1, FEED, 3, None),
        (1, FEED, None, 6),
    ]
    assert [row["resume_pos"] for row in again] == [9, 22, None, None]
    assert table("interactions")[-1]["retries"] == 1


def test_both_ends_name_a_resumed_session_and_its_streams_alike() -> None:
    [client] = [row for row in table("interactions") if row["session_id"] == SESSION]
    [server] = table("interactions", "server")

    assert (server["session_id"], server["stream_id"], server["role"]) == (SESSION, client["stream_id"], "responder")
    assert client["first_us"] - server["first_us"] == 2 * golden.LATENCY
    assert (server["n_in"], server["n_out"]) == (client["n_out"], client["n_in"])
    assert server["retries"] == 0


def test_the_files_say_the_same_in_parquet_and_in_json(tmp_path: Path) -> None:
    golden.build(tmp_path / "p")
    golden.build(tmp_path / "j", "jsonl")
    for name in TABLES:
        parquet = pq.ParquetFile(
            BytesIO((tmp_path / "p" / name / "date=2026-01-01" / "part-client-00000.parquet").read_bytes())
        ).read()
        lines = (tmp_path / "j" / name / "date=2026-01-01" / "part-client-00000.jsonl").read_text().splitlines()

        assert parquet.schema.names == [column.name for column in TABLES[name]]
        assert [said(row) for row in parquet.to_pylist()] == [json.loads(line) for line in lines]


def said(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON says it."""

    def cell(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return value.hex() if isinstance(value, bytes) else value

    return {key: cell(value) for key, value in row.items()}
