"""What tests in a real Spark share: servers in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.blocks import ROOT


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """In place of the one for all tests: the session keeps processes and sockets until the end of the run."""


class Server:
    """A process that serves replayable routes; see ``server.py``. Commands go to it by lines."""

    def __init__(self, *arguments: str, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.jvm.server", str(port), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.uri = self.read()

    @property
    def port(self) -> int:
        """Return where it listens."""
        return int(self.uri.rpartition(":")[2])

    def read(self) -> str:
        """A line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server ended"
        return line.strip()

    def ask(self, command: str) -> str:
        """Have it do something, and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self.read()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    started: list[Server] = []

    def start(*arguments: str, port: int = 0) -> Server:
        started.append(Server(*arguments, port=port))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    """A server with two partitions of 1000 rows each."""
    return start_server("1000", "1000")
