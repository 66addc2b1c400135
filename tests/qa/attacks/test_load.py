"""Quick sizes of load that is held, that comes and goes, and of what may be left of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from qa.attacks import held, leftovers
from qa.attacks.harness import Missed
from rsocket_trio.connection.connection import Connection
from tests.each_row import ALL_CASES


@pytest.fixture
def kept() -> Iterator[list[object]]:
    kept: list[object] = []
    yield kept
    kept.clear()
    gc.collect()


HERE = ("leftovers",)


@pytest.mark.parametrize(
    "name", [name for name in held.LOADS if name in HERE or (ALL_CASES and name not in held.TIMES)]
)
def test_load_is_held(name: str) -> None:
    held.LOADS[name](held.QUICK)


def test_what_is_left_is_found(kept: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connection.__init__

    def keep(self: Connection, *args: object, **options: object) -> None:
        made(self, *args, **options)  # type: ignore[arg-type]
        kept.append(self)

    monkeypatch.setattr(Connection, "__init__", keep)
    with pytest.raises(Missed, match="Connection"):
        leftovers.leftovers(held.Load(ended=2))
