"""Runs the cases of RSocket 1.0 against a peer as a server or as a client, with the tester's own engine."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import attrs
import trio

from qa.peers.rows import ENVIRONMENT, OURS, Peer
from rsocket_trio.conformance.catalogue import NEEDS, Case, chosen
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.conformance.run import (
    AT_ONCE,
    STEP_TIMEOUT,
    Listening,
    Target,
    check_server,
    command,
    dial_to,
    run,
    run_clients,
)

DIALECT: Final = "rsocket/1.0"
ROLES: Final = ("server", "client")
START_TIMEOUT: Final = 30.0
"""Seconds in which a server says where it listens."""
CLIENTS_AT_ONCE: Final = 8
HEAVY_PATIENCE: Final = 20.0
"""Seconds for a step of a case with large frames."""


class ServerEnded(Exception):
    """A server that other cases were running against is gone."""


@attrs.frozen
class Way:
    """The terms of a run: the abilities of the server, seconds for a step, and cases at the same time."""

    abilities: frozenset[str]
    patience: float
    at_once: int

    def target(self, uri: str) -> Target:
        """Return the server at this URI."""
        return Target(dial_to(uri), self.abilities, self.patience, self.at_once)


async def results_of(
    peer: Peer, role: str, *, heavy: bool = False, patience: float = STEP_TIMEOUT, every: int = 1, again: int = 0
) -> list[CaseResult]:
    """Run the cases of a role against a peer, those that need options of it by themselves.

    With ``every`` above 1 only one case of so many is run. A case that failed is run up to ``again`` times more, and
    fails if it does so each time. Raise ``ServerEnded`` for a
    server that did not last, and what ``check_server`` and ``run_clients`` raise.
    """
    if peer.name == OURS:
        return await _our_results(role, heavy)
    cases = chosen(DIALECT, role=role, heavy=heavy)[::every]
    results = await _results_of(peer, role, cases, patience)
    for _ in range(again):
        failed = [case for case in cases if results[case.id].outcome is CaseOutcome.FAIL]
        results |= await _results_of(peer, role, failed, patience)
    return [results[case.id] for case in cases]


async def _results_of(peer: Peer, role: str, cases: Sequence[Case], patience: float) -> dict[str, CaseResult]:
    had = peer.serves if role == "server" else peer.takes
    results: dict[str, CaseResult] = {}
    for options, is_heavy in sorted({(_asked(case, had), case.heavy) for case in cases}):
        some = [case for case in cases if (_asked(case, had), case.heavy) == (options, is_heavy)]
        # A heavy case by itself: what is large delays what runs beside it.
        time, at_once = (HEAVY_PATIENCE, 1) if is_heavy else (patience, AT_ONCE)
        if role == "server":
            abilities = frozenset((*NEEDS, *options))
            found = await _server_results(peer, some, options, Way(abilities, time, at_once))
        else:
            os.environ.update(ENVIRONMENT)
            abilities = peer.answers.union(options)
            start = command(peer.command(role))
            listening = Listening(f"{peer.scheme}://127.0.0.1:0", start, abilities, time, min(at_once, CLIENTS_AT_ONCE))
            found = await run_clients(some, listening)
        results |= {result.case.id: result for result in found}
    return results


def _asked(case: Case, had: frozenset[str]) -> tuple[str, ...]:
    """Return the options that the peer runs with for a case: none where it has not all that the case needs."""
    return case.options if had.issuperset(case.options) else ()


async def _our_results(role: str, heavy: bool) -> list[CaseResult]:
    """Run the cases against our side as the tests do."""
    # Only here: it needs the test environment.
    from tests.conformance.test_cases import cases_of, results_at

    # A line for each fault that a case shows it.
    logging.getLogger("rsocket_trio").setLevel(logging.CRITICAL)
    return await results_at(role, DIALECT, "tcp://127.0.0.1:0", cases_of(DIALECT, role, heavy=heavy))


async def _server_results(peer: Peer, cases: Sequence[Case], options: Sequence[str], way: Way) -> list[CaseResult]:
    async with serving(peer, options) as uri:
        await check_server(way.target(uri), DIALECT)
        if not peer.is_fragile:
            return await run(cases, way.target(uri))
    results: dict[str, CaseResult] = {}
    limiter = trio.CapacityLimiter(way.at_once)

    async def alone(case: Case) -> None:
        async with limiter:
            try:
                async with serving(peer, options, may_end=True) as uri:
                    [results[case.id]] = await run([case], way.target(uri))
            except ServerEnded as error:
                results[case.id] = CaseResult(case, CaseOutcome.FAIL, str(error))

    async with trio.open_nursery() as nursery:
        for case in cases:
            nursery.start_soon(alone, case)
    return [results[case.id] for case in cases]


@asynccontextmanager
async def serving(peer: Peer, options: Sequence[str] = (), *, may_end: bool = False) -> AsyncIterator[str]:
    """Run the peer's server for the block, which gets its URI. Raise ``ServerEnded`` if it ended before, or starts
    not at all."""
    process = await trio.lowlevel.open_process(
        peer.command("server"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | ENVIRONMENT | {"RSOCKET_WITH": ",".join(options)},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        line = b""
        with trio.move_on_after(START_TIMEOUT):
            while not line.endswith(b"\n") and (chunk := await process.stdout.receive_some()):
                line += chunk
        if not line.startswith(b"listening "):
            raise ServerEnded(f"the {peer.title} server did not start")
        yield line.split()[1].decode()
        if process.poll() is not None and not may_end:
            raise ServerEnded(f"the {peer.title} server ended amid the cases")
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()
