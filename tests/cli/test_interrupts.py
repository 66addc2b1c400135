"""Ctrl-C while a command starts is one line and 130, whatever is imported at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.cli.commands import COMMAND, PATIENCE, Running

SLOW = """
import sys, time
print("importing", flush=True)
try:
    time.sleep(1000)
except BaseException:
    time.sleep(1000)
"""
"""A module that takes its time, and swallows what it is interrupted with, as real ones do in their import hooks."""

SLOW_APP = ["serve", "app:responder", "--listen", "tcp://127.0.0.1:0"]
REQUEST = ["request", "tcp://127.0.0.1:1"]
STARTS = {
    "a module of the command": ("click", REQUEST),
    "trio": ("trio", REQUEST),
    "the application": ("app", SLOW_APP),
    "one that only a command needs": ("pyspark", ["load", "tcp://127.0.0.1:1", "--rate", "1", "--master", "local[1]"]),
}


@asynccontextmanager
async def starting(folder: Path, module: str, arguments: list[str], *shell: str) -> AsyncIterator[Running]:
    """A command in the middle of importing this module."""
    (folder / f"{module}.py").write_text(SLOW)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    process = await trio.lowlevel.open_process(
        [*shell, *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        with trio.fail_after(PATIENCE):
            running = Running(process)
            assert await running.line() == "importing"
            yield running
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                await stream.aclose()


@pytest.mark.parametrize(("module", "arguments"), STARTS.values(), ids=STARTS)
async def test_ctrl_c_during_an_import_is_one_line_and_130(module: str, arguments: list[str], tmp_path: Path) -> None:
    async with starting(tmp_path, module, arguments) as command:
        command.process.send_signal(signal.SIGINT)
        assert await command.end() == (130, "rsocket-trio: interrupted")


async def test_ctrl_c_that_was_ignored_from_outside_stays_ignored_while_a_command_starts(tmp_path: Path) -> None:
    background = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    async with starting(tmp_path, "click", REQUEST, *background) as command:
        command.process.send_signal(signal.SIGINT)
        command.process.send_signal(signal.SIGTERM)
        assert (await command.process.wait()) == -signal.SIGTERM


def test_the_command_has_ctrl_c_in_its_hands_before_it_loads_anything() -> None:
    script = "import sys, rsocket_trio.cli.entry; print(*sys.modules)"
    loaded = subprocess.run([COMMAND[0], "-c", script], capture_output=True, text=True, check=True).stdout.split()

    ours = {name for name in loaded if name.startswith("rsocket_trio")}
    assert ours == {f"rsocket_trio{name}" for name in ("", ".late_names", ".cli", ".cli.entry", ".cli.interrupts")}
    assert not {"trio", "click", "attrs", "typing", "asyncio"} & set(loaded)
