"""A soak of a few seconds; and the judge is judged."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from qa.processes import MIB
from qa.soak import Sample, Size, grown, remaining, soak
from rsocket_trio.mux.retransmission import FrameStore
from tests.each_row import whole

QUICK = Size(seconds=3, connections=10, channels=20, pause=0.02, farthest=60_000, waits=5)


async def test_a_short_soak_passes_with_cuts_and_channels_that_are_left() -> None:
    outcome = await soak(QUICK)

    assert outcome.complaints == []
    assert min(outcome.items, outcome.left, outcome.cuts) > 0


@whole
async def test_a_session_that_loses_frames_when_it_goes_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = FrameStore.kept
    monkeypatch.setattr(FrameStore, "kept", lambda store: kept(store)[1:])

    assert (await soak(QUICK)).complaints


def history(memory: Callable[[float], float]) -> list[Sample]:
    """A sample each second for ten minutes; memory of the server in MiB, by the minute."""
    return [Sample(at, (int(memory(at / 60) * MIB), 5, 10), (50 * MIB, 5, 10)) for at in range(1, 601)]


def test_memory_that_goes_up_and_down_passes() -> None:
    assert grown(history(lambda minute: 100 + minute * 60 % 7)) == []
    assert grown(history(lambda minute: min(100, 100 * minute))) == []


@pytest.mark.parametrize(
    ("memory", "complaint"),
    [(lambda minute: 200 + 0.6 * minute, "0.60 MiB a minute"), (lambda minute: 20 + 0.3 * minute, "grew by 1")],
    ids=["slope", "part"],
)
def test_memory_that_grows_is_noticed(memory: Callable[[float], float], complaint: str) -> None:
    assert complaint in " ".join(grown(history(memory)))


def test_what_remains_is_noticed() -> None:
    before = Sample(0, (MIB, 6, 10), (MIB, 3, 14))

    assert remaining(before, attrs.evolve(before, server=(9 * MIB, 6, 10))) == []
    assert remaining(before, Sample(9, (MIB, 7, 10), (MIB, 3, 15))) == [
        "server: 7 tasks at the end, and 6 at the start",
        "client: 15 descriptors at the end, and 14 at the start",
    ]
