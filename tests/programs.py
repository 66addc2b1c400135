"""Programs as processes of their own, forked from a Python that has imported the library already.

That saves a quarter of a second of imports for each of them, and with ``brief`` the time in which the interpreter takes
itself apart at the end. What is said of the start itself needs ``sys.executable``, and where all cases are wanted
(``RSOCKET_TRIO_ALL_CASES``) every program has a Python of its own.

Run as a program, this serves the requests of the tests over the socket whose descriptor is its argument: a line of JSON
with the words behind ``python``, the folder and the environment, and with it the descriptors of the three standard
streams and of a pipe, to which it writes the process id and, once that process has ended, its exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import attrs
import trio

PATIENCE = 60
"""Seconds after which a process hangs."""
LARGEST_REQUEST = 1 << 20
STANDARD_STREAMS = 3
IMPORTED = (
    *("argparse", "msgspec", "trustme"),
    *("rsocket_trio.conformance.run", "rsocket_trio.conformance.run", "rsocket_trio.conformance.report"),
    *("rsocket_trio.client.reconnecting", "rsocket_trio.server.serve", "rsocket_trio.services.contracts"),
    *("rsocket_trio.streamux.session", "rsocket_trio.replay"),
    "rsocket_trio.transports.http2.http2_handshake",
    *("rsocket_trio.transports.websocket.transport", "rsocket_trio.cli.entry", "rsocket_trio.cli.main"),
)
"""What most programs import, beside the modules of all commands; extras may be missing."""


@attrs.frozen
class Result:
    """What a process that ended has left."""

    code: int
    stdout: str
    stderr: str


class ForkedProcess:
    """A process with pipes, as ``trio.Process`` is one."""

    def __init__(self, stdin: int, stdout: int | None, stderr: int | None, status: int) -> None:
        self.stdin = trio.lowlevel.FdStream(stdin)
        self.stdout = None if stdout is None else trio.lowlevel.FdStream(stdout)
        self.stderr = None if stderr is None else trio.lowlevel.FdStream(stderr)
        self.pid = 0
        self.returncode: int | None = None
        self._status = trio.lowlevel.FdStream(status)
        self._said = b""

    async def begin(self) -> None:
        """Wait until the process is there."""
        self.pid = int(await self._line())

    async def wait(self) -> int:
        """Return the exit code once the process has ended; that of a signal is negative."""
        if self.returncode is None:
            self.returncode = int(await self._line())
            await self._status.aclose()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # its parent has waited for it already
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    async def _line(self) -> bytes:
        while b"\n" not in self._said:
            come = await self._status.receive_some()
            assert come, "the process that forks is gone"
            self._said += come
        line, _, self._said = self._said.partition(b"\n")
        return line


class Running:
    """A process that has not ended: lines come out, lines and signals go in."""

    def __init__(self, process: trio.Process | ForkedProcess) -> None:
        self.process = process
        self._rests: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    async def line(self, name: str = "stdout") -> str:
        """The next line of stdout, or stderr, without its newline; empty at the end."""
        stream = getattr(self.process, name)
        rest = self._rests[name]
        while b"\n" not in rest and (chunk := await stream.receive_some()):
            rest += chunk
        line, _, self._rests[name] = rest.partition(b"\n")
        return line.decode()

    async def write(self, data: bytes) -> None:
        """Send bytes to stdin."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(data)

    async def close(self, name: str) -> None:
        """Close our end of a pipe."""
        await getattr(self.process, name).aclose()

    async def end(self) -> tuple[int, str]:
        """Wait for the exit code; and what is on stderr."""
        lines = []
        while line := await self.line("stderr"):
            lines.append(line)
        return await self.process.wait(), "\n".join(lines)


class Forker:
    """Our end: starts programs. Made once for all tests, as its process takes a second to be ready."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            # A file by its path: the process does not need what tests import.
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    async def start(
        self,
        words: Sequence[object],
        cwd: Path | None = None,
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        brief: bool = False,
    ) -> ForkedProcess:
        """Start a program. The caller waits for its end, and closes it.

        ``stdout`` and ``stderr`` are descriptors that the caller has; else there are pipes.
        """
        stdin, to_stdin = os.pipe()
        status, to_status = os.pipe()
        theirs = [stdin, to_status]

        def ours(given: int | None) -> tuple[int | None, int]:
            if given is not None:
                return None, given
            end, other_end = os.pipe()
            theirs.append(other_end)
            return end, other_end

        from_stdout, to_stdout = ours(stdout)
        from_stderr, to_stderr = ours(stderr)
        process = ForkedProcess(to_stdin, from_stdout, from_stderr, status)
        request = {
            "words": [*map(str, words)],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ),
            "brief": brief,
        }
        try:
            socket.send_fds(
                self._control, [json.dumps(request).encode() + b"\n"], [stdin, to_stdout, to_stderr, to_status]
            )
        finally:
            for each in theirs:
                os.close(each)
        await process.begin()
        return process

    def close(self) -> None:
        """Have the process end, and wait for that."""
        self._control.close()
        self._process.wait()


if __name__ != "__main__":
    FORKER = Forker()
    """Made as tests are collected: one of them must not find a process that it did not start."""


@asynccontextmanager
async def process_of(
    *words: object, cwd: Path | None = None, brief: bool = False
) -> AsyncIterator[trio.Process | ForkedProcess]:
    """``python WORDS`` for as long as the block, its three streams ours: a script, or ``-c`` and code."""
    process: trio.Process | ForkedProcess
    if "RSOCKET_TRIO_ALL_CASES" in os.environ:
        pipe = subprocess.PIPE
        command = [sys.executable, *map(str, words)]
        process = await trio.lowlevel.open_process(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd)
    else:
        process = await FORKER.start(words, cwd, brief=brief)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()


@asynccontextmanager
async def program(*words: object, cwd: Path | None = None, brief: bool = False) -> AsyncIterator[Running]:
    """``python WORDS`` for as long as the block, which takes no longer than ``PATIENCE``."""
    async with process_of(*words, cwd=cwd, brief=brief) as process:
        with trio.fail_after(PATIENCE):
            yield Running(process)


async def run_program(*words: object, stdin: bytes = b"", cwd: Path | None = None) -> Result:
    """Run ``python WORDS`` to its end."""
    said = {"stdout": b"", "stderr": b""}

    async def keep(name: str) -> None:
        async for chunk in getattr(running.process, name):
            said[name] += chunk

    async with program(*words, cwd=cwd, brief=True) as running, trio.open_nursery() as nursery:
        nursery.start_soon(keep, "stdout")
        nursery.start_soon(keep, "stderr")
        with suppress(trio.BrokenResourceError):  # one that reads nothing may end before all of it is written
            await running.write(stdin)
        await running.close("stdin")
        code = await running.process.wait()
    return Result(code, said["stdout"].decode("utf-8", "surrogateescape"), said["stderr"].decode())


# The process that forks


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each request. Return in the new process, with the request; exit after the last one."""
    waiting: dict[int, tuple[int, int]] = {}  # by the descriptor that tells of its end: the process, its status pipe
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            if number in waiting:
                poll.unregister(number)
                tell_end(number, *waiting.pop(number))
                continue
            line, descriptors = receive(control)
            if not line:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                control.close()
                for each, (_, status) in waiting.items():
                    os.close(each)
                    os.close(status)
                request: dict[str, Any] = json.loads(line)
                become(request, descriptors)
                return request
            *streams, status = descriptors
            for each in streams:
                os.close(each)
            os.write(status, b"%d\n" % pid)
            ended = os.pidfd_open(pid)
            waiting[ended] = pid, status
            poll.register(ended, select.POLLIN)


def receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next request and its descriptors."""
    line, descriptors, _, _ = socket.recv_fds(control, LARGEST_REQUEST, STANDARD_STREAMS + 1)
    while line and not line.endswith(b"\n"):
        line += control.recv(LARGEST_REQUEST)
    return line, descriptors


def tell_end(ended: int, pid: int, status: int) -> None:
    """Report the exit code of a process."""
    _, result = os.waitpid(pid, 0)
    try:
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(result))
    except BrokenPipeError:
        pass  # its test has failed, and closed the pipe
    os.close(status)
    os.close(ended)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Have the streams, the folder, the environment and the signals of the request."""
    *streams, status = descriptors
    os.close(status)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_words(words: list[str]) -> None:
    """Do what ``python WORDS`` does."""
    sys.argv = words
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[0] = ""
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def end_briefly(code: object) -> NoReturn:
    """Do what is asked for at the end of a program, and leave the interpreter as it is."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 0)


def main() -> None:
    """Import what programs need, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    sys.path[0] = ""  # a program finds its modules where it is run
    for name in IMPORTED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in sys.modules["rsocket_trio.cli.main"].MODULES.values():
        importlib.import_module(f"rsocket_trio.cli.{name}")
    catalogue = importlib.import_module("rsocket_trio.conformance.catalogue")
    catalogue.clauses()
    catalogue.read_chapter("rsocket/1.0")  # which most runs of the tester read
    gc.collect()
    gc.freeze()  # a process that looked at all of it would copy all of it
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        run_words(request["words"])
    except SystemExit as error:
        if not request["brief"] or not isinstance(error.code, int | None):
            raise
        end_briefly(error.code)
    if request["brief"]:
        end_briefly(0)


if __name__ == "__main__":
    main()
