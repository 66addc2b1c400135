"""Renders the report of a capture, charts and tables, as one HTML file that needs no other file."""

from __future__ import annotations

import json
import math
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from rsocket_trio.analytics.cell_tables import NO_ROUTE
from rsocket_trio.analytics.sql import PER_OCTAVE_SHOWN
from rsocket_trio.errors import readable

if TYPE_CHECKING:
    from rsocket_trio.analytics.views import Answer

Figure: TypeAlias = dict[str, Any]
Row: TypeAlias = Mapping[str, Any]

COLOURS: Final = (
    "#2f6db5",
    "#d9772b",
    "#3d9a5f",
    "#b8445c",
    "#7a5bb0",
    "#8c6d46",
    "#c26ba5",
    "#5b6770",
    "#a8a23a",
    "#2a9aa8",
)
MOST: Final = 8
"""Routes, codes or kinds that have a colour of their own; the others share the last."""
OTHERS: Final = "others"
LONGEST_LABEL: Final = 48
"""Characters of a label in a chart."""
TALL: Final = 60
"""Connections that the timeline shows."""


# Charts


@attrs.frozen
class Chart:
    """A chart of the report. ``id`` is the id of its element in the page."""

    id: str
    title: str
    figure: Figure


def charts(answers: Mapping[str, Answer]) -> list[Chart]:
    """Return every chart that has data to show."""
    made: list[Chart] = []
    for role in ("requester", "responder"):
        cells = [row for row in answers["latency_heatmap"].dicts() if row["role"] == role]
        for metric, what in (("total", "until the end"), ("first", "until the first item")):
            chosen = [row for row in cells if row["metric"] == metric]
            if chosen:
                title = f"Latency {what}, as the {role} saw it"
                made.append(Chart(f"heatmap-{role}-{metric}", title, heatmap(chosen)))
    for name, title, make in MAKERS:
        rows = list(answers[name].dicts())
        figure = make(rows) if rows else None
        if figure is not None:
            made.append(Chart(name.replace("_", "-"), title, figure))
    return made


def label(text: object) -> str:
    """Return a peer's text as a label: printable, shortened, with tags escaped."""
    shown = NO_ROUTE if text is None else readable(str(text))
    return escape(shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…")


def instant(time: datetime) -> str:
    """Format a time as plotly reads it, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")


def duration(us: float) -> str:
    """Format microseconds with a readable unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def heatmap(rows: list[Row]) -> Figure:
    """Draw requests by minute (x) and latency (y); darker cells hold more requests."""
    minutes = sorted({row["t_from"] for row in rows})
    low, high = min(row["bucket"] for row in rows), max(row["bucket"] for row in rows)
    column = {minute: index for index, minute in enumerate(minutes)}
    z: list[list[int | None]] = [[None] * len(minutes) for _ in range(high - low + 1)]
    for row in rows:
        line = z[row["bucket"] - low]
        line[column[row["t_from"]]] = (line[column[row["t_from"]]] or 0) + row["n"]
    buckets = range(low, high + 1)
    edges = [2 ** (bucket / PER_OCTAVE_SHOWN) for bucket in buckets]
    trace = {
        "type": "heatmap",
        "x": [instant(minute) for minute in minutes],
        "y": list(buckets),
        "z": z,
        "colorscale": [[0, "#dbe7f5"], [0.25, "#8fb4df"], [0.6, "#2f6db5"], [1, "#0d2f57"]],
        "colorbar": {"title": {"text": "requests"}},
        "hoverongaps": False,
        "customdata": [[duration(edge)] * len(minutes) for edge in edges],
        "hovertemplate": "%{x|%H:%M}, from %{customdata}: %{z} requests<extra></extra>",
    }
    every = max(1, len(edges) // 12)
    axis = {
        "title": {"text": "latency"},
        "tickvals": list(buckets)[::every],
        "ticktext": [duration(edge) for edge in edges][::every],
    }
    return {"data": [trace], "layout": {"xaxis": {"type": "date"}, "yaxis": axis}}


def rates(rows: list[Row]) -> Figure:
    """Draw requests per second by minute, stacked by route, the busiest routes named."""
    totals: dict[str, dict[datetime, float]] = _by_name(
        (label(row["route"]), row["t_from"], row["per_second"]) for row in rows
    )
    return _stacked(totals, "requests per second")


def percentiles(rows: list[Row]) -> Figure:
    """Draw latency percentiles of each route, the busiest routes first."""
    chosen = [row for row in rows if row["metric"] == "total"][: 2 * MOST]
    names = [f"{label(row['route'])} ({row['interaction'].replace('_', ' ')}, {row['role']})" for row in chosen]
    data = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": [row[column] for row in chosen],
            "marker": {"color": colour},
            "customdata": [duration(row[column]) for row in chosen],
            "hovertemplate": f"%{{x}}<br>{name}: %{{customdata}}<extra></extra>",
        }
        for name, column, colour in (
            ("p50", "p50_us", "#9fc1e6"),
            ("p95", "p95_us", "#5b93cf"),
            ("p99", "p99_us", "#2f6db5"),
            ("p99.9", "p999_us", "#163c69"),
        )
    ]
    powers = range(9)
    axis = {
        "type": "log",
        "tickvals": [10**power for power in powers],
        "ticktext": [duration(10**power) for power in powers],
    }
    return {"data": data, "layout": {"barmode": "group", "xaxis": {}, "yaxis": axis, "height": 460}}


def stalls(rows: list[Row]) -> Figure | None:
    """Draw the share of time that the streams of each route waited for credit."""
    chosen = [row for row in rows if row["stall_us"]][: 2 * MOST]
    if not chosen:
        return None
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [f"{label(row['route'])} ({row['role']})" for row in chosen][::-1],
        "x": [100 * row["stall_share"] for row in chosen][::-1],
        "marker": {"color": COLOURS[1]},
        "customdata": [duration(row["stall_us"]) for row in chosen][::-1],
        "hovertemplate": "%{y}: %{x:.1f} % of the time, %{customdata} in all<extra></extra>",
    }
    axis = {"title": {"text": "% of the time without credit"}, "rangemode": "tozero"}
    return {"data": [trace], "layout": {"xaxis": axis, "yaxis": {}}}


def starvers(rows: list[Row]) -> Figure:
    """Draw the traffic of the connection, by route, while its longest-stalled streams waited."""
    streams: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        stream = (
            f"{label(row['route'])} #{row['stream_id']} on {label(row['conn_id'])[:6]} ({duration(row['stall_us'])})"
        )
        if stream in streams or len(streams) < 2 * MOST:
            streams[stream][label(row["by_route"])] = 100 * row["share"]
    names = list(streams)[::-1]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": by,
                "y": names,
                "x": [streams[name].get(by, 0) for name in names],
                "marker": {"color": colour},
            }
            for by, colour in _coloured(dict.fromkeys(by for shares in streams.values() for by in shares))
        ],
        "layout": {
            "barmode": "stack",
            "xaxis": {"title": {"text": "% of the bytes of its connection meanwhile"}},
            "yaxis": {},
            "height": 420,
        },
    }


def errors(rows: list[Row]) -> Figure:
    """Draw errors by code and minute."""
    found = _by_name(
        (f"{row['error_name']} 0x{row['error_code'] & 0xFFFFFFFF:X} ({row['level']})", row["minute"], row["n"])
        for row in rows
    )
    return _stacked(found, "errors per minute")


def timeline(rows: list[Row]) -> Figure:
    """Draw the lifetime of each connection, coloured by its close reason."""
    chosen = sorted(rows, key=lambda row: row["t_start"])[:TALL]
    by_reason: dict[str, list[tuple[int, Row]]] = defaultdict(list)
    for place, row in enumerate(chosen):
        by_reason[label(row["close_reason"])].append((place, row))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": reason,
            "base": [instant(row["t_start"]) for _, row in found],
            "x": [max(1.0, (row["t_end"] - row["t_start"]).total_seconds() * 1000) for _, row in found],
            "y": [place for place, _ in found],
            "marker": {"color": colour},
            "customdata": [
                [label(row["conn_id"]), label(row["peer"]), row["streams"], row["resume_count"]] for _, row in found
            ],
            "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}, %{customdata[2]} streams, "
            "resumed %{customdata[3]} times<extra></extra>",
        }
        for (reason, found), (_, colour) in zip(by_reason.items(), _coloured(by_reason), strict=True)
    ]
    axis = {
        "tickvals": list(range(len(chosen))),
        "ticktext": [f"{label(row['peer'])} {label(row['conn_id'])[:6]}" for row in chosen],
        "autorange": "reversed",
    }
    layout = {
        "barmode": "overlay",
        "xaxis": {"type": "date"},
        "yaxis": axis,
        "height": 160 + 18 * len(chosen),
        "showlegend": True,
    }
    return {"data": data, "layout": layout}


def shares(rows: list[Row]) -> Figure:
    """Draw the connections and routes with most frames."""
    data = []
    for number, (kind, colour) in enumerate((("connection", COLOURS[0]), ("route", COLOURS[2])), 1):
        chosen = [row for row in rows if row["kind"] == kind][:10]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": f"by {kind}",
                "y": [label(row["name"])[: 12 if kind == "connection" else None] for row in chosen][::-1],
                "x": [100 * row["share"] for row in chosen][::-1],
                "marker": {"color": colour},
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
                "hovertemplate": "%{y}: %{x:.1f} % of the frames<extra></extra>",
            }
        )
    layout: Figure = {
        "grid": {"rows": 1, "columns": 2, "pattern": "independent", "xgap": 0.3},
        "xaxis": {"title": {"text": "% of the frames"}},
        "xaxis2": {"title": {"text": "% of the frames"}},
        "yaxis": {},
        "yaxis2": {},
    }
    return {"data": data, "layout": layout}


def sizes(rows: list[Row]) -> Figure:
    """Draw the number of frames of each size, by kind."""
    found: dict[str, dict[int, float]] = _by_name((row["frame_name"], row["bucket"], row["n"]) for row in rows)
    chosen = _most(found)
    low = min(bucket for counts in found.values() for bucket in counts)
    high = max(bucket for counts in found.values() for bucket in counts)
    buckets = range(low, high + 1)
    data = [
        {
            "type": "bar",
            "name": name,
            "x": [f"{2**bucket} B" for bucket in buckets],
            "y": [counts.get(bucket, 0) for bucket in buckets],
            "marker": {"color": colour},
        }
        for (name, counts), (_, colour) in zip(chosen.items(), _coloured(chosen), strict=True)
    ]
    axes = {
        "xaxis": {"title": {"text": "frame size, from"}, "type": "category"},
        "yaxis": {"title": {"text": "frames"}},
    }
    return {"data": data, "layout": {"barmode": "stack", **axes}}


def streams(rows: list[Row]) -> Figure:
    """Draw the streams that began in each second."""
    found = _by_name((row["interaction"].replace("_", " "), row["second"], row["streams"]) for row in rows)
    return _stacked(found, "streams per second")


MAKERS: Final = (
    ("red", "Requests per second, by route", rates),
    ("route_latency", "Percentiles by route", percentiles),
    ("credit_stalls", "Waiting for credit", stalls),
    ("starved", "Who starved whom", starvers),
    ("errors", "Errors", errors),
    ("connection_timeline", "Connections", timeline),
    ("fan_in", "Fan-in", shares),
    ("frame_sizes", "Frame sizes", sizes),
    ("stream_rate", "Streams begun", streams),
)


def _by_name(found: Iterable[tuple[str, Any, float]]) -> dict[str, dict[Any, float]]:
    """Sum the numbers by name and place."""
    sums: dict[str, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    for name, place, n in found:
        sums[name][place] += n
    return sums


def _most(found: Mapping[str, Mapping[Any, float]]) -> dict[str, Mapping[Any, float]]:
    """Return the names with the largest sums, in descending order, and all others merged into one."""
    ordered = sorted(found, key=lambda name: (-sum(found[name].values()), name))
    chosen: dict[str, Mapping[Any, float]] = {name: found[name] for name in ordered[:MOST]}
    rest: dict[Any, float] = defaultdict(float)
    for name in ordered[MOST:]:
        for place, n in found[name].items():
            rest[place] += n
    return chosen | ({OTHERS: rest} if rest else {})


def _stacked(found: Mapping[str, Mapping[datetime, float]], title: str) -> Figure:
    chosen = _most(found)
    times = sorted({time for counts in found.values() for time in counts})
    data = [
        {
            "type": "bar",
            "name": name,
            "x": [instant(time) for time in times],
            "y": [counts.get(time, 0) for time in times],
            "marker": {"color": colour},
        }
        for (name, counts), (_, colour) in zip(chosen.items(), _coloured(chosen), strict=True)
    ]
    axes = {"xaxis": {"type": "date"}, "yaxis": {"title": {"text": title}, "rangemode": "tozero"}}
    return {"data": data, "layout": {"barmode": "stack", "bargap": 0.05, "showlegend": True, **axes}}


def _coloured(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, COLOURS[index % len(COLOURS)]) for index, name in enumerate(names)]


NO_REPORT: Final = "a report needs plotly and jinja2: pip install 'rsocket-trio[report]'"
TEMPLATE: Final = Path(__file__).with_name("report.html.j2")
SHOWN: Final = 200
"""Rows of a table that the page has; the views have them all."""
TITLES: Final = {
    "route_latency": "Latency by route, the whole capture",
    "red": "Rate, errors and duration by route and time",
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


# The page


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
