"""Renders the report of a capture, charts and tables, as one HTML file that needs no other file."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs

from rsocket_trio.analytics.answers import Answer
from rsocket_trio.analytics.charts import NO_ROUTE, charts, duration
from rsocket_trio.errors import readable

NO_REPORT: Final = "a report needs plotly and jinja2: pip install 'rsocket-trio[report]'"
TEMPLATE: Final = Path(__file__).with_name("report.html.j2")
SHOWN: Final = 200
"""Rows of a table that the page has; the views have them all."""
TITLES: Final = {
    "route_latency": "Latency by route, the whole capture",
    "red": "Rate, errors and duration by route and minute",
    "credit_stalls": "Waiting for credit by route",
    "stalled_streams": "Streams that waited longest",
    "starved": "What their connections carried meanwhile",
    "cancellations": "Cancellation by route",
    "bytes_after_cancel": "What still came after CANCEL",
    "leases": "Leases by connection",
    "errors": "Errors by minute",
    "connection_timeline": "Connections",
    "fan_in": "Busiest connections and routes",
    "fragmentation": "Frames, overhead and fragmentation",
    "client_server": "Client and server: service and network time",
    "capture_health": "Health of the capture",
}
PROPER: Final = frozenset({"stream_id", "route_id", "error_code", "place", "route_rank"})
"""Columns whose numbers are names: shown without digit grouping."""


@attrs.frozen
class Cell:
    """The text that a table shows for a value."""

    text: str
    is_number: bool = False


@attrs.frozen
class Card:
    """One number at the head of the page. ``bad``: it should be 0."""

    name: str
    value: str
    bad: bool = False


@attrs.frozen
class Shown:
    """One table of the page."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: bool


def need_report() -> tuple[Any, str]:
    """Return jinja2 and the source of plotly.js. Raise ``ModuleNotFoundError`` naming the extra if one is missing."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_REPORT, name=error.name) from error
    return jinja2, get_plotlyjs()


def render(answers: Mapping[str, Answer], *, title: str) -> str:
    """Return the page. ``title`` names the capture. Raise ``ModuleNotFoundError`` naming the extra if it is missing."""
    jinja2, plotly = need_report()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    made = charts(answers)
    # The nonce lets no script run but ours, whatever a peer's text might smuggle in; nothing is fetched at all.
    page: str = environment.from_string(TEMPLATE.read_text("utf-8")).render(
        title=readable(title),
        about=_about(answers),
        nonce=secrets.token_urlsafe(16),
        cards=_cards(answers),
        charts=made,
        tables=[_table(name, answers[name]) for name in TITLES],
        plotly=plotly,
        figures=as_script({chart.id: chart.figure for chart in made}),
    )
    return page


def as_script(value: object) -> str:
    """Return JSON that is safe inside a ``<script>``: nothing in it ends the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


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


def _table(name: str, answer: Answer) -> Shown:
    rows = tuple(
        tuple(cell(column, value) for column, value in zip(answer.columns, row, strict=True))
        for row in answer.rows[:SHOWN]
    )
    return Shown(name, TITLES[name], answer.columns, rows, answer.more or len(answer.rows) > SHOWN)


def _about(answers: Mapping[str, Answer]) -> str:
    minutes = [row["minute"] for row in answers["frame_sizes"].dicts()]
    times = [time for time in minutes if isinstance(time, datetime)]
    captures = {row["capture_id"] for row in answers["capture_health"].dicts()}
    if not times:
        return "No frames."
    runs = "one run" if len(captures) == 1 else f"{len(captures)} runs"
    return f"From {min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC, {runs} of a capture."


def _cards(answers: Mapping[str, Answer]) -> list[Card]:
    health = list(answers["capture_health"].dicts())
    latency = [row for row in answers["route_latency"].dicts() if row["metric"] == "total"]
    requests, failed = _sum(latency, "n"), _sum(latency, "errors")
    dropped, missing, unpaired = _sum(health, "drops"), _sum(health, "missing_rows"), _sum(health, "unpaired")
    return [
        Card("frames", f"{_sum(health, 'frames'):,}"),
        Card("connections", f"{_sum(health, 'connections'):,}"),
        Card("interactions that ended", f"{requests:,}"),
        Card("of them failed", f"{failed:,}", bad=failed > 0),
        Card("cancelled", f"{_sum(latency, 'cancels'):,}"),
        Card("frames dropped by the capture", f"{dropped:,}", bad=dropped > 0),
        Card("rows missing", f"{missing:,}", bad=missing > 0),
        Card("requests without an end", f"{unpaired:,}", bad=unpaired > 0),
    ]


def _sum(rows: list[Mapping[str, object]], column: str) -> int:
    return sum(value for row in rows if isinstance(value := row[column], int))
