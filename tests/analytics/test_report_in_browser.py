"""The report in a real browser: every chart is drawn, filters change what is drawn, and nothing is asked of anybody.

``make test`` plays the first one; ``make gate`` plays all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rsocket_trio.analytics.report import render
from rsocket_trio.analytics.views import Answer
from tests.analytics.browser import Browser, Tab, browser, require_browser
from tests.analytics.handwritten import HOSTILE
from tests.blocks import ROOT
from tests.each_row import whole

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


@pytest.fixture(scope="module")
def page(told: Mapping[str, Answer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the capture that is written by hand."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(told, title=f"Capture {HOSTILE}"), "utf-8")
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


def is_drawn(chart: str, seen: dict[str, Any]) -> bool:
    found = seen[chart]
    return bool(found["rows"] if chart in TABLES else found["svgs"] and found["marks"])


def test_every_chart_is_drawn_on_a_desk_without_a_word_in_the_console(tab: Tab) -> None:
    seen = drawn(tab)

    assert len(seen) == 15
    assert [chart for chart in seen if not is_drawn(chart, seen)] == []
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

    assert [chart for chart in seen if not is_drawn(chart, seen)] == []
    assert phone.run("document.documentElement.scrollWidth") <= 400
    assert all(300 < found["width"] <= 400 for found in seen.values())
    assert phone.run("document.documentElement.dataset.theme") == "dark"
    phone.screenshot(SHOTS / "report-400-dark.png")
    assert (SHOTS / "report-400-dark.png").stat().st_size > 50_000
    assert phone.said == []


@whole
def test_a_route_that_is_chosen_is_all_that_every_chart_shows(tab: Tab) -> None:
    seen = choose(tab, "route", "watch")

    assert [trace["name"] for trace in seen["traffic"]["data"]] == ["watch"]
    assert seen["heatmap"]["facets"] == ["watch"]
    for chart in ("percentiles", "credit", "starved", "busy-routes"):
        assert {label.partition(" <i>")[0] for label in seen[chart]["labels"]} == {"watch"}, chart
    assert "find" not in seen["slowest"]["text"]
    assert tab.said == []


@whole
def test_what_a_peer_said_is_text_in_the_browser(tab: Tab) -> None:
    seen = drawn(tab)

    assert tab.run("document.title") == f"Capture {HOSTILE}"
    # The wicked name is shown as it is: no image was made of it, no link, no sum.
    assert "</script><img src=x onerror=alert(1)>{{ 7*7 }}" in seen["busy-routes"]["text"] + seen["heatmap"]["text"]
    assert HOSTILE in seen["heatmap"]["facets"]
    assert tab.run("document.querySelectorAll('img, a[href^=javascript]').length") == 0
    assert tab.said == []
