"""The report in a real browser: every chart is drawn, filters change what is drawn, and nothing is asked of anybody.

``make test`` plays the first one; ``make gate`` plays all.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rsocket_trio.analytics.report import CHARTS, page_data, render
from rsocket_trio.analytics.views import Answer, answers, open_duckdb
from tests.analytics import service
from tests.analytics.browser import Browser, Tab, browser, require_browser
from tests.analytics.handwritten import HOSTILE
from tests.analytics.writing import write_parquet
from tests.blocks import ROOT
from tests.each_row import whole

SECONDS: Final = 75
TABLES: Final = {"slowest", "starved-streams"}
"""Charts that are tables."""
SHOTS: Final = Path(os.environ.get("RSOCKET_TRIO_SCREENSHOTS", ROOT / "build" / "screenshots"))
"""The folder in which pictures of the page are kept, for people to look at."""

LOOK: Final = """(() => {
  const MARKS = ".bars .point path, .heatmaplayer image, .scatterlayer .js-line, .scatterlayer .point";
  const isFilled = (mark) =>
    mark.tagName === "image" ? mark.getAttribute("href").length > 100 : mark.getAttribute("d").length > 4;
  const look = (place) => {
    const plots = place.id === "plot-heatmap" ? [...place.querySelectorAll(".plot")] : [place];
    return [place.id.slice(5), {
      svgs: place.querySelectorAll("svg.main-svg").length,
      marks: [...place.querySelectorAll(MARKS)].filter(isFilled).length,
      rows: place.querySelectorAll("tbody tr").length,
      width: place.getBoundingClientRect().width,
      text: place.textContent,
      said: place.querySelector(".nothing")?.textContent,
      facets: plots.map((plot) => plot.dataset.facet).filter(Boolean),
      data: plots.flatMap((plot) => (plot.data || [])
        .map(({name, x, y, z, base, customdata}) => ({name, x, y, z, base, customdata}))),
      labels: place.layout?.yaxis?.ticktext,
    }];
  };
  return Object.fromEntries([...document.querySelectorAll("[id^=plot-]")].map(look));
})()"""
"""A script that returns what is drawn, by chart."""
PUT: Final = """window.put = (id, value, event) => {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event(event));
}"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests: it takes a second to start."""
    require_browser()
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


def tables_of(directory: Path) -> dict[str, Answer]:
    with open_duckdb(directory) as engine:
        return {answer.view: answer for answer in answers(engine)}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """The tables of the service under a constant load."""
    return tables_of(write_parquet(tmp_path_factory.mktemp("service"), service.capture_of(SECONDS)))


@pytest.fixture(scope="module")
def page(known: dict[str, Answer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its page."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(known, title="A service"), "utf-8")
    return path


@pytest.fixture(scope="module")
def wide(chromium: Browser, page: Path) -> Tab:
    """The page on a desk, in light."""
    tab = chromium.open(page, width=1280)
    tab.run(f"({PUT}), 0")
    drawn(tab)
    return tab


@pytest.fixture
def tab(wide: Tab) -> Tab:
    """The same, with nothing chosen."""
    act(wide, "document.getElementById('reset').disabled || document.getElementById('reset').click()")
    return wide


def drawn(tab: Tab) -> dict[str, Any]:
    """Wait until all is drawn. Return what."""
    tab.wait("document.documentElement.dataset.drawn")
    found: dict[str, Any] = tab.run(LOOK)
    return found


def act(tab: Tab, code: str) -> dict[str, Any]:
    """Do something with the page. Return what is drawn then."""
    tab.run(f"({code}), 0")
    return drawn(tab)


def choose(tab: Tab, pick: str, *names: str) -> dict[str, Any]:
    """Choose nothing but these routes or peers."""
    tab.run(f"[...document.querySelectorAll('#pick-{pick} button')].find((one) => one.textContent === 'None').click()")
    for name in names:
        tab.run(
            f"[...document.querySelectorAll('#pick-{pick} label')]"
            f".find((one) => one.children[1].textContent === {name!r}).querySelector('input').click()"
        )
    return drawn(tab)


def cut(tab: Tab, slider: str, value: int) -> dict[str, Any]:
    """Move a slider of time."""
    return act(tab, f"put('{slider}', {value}, 'input')")


def is_drawn(chart: str, seen: dict[str, Any]) -> bool:
    found = seen[chart]
    return bool(found["rows"] if chart in TABLES else found["svgs"] and found["marks"])


def sums(chart: dict[str, Any]) -> list[float]:
    """The height of each stacked bar."""
    return [sum(heights) for heights in zip(*(trace["y"] for trace in chart["data"]), strict=True)]


def rates(seen: dict[str, Any]) -> list[float]:
    """The heights of the bars of the rate but the last, in the middle of which the load ends."""
    return sums(seen["rate"])[:-1]


def card(tab: Tab, name: str) -> str:
    text: str = tab.run(f"document.querySelector('#card-{name} b').textContent")
    return text


# All of it


def test_every_chart_is_drawn_on_a_desk_without_a_word_in_the_console(tab: Tab) -> None:
    seen = drawn(tab)

    assert set(seen) == set(CHARTS)
    assert [chart for chart in CHARTS if not is_drawn(chart, seen)] == []
    assert all(found["width"] > 450 for found in seen.values())
    assert tab.run("document.documentElement.scrollWidth") <= 1280
    SHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(SHOTS / "report-1280-light.png")
    assert (SHOTS / "report-1280-light.png").stat().st_size > 50_000
    assert tab.said == []


@whole
def test_nothing_is_loaded_from_anywhere(tab: Tab, page: Path) -> None:
    drawn(tab)

    assert [url for url in tab.asked if not re.match(r"data:|blob:", url)] == [page.absolute().as_uri()]


@whole
def test_every_chart_is_drawn_in_the_dark_on_a_phone_and_none_is_wider_than_it(chromium: Browser, page: Path) -> None:
    phone = chromium.open(page, width=400, height=800, dark=True)
    seen = drawn(phone)

    assert [chart for chart in CHARTS if not is_drawn(chart, seen)] == []
    assert phone.run("document.documentElement.scrollWidth") <= 400
    assert all(300 < found["width"] <= 400 for found in seen.values())
    assert phone.run("document.documentElement.dataset.theme") == "dark"
    phone.screenshot(SHOTS / "report-400-dark.png")
    assert (SHOTS / "report-400-dark.png").stat().st_size > 50_000
    assert phone.said == []


@whole
def test_without_data_and_library_the_page_is_small(known: dict[str, Answer], page: Path) -> None:
    text = page.read_text("utf-8")
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, flags=re.DOTALL)
    library = max(scripts, key=len)
    data = next(one for one in scripts if one.startswith('{"span"'))

    assert "plotly.js" in library[:100]
    assert len(text.encode()) - len(library.encode()) - len(data.encode()) < 1024 * 1024
    assert len(page_data(known)["names"]) > 10  # type: ignore[arg-type]


# What the charts say


@whole
def test_a_constant_load_is_the_same_in_every_bar_from_the_middle_of_a_minute_on(tab: Tab) -> None:
    seen = drawn(tab)

    assert rates(seen) == pytest.approx([service.RATE] * SECONDS, rel=0.01)
    # The capture goes on for half a second longer than the load.
    assert (card(tab, "requests"), card(tab, "rate")) == ("21,300", "282")


@whole
def test_the_bars_at_both_ends_say_that_they_are_cut(tab: Tab) -> None:
    [*_, trace] = drawn(tab)["rate"]["data"]

    assert [at for at, said in enumerate(trace["customdata"]) if "cut: " in said] == [0, SECONDS]
    assert trace["customdata"][0].endswith(" requests/s, cut: 500 ms of 1 s")
    assert tab.run("document.getElementById('plot-rate').data[0].marker.pattern.shape.join('')") == "//"


@whole
def test_the_waterfall_shows_where_a_stream_had_no_credit(tab: Tab) -> None:
    choose(tab, "route", "orders.watch")
    parts = tab.run("[...document.querySelector('.slow tr.row .track').children].map((part) => part.className)")
    shares = tab.run(
        "Object.fromEntries([...document.querySelector('.slow tr.row .track').children].map((part) =>"
        "[part.className, [parseFloat(part.style.left), parseFloat(part.style.width)]]))"
    )

    # Four items a step apart, then 30 steps without credit, then the end a step later.
    assert parts == ["queued", "items", "credit", "mark", "mark"]
    assert shares["queued"] == pytest.approx([0, 100 / 35], abs=0.01)
    assert shares["credit"] == pytest.approx([400 / 35, 3000 / 35], abs=0.01)

    act(tab, "document.querySelector('.slow tr.row').click()")
    detail = tab.run("document.querySelector('.slow tr.detail').textContent")
    assert "REQUEST_STREAM in" in detail
    assert "REQUEST_N in" in detail


@whole
def test_slow_requests_have_the_trace_ids_of_their_requests(tab: Tab) -> None:
    act(tab, "document.querySelector('#plot-slowest > button').click()")
    ids = set(tab.run("[...document.querySelectorAll('.slow .trace')].map((cell) => cell.textContent)"))

    assert len(ids) > 1
    assert all(id == "–" or int(id, 16) % 7 == 0 for id in ids)  # noqa: RUF001


# Filters


@whole
def test_a_route_that_is_chosen_is_all_that_every_chart_shows(tab: Tab) -> None:
    whole = drawn(tab)
    seen = choose(tab, "route", "orders.watch")

    assert rates(seen) == pytest.approx([60] * SECONDS, rel=0.03)
    assert [trace["name"] for trace in seen["traffic"]["data"]] == ["orders.watch"]
    assert seen["heatmap"]["facets"] == ["orders.watch"]
    for chart in ("percentiles", "credit", "starved", "busy-routes"):
        assert seen[chart]["labels"] == ["orders.watch"], chart
    assert {trace["name"] for trace in seen["sizes"]["data"]} == {"PAYLOAD", "REQUEST_N", "REQUEST_STREAM"}
    assert "orders.find" not in seen["slowest"]["text"]
    # It has neither errors nor cancellations.
    for chart in ("errors", "outcomes"):
        assert seen[chart]["said"] == "Nothing of this kind in what is chosen."
    # All four connections had such streams; what waited for credit was of this route alone.
    same = {"connections", "credit", "starved", "starved-streams", "busy-connections"}
    assert {chart for chart in CHARTS if seen[chart] == whole[chart]} <= same
    assert card(tab, "requests") == "4,500"
    assert tab.said == []


@whole
def test_several_routes_may_be_chosen_and_none(tab: Tab) -> None:
    two = choose(tab, "route", "prices", "users.find")

    assert [trace["name"] for trace in two["rate"]["data"]] == ["prices", "users.find"]
    assert rates(two) == pytest.approx([24] * SECONDS, rel=0.06)
    none = choose(tab, "route")
    assert all(found["said"] for found in none.values())
    assert tab.said == []


@whole
def test_a_peer_that_is_chosen_is_all_that_every_chart_shows(tab: Tab) -> None:
    whole = drawn(tab)
    peer = service.PEERS[1]
    seen = choose(tab, "peer", peer)

    assert rates(seen) == pytest.approx([service.RATE / 4] * SECONDS, rel=0.02)
    assert seen["connections"]["labels"] == [peer]
    assert len(seen["busy-connections"]["labels"]) == 1
    assert seen["busy-connections"]["labels"][0].startswith(peer)
    peers = tab.run("[...document.querySelectorAll('.slow tr.row')].map((row) => row.children[3].textContent)")
    assert set(peers) == {peer}
    # A quarter of each: shares and the widest of each kind may stay what they were.
    for chart in ("rate", "latency", "outcomes", "heatmap", "percentiles", "errors", "traffic", "sizes", "slowest"):
        assert seen[chart] != whole[chart], chart
    assert tab.said == []


@whole
def test_a_time_that_is_chosen_is_all_that_every_chart_shows(tab: Tab) -> None:
    whole = drawn(tab)
    step = tab.run("STEP / 1e6")
    cut(tab, "time-from", 2)
    seen = cut(tab, "time-to", 3)

    assert card(tab, "requests") == f"{int(service.RATE * step):,}"
    assert sums(seen["rate"]) == pytest.approx([service.RATE] * int(step), rel=0.01)
    begin, end = tab.run("[instant(fromUs()), instant(toUs())]")
    for chart in ("rate", "latency", "outcomes", "traffic", "errors"):
        assert all(begin <= x < end for trace in seen[chart]["data"] for x in trace["x"]), chart
    assert all(begin <= x < end for trace in seen["heatmap"]["data"] for x in trace["x"])
    assert 0 < seen["slowest"]["rows"] <= 20
    began = tab.run("[...document.querySelectorAll('.slow tr.row')].map((row) => row.children[0].textContent)")
    assert all(begin[11:] <= time < end[11:] for time in began)
    # Each connection was there all the time.
    assert [chart for chart in CHARTS if seen[chart] == whole[chart]] in ([], ["connections"])
    assert tab.said == []


@whole
def test_a_time_is_chosen_by_dragging_over_a_chart_and_all_is_shown_again(tab: Tab) -> None:
    begin = tab.run("instant(FIRST + 3 * STEP)")
    end = tab.run("instant(FIRST + 5 * STEP)")
    tab.run(
        f"Plotly.relayout('plot-traffic', {{'xaxis.range[0]': '{begin}', 'xaxis.range[1]': '{end}'}}).then(() => 0)"
    )
    drawn(tab)

    assert tab.run("[chosen.from, chosen.to]") == [3, 5]
    seen = act(tab, "document.getElementById('reset').click()")
    assert len(sums(seen["rate"])) == SECONDS + 1
    assert tab.run("document.getElementById('reset').disabled")


@whole
def test_a_heatmap_is_drawn_for_each_interaction_or_for_all_and_until_the_first_item(tab: Tab) -> None:
    def pick(id: str, value: str) -> dict[str, Any]:
        return act(tab, f"put('{id}', '{value}', 'change')")

    def counted(seen: dict[str, Any]) -> int:
        cells = [said for trace in seen["heatmap"]["data"] for line in trace["customdata"] for said in line if said]
        return sum(int(said.split(": ")[1].split(" ")[0].replace(",", "")) for said in cells)

    assert drawn(tab)["heatmap"]["facets"] == list(service.ROUTES)
    assert counted(drawn(tab)) == SECONDS * service.RATE
    assert pick("heat-facet", "interaction")["heatmap"]["facets"] == ["request response", "request stream"]
    one = pick("heat-facet", "all")
    assert (one["heatmap"]["facets"], counted(one)) == (["All that is chosen"], SECONDS * service.RATE)
    # A request that failed had no first item.
    failed = Counter(row["outcome"] for row in service.capture_of(SECONDS)["interactions"])["error"]
    assert counted(pick("heat-metric", "first")) == SECONDS * service.RATE - failed
    pick("heat-metric", "total")
    pick("heat-facet", "route")


@whole
def test_the_switch_chooses_dark_or_light_and_charts_follow(tab: Tab) -> None:
    def colours(choice: str) -> tuple[str, str]:
        act(tab, f"document.querySelector('[data-theme-choice={choice}]').click()")
        background = tab.run("getComputedStyle(document.body).backgroundColor")
        return background, tab.run("document.getElementById('plot-rate').layout.font.color")

    light, dark, system = colours("light"), colours("dark"), colours("system")

    assert light == system == ("rgb(244, 246, 249)", "#18212c")
    assert dark == ("rgb(16, 21, 28)", "#e6ebf2")
    assert tab.said == []


# Peers, and nothing at all


@whole
def test_what_a_peer_said_is_text_in_the_browser(chromium: Browser, by_hand: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(tables_of(by_hand), title=f"Capture {HOSTILE}"), "utf-8")
    tab = chromium.open(path)
    seen = drawn(tab)

    assert tab.run("document.title") == f"Capture {HOSTILE}"
    # The wicked name is shown as it is: no image was made of it, no link, no sum.
    assert "</script><img src=x onerror=alert(1)>{{ 7*7 }}" in seen["busy-routes"]["text"] + seen["heatmap"]["text"]
    assert HOSTILE in seen["heatmap"]["facets"]
    assert tab.run("document.querySelectorAll('img, a[href^=javascript]').length") == 0
    assert tab.said == []


@whole
def test_a_capture_in_which_nothing_happened_has_a_page_as_well(
    chromium: Browser, known: dict[str, Answer], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(
        render({name: Answer(name, found.columns, ()) for name, found in known.items()}, title="0"), "utf-8"
    )
    tab = chromium.open(path)

    assert all(found["said"] for found in drawn(tab).values())
    assert tab.said == []


@whole
def test_a_capture_without_routes_and_traces_has_all_charts(
    chromium: Browser, known: dict[str, Answer], tmp_path: Path
) -> None:
    names = {"route", "shown_route", "by_route", "trace_id"}
    bare = {
        view: Answer(
            view,
            found.columns,
            tuple(
                tuple(None if column in names else cell for column, cell in zip(found.columns, row, strict=True))
                for row in found.rows
            ),
        )
        for view, found in known.items()
    }
    path = tmp_path / "report.html"
    path.write_text(render(bare, title="No routes"), "utf-8")
    tab = chromium.open(path)
    seen = drawn(tab)

    assert [chart for chart in CHARTS if not is_drawn(chart, seen)] == []
    assert seen["heatmap"]["facets"] == ["(no route)"]
    assert rates(seen) == pytest.approx([service.RATE] * SECONDS, rel=0.01)
    assert sums(choose(tab, "route", "(no route)")["rate"]) == sums(seen["rate"])
    assert tab.said == []
