"""The pieces that are measured by themselves still fit together."""

from __future__ import annotations

import pytest

from benchmarks import micro


def test_every_piece_costs_something(capsys: pytest.CaptureFixture[str]) -> None:
    figures = micro.main(loops=1)

    assert list(figures) == list(micro.PIECES)
    assert min(figures.values()) > 0
    assert len(capsys.readouterr().out.splitlines()) == len(figures)
