"""A hang costs its own item: planted hangs of every kind each cost one failure, and everything else runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qa.testrun import parts
from qa.testrun.supervisor import Result
from tests.blocks import ROOT
from tests.qa.testrun.planted import failed, outcomes, run

HEALTHY = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_healthy(number):
    assert number < 3

async def test_healthy_in_trio(autojump_clock):
    import trio
    await trio.sleep(1000)
"""
IN_PLACE = '''
import pytest
import trio

soon = pytest.mark.timeout(1)

@soon
def test_python_loop():
    while True:
        pass

def test_behind_the_loop():
    pass

@soon
async def test_trio(autojump_clock):
    await trio.sleep_forever()

async def test_behind_trio():
    await trio.lowlevel.checkpoint()

@soon
def test_run_of_its_own():
    trio.run(trio.sleep_forever)

def test_another_run_of_its_own():
    trio.run(trio.lowlevel.checkpoint)

@soon
async def test_swallowed():
    """Deals with its cancellation and returns: it has failed all the same."""
    with trio.CancelScope() as scope:
        try:
            await trio.sleep_forever()
        finally:
            scope.cancel()
            return
'''
FROM_OUTSIDE = '''
import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest

soon = pytest.mark.timeout(1)

def deadlock():
    """A call in C that no signal ends: a mutex that this thread holds already."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

@soon
def test_blocked_in_c():
    deadlock()

def test_behind_the_blocked_call():
    pass

@soon
def test_child_that_ignores_sigterm(pytestconfig):
    code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid()"
    code += "; print(1, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    (pytestconfig.rootpath / "child").write_text(str(child.pid))
    try:
        child.terminate()
        child.wait()
    finally:
        child.terminate()
        child.wait()

@soon
def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.fixture(scope="session")
def session():
    deadlock()

@pytest.fixture(scope="module", params=[1, 2])
def module(request):
    if request.param == 2:
        time.sleep(600)
    return request.param

@soon
def test_first_with_session(session):
    pass

@soon
@pytest.mark.parametrize("number", range(3))
def test_with_session(session, number):
    pass

@soon
def test_with_module(module):
    assert module == 1

@soon
def test_with_module_again(module):
    assert module == 1

def test_last():
    pass
'''


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """One run with every kind of hang, a file that can't be collected, and healthy items before and behind."""
    folder = tmp_path_factory.mktemp("planted")
    files = {"healthy": HEALTHY, "in_place": IN_PLACE, "from_outside": FROM_OUTSIDE, "broken": "import nothing\n"}
    return run(folder, files), folder


def test_hangs_that_the_process_itself_can_end_fail_in_place(planted: tuple[Result, Path]) -> None:
    result, _ = planted
    found = outcomes(result, "in_place")
    texts = failed(result, "in_place")

    assert texts.keys() == {"test_python_loop", "test_trio", "test_run_of_its_own", "test_swallowed"}
    assert found == dict.fromkeys(texts, "failed") | {
        "test_behind_the_loop": "passed",
        "test_behind_trio": "passed",
        "test_another_run_of_its_own": "passed",
    }
    assert all("exceeded its limit of 1 s" in text and "thread MainThread" in text for text in texts.values())
    assert "await trio.sleep_forever()" in texts["test_trio"]
    assert "\ntask " not in texts["test_python_loop"]


@pytest.mark.skipif(sys.platform != "linux", reason="a subreaper is Linux's")
def test_hangs_that_it_can_not_end_are_ended_from_outside(planted: tuple[Result, Path]) -> None:
    result, folder = planted
    found = outcomes(result, "from_outside")
    texts = failed(result, "from_outside")

    assert texts.keys() == {
        "test_blocked_in_c",
        "test_child_that_ignores_sigterm",
        "test_killed",
        "test_first_with_session",
        "test_with_module[2]",
    }
    assert "in deadlock" in texts["test_blocked_in_c"]
    assert "time.sleep(600)" in texts["test_child_that_ignores_sigterm"]  # the command, in the list of processes
    assert "signal 9" in texts["test_killed"]
    assert not Path(f"/proc/{(folder / 'project' / 'child').read_text()}").exists()
    below = {f"test_with_session[{number}]" for number in range(3)} | {"test_with_module_again[2]"}
    passed = {"test_behind_the_blocked_call", "test_with_module[1]", "test_with_module_again[1]", "test_last"}
    assert found == dict.fromkeys(texts, "failed") | dict.fromkeys(passed, "passed") | dict.fromkeys(below, "not run")


def test_a_fixture_that_hangs_is_one_failure_with_the_items_that_need_it(planted: tuple[Result, Path]) -> None:
    texts = failed(planted[0], "from_outside")
    for name, fixture, below in (
        ("test_first_with_session", "session", [f"test_with_session[{number}]" for number in range(3)]),
        ("test_with_module[2]", "module", ["test_with_module_again[2]"]),
    ):
        assert f"hung in the set-up of the fixture '{fixture}'" in texts[name]
        listed = texts[name].partition("Not run, for they need")[2].splitlines()[1:]
        assert [line.strip().partition("::")[2] for line in listed] == below


def test_what_stands_beside_runs_and_a_file_that_can_not_be_collected_costs_itself(
    planted: tuple[Result, Path],
) -> None:
    result, _ = planted
    assert set(outcomes(result, "healthy").values()) == {"passed"}
    assert len(outcomes(result, "healthy")) == 4
    assert [text for name, text in result.failures if name == "test_broken.py"] != []
    assert result.restarts == 4 + 5


def test_two_processes_share_the_files(tmp_path: Path) -> None:
    killed = "import os\n\ndef test_kill():\n    os.kill(os.getpid(), 9)\n"
    result = run(tmp_path, {f"f{number}": HEALTHY for number in range(5)} | {"hangs": killed}, workers=2)

    assert result.counts == {"passed": 20, "failed": 1}
    assert sum(items for _, _, items in result.files.values()) == 21  # none twice
    assert failed(result, "hangs").keys() == {"test_kill"}


def test_every_file_of_tests_is_in_one_part() -> None:
    collected: list[str] = []
    for part in parts.PARTS:
        ignored = [word.removeprefix("--ignore=") for word in parts.command(part) if word.startswith("--ignore=")]
        for path in part.paths:
            found = (
                [path]
                if path.endswith(".py")
                else [file.relative_to(ROOT).as_posix() for file in (ROOT / path).rglob("test_*.py")]
            )
            collected += [
                file for file in found if not any(file == one or file.startswith(f"{one}/") for one in ignored)
            ]
    everything = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(collected) == sorted(file for file in everything if "node_modules" not in file)


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
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    states, left = ended.stdout.splitlines()
    assert states in ("['S']", "['R']")
    assert left == "[]"
