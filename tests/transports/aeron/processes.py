"""Processes that tests talk to over Aeron."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio

from tests.serving import running_program


def echo_server(uri: str) -> AbstractAsyncContextManager[tuple[trio.Process, str]]:
    """A server in a process of its own, which is killed at the end. Provide it and its URI."""
    return started("serve", uri)


def started(*words: str) -> AbstractAsyncContextManager[tuple[trio.Process, str]]:
    """The program of this folder, which is killed at the end. Provide it and the line that it prints."""
    return running_program(sys.executable, str(Path(__file__).with_name("echo_server.py")), *words)
