"""The exit code of a client command says what kind of end it came to; stderr names it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Drained,
    Invalid,
    Payload,
    Rejected,
    RejectedResume,
    RejectedSetup,
    Responder,
    Setup,
    serve,
)
from rsocket_trio.cli.exit_codes import ENDED, described
from rsocket_trio.rsocket.resume_positions import ReplayedResume
from tests.cli.commands import run, started
from tests.rows import Rows

OUTCOMES = {
    "reject": (5, "Rejected: not now"),
    "fail": (6, "ApplicationError: it broke"),
    "fail by code": (6, "ApplicationError: it broke (code 0x301)"),
    "fault": (6, "ApplicationError: internal error"),
    "cancel": (7, "Canceled: no more"),
    "invalid": (7, "Invalid: what?"),
    "hang": (8, "TooSlowError: no answer within 2 s"),
}


def responder() -> Responder:
    """Its data says what becomes of a request, or of a connection that is set up with it."""
    found = Responder()

    @found.setup
    def meet(setup: Setup, connection: object) -> None:
        if setup.payload.data:
            raise RejectedSetup("who are you?")

    @found.request_response
    async def end(request: Payload) -> bytes:
        match request.text:
            case "reject":
                raise Rejected("not now")
            case "fail":
                raise ApplicationError("it broke")
            case "fail by code":
                raise ApplicationError("it broke", code=0x301)
            case "cancel":
                raise Canceled("no more")
            case "invalid":
                raise Invalid("what?")
            case "hang":
                await trio.sleep_forever()
        raise ZeroDivisionError

    return found


def test_an_extra_that_is_missing_is_no_fault_of_ours() -> None:
    missing = ModuleNotFoundError("h2:// needs the module h2: pip install '.[http2]'", name="h2")
    assert described(missing) == (f"rsocket-trio: {missing}", 1)
    assert "a fault of rsocket-trio" in described(ModuleNotFoundError("No module named 'x'"))[0]


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder(), "tcp://127.0.0.1:0", grace=0))
        yield uri
        nursery.cancel_scope.cancel()


async def test_each_end_of_a_request_has_its_code() -> None:
    async with served() as uri:
        with Rows() as row:
            for how, (code, said) in OUTCOMES.items():
                with row(how):
                    result = await run("request", uri, "--data", how, *(["--timeout", "2"] if how == "hang" else []))
                    assert (result.code, result.stdout, result.stderr) == (code, "", f"{said}\n")


async def test_a_refused_setup_is_4_and_a_server_that_is_not_there_3() -> None:
    commands = ("request", "stream", "channel", "fnf", "push")
    with Rows() as row:
        async with served() as uri:
            for command in commands:
                with row(f"{command}, refused"):
                    refused = await run(command, uri, "--setup-data", "me", "-m", "x")
                    assert (refused.code, refused.stderr) == (4, "RejectedSetup: who are you?\n")
        for command in commands:
            with row(f"{command}, not there"):
                absent = await run(command, uri, "-m", "x")
                assert (absent.code, absent.stderr) == (3, f"ConnectionLost: {uri}: connection refused\n")


async def test_a_host_that_is_unknown_is_3() -> None:
    result = await run("request", "tcp://nowhere.invalid:1")

    assert result.code == 3
    assert result.stderr.startswith("ConnectionLost: tcp://nowhere.invalid:1: ")


async def test_an_interaction_that_the_dialect_lacks_is_1() -> None:
    async with served() as uri:
        result = await run("push", uri, "--dialect", "streamux", "--data", "m")

    assert result.code == 1
    assert result.stderr.startswith("Unsupported: ")


@pytest.mark.parametrize("words", ["request URI --data hang --debug", "ping URI -n 9 --interval 60 --debug"])
async def test_sigterm_is_143_for_a_shell(words: str) -> None:
    async with served() as uri, started(*words.replace("URI", uri).split()) as command:
        assert await command.line("stderr")  # a frame: it is connected
        command.process.send_signal(signal.SIGTERM)
        code, _ = await command.end()

    assert code == -signal.SIGTERM
    assert ENDED == 128 - code == 143


def test_an_error_is_shown_by_its_public_name() -> None:
    assert described(Drained("the connection is closing")) == ("Drained: the connection is closing", 5)
    assert described(ReplayedResume("a token that was used")) == ("RejectedResume: a token that was used", 3)
    assert described(RejectedResume("unknown token")) == ("RejectedResume: unknown token", 3)


# Data from files


@pytest.mark.parametrize("command", ["request", "channel"])
async def test_data_of_any_command_may_be_a_files_content(command: str, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"\x00one\r\ntwo\xff")
    echo = Responder()

    @echo.request_response
    def answer(request: Payload) -> str:
        return request.data.hex()

    @echo.request_channel
    async def answer_all(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item.data.hex())

    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, echo, "tcp://127.0.0.1:0", grace=0))
        result = await run(command, uri, "--data", "@data.bin", cwd=tmp_path)
        absent = await run(command, uri, "--data", "@absent", cwd=tmp_path)
        alone = await run(command, uri, "--data", "@", cwd=tmp_path)
        nursery.cancel_scope.cancel()

    assert (result.code, result.stdout) == (0, b"\x00one\r\ntwo\xff".hex() + "\n")
    assert (absent.code, absent.stderr) == (1, "rsocket-trio: cannot read absent: No such file or directory\n")
    assert (alone.code, alone.stdout) == (0, "40\n")
