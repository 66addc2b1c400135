"""Running a client against a server in two processes, and reading what each cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LONGEST = 300
"""Seconds after which a run is given up."""


@attrs.frozen
class Cost:
    """What one run took: seconds on the wall, and CPU seconds of client and server together."""

    wall: float
    cpu: float


@attrs.define
class Server:
    """A server process and the port that it listens on."""

    process: subprocess.Popen[str]
    port: int

    def cpu(self) -> float:
        """CPU seconds that it has used, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self) -> int:
        """Bytes of resident memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE


@contextmanager
def server(library: str, scheme: str = "tcp", *more: str) -> Iterator[Server]:
    """A server of this library for as long as the block, told ``more`` where it understands that."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.peers.{library}_server", scheme, *more],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Server(process, int(process.stdout.readline().split("/")[0]))
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def run(
    library: str,
    workload: str,
    scheme: str = "tcp",
    dialect: str = "rsocket/1.0",
    *,
    to_server: tuple[str, ...] = (),
    to_client: tuple[str, ...] = (),
) -> Cost:
    """One run of one workload, with a fresh server; both may be told more."""
    with server(library, scheme, *to_server) as peer:
        before = peer.cpu()
        done = subprocess.run(
            [
                *(sys.executable, "-m", f"benchmarks.peers.{library}_client"),
                *(scheme, str(peer.port), workload, dialect, *to_client),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{library} {workload}: {done.stderr.strip().splitlines()[-1:]}")
        spent = json.loads(done.stdout)
        return Cost(spent["wall"], spent["cpu"] + peer.cpu() - before)
