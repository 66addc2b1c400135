"""The Spring peer as a subprocess: one Java process that is a server, and a client that does checks when told to.

README.md lists what it serves and which checks there are. Where it cannot run, a test is skipped and says why; where
the environment has ``CI`` it fails.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Final

import attrs
import trio

from tests.interop.peers import COMMAND_TIMEOUT, END_TIMEOUT, ROOT, STDERR_KEPT, PeerFailed
from tests.missing import require

BUILD: Final = ROOT / "build" / "spring"
COMMAND: Final = (
    "java",
    # It lives for seconds: quick code counts less than a quick start.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-cp",
    f"{BUILD / 'classes'}:{BUILD / 'dependency'}/*",
    "Peer",
)
SERVED: Final = (
    "response",
    "fire-and-forget",
    "stream",
    "stream-since",
    "stream-cancelled",
    "channel",
    "channel-variable",
    "channel-empty",
    "channel-cancelled",
    "nothing",
    "large",
    "details",
    "details-stream",
    "details-channel",
    "wrong-field",
    "unknown-route",
    "setup",
    "callback",
    "simple-setup",
    "bearer-setup",
    "simple-setup-refused",
    "bearer-setup-refused",
    "simple",
    "bearer",
    "simple-refused",
    "bearer-refused",
    "anonymous-refused",
    "requirement",
)
"""The checks that any server of the service passes, Spring's own as well."""


def missing() -> str | None:
    """Return why the Spring peer can't run here, or ``None``."""
    if shutil.which("java") is None:
        return "java is missing: no Spring peer"
    if not (BUILD / "classes" / "Peer.class").is_file():
        return "the Spring peer is missing: make build/spring/.built, which needs mvn and a JDK"
    return None


@attrs.define(eq=False)
class SpringPeer:
    """The running process. ``tcp`` and ``ws`` are URIs of its servers, ``strict`` that of the one for users only."""

    tcp: str
    ws: str
    strict: str
    _process: subprocess.Popen[str]
    _errors: IO[bytes]
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    async def check(self, name: str, uri: str, mime: str) -> None:
        """Have its client do a check against the server at ``uri``. Fail the test if that does not pass.

        ``mime`` is the data MIME type of the connection, or "default" for the one that Spring chooses.
        """
        async with self._turn:
            with trio.move_on_after(COMMAND_TIMEOUT) as scope:
                said = await trio.to_thread.run_sync(
                    partial(self._ask, f"{name} {uri} {mime}\n"), abandon_on_cancel=True
                )
        if scope.cancelled_caught:
            self._process.kill()
            raise PeerFailed(f"the Spring client did not finish {name} within {COMMAND_TIMEOUT:g} s")
        if not said:
            raise PeerFailed(f"the Spring peer ended; it wrote:\n{_last_words(self._errors)}")
        assert said == f"ok {name}\n"

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def spring_peer(fragment: int = 0) -> Iterator[SpringPeer]:
    """Run the Spring peer for the block. Its servers and its client send fragments of this size in bytes, if not 0."""
    require(missing())
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*COMMAND, str(fragment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not (line := process.stdout.readline()):
                raise PeerFailed(f"the Spring peer did not start; it wrote:\n{_last_words(errors)}")
            _, tcp, ws, strict = line.split()
            yield SpringPeer(tcp, ws, strict, process, errors)
        finally:
            process.stdin.close()
            try:
                process.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


def _last_words(errors: IO[bytes]) -> str:
    size = errors.seek(0, 2)
    errors.seek(max(0, size - STDERR_KEPT))
    return errors.read().decode("utf-8", "replace").strip()
