"""The command ``load``: a table or JSON, errors in a line, and an end that loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from rsocket_trio import Payload, Responder, serve
from rsocket_trio.cli.main import commands
from tests.cli.commands import COMMAND
from tests.each_row import whole
from tests.spark.session import require_spark
from tests.spark.sinks import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Load = Callable[..., tuple[int, str, str]]
PATIENCE = 100.0
"""Seconds that Spark may take to start on a machine that has much else to do."""
WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from rsocket_trio.cli.entry import main; main()"


@pytest.fixture
def load(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Load:
    """The command in the session of the tests: its exit code, and what it says on stdout and stderr."""

    @contextmanager
    def this_session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("rsocket_trio.analytics.local_spark.local_session", this_session)

    def made(*arguments: str, master: str | None = "local[2]") -> tuple[int, str, str]:
        capfd.readouterr()
        where = [] if master is None else ["--master", master]
        code = commands.main(["load", *where, *arguments], standalone_mode=False)
        return code, *capfd.readouterr()

    return made


def test_a_table_says_what_became_of_the_load(load: Load, uri: str) -> None:
    code, out, err = load(
        uri,
        "-r",
        "echo",
        "--rate",
        "50",
        "--seconds",
        "1",
        "--tasks",
        "2",
    )

    lines = out.splitlines()
    assert (code, err) == (0, ""), err
    assert lines[0].split()[:3] == ["second", "due", "done"]
    assert [line.split()[:2] for line in lines if line.lstrip().startswith("all")] == [["all", "50"]]
    assert "of 50.0 due, in 1.0 s" in out


def test_json_says_the_same(load: Load, uri: str) -> None:
    code, out, err = load(
        *(uri, "-r", "echo", "--seconds", "0.5", "--json", "--seed", "3", "--size", "10,20", "--auth-bearer", "token"),
        *("--arrivals", "closed", "--in-flight", "3", "--interaction", "channel", "--items", "2", "--take", "2"),
    )

    assert code == 0, err
    said = json.loads(out)
    assert said["ok"] == said["due"] > 0
    assert said["items"] == 2 * said["ok"]
    assert (said["seed"], said["errors"], said["interrupted"]) == (3, {}, False)
    assert said["latency"]["max"] < PATIENCE


def test_json_of_spark_is_that_of_workers(load: Load, uri: str) -> None:
    stream = ("--interaction", "stream", "-r", "twenty", "--take", "4")
    arguments = (uri, *stream, "--rate", "40", "--seconds", "0.5", "--seed", "4", "--json")

    (code, by_spark, err), (_, by_workers, _) = load(*arguments), load(*arguments, master=None)

    assert code == 0, err
    of_spark, of_workers = json.loads(by_spark), json.loads(by_workers)

    assert shape(of_spark) == shape(of_workers)
    assert of_spark["due"] == of_workers["due"] > 0


def shape(said: Any) -> Any:
    """Return the keys of an object and those below, without its seconds and errors, which come as they may."""
    if not isinstance(said, dict):
        return type(said) if isinstance(said, list | dict | str | bool) else None
    return {key: shape(value) for key, value in said.items() if key not in ("seconds", "errors")}


@pytest.mark.parametrize(
    ("arguments", "said", "expected"),
    [
        (("-r", "nowhere"), "Rejected: no request_response handler for route 'nowhere'\n", 5),
        (("--tasks", "3"), "rsocket-trio: 3 tasks need as many slots at the same time", 1),
    ],
    ids=["route", "slots"],
)
def test_a_load_that_cannot_be_made_fails_in_a_line(
    arguments: tuple[str, ...], said: str, expected: int, load: Load, uri: str
) -> None:
    code, out, err = load(uri, "--rate", "10", *arguments)

    assert (code, out) == (expected, ""), err
    assert err.startswith(said), err
    assert err.count("\n") == 1


async def test_without_the_extra_it_is_named() -> None:
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            [sys.executable, "-c", WITHOUT_SPARK, "load", "tcp://127.0.0.1:1", "--rate", "1", "--master", "local"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == (
        b"rsocket-trio: a load from Spark needs pyspark: pip install '.[spark]' in a checkout of rsocket_trio, "
        b"or leave out --master\n"
    )


def test_ctrl_c_ends_it_in_order_and_shows_what_there_is(load: Load) -> None:
    answered = 0

    def count(request: Payload) -> bytes:
        nonlocal answered
        answered += 1
        if answered == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return b""

    responder = Responder()
    responder.request_response("count")(count)
    server = Server(responder)
    try:
        arguments = ("-r", "count", "--rate", "50", "--seconds", "1000", "--tasks", "1", "--json")
        code, out, err = load(server.uri, *arguments)
    finally:
        server.stop()

    assert (code, err) == (130, ""), err
    check_interrupted(out, answered)


def check_interrupted(out: str, answered: int) -> None:
    said = json.loads(out)
    assert said["interrupted"] is True
    assert said["ok"] >= 19
    # The first request of all is a probe, and those under way got a moment to be answered.
    assert said["ok"] == answered - 1
    assert (said["errors"], said["unfinished"]) == ({}, 0)
    assert 0 < said["measured"] < PATIENCE


@whole
async def test_ctrl_c_at_a_terminal_ends_the_process_in_order() -> None:
    """In a process group of its own, to which a terminal would send the signal."""
    require_spark()
    responder, enough = Responder(), trio.Event()
    answered = 0

    @responder.request_response("count")
    def count(request: Payload) -> bytes:
        nonlocal answered
        answered += 1
        if answered == 20:
            enough.set()
        return b""

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
            process = await trio.lowlevel.open_process(
                [
                    *COMMAND,
                    "load",
                    uri,
                    "-r",
                    "count",
                    "--rate",
                    "50",
                    "--seconds",
                    "1000",
                    "--json",
                    "--master",
                    "local",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                await enough.wait()
                os.killpg(process.pid, signal.SIGINT)
                assert process.stdout is not None
                assert process.stderr is not None
                out = b"".join([chunk async for chunk in process.stdout])
                err = b"".join([chunk async for chunk in process.stderr])
                code = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            nursery.cancel_scope.cancel()

    assert (code, err) == (130, b"")
    check_interrupted(out.decode(), answered)
