"""``python -m qa.peers [PEER ...]``: run the conformance cases against other implementations, and write docs/peers.md.

Each peer is installed or built where its tools are there; another one is named and left out, which fails where ``CI``
is set. The records of the runs stay in build/peers, with a page for each to send to a maintainer. Exits 1 if a failure
has no sentence in findings.toml, if a sentence there fits no failure any more, or if a peer could not be run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from qa.peers.findings import findings
from qa.peers.page import ROLES, Record, made
from qa.peers.rows import BUILD, BY_NAME, PEERS, ROOT, NotBuilt, Peer
from qa.peers.running import DIALECT, ServerEnded, results_of
from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.report import CaseRun, table
from rsocket_trio.conformance.run import WrongPeer
from rsocket_trio.errors import ConnectionLost

PAGE: Final = ROOT / "docs" / "peers.md"
RECORDS: Final = BUILD / "records"
AGAIN: Final = 2
"""Further runs of a case that failed: what fails now and then, by a race or on a busy machine, is no failure here."""
AT_ONCE: Final = 3
"""Peers that are run at the same time: most cases wait."""
WHY_NOT: Final = (ServerEnded, WrongPeer, ConnectionLost, subprocess.CalledProcessError)


def main(words: Sequence[str]) -> int:
    """Run the peers that are named, all by default, and write the page of all records. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m qa.peers", description="conformance cases against other peers")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(BY_NAME))
    parser.add_argument("--role", choices=list(ROLES), help="only as a server, or as a client")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page of the records that are there")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.peers if name not in BY_NAME]:
        parser.error(f"no peer {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    RECORDS.mkdir(parents=True, exist_ok=True)
    chosen = [BY_NAME[name] for name in asked.peers] or list(PEERS)
    roles = [asked.role] if asked.role else list(ROLES)
    left_out: dict[str, str] = {}
    ready: list[Peer] = []
    for peer in [] if asked.page else chosen:
        for path in [_record(peer, role) for role in roles]:
            path.unlink(missing_ok=True)
        if (why := _build(peer)) is None:
            ready.append(peer)
        else:
            left_out[peer.title] = why
    left_out |= trio.run(_run_all, ready, roles)
    for title, why in left_out.items():
        print(f"{title} is left out: {why}", flush=True)
    records = [Record.read(path) for peer in PEERS for role in ROLES if (path := _record(peer, role)).exists()]
    page = made(records, read_chapter(DIALECT).cases, findings(), left_out)
    PAGE.write_text(page.text, "utf-8")
    for complaint in page.complaints:
        print(complaint)
    return int(bool(page.complaints) or (bool(left_out) and "CI" in os.environ))


def _record(peer: Peer, role: str) -> Path:
    return RECORDS / f"{peer.name}-{role}.json"


def _build(peer: Peer) -> str | None:
    """Build a peer. Return why it is not there, or ``None``."""
    if (why := peer.missing()) is not None:
        return why
    try:
        peer.make()
    except NotBuilt as error:
        return str(error)
    return None


async def _run_all(peers: Sequence[Peer], roles: Sequence[str]) -> dict[str, str]:
    """Run the cases against peers, some at a time. Return why those that could not be run are left out."""
    left_out: dict[str, str] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def one(peer: Peer) -> None:
        async with limiter:
            try:
                for role in roles:
                    await _run(peer, role)
            except WHY_NOT as error:
                left_out[peer.title] = str(error)

    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(one, peer)
    return left_out


async def _run(peer: Peer, role: str) -> None:
    """Run the cases against a peer, and keep the record."""
    version, runtime = peer.version(peer.folder), peer.runtime()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    results = await results_of(peer, role, heavy=True, again=AGAIN)
    run = CaseRun(f"{peer.title} {version}", DIALECT, role, began, results)
    print(f"{run.target} on {runtime}, {role}\n{table(run)}", flush=True)
    outcomes = {result.case.id: result.outcome for result in results}
    Record(peer.name, peer.title, version, runtime, role, began, outcomes).write(_record(peer, role), run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
