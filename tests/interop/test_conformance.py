"""The conformance cases of RSocket 1.0 against foreign servers and clients: each failure is known, with its reason."""

from __future__ import annotations

import pytest

from qa.peers.findings import explain, findings
from qa.peers.rows import BY_NAME
from qa.peers.running import DIALECT, results_of
from rsocket_trio.conformance.catalogue import chapters
from rsocket_trio.conformance.play import Outcome
from rsocket_trio.conformance.report import told
from tests.interop.peers import KINDS, Kind, require_peer

EVERY = 12
"""Of so many cases of clients one is run here, for each is a process; ``make peers`` runs all."""


@pytest.mark.parametrize("role", ["server", "client"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_foreign_peer_fails_only_what_is_known(kind: Kind, role: str) -> None:
    require_peer(kind)
    is_whole = role == "server"
    results = await results_of(BY_NAME[kind], role, patience=3, every=1 if is_whole else EVERY, again=1)

    failed = {result.case.id: result for result in results if result.outcome is Outcome.FAIL}
    known = [case for case in chapters()[DIALECT].cases if case.role == role]
    ran = [result.case for result in results]
    found = explain(findings().failures, kind, role, [one.case for one in failed.values()], ran, known)
    assert ["\n".join(told(failed[name])) for name in found.unexplained] == []
    assert not is_whole or found.idle == ()
