"""What a peer sent does nothing to a terminal: it is escaped there, and as it is in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tty
from functools import partial

import pytest
import trio

from rsocket_trio import ApplicationError, Payload, Responder
from rsocket_trio.cli.output import escaped, escaped_lines
from tests.cli.commands import MAIN, PATIENCE, hosting
from tests.programs import FORKER

HOSTILE = (
    b"\x1b]0;owned\x07\x1b[2J red\r\n\t\x7f\xc2\x9b31m \xe2\x80\xae txt.exe \xff\x9b \xc3\xa4\xe4\xb8\xad\xe3\x80\x80!"
)
SHOWN = r"\x1b]0;owned\x07\x1b[2J red\r\n\t\x7f\x9b31m \u202e txt.exe \xff\x9b" + " ä中\N{IDEOGRAPHIC SPACE}!"


def test_everything_that_a_terminal_obeys_is_escaped_and_text_is_not() -> None:
    assert escaped(HOSTILE).decode() == SHOWN
    controls = [*range(0x20), 0x7F, *range(0x80, 0xA0)]
    for code in controls:
        assert escaped(chr(code).encode()).isascii()
        assert escaped(chr(code).encode()).startswith(b"\\")
    for byte in range(0x80, 0x100):
        assert escaped(bytes([byte])) == b"\\x%02x" % byte
    plain = "Ünïcödé, 日本語, \u05e9\u05dc\u05d5\u05dd, \N{FAMILY}, a\u00a0b, 👩\u200d🔬, C:\\dir".encode()
    assert escaped(plain) == plain
    assert escaped_lines("one\x07\ntwo") == "one\\x07\ntwo"


def hostile() -> Responder:
    """Everything that it says is a trap for a terminal."""
    responder = Responder()

    @responder.request_response
    def answer(request: Payload) -> bytes:
        return HOSTILE

    @responder.request_response("fail")
    def fail(request: Payload) -> bytes:
        raise ApplicationError(HOSTILE)

    return responder


async def on_terminal(*arguments: str, on: str, stdin: bytes = b"") -> tuple[bytes, bytes]:
    """Return the output of a command on a terminal, its stdout or its stderr, and on the other one, a pipe."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # so that the terminal itself makes nothing else of a newline
    seen: list[bytes] = []

    def read() -> None:
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                return  # nobody has the other end any more
            if not chunk:
                return
            seen.append(chunk)

    try:
        with trio.fail_after(PATIENCE):
            process = await FORKER.start(
                [*MAIN, *arguments],
                stdout=theirs if on == "stdout" else None,
                stderr=theirs if on == "stderr" else None,
            )
            os.close(theirs)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(trio.to_thread.run_sync, read, abandon_on_cancel=True))
                await process.stdin.send_all(stdin)
                await process.stdin.aclose()
                pipe = process.stderr if on == "stdout" else process.stdout
                assert pipe is not None
                other = b"".join([chunk async for chunk in pipe])
                await pipe.aclose()
                await process.wait()
    finally:
        os.close(ours)
    return b"".join(seen), other


async def test_an_answer_is_escaped_on_a_terminal_only() -> None:
    async with hosting(hostile()) as uri:
        shown, said = await on_terminal("request", uri, on="stdout")
        raw_said, raw = await on_terminal("request", uri, on="stderr")

    assert (shown.decode(), said) == (f"{SHOWN}\n", b"")
    assert (raw_said, raw) == (b"", HOSTILE + b"\n")


@pytest.mark.parametrize("flags", [[], ["--debug", "--log", "debug", "--stacktrace"]], ids=["", "everything shown"])
async def test_an_errors_text_is_escaped_on_a_terminal(flags: list[str]) -> None:
    async with hosting(hostile()) as uri:
        shown, _ = await on_terminal("request", uri, "-r", "fail", *flags, on="stderr")

    assert b"ApplicationError: \\x1b]0;owned\\x07" in shown
    text = shown.decode()
    assert [char for char in text if char != "\n" and not char.isprintable() and char != "\N{IDEOGRAPHIC SPACE}"] == []


LOGGING = """
from rsocket_trio.cli.output import show_log
import logging
show_log("info")
try:
    raise ValueError("\\x1b[31m")
except ValueError:
    logging.getLogger("x").exception("a peer said \\x07")
"""


def test_log_lines_and_tracebacks_are_escaped_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    try:
        subprocess.run([sys.executable, "-c", LOGGING], stderr=theirs, check=True, timeout=PATIENCE)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    piped = subprocess.run([sys.executable, "-c", LOGGING], stderr=subprocess.PIPE, check=True, timeout=PATIENCE)

    assert "ERROR x: a peer said \\x07\n" in shown
    assert shown.endswith("ValueError: \\x1b[31m\n")
    assert piped.stderr.endswith(b"ValueError: \x1b[31m\n")
