"""Connections are cut while both sides send: every item comes once and in order, and no handler begins again.

``python -m qa.resume`` does the same at full size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import attrs
import pytest

from qa.resume.aimed import misses
from qa.resume.load import DIALECTS, OPTIONS, run_load
from qa.resume.proxy import FIN, RST, SILENCE, Cut, Tamper
from qa.resume.recorder import CLIENT, SERVER
from rsocket_trio.errors import Invalid, RemoteProtocolError
from rsocket_trio.mux.retransmission import FrameStore
from tests.each_row import ALL_CASES, some

CUTS = 60 if ALL_CASES else 12
REPLAYED = 40 if ALL_CASES else 10
EVERY = 9 if ALL_CASES else 25
"""One byte of so many is aimed at; the command takes them all."""
PAYLOAD = 0x0A
SMALL = 350
KINDS = [(CLIENT, FIN), (SERVER, RST), (SERVER, SILENCE), (CLIENT, RST), (CLIENT, SILENCE), (SERVER, FIN)]
"""The side that cuts a link, and the kind of cut."""


@pytest.mark.parametrize("dialect", some(DIALECTS, 1))
async def test_a_session_that_is_cut_again_and_again_loses_nothing(dialect: str) -> None:
    outcome = await run_load(dialect, CUTS, seed=CUTS)

    assert outcome.complaints == []
    assert outcome.is_clean, outcome
    assert outcome.cuts == CUTS
    assert outcome.resumed >= CUTS // 2  # a cut may come before the session went on
    assert outcome.again > 0
    assert outcome.verdict.items > CUTS


async def test_the_same_over_http2_where_a_cut_may_come_in_the_middle_of_anything() -> None:
    outcome = await run_load("rsocket/1.0", CUTS, seed=CUTS, scheme="h2")

    assert outcome.complaints == []
    assert outcome.is_clean, outcome
    assert outcome.cuts == CUTS
    assert outcome.resumed >= CUTS // 2
    assert outcome.verdict.items > CUTS


@pytest.mark.parametrize(("side", "how"), some(KINDS, 3))
async def test_a_session_outlives_any_kind_of_cut(side: str, how: str) -> None:
    cuts = [Cut(side, 20_000, how, deliver=False, refuse=2), Cut(side, 30_000, how)]

    outcome = await run_load("rsocket/1.0", len(cuts), seed=1, plan=iter(cuts))

    assert outcome.is_clean, outcome
    assert outcome.resumed == len(cuts)


@pytest.mark.parametrize("dialect", some(DIALECTS, 1))
async def test_a_cut_at_any_byte_of_a_beginning_is_survived_or_refused(dialect: str) -> None:
    shots, wrong = await misses(dialect, every=EVERY, seed=DIALECTS.index(dialect), pairs=10)

    assert wrong == []
    assert shots > 540 // EVERY


@pytest.mark.parametrize("dialect", some(DIALECTS, 1))
async def test_a_replay_behind_every_cut_costs_nothing(dialect: str) -> None:
    outcome = await run_load(dialect, REPLAYED, seed=REPLAYED, overheard=True)

    assert outcome.complaints == []
    assert outcome.is_clean, outcome
    assert outcome.cuts == REPLAYED
    refused, taken = outcome.replays
    assert refused > 0
    assert refused + taken > REPLAYED


# The judges are judged


class Meddler:
    """Does something to one small frame with an item that the server sends, and nothing to all others."""

    def __init__(self, change: Callable[[bytes], list[bytes]]) -> None:
        self._change = change
        self._seen = 0
        self._held: list[bytes] = []

    def __call__(self, connection: int, side: str, frame: bytes) -> list[bytes]:
        is_item = side == SERVER and len(frame) > 7 and frame[7] >> 2 == PAYLOAD and len(frame) < SMALL
        self._seen += is_item
        return self._change(frame) if is_item and self._seen == 10 else [frame]


class Swapper(Meddler):
    """Sends one frame behind the next of the same stream."""

    def __call__(self, connection: int, side: str, frame: bytes) -> list[bytes]:
        if self._held and side == SERVER and frame[3:7] == self._held[0][3:7] and frame[7] >> 2 == PAYLOAD:
            held, self._held = self._held, []
            return [frame, *held]
        out = super().__call__(connection, side, frame)
        if not out:
            self._held = [frame]
        return out


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (Meddler(lambda frame: []), "lost"),
        (Meddler(lambda frame: [frame, frame]), "duplicated"),
        (Swapper(lambda frame: []), "reordered"),
        (Meddler(lambda frame: [frame[:-1] + bytes([frame[-1] ^ 1])]), "damaged"),
    ],
    ids=["drop", "duplicate", "swap", "change"],
)
async def test_the_ledger_notices_one_frame_of_many(tamper: Tamper, found: str) -> None:
    # Without a cut: positions are apart once the frame is gone, and a resume_request would be refused.
    outcome = await run_load("rsocket/1.0", 0, seed=2, items=500, credit=10_000, tamper=tamper)

    assert getattr(outcome.verdict, found) > 0, outcome
    assert not outcome.is_clean


@pytest.mark.parametrize(
    "planted",
    [lambda frames: frames[1:], lambda frames: frames[:1] + frames, lambda frames: frames[::-1]],
    ids=["drop", "duplicate", "swap"],
)
async def test_what_is_sent_again_wrongly_is_noticed(
    planted: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = FrameStore.kept
    monkeypatch.setattr(FrameStore, "kept", lambda store: planted(right(store)))
    cut: Iterator[Cut | None] = chain([Cut(SERVER, 200_000, RST, deliver=False)], repeat(None))

    # With positions apart nothing is ever confirmed: a store that gets full would stall everything.
    roomy = attrs.evolve(OPTIONS, store_bytes=64 * 2**20)

    found: list[object] = []
    try:
        outcome = await run_load("rsocket/1.0", 1, seed=3, plan=cut, credit=10_000, options=roomy, patience=3.0)
    except* (RemoteProtocolError, Invalid) as group:
        found += group.exceptions  # a fragment came where it can't be, at this side or at the other one
    else:
        found += outcome.complaints if not outcome.verdict.is_clean else []

    assert found
