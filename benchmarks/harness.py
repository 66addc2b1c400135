"""Running a client against a server in two processes, and reading what each cost."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TypeAlias

import attrs

from benchmarks import libraries, profiling
from benchmarks.libraries import BY_LIBRARY, NODE_MODULES, Library
from benchmarks.workloads import BY_NAME, OPERATIONS

ROOT = libraries.ROOT
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LONGEST = 300
"""Seconds after which a run is given up."""

Process: TypeAlias = "subprocess.Popen[str]"


@attrs.frozen
class Cost:
    """The figures of one run: the number of operations, wall seconds, CPU seconds of both processes, waits by
    percentile in ms, and the bytes of resident memory that both grew by.
    """

    count: int
    wall: float
    client_cpu: float
    server_cpu: float
    waits: dict[str, float]
    client_memory: int
    server_memory: int

    @property
    def cpu(self) -> float:
        """CPU seconds of client and server together, for 100,000 operations."""
        return (self.client_cpu + self.server_cpu) / self.count * OPERATIONS


def middle(figures: Iterable[float]) -> float:
    """Their median."""
    return statistics.median(figures)


def cpu_of(process: int) -> float:
    """CPU seconds that a process has used, in user and kernel mode, all threads, those that ended included."""
    # The clock that clock_getcpuclockid(3) names: Linux makes it of the process's number, and of 2 for "scheduled".
    return time.clock_gettime((~process << 3) | 2)


def resident(process: int) -> int:
    """Bytes of resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE


@attrs.define
class Server:
    """A server process and the port that it listens on."""

    process: Process
    port: int

    def cpu(self) -> float:
        """CPU seconds that it has used, all threads."""
        return cpu_of(self.process.pid)

    def resident(self) -> int:
        """Bytes of resident memory."""
        return resident(self.process.pid)


@contextmanager
def started(
    command: list[str], longest: float = LONGEST, profile: Path | None = None
) -> Iterator[tuple[Process, Path]]:
    """A process for as long as the block, or ``longest`` seconds; with the file that its errors go to.

    With ``profile`` it is sampled, and ends by itself, to write that file.
    """
    if profile is not None:
        command = profiling.sampled(command, profile)
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "NODE_PATH": str(NODE_MODULES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        limit = Timer(longest, process.kill)
        limit.daemon = True
        limit.start()
        try:
            yield process, Path(errors.name)
            if profile is not None:
                process.communicate()
        finally:
            limit.cancel()
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def line_of(process: Process, errors: Path) -> str:
    """The next line that a process prints; raises ``RuntimeError`` with its last words when there is none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        last = errors.read_text().strip().splitlines()[-3:]
        raise RuntimeError(f"{process.args!r}: {last}")
    return line


def tell(process: Process, line: str = "") -> None:
    """Let a client that waits go on, told a line."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


@contextmanager
def server(
    library: str, scheme: str = "tcp", *more: str, python: str = sys.executable, profile: Path | None = None
) -> Iterator[Server]:
    """A server of this library for as long as the block, told ``more`` where it understands that."""
    of = BY_LIBRARY.get(library) or Library(library, library, "", "")
    with started(of.command("server", scheme, *more, python=python), profile=profile) as (process, errors):
        yield Server(process, int(line_of(process, errors).split("/")[0]))


def run(
    library: str,
    workload: str,
    scheme: str = "tcp",
    dialect: str = "rsocket/1.0",
    *,
    to_server: tuple[str, ...] = (),
    to_client: tuple[str, ...] = (),
    python: str = sys.executable,
    share: float = 1,
    profile: Path | None = None,
) -> Cost:
    """One run of one workload, or of a share of it, with a fresh server; both may be told more, and run on this Python.

    What is counted begins when the client has connected and done the first operations, and ends with its last answer.
    With ``profile`` both are sampled, and write their stacks to files beside it, of that name and their roles'.
    """
    files = {
        role: profile and profile.with_name(f"{profile.name}-{role}{profiling.SUFFIX}") for role in ("server", "client")
    }
    of = BY_LIBRARY[library]
    asked = BY_NAME[workload].scaled(share)
    with server(library, scheme, *to_server, python=python, profile=files["server"]) as peer:
        words = [scheme, str(peer.port), json.dumps(attrs.asdict(asked)), dialect, *to_client]
        if of.runtime == "node":
            words.append(json.dumps(attrs.asdict(asked.first)))  # it can't import the table
        with started(of.command("client", *words, python=python), profile=files["client"]) as (client, errors):
            before = at_border("ready", client, errors, peer)
            after = at_border("done", client, errors, peer)
            said = json.loads(line_of(client, errors))
    spent = [end - begin for begin, end in zip(before, after, strict=True)]
    return Cost(
        count=said["count"],
        wall=said["wall"],
        client_cpu=spent[0],
        server_cpu=spent[1],
        waits=said["waits"],
        client_memory=int(spent[2]),
        server_memory=int(spent[3]),
    )


def at_border(word: str, client: Process, errors: Path, peer: Server) -> tuple[float, float, int, int]:
    """CPU seconds and memory of client and server once the client has said a word; it goes on then."""
    said = line_of(client, errors)
    found = cpu_of(client.pid), peer.cpu(), resident(client.pid), peer.resident()
    assert said == f"{word}\n", said
    tell(client)
    return found
