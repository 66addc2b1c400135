"""Random traces of frames, and a plain reading of each: one frame after the other, with what is open kept in a dict."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs

from rsocket_trio.capture.rows import route_id
from tests.analytics.writing import COMMON, START, Cells, frame

RESPONSE, FNF, STREAM, CHANNEL, REQUEST_N, CANCEL, PAYLOAD, ERROR = 4, 5, 6, 7, 8, 9, 10, 11
NAMES = {RESPONSE: "request_response", FNF: "fire_and_forget", STREAM: "request_stream", CHANNEL: "request_channel"}
METADATA, FOLLOWS, COMPLETE, NEXT = 0x100, 0x080, 0x040, 0x020
ROUTES = ("find", "watch", None)
CREDIT = (STREAM, CHANNEL)


def random_trace(seed: int) -> list[Cells]:
    """The frames of one connection: some streams side by side, which end in all ways, or not, or with more to come."""
    dice = random.Random(seed)
    side = dice.choice(("client", "server"))
    common = {"conn_id": f"c{seed}", "session_id": f"s{seed}", "side": side}
    waiting = [_stream(dice, 2 * number + dice.choice((1, 2)), side) for number in range(dice.randrange(1, 5))]
    frames: list[Cells] = []
    us = 0
    while waiting:
        stream = dice.choice(waiting)
        cells = stream.pop(0)
        if not stream:
            waiting.remove(stream)
        # Often several frames come in the same microsecond.
        us += dice.choice((0, 0, 1, 7, 1_000, 250_000))
        frames.append(frame(us, len(frames), frame_bytes=dice.randrange(6, 2_000), **{**cells, **common}))
    return frames


def _stream(dice: random.Random, stream_id: int, side: str) -> list[dict[str, Any]]:
    asks, answers = ("out", "in") if (stream_id % 2 == 1) == (side == "client") else ("in", "out")
    kind = dice.choice(tuple(NAMES))
    route = dice.choice(ROUTES)
    frames: list[dict[str, Any]] = []

    def add(dir: str, frame_type: int, flags: int = 0, **more: Any) -> None:
        of = {"of": route} if route is not None and frames else {}
        frames.append({"dir": dir, "stream_id": stream_id, "frame_type": frame_type, "flags": flags, **of, **more})

    follows = FOLLOWS if dice.random() < 0.2 else 0
    request: dict[str, Any] = {"interaction": NAMES[kind]}
    if kind in CREDIT:
        request["request_n"] = dice.choice((0, 1, 2, 5))
    if not follows and route is not None:
        request["route"] = route
    ends = COMPLETE if kind == CHANNEL and not follows and dice.random() < 0.2 else 0
    add(asks, kind, METADATA | follows | ends, **request)
    if follows:
        add(asks, PAYLOAD, NEXT, fragments=2, **({"route": route} if route is not None else {}))
    for _ in range(dice.randrange(0, 14)):
        match dice.randrange(14):
            case 0 | 1 | 2 | 3:
                add(answers, PAYLOAD, NEXT)
            case 4:
                add(answers, PAYLOAD, NEXT | FOLLOWS)
                add(answers, PAYLOAD, NEXT, fragments=2)
            case 5 | 10 | 11 | 12 | 13:
                add(asks, REQUEST_N, request_n=dice.choice((1, 1, 3)))
            case 6:
                add(asks, PAYLOAD, NEXT)
            case 7:
                add(answers, REQUEST_N, request_n=2)
            case 8:
                add(dice.choice((asks, answers)), PAYLOAD, dice.choice((COMPLETE, NEXT | COMPLETE)))
            case _ if dice.random() < 0.5:
                add(dice.choice((asks, asks, answers)), CANCEL)
            case _:
                code, text = dice.choice(((0x201, "broken"), (0x202, "busy"), (0x202, "no Lease")))
                add(dice.choice((asks, answers)), ERROR, error_code=code, error_text=text)
    if len(frames) > 1 and dice.random() < 0.1:
        # Its beginning was before the capture's.
        del frames[0]
    return frames


@attrs.define
class Open:
    """One stream as far as it was read. Times are in ns."""

    begin: Cells
    kind: int
    route: str | None = None
    sent: dict[bool, int] = attrs.field(factory=lambda: {True: 0, False: 0})
    bytes: dict[bool, int] = attrs.field(factory=lambda: {True: 0, False: 0})
    halves: set[bool] = attrs.field(factory=lambda: {True, False})
    credit: int | None = None
    granted: int | None = None
    first: int | None = None
    latest: int | None = None
    gap: int | None = None
    stalled: int | None = None
    stall: int = 0
    stalls: int = 0
    last: int = 0
    outcome: str = "unknown"
    code: int | None = None

    def end_stall(self, now: int) -> None:
        if self.stalled is not None and now > self.stalled:
            self.stall += now - self.stalled
            self.stalls += 1
        self.stalled = None


def paired(frames: Sequence[Cells]) -> list[Cells]:
    """The interactions of one connection, read in order."""
    streams: dict[int, Open] = {}
    done: list[Open] = []
    for cells in frames:
        stream_id, now, kind = cells["stream_id"], cells["mono_ns"], cells["frame_type"]
        asks = (stream_id % 2 == 1) == ((cells["side"] == "client") == (cells["dir"] == "out"))
        if kind in NAMES and asks:
            streams[stream_id] = Open(cells, kind)
        stream = streams.get(stream_id)
        if stream is not None and _read(stream, cells, asks, now):
            done.append(streams.pop(stream_id))
    for stream in streams.values():
        stream.end_stall(stream.last)
    return [_row(stream) for stream in (*done, *streams.values())]


def _read(stream: Open, cells: Cells, asks: bool, now: int) -> bool:
    """One frame. Whether the stream ended with it."""
    kind, flags = cells["frame_type"], cells["flags"]
    stream.last = now
    stream.route = stream.route or cells.get("route")
    stream.bytes[cells["dir"] == "in"] += cells["frame_bytes"]
    if kind in NAMES and kind in CREDIT:
        stream.credit = stream.granted = cells["request_n"]
        stream.stalled = None if stream.credit else now
    if kind == REQUEST_N and asks and stream.credit is not None:
        assert stream.granted is not None
        stream.credit += cells["request_n"]
        stream.granted += cells["request_n"]
        if cells["request_n"]:
            stream.end_stall(now)
    if kind == ERROR:
        stream.code = cells["error_code"]
        refused = "lease_denied" if "lease" in cells["error_text"].lower() else "rejected"
        return _end(stream, refused if stream.code == 0x202 else "error", now)
    if kind == CANCEL:
        if asks:
            return _end(stream, "cancel", now)
        return stream.kind == CHANNEL and _close(stream, True, now)
    if (kind in NAMES or kind == PAYLOAD) and not flags & FOLLOWS:
        return _read_payload(stream, cells, asks, now)
    return False


def _read_payload(stream: Open, cells: Cells, asks: bool, now: int) -> bool:
    flags = cells["flags"]
    is_item = cells["frame_type"] in NAMES or bool(flags & NEXT)
    completes = bool(flags & COMPLETE) and (cells["frame_type"] in (PAYLOAD, CHANNEL))
    if is_item:
        stream.sent[cells["dir"] == "in"] += 1
    if is_item and not asks:
        if stream.first is None:
            stream.first = now
        elif stream.latest is not None:
            stream.gap = max(stream.gap or 0, now - stream.latest)
        stream.latest = now
        if stream.credit is not None:
            stream.credit = max(0, stream.credit - 1)
            # One who has completed, and goes on all the same, waits for nothing.
            if not stream.credit and False in stream.halves:
                stream.stalled = now
    if stream.kind == FNF:
        return asks and _end(stream, "complete", now)
    if stream.kind == RESPONSE:
        return not asks and (is_item or completes) and _end(stream, "complete", now)
    if stream.kind == STREAM:
        return not asks and completes and _end(stream, "complete", now)
    return completes and _close(stream, asks, now)


def _close(stream: Open, asks: bool, now: int) -> bool:
    stream.halves.discard(asks)
    if not asks:
        stream.end_stall(now)
    return not stream.halves and _end(stream, "complete", now)


def _end(stream: Open, outcome: str, now: int) -> bool:
    stream.end_stall(now)
    stream.outcome = outcome
    return True


def _row(stream: Open) -> Cells:
    begin = stream.begin
    start = begin["mono_ns"]
    us = start // 1000
    first = None if stream.first is None else (stream.first - start) // 1000
    total = (stream.last - start) // 1000
    asks = (begin["stream_id"] % 2 == 1) == (begin["side"] == "client")
    return {
        **{name: begin[name] for name in COMMON},
        "stream_id": begin["stream_id"],
        "role": "requester" if asks else "responder",
        "route": stream.route,
        "route_id": None if stream.route is None else route_id(stream.route),
        "interaction": NAMES[stream.kind],
        "t_start": START + us,
        "t_first": None if first is None else START + us + first,
        "t_end": START + us + total,
        "first_us": first,
        "total_us": total,
        "n_in": stream.sent[True],
        "n_out": stream.sent[False],
        "bytes_in": stream.bytes[True],
        "bytes_out": stream.bytes[False],
        "requested_n": stream.granted,
        "stall_us": stream.stall // 1000,
        "stalls": stream.stalls,
        "max_gap_us": None if stream.gap is None else stream.gap // 1000,
        "outcome": stream.outcome,
        "error_code": stream.code,
        "retries": 0,
    }
