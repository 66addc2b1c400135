"""Every published figure of Spark and of replay is the one in the results, and says what it is of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, spark_pages
from benchmarks.libraries import ROOT

DOCS = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if re.search(r"spark|replay|README|index", page.name)
)
FIGURE = re.compile(r"\d[\d.,]*( million)?( small| raw)*( rows)?( a second|/s\b| per second)|\d ?[uµ]s of CPU")
"""The form of a rate or a cost."""


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The published results."""
    return report.read([report.RESULT])


@pytest.mark.parametrize("page", spark_pages.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_figures_of_the_results(page: Path, figures: dict[str, Any]) -> None:
    text = page.read_text()

    assert spark_pages.PART.search(text), "no part of this page is measured"
    assert spark_pages.filled(text, figures) == text, "python -m benchmarks.report writes it anew"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_no_figure_stands_outside_of_the_parts_that_are_compared(page: Path) -> None:
    text = spark_pages.PART.sub("", page.read_text())

    assert [found[0] for found in FIGURE.finditer(text)] == []
