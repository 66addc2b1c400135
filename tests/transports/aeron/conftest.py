"""Tests over Aeron need its library, leave nothing in shared memory, and find each other by no directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsocket_trio.transports.aeron.media_driver import PREFIX, base
from tests.missing import missing_aeron, require


@pytest.fixture(autouse=True)
def the_library_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    require(missing_aeron())
    monkeypatch.delenv("AERON_DIR", raising=False)


@pytest.fixture(autouse=True)
def no_directory_is_left() -> Iterator[None]:
    yield
    assert [each.name for each in base().iterdir() if each.name.startswith(f"{PREFIX}{os.getpid()}-")] == []


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    """A directory for a driver that several programs share; it is gone at the end."""
    path = tmp_path / "driver"
    yield str(path)
    assert not path.exists()


@pytest.fixture(params=["udp", "ipc"])
def uri(request: pytest.FixtureRequest, directory: str) -> str:
    """Each kind of channel."""
    return "aeron:udp?endpoint=127.0.0.1:0" if request.param == "udp" else f"aeron:ipc?directory={directory}"
