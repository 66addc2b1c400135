"""The conformance cases of RSocket 1.0 against foreign servers and clients: each failure is known, with its reason."""

from __future__ import annotations

import pytest
import trio

from qa.peers.findings import explain, findings
from qa.peers.rows import BY_NAME
from qa.peers.running import DIALECT, results_of
from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.report import failure_lines
from tests.each_row import ALL_CASES
from tests.interop.peers import KINDS, Kind

PATIENCE = 3.0
"""Seconds for a step. A case that failed is run once more."""
EVERY = {"server": 1, "client": 1} if ALL_CASES else {"server": 4, "client": 12}
"""Of so many cases one is run here, as each waits for silence, and each of a client is a process; ``make peers`` runs
all."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_foreign_peer_fails_only_what_is_known(kind: Kind) -> None:
    async def fails_only_what_is_known(role: str) -> None:
        results = await results_of(BY_NAME[kind], role, patience=PATIENCE, every=EVERY[role], again=1)

        failed = {result.case.id: result for result in results if result.outcome is CaseOutcome.FAIL}
        known = [case for case in read_chapter(DIALECT).cases if case.role == role]
        ran = [result.case for result in results]
        found = explain(findings().failures, kind, role, [one.case for one in failed.values()], ran, known)
        assert ["\n".join(failure_lines(failed[name])) for name in found.unexplained] == []
        assert EVERY[role] > 1 or found.idle == ()

    # Beside each other, for each takes seconds in which nothing is done.
    async with trio.open_nursery() as nursery:
        for role in EVERY:
            nursery.start_soon(fails_only_what_is_known, role)
