"""The command ``load`` without Spark: a table or JSON, errors in a line, an end in order, and no process left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from rsocket_trio import Payload, Responder
from rsocket_trio.cli.main import main
from tests.cli.commands import hosting
from tests.programs import PATIENCE, ForkedProcess, process_of

COMMAND = (
    "import os, sys; os.setsid(); sys.modules['pyspark'] = sys.modules['py4j'] = None; "
    "from rsocket_trio.cli.entry import main; main()"
)
"""The command where there is no Spark."""


class Ended(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def started(*arguments: str) -> AbstractAsyncContextManager[trio.Process | ForkedProcess]:
    """A command in a process group of its own, to which a terminal would send signals."""
    return process_of("-c", COMMAND, "load", *arguments)


async def ended(process: trio.Process | ForkedProcess) -> Ended:
    assert process.stdout is not None
    assert process.stderr is not None
    out = b"".join([chunk async for chunk in process.stdout])
    err = b"".join([chunk async for chunk in process.stderr])
    return Ended(await process.wait(), out.decode(), err.decode())


async def load(*arguments: str) -> Ended:
    with trio.fail_after(PATIENCE):
        async with started(*arguments) as process:
            return await ended(process)


def children(number: int) -> list[int]:
    found = Path(f"/proc/{number}/task").glob("*/children")
    return [int(each) for path in found for each in path.read_text().split()]


def is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


@asynccontextmanager
async def counting(number: int) -> AsyncIterator[tuple[str, trio.Event, list[bytes]]]:
    """Run a server. Yield its URI, an event that is set when so many requests came, and their data."""
    responder, enough = Responder(), trio.Event()
    came: list[bytes] = []

    @responder.request_response("count")
    def count(request: Payload) -> bytes:
        came.append(request.data)
        if len(came) == number:
            enough.set()
        return b""

    async with hosting(responder) as uri:
        yield uri, enough, came


async def test_a_table_says_what_became_of_the_load_without_spark(uri: str) -> None:
    code, out, err = await load(uri, "-r", "echo", "--rate", "50", "--seconds", "1", "--workers", "2")

    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split()[:3] == ["second", "due", "done"]
    assert [line.split()[:2] for line in lines if line.lstrip().startswith("all")] == [["all", "50"]]
    assert "of 50.0 due, in 1.0 s" in out


async def test_ctrl_c_ends_it_in_order_and_shows_what_there_is() -> None:
    with trio.fail_after(PATIENCE):
        async with (
            counting(20) as (uri, enough, came),
            started(uri, "-r", "count", "--rate", "50", "--seconds", "1000", "--json", "--workers", "2") as process,
        ):
            await enough.wait()
            os.killpg(process.pid, signal.SIGINT)
            code, out, err = await ended(process)

    assert (code, err) == (130, "")
    said = json.loads(out)
    assert said["interrupted"] is True
    # Each worker has made a probe, and requests under way got a moment to be answered.
    assert said["ok"] == len(came) - 2
    assert (said["errors"], said["unfinished"]) == ({}, 0)
    assert 0 < said["measured"] < PATIENCE


async def test_no_worker_outlives_a_command_that_is_killed() -> None:
    with trio.fail_after(PATIENCE):
        async with (
            counting(20) as (uri, enough, _),
            started(uri, "-r", "count", "--rate", "50", "--seconds", "1000", "--workers", "2") as process,
        ):
            await enough.wait()
            left = children(process.pid)
            process.kill()
            # Nobody tells us of the end of a grandchild.
            while any(map(is_alive, left)):  # noqa: ASYNC110
                await trio.sleep(0.05)

    assert len(left) == 2


async def test_a_server_that_is_gone_is_said_in_a_line_and_counted() -> None:
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            async with counting(20) as (uri, enough, _):
                arguments = ("-r", "count", "--rate=50", "--seconds=2", "--timeout=1", "--json", "--log=info")
                process = await stack.enter_async_context(started(uri, *arguments))
                await enough.wait()
            code, out, err = await ended(process)

    said = json.loads(out)
    assert code == 3
    assert said["errors"]["ConnectionLost"] > 0
    *log, last = err.splitlines()
    assert last == f"rsocket-trio: the load ended without a connection: {said['lost']}"
    # Workers log, too.
    assert [line for line in log if uri in line and line.startswith("INFO:rsocket_trio")]
    assert said["lost"].startswith("ConnectionLost: ")


WRONG = {
    (): "--rate",
    ("--rate", "0"): "'--rate': 0.0 is not in the range",
    ("--rate", "5", "--master", "local", "--workers", "2"): "with --master, --tasks are those of Spark",
    ("--rate", "5", "-n", "9", "--seconds", "3"): "-n and --seconds exclude each other",
    ("--rate", "5", "--size", "-4"): "each is 0 or more bytes",
}


@pytest.mark.parametrize("arguments", WRONG, ids=str)
def test_wrong_usage_is_said_in_a_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rsocket-trio", "load", "tcp://127.0.0.1:1", *arguments])

    with pytest.raises(SystemExit) as ended:
        main()

    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert WRONG[arguments] in err
