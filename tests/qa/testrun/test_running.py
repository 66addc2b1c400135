"""A hang costs its own item: planted hangs each cost one failure, everything else runs, and no process is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qa.testrun import parts
from tests.blocks import ROOT
from tests.qa.testrun.planted import outcomes, run

HEALTHY = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_healthy(number):
    assert number < 3

async def test_healthy_in_trio(autojump_clock):
    import trio
    await trio.sleep(1000)
"""
HANGS = '''
import ctypes
import os
import signal
import subprocess
import sys

import pytest
import trio

soon = pytest.mark.timeout(1)

@soon
async def test_trio(autojump_clock):
    await trio.sleep_forever()

async def test_behind_trio():
    await trio.lowlevel.checkpoint()

@soon
def test_blocked_in_c():
    """A call in C that no signal ends: a mutex that this thread holds already."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

@soon
def test_child_that_ignores_sigterm(pytestconfig):
    code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid()"
    code += "; print(1, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    (pytestconfig.rootpath / "child").write_text(str(child.pid))
    child.wait()

def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_wrong():
    assert not "so"

def test_skipped():
    pytest.skip("not here")

def test_last():
    pass
'''


def test_a_hang_or_a_dead_process_costs_one_item_and_leaves_no_process(tmp_path: Path) -> None:
    files = {"healthy": HEALTHY, "hangs": HANGS, "broken": "import nothing\n"}
    result = run(tmp_path, files, workers=2)

    failed = ["test_trio", "test_blocked_in_c", "test_child_that_ignores_sigterm", "test_killed", "test_wrong"]
    assert outcomes(result, "hangs") == dict.fromkeys(failed, "failed") | {
        "test_behind_trio": "passed",
        "test_skipped": "skipped",
        "test_last": "passed",
    }
    assert list(outcomes(result, "healthy").values()) == ["passed"] * 4
    assert sorted(name.partition("test_")[2] for name, _ in result.failures) == sorted(
        ["broken.py", *(f"hangs.py::{name}" for name in failed)]
    )
    assert result.skips == {"not here": 1}
    assert "await trio.sleep_forever()" in (tmp_path / "planted.txt").read_text()
    assert not Path(f"/proc/{(tmp_path / 'project' / 'child').read_text()}").exists()


def test_every_file_of_tests_is_in_one_part() -> None:
    collected: list[str] = []
    for part in parts.PARTS:
        ignored = [word.removeprefix("--ignore=") for word in parts.command(part) if word.startswith("--ignore=")]
        for path in part.paths:
            files = [file.relative_to(ROOT).as_posix() for file in (ROOT / path).rglob("test_*.py")]
            collected += [
                file
                for file in ([path] if path.endswith(".py") else files)
                if not any(file == one or file.startswith(f"{one}/") for one in ignored)
            ]
    everything = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(collected) == sorted(file for file in everything if "node_modules" not in file)


@pytest.mark.skipif(sys.platform != "linux", reason="a subreaper is Linux's")
def test_all_that_descends_from_a_process_is_ended() -> None:
    code = (
        "import os, sys, time; from qa.testrun import descendants as below; below.become_subreaper()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(600)\n"  # an orphan, in a session of its own
        "    os._exit(0)\n"
        "os.wait()\n"
        "print([process.state for process in below.descendants()])\n"
        "below.end_descendants()\n"
        "print(below.descendants())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    states, left = done.stdout.splitlines()
    assert states in ("['S']", "['R']")
    assert left == "[]"
