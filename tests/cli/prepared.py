"""A process that has imported the command and forks for each use of it, which saves half a second of imports.

Run as a program it serves the requests of the one that started it, over the socket whose descriptor is its argument: a
line of JSON with the arguments, the folder and the environment, and with it the descriptors of the three standard
streams and of a pipe, to which it writes the process id and, once that process has ended, its exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

LARGEST_REQUEST = 1 << 20
STANDARD_STREAMS = 3


class ForkedProcess:
    """One use of the command: a process with pipes, as ``trio.Process`` is one."""

    def __init__(self, stdin: int, stdout: int, stderr: int, status: int) -> None:
        self.stdin = trio.lowlevel.FdStream(stdin)
        self.stdout = trio.lowlevel.FdStream(stdout)
        self.stderr = trio.lowlevel.FdStream(stderr)
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
            code = int(await self._line())
            self.returncode = code
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # its parent has waited for it already
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """Close our ends of all pipes."""
        for stream in (self.stdin, self.stdout, self.stderr, self._status):
            await trio.aclose_forcefully(stream)

    async def _line(self) -> bytes:
        while b"\n" not in self._said:
            come = await self._status.receive_some()
            assert come, "the process that forks is gone"
            self._said += come
        line, _, self._said = self._said.partition(b"\n")
        return line


class Forker:
    """Our end: starts uses of the command. Made once for all tests, as its process takes a second to be ready."""

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

    async def start(self, arguments: Sequence[str], cwd: Path | None) -> ForkedProcess:
        """Start the command. The caller waits for its end, and closes it."""
        pipes = [os.pipe() for _ in range(STANDARD_STREAMS + 1)]
        (stdin, to_stdin), *others = pipes
        (from_stdout, stdout), (from_stderr, stderr), (status, to_status) = others
        theirs = [stdin, stdout, stderr, to_status]
        process = ForkedProcess(to_stdin, from_stdout, from_stderr, status)
        request = {"arguments": list(arguments), "cwd": str(cwd or Path.cwd()), "environment": dict(os.environ)}
        try:
            socket.send_fds(self._control, [json.dumps(request).encode() + b"\n"], theirs)
        finally:
            for each in theirs:
                os.close(each)
        await process.begin()
        return process

    def close(self) -> None:
        """Have the process end, and wait for that."""
        self._control.close()
        self._process.wait()


def serve(control: socket.socket) -> list[str]:
    """Fork for each request. Return in the new process, with the arguments of the command; exit at the last request."""
    waiting: dict[int, tuple[int, int]] = {}  # by the descriptor that tells of its end: the process, its status pipe
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            if number in waiting:
                poll.unregister(number)
                tell_end(number, *waiting.pop(number))
                continue
            request, descriptors = receive(control)
            if not request:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                control.close()
                for each, (_, status) in waiting.items():
                    os.close(each)
                    os.close(status)
                return become(json.loads(request), descriptors)
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


def become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Have the streams, the folder, the environment and the signals of the request. Return its arguments."""
    *streams, status = descriptors
    os.close(status)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments: list[str] = request["arguments"]
    return arguments


def main() -> None:
    """Import what commands need, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    sys.path[0] = ""  # a command finds an application where it is run
    import rsocket_trio._public
    import rsocket_trio.cli.call
    import rsocket_trio.cli.entry
    import rsocket_trio.cli.main
    import rsocket_trio.cli.serve
    import rsocket_trio.cli.streamux
    import rsocket_trio.transports.websocket.transport

    sys.argv = ["-c", *serve(socket.socket(fileno=int(sys.argv[1])))]
    rsocket_trio.cli.entry.main()


if __name__ == "__main__":
    main()
