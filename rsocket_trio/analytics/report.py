"""Renders the report of a capture, charts and tables, as one HTML file that needs no other file.

The page holds the rows of some tables and draws its charts of them in the browser, so that filters work on each chart:
``report.js`` draws, ``report.html.j2`` says where.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from rsocket_trio.analytics.cell_tables import NO_ROUTE
from rsocket_trio.errors import readable
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from rsocket_trio.analytics.views import Answer

Row: TypeAlias = Mapping[str, Any]

SECOND: Final = 1_000_000
"""In microseconds."""


# What the browser is given


DRAWN: Final[Mapping[str, tuple[str, ...]]] = {
    "rate_cells": (
        *("t_from", "role", "route", "interaction", "peer", "requests", "errors", "cancels"),
        *("stalled", "stall_us", "credit_us"),
    ),
    "latency_cells": ("t_from", "role", "route", "interaction", "peer", "metric", "bucket", "n"),
    "error_cells": ("t_from", "level", "error_code", "error_name", "route", "peer", "n"),
    "size_cells": ("t_from", "frame_name", "route", "peer", "bucket", "n"),
    "traffic_cells": ("t_from", "route", "peer", "conn_id", "frames", "bytes"),
    "slow_requests": (
        *("capture_id", "conn_id", "stream_id", "role", "route", "shown_route", "interaction", "peer", "t_start"),
        *("total_us", "sent_us", "first_us", "stall_us", "outcome", "error_code", "trace_id"),
        *("n_in", "n_out", "bytes_in", "bytes_out"),
    ),
    "slow_frames": (
        *("capture_id", "conn_id", "stream_id", "seq", "at_us", "dir", "frame_name", "request_n", "credit_after"),
        "is_item",
    ),
    "starved": (
        *("capture_id", "conn_id", "stream_id", "role", "route", "shown_route", "peer", "t_start", "t_end", "stall_us"),
        *("by_route", "bytes"),
    ),
    "connection_timeline": (
        *("capture_id", "conn_id", "peer", "shown_peer", "t_start", "t_end", "resume_count", "streams"),
        "close_reason",
    ),
    "connection_routes": ("capture_id", "conn_id", "route"),
}
"""The tables that charts are drawn from, and their columns."""
NUMBERS: Final = frozenset({"sent_us", "first_us", "error_code", "request_n", "credit_after", "resume_count"})
"""Columns of numbers in which all cells may be null."""
LISTS: Final = frozenset({"slow_requests", "slow_frames", "starved", "connection_timeline"})
"""Those of them that are meant to be cut: a page lists the first."""


def page_data(answers: Mapping[str, Answer]) -> dict[str, object]:
    """Return the tables of ``DRAWN`` as columns that JSON can hold.

    A text is there once, in ``names``: columns hold its index, -1 for none. Times are microseconds since 1970, as
    multiples of the greatest ``step`` that divides all of a column, counted from its least.
    """
    names: dict[str, int] = {}
    tables = {}
    for table, columns in DRAWN.items():
        answer = answers.get(table)
        if answer is None or not answer.rows:
            continue
        cells = dict(zip(answer.columns, zip(*answer.rows, strict=True), strict=True))
        if table == "connection_timeline":
            # The filter knows a peer by the name that it has in all charts.
            known = {(row["capture_id"], row["conn_id"]): row["peer"] for row in _rows(answers, "shown_peers")}
            cells["shown_peer"] = tuple(map(known.get, zip(cells["capture_id"], cells["conn_id"], strict=True)))
        packed = {
            # A column of texts without a text, as of a capture without routes, cannot be known by its cells.
            column: pack(cells[column], names)
            if any(cell is not None for cell in cells[column]) or column in NUMBERS
            else {"values": [-1] * len(answer.rows)}
            for column in columns
        }
        tables[table] = {"n": len(answer.rows), "columns": packed}
    health = answers.get("capture_health")
    sides = {row["side"] for row in health.dicts()} if health is not None else set()
    return {"span": _span(answers), "both_sides": len(sides) > 1, "tables": tables, "names": list(names)}


def pack(cells: Sequence[Any], names: dict[str, int]) -> dict[str, object]:
    """Return a column for the page. ``cells`` are texts, times or numbers; a new text is added to ``names``."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return {"values": [None] * len(cells)}
    if isinstance(known[0], str):
        return {"values": [-1 if cell is None else names.setdefault(readable(cell), len(names)) for cell in cells]}
    if isinstance(known[0], datetime):
        times = [None if cell is None else micros(cell) for cell in cells]
        base = min(time for time in times if time is not None)
        step = reduce(math.gcd, (time - base for time in times if time is not None)) or 1
        return {
            "base": base,
            "step": step,
            "values": [None if time is None else (time - base) // step for time in times],
        }
    return {"values": [int(cell) if isinstance(cell, bool) else cell for cell in cells]}


def micros(time: datetime) -> int:
    """Return a time that knows its zone in microseconds since 1970."""
    # Not by its timestamp: as a float it would be rounded.
    return (time - EPOCH) // timedelta(microseconds=1)


EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _span(answers: Mapping[str, Answer]) -> dict[str, int]:
    """Return the times between which there is something to draw, and the lengths of cells, in microseconds."""
    answer = answers.get("capture_span")
    row: Row = next(answer.dicts(), {}) if answer is not None else {}
    if row.get("t_from") is None:
        lengths = dict.fromkeys(("bucket", "latency", "size", "step"), SECOND)
        return {"from": 0, "to": 0, "per_octave": 4, **lengths}
    begin, end = micros(row["t_from"]), micros(row["t_to"])
    lengths = {name: int(row[f"{name}_s"]) * SECOND for name in ("bucket", "latency", "size")}
    return {
        "from": begin,
        "to": end,
        **lengths,
        # The filter moves by whole cells of every chart.
        "step": math.lcm(*lengths.values()),
        "per_octave": int(row["per_octave"]),
    }


# The page


@attrs.frozen
class Cell:
    """The text that a table shows for a value."""

    text: str
    is_number: bool = False


@attrs.frozen
class Card:
    """One number at the head of the page. ``bad``: it should be 0."""

    id: str
    name: str
    value: str
    bad: bool = False


NO_REPORT: Final = f"a report needs plotly and jinja2: {install_command('report')}"
PARTS: Final = {"styles": Path(__file__).with_name("report.css"), "script": Path(__file__).with_name("report.js")}
TEMPLATE: Final = Path(__file__).with_name("report.html.j2")
SHOWN: Final = 200
"""Rows of a table that the page has; the views have them all."""
TITLES: Final = {
    "route_latency": "Latency by route",
    "red": "Rate, errors and duration by route and minute",
    "credit_stalls": "Waiting for credit by route",
    "stalled_streams": "Streams that waited longest",
    "cancellations": "Cancellation by route",
    "bytes_after_cancel": "What still came after CANCEL",
    "leases": "Leases by connection",
    "errors": "Errors by minute",
    "connection_timeline": "Connections",
    "fragmentation": "Frames, overhead and fragmentation",
    "client_server": "Client and server: service and network time",
    "capture_health": "Health of the capture",
}
PROPER: Final = frozenset({"stream_id", "route_id", "error_code", "place", "route_rank"})
"""Columns whose numbers are names: shown without digit grouping."""


def need_report() -> tuple[Any, str]:
    """Return jinja2 and the source of plotly.js. Raise ``ModuleNotFoundError`` naming the extra if one is missing."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_REPORT, name=error.name) from error
    return jinja2, get_plotlyjs()


def render(answers: Mapping[str, Answer], *, title: str) -> str:
    """Return the page. ``answers`` are tables by name; those that are missing are shown as empty.

    ``title`` names the capture. Raise ``ModuleNotFoundError`` naming the extra if it is missing.
    """
    jinja2, plotly = need_report()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    # The nonce lets no script run but ours, whatever a peer's text might smuggle in; nothing is fetched at all.
    page: str = environment.from_string(TEMPLATE.read_text("utf-8")).render(
        title=readable(title),
        about=_about(answers),
        nonce=secrets.token_urlsafe(16),
        cards=_cards(answers),
        health=_health(answers),
        tables=[_table(name, answers[name]) for name in TITLES if name in answers],
        plotly=plotly,
        data=as_script(page_data(answers)),
        **{name: path.read_text("utf-8") for name, path in PARTS.items()},
    )
    return page


def as_script(value: object) -> str:
    """Return JSON that is safe inside a ``<script>``: nothing in it ends the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def duration(us: float) -> str:
    """Format microseconds with a readable unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def cell(column: str, value: object) -> Cell:
    """Format a value for readers: times and sizes with their units, nulls as empty text or "(no route)"."""
    if value is None:
        return Cell(NO_ROUTE if column.endswith("route") else "")
    if isinstance(value, datetime):
        shown = value.strftime("%Y-%m-%d %H:%M:%S")
        return Cell(shown if not value.microsecond else f"{shown}.{value.microsecond // 1000:03d}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(readable(str(value)))
    if isinstance(value, float) and not math.isfinite(value):
        return Cell("")
    if column == "error_code":
        return Cell(f"0x{int(value) & 0xFFFFFFFF:03X}", True)
    if column.endswith("_us"):
        return Cell(f"-{duration(-value)}" if value < 0 else duration(value), True)
    if column.endswith("share"):
        return Cell(f"{100 * value:.1f} %", True)
    if isinstance(value, float):
        return Cell(f"{value:,.2f}", True)
    return Cell(str(value) if column in PROPER else f"{value:,}", True)


def _table(name: str, answer: Answer) -> dict[str, object]:
    rows = tuple(
        tuple(cell(column, value) for column, value in zip(answer.columns, row, strict=True))
        for row in answer.rows[:SHOWN]
    )
    more = answer.more or len(answer.rows) > SHOWN
    return {"name": name, "title": TITLES[name], "columns": answer.columns, "rows": rows, "more": more}


def _rows(answers: Mapping[str, Answer], name: str) -> list[Row]:
    return list(answers[name].dicts()) if name in answers else []


def _about(answers: Mapping[str, Answer]) -> str:
    spans = _rows(answers, "capture_span")
    if not spans or spans[0]["t_from"] is None:
        return "No frames."
    begin, end = spans[0]["t_from"], spans[0]["t_to"]
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    captures = {row["capture_id"] for row in _rows(answers, "capture_health")}
    runs = "one run" if len(captures) <= 1 else f"{len(captures)} runs"
    took = duration((end - begin) / timedelta(microseconds=1))
    return f"From {begin:%Y-%m-%d %H:%M:%S} to {until} UTC ({took}), {runs} of a capture."


def _cards(answers: Mapping[str, Answer]) -> list[Card]:
    latency = [row for row in _rows(answers, "route_latency") if row["metric"] == "total"]
    requests, failed, cancelled = (_sum(latency, column) for column in ("n", "errors", "cancels"))
    whole = max(requests, 1)
    # The browser fills in what depends on the choice; these stay where there are no scripts.
    return [
        Card("requests", "requests that ended", f"{requests:,}"),
        Card("rate", "requests per second", "-"),
        Card("failed", "failed", f"{100 * failed / whole:.3g} %", bad=failed > 0),
        Card("cancelled", "cancelled", f"{100 * cancelled / whole:.3g} %"),
        Card("p50", "median latency", "-"),
        Card("p99", "latency, p99", "-"),
        Card("stall", "of the time without credit", "-"),
    ]


def _health(answers: Mapping[str, Answer]) -> list[Card]:
    health = _rows(answers, "capture_health")
    cut = sum(answers[name].more for name in DRAWN if name in answers and name not in LISTS)
    bad = {"drops": "frames dropped by the capture", "missing_rows": "rows missing", "unpaired": "requests without end"}
    return [
        Card("frames", "frames", f"{_sum(health, 'frames'):,}"),
        Card("connections", "connections", f"{_sum(health, 'connections'):,}"),
        *(Card(name, meaning, f"{_sum(health, name):,}", bad=_sum(health, name) > 0) for name, meaning in bad.items()),
        *(
            [Card("cut", "tables that were too long for this page, so that charts lack a part", f"{cut}", bad=True)]
            * bool(cut)
        ),
    ]


def _sum(rows: Iterable[Row], column: str) -> int:
    return sum(value for row in rows if isinstance(value := row[column], int))
