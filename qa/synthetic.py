"""Writes large captures without a network: every stream has one of twenty shapes, and a known outcome.

Tests and measurements analyse them. It makes whole columns at a time. Three fifths of all streams are in one
connection, and half of them go to one route: such skew is normal for services and hard for Spark. The same arguments
make the same capture.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from rsocket_trio.analytics.pairing import COMPLETE, FOLLOWS, NEXT, REQUESTS
from rsocket_trio.analytics.sql import NUMBER_OF_TYPE
from rsocket_trio.capture.rows import route_id
from rsocket_trio.capture.schema import STRING, TABLES
from rsocket_trio.capture.writers import arrow_schema, need_pyarrow


@attrs.frozen
class F:
    """One frame of a shape. ``asks``: whether the requester sends it."""

    type: str
    asks: bool
    flags: int = 0
    data: int = 0
    metadata: int = 0
    n: int | None = None
    credit: int | None = None
    pieces: int | None = None
    code: int | None = None


@attrs.frozen
class Shape:
    """The frames of a stream, a step of time apart, and the interaction that pairing must derive, in steps."""

    frames: tuple[F, ...]
    outcome: str = "complete"
    first: int | None = None
    last: int = 0
    stall: int = 0
    gap: int | None = None


ITEM, END, LAST = NEXT, COMPLETE, NEXT | COMPLETE
ASK = F("REQUEST_RESPONSE", True, 0x100, 120, 24, pieces=1)
WATCH = F("REQUEST_STREAM", True, 0x100, 40, 24, n=4, credit=4, pieces=1)
ANSWERED = Shape((ASK, F("PAYLOAD", False, LAST, 600, pieces=1)), first=1, last=1)
FAILED = Shape((ASK, F("ERROR", False, data=12, code=0x201)), "error", last=1)
REJECTED = Shape((ASK, F("ERROR", False, data=8, code=0x202)), "rejected", last=1)
GIVEN_UP = Shape((ASK, F("CANCEL", True), F("PAYLOAD", False, LAST, 600)), "cancel", last=1)
FORGOTTEN = Shape((F("REQUEST_FNF", True, 0x100, 200, 24, pieces=1),))
IN_PIECES = Shape(
    (
        F("REQUEST_RESPONSE", True, 0x100 | FOLLOWS, 1000, 24, pieces=0),
        F("PAYLOAD", True, ITEM, 700, pieces=2),
        F("PAYLOAD", False, ITEM | FOLLOWS, 1000, pieces=0),
        F("PAYLOAD", False, LAST, 300, pieces=2),
    ),
    *("complete", 3, 3),
)
# Four items, a stall of two steps, four more items.
WATCHED = Shape(
    (
        WATCH,
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2, 1, 0)),
        F("KEEPALIVE", True),
        F("REQUEST_N", True, n=4, credit=4),
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2, 1)),
        F("PAYLOAD", False, LAST, 300, credit=0, pieces=1),
    ),
    *("complete", 1, 10, 2, 3),
)
LEFT = Shape(
    (
        WATCH,
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2)),
        F("CANCEL", True),
        F("PAYLOAD", False, ITEM, 300),
    ),
    *("cancel", 1, 3, 0, 1),
)
TALKED = Shape(
    (
        F("REQUEST_CHANNEL", True, 0x100, 40, 24, n=8, credit=8, pieces=1),
        F("REQUEST_N", False, n=8, credit=8),
        F("PAYLOAD", True, ITEM, 150, credit=7, pieces=1),
        F("PAYLOAD", False, ITEM, 300, credit=7, pieces=1),
        F("PAYLOAD", True, END, credit=7, pieces=1),
        F("PAYLOAD", False, LAST, 300, credit=6, pieces=1),
    ),
    *("complete", 3, 5, 0, 2),
)
SHAPES: Final = (
    *(ANSWERED, WATCHED, ANSWERED, FORGOTTEN, ANSWERED, TALKED, ANSWERED, IN_PIECES, ANSWERED, WATCHED),
    *(ANSWERED, LEFT, ANSWERED, FAILED, ANSWERED, WATCHED, GIVEN_UP, TALKED, REJECTED, WATCHED),
)
PERIOD: Final = sum(len(shape.frames) for shape in SHAPES)
"""Number of frames of the twenty streams."""


def size_of(frame: F) -> int:
    """Return the bytes of a frame: header, metadata length if it has metadata, a number, data and metadata."""
    number = frame.n is not None or frame.code is not None
    return 6 + 3 * bool(frame.flags & 0x100) + 4 * number + frame.data + frame.metadata


def is_item(frame: F) -> bool:
    """Return whether this frame completes a payload."""
    whole = not frame.flags & FOLLOWS
    return whole and ((frame.type.startswith("REQUEST_") and frame.type != "REQUEST_N") or bool(frame.flags & NEXT))


ROUTES: Final = ("feed", "orders.find", "orders.watch", "users.find", "users.events", "log", "prices", "search")
HOT_CONNECTION, HOT_ROUTE = 60, 50
"""Percent of the streams."""
CONNECTIONS: Final = 200
LASTS_US: Final = 600_000_000
"""Microseconds over which the streams of every connection are spread."""
STARTS_US: Final = 1_767_225_600_000_000
"""Midnight of 2026-01-01."""
CAPTURE: Final = "0123456789abcdef0123456789abcdef"
FILE_ROWS: Final = 1_000_000
CONN_IDS: Final = tuple(hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest() for number in range(CONNECTIONS))
PEERS: Final = tuple(f"192.0.2.1:{20000 + number}" for number in range(CONNECTIONS))

Columns = dict[str, Any]
"""Arrays by column, all of one length."""


def write_capture(directory: str | Path, frames: int) -> int:
    """Write a capture of about this many frames, in Parquet. Return its number of streams.

    The directory must not hold a capture yet.
    """
    streams = max(CONNECTIONS, frames * len(SHAPES) // PERIOD)
    hot = streams * HOT_CONNECTION // 100
    # Each connection that is not hot has as many streams as the others, or one less.
    counts = [
        hot,
        *((streams - hot + CONNECTIONS - 2 - number) // (CONNECTIONS - 1) for number in range(CONNECTIONS - 1)),
    ]
    begins = [0]
    for shape in SHAPES:
        begins.append(begins[-1] + len(shape.frames))
    sizes = [count // len(SHAPES) * PERIOD + begins[count % len(SHAPES)] for count in counts]
    paces = [LASTS_US // max(count, 1) for count in counts]
    made = {"frames": (_Frames().rows, sizes), "interactions": (_Interactions().rows, counts)}
    for table, (rows, lengths) in made.items():
        _write(Path(directory), table, _pieces(rows, lengths, paces))
    _write(Path(directory), "connections", [_connections(counts)])
    return streams


def _pieces(rows: Callable[[int, int, Any], Columns], lengths: list[int], paces: list[int]) -> Iterator[Columns]:
    """Yield the rows of each connection, in pieces of at most one file."""
    pa = need_pyarrow()
    from pyarrow import compute

    longest = min(max(lengths), FILE_ROWS)
    numbers = pa.Array.from_buffers(pa.int64(), longest, [None, pa.py_buffer(array("q", range(longest)))])
    for connection, (length, pace) in enumerate(zip(lengths, paces, strict=True)):
        for start in range(0, length, longest):
            yield rows(connection, pace, compute.add(numbers.slice(0, min(longest, length - start)), start))


class _Frames:
    """Makes rows of ``frames``, by the number of the row in its connection."""

    def __init__(self) -> None:
        pa = need_pyarrow()
        every = [(place, step, frame) for place, shape in enumerate(SHAPES) for step, frame in enumerate(shape.frames)]
        kinds = [REQUESTS.get(NUMBER_OF_TYPE[frame.type]) for *_, frame in every]
        self._place = pa.array([place for place, *_ in every])
        self._step = pa.array([step for _, step, _ in every])
        self._is_stream = pa.array([frame.type != "KEEPALIVE" for *_, frame in every])
        self._is_named = pa.array(
            [kind is not None and not frame.flags & FOLLOWS for kind, (*_, frame) in zip(kinds, every, strict=True)]
        )
        said: dict[str, list[Any]] = {
            "dir": ["in" if frame.asks else "out" for *_, frame in every],
            "frame_type": [NUMBER_OF_TYPE[frame.type] for *_, frame in every],
            "flags": [frame.flags for *_, frame in every],
            "interaction": list(kinds),
            "request_n": [frame.n for *_, frame in every],
            "frame_bytes": [size_of(frame) for *_, frame in every],
            "data_bytes": [frame.data for *_, frame in every],
            "metadata_bytes": [frame.metadata if frame.flags & 0x100 else None for *_, frame in every],
            "fragments": [frame.pieces for *_, frame in every],
            "credit_after": [frame.credit for *_, frame in every],
            "error_code": [frame.code for *_, frame in every],
            "error_text": ["made up" if frame.code is not None else None for *_, frame in every],
        }
        self._said = _templates("frames", said)

    def rows(self, connection: int, pace: int, seq: Any) -> Columns:
        """Return the rows of these numbers."""
        from pyarrow import compute

        nth = _remainder(seq, PERIOD)
        number = compute.add(compute.multiply(compute.divide(seq, PERIOD), len(SHAPES)), self._place.take(nth))
        times = _Times(connection, pace, number)
        at = times.after(self._step.take(nth))
        is_stream = self._is_stream.take(nth)
        route = times.route()
        return {
            **{name: column.take(nth) for name, column in self._said.items()},
            **_of_connection(connection, len(seq)),
            "seq": seq,
            "ts": compute.add(at, STARTS_US),
            "mono_ns": compute.multiply(at, 1000),
            "stream_id": compute.if_else(is_stream, compute.add(compute.multiply(number, 2), 1), 0),
            "route": _words(ROUTES, compute.if_else(self._is_named.take(nth), route, None)),
            "route_id": compute.if_else(is_stream, _route_ids().take(route), None),
            "drop_count": _repeat(0, len(seq)),
        }


class _Interactions:
    """Makes the exact rows of ``interactions``, without pairing, by the number of the stream in its connection."""

    def __init__(self) -> None:
        pa = need_pyarrow()
        said: dict[str, list[Any]] = {}
        for shape in SHAPES:
            counted = shape.frames[: shape.last + 1]
            asked = [frame for frame in counted if frame.asks and frame.type != "KEEPALIVE"]
            answered = [frame for frame in counted if not frame.asks]
            kind = REQUESTS[NUMBER_OF_TYPE[shape.frames[0].type]]
            granted = sum(frame.n or 0 for frame in asked) if kind in ("request_stream", "request_channel") else None
            row = {
                "interaction": kind,
                "n_in": sum(map(is_item, asked)),
                "n_out": sum(map(is_item, answered)),
                "bytes_in": sum(map(size_of, asked)),
                "bytes_out": sum(map(size_of, answered)),
                "requested_n": granted,
                "stalls": int(shape.stall > 0),
                "outcome": shape.outcome,
                "error_code": next((frame.code for frame in counted if frame.code is not None), None),
            }
            for name, cell in row.items():
                said.setdefault(name, []).append(cell)
        self._said = _templates("interactions", said)
        self._first, self._last, self._stall, self._gap = (
            pa.array([getattr(shape, name) for shape in SHAPES]) for name in ("first", "last", "stall", "gap")
        )

    def rows(self, connection: int, pace: int, number: Any) -> Columns:
        """Return the rows of these numbers."""
        from pyarrow import compute

        place = _remainder(number, len(SHAPES))
        times = _Times(connection, pace, number)
        first, last = self._first.take(place), self._last.take(place)
        begun = compute.add(times.begun, STARTS_US)
        first_us, total_us = compute.multiply(first, times.step), compute.multiply(last, times.step)
        route = times.route()
        return {
            **{name: column.take(place) for name, column in self._said.items()},
            **_of_connection(connection, len(number)),
            "stream_id": compute.add(compute.multiply(number, 2), 1),
            "role": _words(("responder",), _repeat(0, len(number))),
            "route": _words(ROUTES, route),
            "route_id": _route_ids().take(route),
            "t_start": begun,
            "t_first": compute.add(begun, first_us),
            "t_end": compute.add(begun, total_us),
            "first_us": first_us,
            "total_us": total_us,
            "stall_us": compute.multiply(self._stall.take(place), times.step),
            "max_gap_us": compute.multiply(self._gap.take(place), times.step),
            "retries": _repeat(0, len(number)),
        }


class _Times:
    """Start times, frame distances and routes of the streams with these numbers."""

    def __init__(self, connection: int, pace: int, number: Any) -> None:
        from pyarrow import compute

        self.begun = compute.multiply(number, pace)
        # A number that looks like chance, and is the same for all frames of a stream.
        mixed = compute.add(compute.multiply(compute.add(number, connection << 32), 0x1E3779B97F4A7C15), 0x3F58476D)
        mixed = compute.multiply(compute.bit_wise_xor(mixed, compute.shift_right(mixed, 29)), 0x3C6EF372FE94F82B)
        mixed = compute.bit_wise_and(compute.shift_right(mixed, 24), 0xFFFFFFFF)
        self._luck = _remainder(mixed, 100)
        share = compute.add(_remainder(compute.divide(mixed, 100), 1000), 1)
        # So that all frames of a stream come before the next one's first, and latencies of a wide range.
        cube = compute.multiply(share, compute.multiply(share, share))
        self.step = compute.add(compute.divide(compute.divide(compute.multiply(cube, pace), 10**9), 12), 1)

    def after(self, steps: Any) -> Any:
        """Return the time a number of steps after the start, in us."""
        from pyarrow import compute

        return compute.add(self.begun, compute.multiply(steps, self.step))

    def route(self) -> Any:
        """Return the index of the route in ``ROUTES``."""
        from pyarrow import compute

        return compute.if_else(compute.less(self._luck, HOT_ROUTE), 0, _remainder(self._luck, len(ROUTES)))


def _connections(counts: list[int]) -> Columns:
    pa = need_pyarrow()
    zeros = [*("lease_grants", "lease_granted", "lease_used", "lease_expired", "resume_count", "drop_count")]
    zeros += ["frames_in", "frames_out", "bytes_in", "bytes_out"]
    said: dict[str, Any] = {
        **dict.fromkeys(zeros, 0),
        "capture_id": CAPTURE,
        "host": "synthetic",
        "side": "server",
        "dialect": "rsocket/1.0",
        "transport": "tcp",
        "t_start": STARTS_US,
        "t_end": STARTS_US + LASTS_US,
        "lease": False,
        "resume": False,
        "keepalive_interval_ms": 20000,
        "max_lifetime_ms": 90000,
        "close_reason": "closed",
        "keepalive_rtt": [100 if bucket in (8, 9) else 0 for bucket in range(32)],
    }
    columns = {name: [cell] * CONNECTIONS for name, cell in said.items()}
    columns |= {"conn_id": list(CONN_IDS), "session_id": list(CONN_IDS), "peer": list(PEERS), "streams": counts}
    return {name: pa.array(cells) for name, cells in columns.items()}


# Columns


def _of_connection(connection: int, length: int) -> Columns:
    """Return the columns that are equal in all rows of a connection."""
    this, zero = _repeat(connection, length), _repeat(0, length)
    return {
        "capture_id": _words((CAPTURE,), zero),
        "host": _words(("synthetic",), zero),
        "conn_id": _words(CONN_IDS, this),
        "session_id": _words(CONN_IDS, this),
        "side": _words(("server",), zero),
        "transport": _words(("tcp",), zero),
        "peer": _words(PEERS, this),
    }


def _templates(table: str, said: dict[str, list[Any]]) -> Columns:
    """Return the columns that repeat with each round of shapes."""
    pa = need_pyarrow()
    types = {column.name: column.type for column in TABLES[table]}
    return {
        name: pa.array(cells, pa.string()).dictionary_encode() if types[name] == STRING else pa.array(cells)
        for name, cells in said.items()
    }


def _words(words: tuple[str, ...], places: Any) -> Any:
    """Return a column with few different words."""
    pa = need_pyarrow()
    return pa.DictionaryArray.from_arrays(places.cast(pa.int32()), pa.array(words))


def _repeat(number: int, length: int) -> Any:
    pa = need_pyarrow()
    return pa.repeat(pa.scalar(number, pa.int64()), length)


def _route_ids() -> Any:
    return need_pyarrow().array([route_id(route) for route in ROUTES])


def _remainder(numbers: Any, by: int) -> Any:
    """Return the remainder of a division of numbers not below 0; Arrow has no function for it."""
    from pyarrow import compute

    return compute.subtract(numbers, compute.multiply(compute.divide(numbers, by), by))


def _write(directory: Path, table: str, pieces: Iterable[Columns]) -> None:
    """Write a table in files of about ``FILE_ROWS`` rows; columns that the pieces lack are null."""
    pa = need_pyarrow()
    from pyarrow import parquet

    folder = directory / table / "date=2026-01-01"
    folder.mkdir(parents=True)
    schema = arrow_schema(TABLES[table])
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            path = folder / f"part-{len(list(folder.iterdir())):05}.parquet"
            parquet.write_table(pa.concat_tables(waiting), path, compression="zstd", row_group_size=FILE_ROWS // 4)
            waiting.clear()

    for piece in pieces:
        waiting.append(_table(schema, piece))
        if sum(len(rows) for rows in waiting) >= FILE_ROWS:
            flush()
    flush()


def _table(schema: Any, columns: Columns) -> Any:
    """Return a table with the columns in their order, each of its type; words stay dictionary-encoded."""
    pa = need_pyarrow()
    length = len(next(iter(columns.values())))
    arrays, fields = [], []
    for field in schema:
        column = columns[field.name] if field.name in columns else pa.nulls(length, field.type)
        if not pa.types.is_dictionary(column.type):
            column = column.cast(field.type)
        arrays.append(column)
        fields.append(field.with_type(column.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
