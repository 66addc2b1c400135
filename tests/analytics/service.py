"""A capture of a service under a constant load, as rows: what its page must show follows from what is written here.

284 requests a second: ``orders.find`` 200, ``orders.watch`` 60 (streams; each twelfth waits for credit), ``prices`` 20
(streams) and ``users.find`` 4, of which each fifth fails. Four clients share them. The responder captured them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.analytics.writing import START, Cells, connection, frame, interaction

RATE: Final = 284
ROUTES: Final = {"orders.find": 200, "orders.watch": 60, "prices": 20, "users.find": 4}
"""Requests a second by route."""
PEERS: Final = tuple(f"10.0.0.{number}:40{number}00" for number in range(1, 5))
BEGIN: Final = 30_500_000
"""In the middle of a minute, and of a second, in microseconds after midnight."""
ASK, WATCH, REQUEST_N, CANCEL, PAYLOAD, ERROR = 4, 6, 8, 9, 10, 11


def capture_of(seconds: int) -> dict[str, list[Cells]]:
    """The tables of a capture of so many seconds."""
    frames: list[list[Cells]] = [[] for _ in PEERS]
    interactions: list[Cells] = []
    for number, (us, route) in enumerate(_requests(seconds)):
        client = number % len(PEERS)
        stream_id = 2 * (number // len(PEERS)) + 1
        for cells in _stream(number, us, route, stream_id):
            if "seq" in cells:
                frames[client].append({**cells, **_of(client)})
            else:
                interactions.append({**cells, **{name: cell for name, cell in _of(client).items() if name != "peer"}})
    end = BEGIN + seconds * 1_000_000
    connections = [
        connection(**_of(client), t_start=START + BEGIN, t_end=START + end, streams=len(interactions) // len(PEERS))
        for client in range(len(PEERS))
    ]
    ordered = [sorted(found, key=lambda cells: cells["ts"]) for found in frames]
    numbered: list[Cells] = [{**cells, "seq": seq} for found in ordered for seq, cells in enumerate(found)]
    return {"frames": numbered, "interactions": interactions, "connections": connections}


def _of(client: int) -> dict[str, Any]:
    conn = f"{client + 1:032x}"
    return {"conn_id": conn, "session_id": conn, "side": "server", "peer": PEERS[client]}


def _requests(seconds: int) -> Iterator[tuple[int, str]]:
    """Times and routes, spread evenly over each second."""
    order = sorted((place / n, route) for route, n in ROUTES.items() for place in range(n))
    for second in range(seconds):
        for place, (_, route) in enumerate(order):
            yield BEGIN + second * 1_000_000 + place * 1_000_000 // RATE, route


def _stream(number: int, us: int, route: str, stream_id: int) -> Iterator[Cells]:
    """The frames of one request, and its row in ``interactions``."""
    luck = (number * 2_654_435_761 >> 7) % 1000
    trace = f"{number:032x}" if number % 7 == 0 else None
    asked: dict[str, Any] = {"route": route, "frame_bytes": 120, "data_bytes": 80, "metadata_bytes": 30, "fragments": 1}
    if trace is not None:
        asked["trace_id"] = bytes.fromhex(trace)
    done: dict[str, Any] = {"role": "responder"}
    if route in ("orders.find", "users.find"):
        # Mostly some milliseconds; of a hundred one takes up to a second.
        took = 800 + luck * 4 if luck < 990 else 40_000 + (luck - 990) * 90_000
        took *= 3 if route == "users.find" else 1
        fails = route == "users.find" and luck % 5 == 0
        yield frame(us, 0, "in", stream_id, ASK, 0x100, interaction="request_response", **asked)
        if fails:
            failed: dict[str, Any] = {"error_code": 0x201, "error_text": "no such user"}
            yield frame(us + took, 0, "out", stream_id, ERROR, of=route, frame_bytes=30, data_bytes=20, **failed)
        else:
            yield frame(us + took, 0, "out", stream_id, PAYLOAD, 0x60, of=route, frame_bytes=800, data_bytes=790,
                        fragments=1)  # fmt: skip
        first = None if fails else took
        done |= {"outcome": "error", "error_code": 0x201} if fails else {}
        yield interaction(stream_id, "request_response", route, us, took, first=first, bytes_out=800, **done)
        return
    waits = route == "orders.watch" and number % 12 == 0
    step = 2_000 + luck * 6 + (100_000 if route == "prices" else 0)
    stall = 30 * step if waits else 0
    size = 6_000 if route == "prices" else 400
    yield frame(
        us, 0, "in", stream_id, WATCH, 0x100, interaction="request_stream", request_n=4, credit_after=4, **asked
    )
    for place in range(1, 5):
        yield frame(us + place * step, 0, "out", stream_id, PAYLOAD, 0x20, of=route, frame_bytes=size,
                    data_bytes=size - 6, fragments=1, credit_after=4 - place)  # fmt: skip
    at = us + 4 * step + stall
    if waits:
        yield frame(at, 0, "in", stream_id, REQUEST_N, of=route, frame_bytes=10, request_n=4, credit_after=4)
    cancelled = route == "prices" and number % 3 == 0
    if cancelled:
        yield frame(at + step, 0, "in", stream_id, CANCEL, of=route)
    else:
        yield frame(at + step, 0, "out", stream_id, PAYLOAD, 0x40, of=route, frame_bytes=6, fragments=0)
    yield interaction(stream_id, "request_stream", route, us, at + step - us, first=step, requested_n=8 if waits else 4,
                      stall_us=stall, stalls=int(waits), n_out=4, bytes_in=130, bytes_out=4 * size,
                      outcome="cancel" if cancelled else "complete", **done)  # fmt: skip
