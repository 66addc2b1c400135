"""The exit code of a client command says what kind of end it came to; stderr names it."""

from __future__ import annotations

import socket

import trio

from rsocket_trio import ApplicationError, Canceled, Invalid, Payload, Rejected, RejectedSetup, Responder, Setup
from tests.cli.commands import hosting, run
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


async def test_each_end_of_a_request_has_its_code() -> None:
    async with hosting(responder()) as uri:
        with Rows() as row:
            for how, (code, said) in OUTCOMES.items():
                with row(how):
                    result = await run("request", uri, "--data", how, *(["--timeout", "2"] if how == "hang" else []))
                    assert (result.code, result.stdout, result.stderr) == (code, "", f"{said}\n")


async def test_a_refused_setup_is_4_and_a_server_that_is_not_there_3() -> None:
    commands = ("request", "stream", "channel", "fnf", "push")
    with Rows() as row:
        async with hosting(responder()) as uri:
            for command in commands:
                with row(f"{command}, refused"):
                    refused = await run(command, uri, "--setup-data", "me", "-m", "x")
                    assert (refused.code, refused.stderr) == (4, "RejectedSetup: who are you?\n")
        for command in commands:
            with row(f"{command}, not there"):
                absent = await run(command, uri, "-m", "x")
                assert (absent.code, absent.stderr) == (3, f"ConnectionLost: {uri}: connection refused\n")


async def test_a_server_that_says_nothing_is_waited_for_up_to_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        uri = f"ws://127.0.0.1:{listening.getsockname()[1]}"
        with Rows() as row:
            for command in ("request", "routes"):
                with row(command):
                    silent = await run(command, uri, "--connect-timeout", "0.05")
                    said = f"ConnectionLost: {uri}: the WebSocket upgrade was not answered within 0.05 s\n"
                    assert (silent.code, silent.stderr) == (3, said)
