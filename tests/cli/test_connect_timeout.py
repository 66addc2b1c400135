"""``--connect-timeout`` bounds connecting in every command of a client; the line on stderr names the step."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, MISUSED
from rsocket_trio.cli.main import commands
from tests.rows import Rows

URI = "tcp://127.0.0.1:1"
COMMANDS = {
    "request": [],
    "stream": [],
    "push": ["-m", "x"],
    "routes": [],
    "sources": [],
    "readers": ["log"],
}
"""The commands of a client with what else each needs."""


@pytest.fixture
def silent() -> Iterator[str]:
    """A server of WebSocket, as it seems, that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"ws://127.0.0.1:{listening.getsockname()[1]}"


def code_of(*words: str) -> object:
    """Run a command in this process. Return its exit code."""
    with pytest.raises(SystemExit) as left:
        commands.main(list(words))
    return left.value.code


def test_every_command_of_a_client_has_it(silent: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Rows() as row:
        for name, more in COMMANDS.items():
            with row(name):
                command = name.partition(" ")[0]
                assert code_of(command, silent, *more, "--connect-timeout", "0.05") == CANNOT_CONNECT
                line = f"ConnectionLost: {silent}: the WebSocket upgrade was not answered within 0.05 s\n"
                assert capfd.readouterr().err == line


def test_a_time_that_is_none_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    with Rows() as row:
        for text in ("0", "-1", "nan", "soon"):
            with row(text):
                assert code_of("request", URI, f"--connect-timeout={text}") == MISUSED
                assert "connect" in capfd.readouterr().err
