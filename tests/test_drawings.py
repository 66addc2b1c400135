"""The drawings of the design are well-formed, say what they show, and name modules that exist."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.blocks import ROOT, page
from tests.test_layers import LAYERS, PUBLIC

FOLDER = ROOT / "docs" / "contributing" / "drawings"
DRAWINGS = sorted(FOLDER.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_has_a_title_and_a_description(path: Path) -> None:
    root = ET.parse(path).getroot()

    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    for name in str(root.get("aria-labelledby")).split():
        [found] = [element for element in root if element.get("id") == name]
        assert found.tag == f"{SVG}{name}"
        assert found.text


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_names_modules_that_exist(path: Path) -> None:
    named = [str(text.text) for text in ET.parse(path).iter(f"{SVG}text") if text.get("class") == "module"]
    found = [ROOT / "rsocket_trio" / name for name in named]

    assert named
    assert [one for one in found if not one.exists() and not one.with_suffix(".py").exists()] == []


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_needs_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text("utf-8")

    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|@font-face|<image|<script|url\((?!#)", text)


def test_the_drawing_of_the_layers_has_those_of_the_code() -> None:
    rows: dict[str, set[str]] = {}
    above = ""
    for text in ET.parse(FOLDER / "layers.svg").iter(f"{SVG}text"):
        if text.get("class") == "head":
            above = str(text.text)
        elif text.get("class") == "module":
            rows.setdefault(above, set()).add(str(text.text))

    layers = [set(names) for names in LAYERS if set(names) != {PUBLIC}]
    assert list(rows.values()) == layers[::-1]


def test_the_design_shows_every_drawing() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(drawings/([\w.]+)\)", page("docs/contributing/design.md"))

    assert sorted(shown) == [path.name for path in DRAWINGS]
    assert len(shown) == 4
