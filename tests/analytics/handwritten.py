"""A small capture whose answers can be worked out by hand: a client's connection, and the server's side of it.

Minute 0: four requests to ``find``, of 500 us (failed), 1000, 2000 and 4000 us, a stream ``watch`` that waited 2.5 of
its 10 ms for credit, and one that was cancelled after 8 ms. Minute 1: a request that no lease allowed,
and one to a route with a wicked name.
"""

from __future__ import annotations

from typing import Any

from tests.analytics.writing import START, Cells, connection, frame, interaction

MINUTE = 60_000_000
ASK, FNF, WATCH, REQUEST_N, CANCEL, PAYLOAD, ERROR, KEEPALIVE, LEASE = 4, 5, 6, 8, 9, 10, 11, 3, 2
HOSTILE = '</script><img src=x onerror=alert(1)>{{ 7*7 }}<a href="javascript:alert(2)">find</a>'
"""A route that a peer may well ask for."""

FIND: dict[str, Any] = {"interaction": "request_response", "route": "find"}
SERVER: dict[str, Any] = {"capture_id": "other", "host": "server", "conn_id": "c2", "side": "server"}

FRAMES: list[Cells] = [
    frame(0, 0, "out", 1, ASK, 0x100, **FIND, frame_bytes=100, data_bytes=60, metadata_bytes=31, fragments=1),
    frame(1_000, 1, "in", 1, PAYLOAD, 0x60, of="find", frame_bytes=206, data_bytes=200, fragments=1),
    frame(2_000, 2, "out", 3, ASK, 0x100, **FIND, frame_bytes=100, data_bytes=60, metadata_bytes=31, fragments=1),
    frame(2_500, 3, "in", 3, ERROR, 0, of="find", frame_bytes=20, data_bytes=10, error_code=0x201, error_text="broken"),
    frame(3_000, 4, "out", 5, WATCH, 0x100, interaction="request_stream", route="watch", request_n=1, frame_bytes=40,
          data_bytes=10, metadata_bytes=17, fragments=1),
    frame(4_000, 5, "in", 5, PAYLOAD, 0xA0, of="watch", frame_bytes=1006, data_bytes=1000, fragments=0),
    frame(4_000, 6, "in", 5, PAYLOAD, 0x20, of="watch", frame_bytes=506, data_bytes=500, fragments=2),
    frame(6_500, 7, "out", 5, REQUEST_N, 0, of="watch", frame_bytes=10, request_n=8),
    frame(13_000, 8, "in", 5, PAYLOAD, 0x40, of="watch", frame_bytes=6, data_bytes=0, fragments=1),
    frame(1_000_000, 9, "out", 7, WATCH, 0x100, interaction="request_stream", route="watch", request_n=9,
          frame_bytes=40, data_bytes=10, metadata_bytes=17, fragments=1),
    frame(1_001_000, 10, "in", 7, PAYLOAD, 0x20, of="watch", frame_bytes=106, data_bytes=100, fragments=1),
    frame(1_008_000, 11, "out", 7, CANCEL, of="watch"),
    frame(1_009_000, 12, "in", 7, PAYLOAD, 0x20, of="watch", frame_bytes=106, data_bytes=100, fragments=1),
    frame(1_009_500, 13, "in", 7, PAYLOAD, 0x20, of="watch", frame_bytes=106, data_bytes=100, fragments=1),
    frame(20_000_000, 14, "out", 0, KEEPALIVE, 0x80, frame_bytes=14, keepalive_pos=0),
    frame(MINUTE, 17, "out", 13, ASK, 0x100, **FIND, frame_bytes=100, data_bytes=60, metadata_bytes=31, fragments=1,
          drop_count=2),
    frame(MINUTE + 300, 18, "in", 13, ERROR, 0, of="find", frame_bytes=20, data_bytes=10, error_code=0x202,
          error_text="no lease"),
    frame(MINUTE + 900, 19, "in", 0, ERROR, 0, frame_bytes=20, data_bytes=10, error_code=-2, error_text="gone"),
    frame(MINUTE + 1_000_500, 20, "out", 15, ASK, 0x100, interaction="request_response", route=HOSTILE,
          frame_bytes=200, data_bytes=60, metadata_bytes=131, fragments=1, ts=START + MINUTE + 1_000_000),
]  # fmt: skip

INTERACTIONS: list[Cells] = [
    interaction(1, "request_response", "find", 0, 1_000, first=1_000),
    interaction(3, "request_response", "find", 2_000, 500, outcome="error", error_code=0x201),
    interaction(5, "request_stream", "watch", 3_000, 10_000, first=1_000, requested_n=9, stall_us=2_500, stalls=1),
    interaction(7, "request_stream", "watch", 1_000_000, 8_000, first=1_000, requested_n=9, outcome="cancel"),
    interaction(9, "request_response", "find", 1_000_000, 2_000, first=2_000),
    interaction(11, "request_response", "find", 1_000_000, 4_000, first=4_000),
    interaction(13, "request_response", "find", MINUTE, 300, outcome="lease_denied", error_code=0x202),
    interaction(17, "request_response", HOSTILE, MINUTE, 700, first=700),
    # The server's clock is 10 ms ahead; of the first request's 1000 us it knows 600, and of the last nothing.
    interaction(1, "request_response", "find", 10_200, 600, first=600, role="responder", **SERVER),
    interaction(5, "request_stream", "watch", 13_500, 9_000, first=100, role="responder", requested_n=9,
                stall_us=2_500, stalls=1, outcome="conn_lost", **SERVER),
]  # fmt: skip

CONNECTIONS: list[Cells] = [
    connection(rtts={8: 1, 10: 2}, lease=True, lease_grants=2, lease_granted=10, lease_used=6, lease_expired=4,
               drop_count=2, close_reason="keepalive timeout", keepalive_interval_ms=20_000, max_lifetime_ms=90_000),
    connection(**SERVER, resume_count=1),
]  # fmt: skip

TABLES_BY_HAND = {"frames": FRAMES, "interactions": INTERACTIONS, "connections": CONNECTIONS}
