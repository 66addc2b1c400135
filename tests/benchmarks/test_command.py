"""Sections that are measured by themselves leave the figures of the others as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import contents


def section(name: str, found: Any) -> contents.Section:
    return contents.Section(name, lambda asked: found, lambda figures: [])


def test_a_section_replaces_its_figures_and_says_when_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "result.json"
    file.write_text(
        json.dumps({"machine": {"date": "2026-01-02"}, "repeat": 5, "memory": {"old": 1}, "oob": {"old": 2}})
    )
    sections = {
        "memory": section("memory", {"new": 3}),
        "oob": section("oob", {"new": 4}),
        "profiles": section("p", None),
    }
    monkeypatch.setattr(contents, "BY_NAME", sections)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "memory", "profiles", "--repeat", "2", "--json", str(file)])

    assert command.main() == 0

    figures = json.loads(file.read_text())
    assert figures["memory"] == {"new": 3}
    assert figures["oob"] == {"old": 2}
    assert "profiles" not in figures
    assert figures["alone"]["memory"]["repeat"] == 2
    assert figures["repeat"] == 5


def test_a_word_that_names_no_section_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "speed"])

    with pytest.raises(SystemExit):
        command.main()

    assert "no workload or section speed" in capsys.readouterr().err
