"""The checker that every test goes through finds what it is there to find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT

CONFTEST = Path(__file__).with_name("conftest.py")

SUSPECTS = """
import os
import subprocess
import sys

import trio

from tests.connection.pairs import connected_pair, echo_responder

kept = []

async def test_tidy():
    async with connected_pair(echo_responder()) as pair:
        await pair.client.request_response(b"x")
    os.close(os.dup(0))

async def test_tidy_in_trio(nursery, tmp_path):
    nursery.start_soon(trio.sleep_forever)
    async with await trio.open_file(tmp_path / "file", "w"):
        pass

def test_descriptor():
    kept.append(os.dup(0))

async def test_connection():
    async with connected_pair() as pair:
        kept.append(pair.client)

async def test_session():
    async with connected_pair() as pair:
        kept.append(pair.client._engine.session)

async def test_stream():
    async with connected_pair(echo_responder()) as pair, pair.client.request_stream() as items:
        kept.append(items._stream)

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

async def test_system_task(autojump_clock):
    trio.lowlevel.spawn_system_task(trio.sleep_forever)

async def test_generator():
    async def numbers():
        try:
            yield 1
        finally:
            await trio.lowlevel.checkpoint()

    cycle = {"numbers": numbers()}
    cycle["itself"] = cycle
    await anext(cycle["numbers"])

async def test_failing():
    async with connected_pair() as pair:
        assert pair.client is pair.server

async def test_behind_the_failing_one():
    async with connected_pair():
        pass

def teardown_module():
    kept[-1].communicate()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_what_is_left_behind_fails_its_test_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text("utf-8"), "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n", "utf-8")
    (tmp_path / "test_suspects.py").write_text(SUSPECTS, "utf-8")

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)},
    )

    verdicts = {
        line.split("::")[1].split(" ")[0]: line.split(" ")[0]
        for line in run.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    }
    assert verdicts == {
        "test_descriptor": "ERROR",
        "test_connection": "ERROR",
        "test_session": "ERROR",
        "test_stream": "ERROR",
        "test_child": "ERROR",
        "test_system_task": "FAILED",
        "test_generator": "FAILED",
        "test_failing": "FAILED",
    }, run.stdout
