"""A soak of a few seconds; and the judge is judged."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from qa.items import ASKED, LABEL, Wrong, check, item
from qa.processes import MIB
from qa.soak.__main__ import report, soak
from qa.soak.client import Size, Tally
from qa.soak.watch import Process, Sample, left, misses
from rsocket_trio import Payload
from rsocket_trio.mux.retransmission import FrameStore
from tests.each_row import whole

QUICK = Size(seconds=3, connections=10, streams=200, rate=800, fate=0.7)
MINUTES = 10


FATES = ("resumed", "cut", "left")
ENDS = ("completed", "cancelled", "failed as planned")


def has_seen_everything(tally: Tally) -> bool:
    """Return whether there were items enough, and a connection and a stream of every end."""
    return tally.items > 1000 and all(tally.fates[one] for one in FATES) and all(tally.ends[one] for one in ENDS)


async def test_a_soak_of_seconds_loses_nothing_and_leaves_nothing() -> None:
    outcome = await soak(QUICK, has_seen_everything)

    assert report(outcome), outcome.complaints
    tally = outcome.tally
    assert tally.items > 500
    assert outcome.received > 100
    assert all(tally.fates[one] for one in FATES), tally.fates
    assert all(tally.ends[one] for one in ENDS), tally.ends


@whole
async def test_a_library_that_loses_a_frame_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FrameStore.kept
    monkeypatch.setattr(FrameStore, "kept", lambda store: right(store)[1:])

    outcome = await soak(attrs.evolve(QUICK, seconds=1.5, fate=0.3), lambda tally: bool(tally.failures))

    assert outcome.complaints


def history(memory: Callable[[float], float], tasks: int = 1000, descriptors: int = 500) -> list[Sample]:
    """A sample each second; memory in MiB, by the minute."""
    start = Sample(0, Process(30 * MIB, 5, 10), Process(30 * MIB, 5, 10))
    return [start] + [
        Sample(second, Process(int(memory(second / 60) * MIB), tasks, descriptors), Process(50 * MIB, 1000, 500))
        for second in range(1, MINUTES * 60 + 1)
    ]


def test_what_stays_flat_passes() -> None:
    assert misses(history(lambda minute: 100 + second_thoughts(minute)), 500) == []
    assert misses(history(lambda minute: min(100, 100 * minute)), 500) == []


def second_thoughts(minute: float) -> float:
    """Up and down without end."""
    return minute * 60 % 7


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (history(lambda minute: 200 + 0.6 * minute), "0.60 MiB a minute"),
        (history(lambda minute: 20 + 0.3 * minute), "memory grew by 1"),
        (history(lambda minute: 100, descriptors=600), "600 descriptors"),
    ],
    ids=["slope", "part", "descriptors"],
)
def test_what_grows_is_noticed(samples: list[Sample], found: str) -> None:
    assert found in " ".join(misses(samples, 500))


def test_what_is_left_is_noticed() -> None:
    was = Sample(0, Process(MIB, 6, 10), Process(MIB, 3, 14))
    now = Sample(9, Process(9 * MIB, 7, 10), Process(9 * MIB, 3, 15))

    assert left(was, was) == []
    assert left(was, now) == [
        "server: 7 tasks at the end, and 6 at the start",
        "client: 15 descriptors at the end, and 14 at the start",
    ]


@pytest.mark.parametrize(
    "came",
    [item(1, ASKED, 3), item(2, ASKED, 2), Payload(b"?", LABEL.pack(1, ASKED, 2)), Payload(b"", None)],
    ids=["order", "stream", "content", "nothing"],
)
def test_a_wrong_item_is_noticed(came: Payload) -> None:
    check(item(1, ASKED, 2), 1, ASKED, 2)

    with pytest.raises(Wrong):
        check(came, 1, ASKED, 2)
