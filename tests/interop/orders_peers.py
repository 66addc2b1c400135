"""The peers of the orders service as subprocesses: each is a server, and a client that does checks when told to.

README.md lists what they serve and which checks there are. Where a peer cannot run, a test is skipped and says why;
where the environment has ``CI`` it fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Final, Literal, TypeAlias

import attrs
import trio

from tests.interop.peers import COMMAND_TIMEOUT, FOLDER, ROOT, PeerFailed, end, last_words, missing_for
from tests.missing import require

OrdersKind: TypeAlias = Literal["spring", "py", "js"]

BUILD: Final = ROOT / "build" / "spring"
COMMANDS: Final[dict[OrdersKind, list[str]]] = {
    "spring": [
        "java",
        # It lives for seconds: quick code counts less than a quick start.
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{BUILD / 'classes'}:{BUILD / 'dependency'}/*",
        "Peer",
    ],
    "py": [sys.executable, "-m", "tests.interop.py.orders"],
    "js": ["node", str(FOLDER / "js" / "orders.js")],
}
CHECKS: Final = (
    "response",
    "fire-and-forget",
    "stream",
    "stream-since",
    "stream-cancelled",
    "channel",
    "channel-variable",
    "channel-empty",
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
"""The checks that every peer knows, and that every server of the service passes."""


def missing(kind: OrdersKind) -> str | None:
    """Return why a peer of this kind can't run here, or ``None``."""
    if kind != "spring":
        return missing_for(kind)
    if shutil.which("java") is None:
        return "java is missing: no Spring peer"
    if not (BUILD / "classes" / "Peer.class").is_file():
        return "the Spring peer is missing: make build/spring/.built, which needs mvn and a JDK"
    return None


@attrs.define(eq=False)
class OrdersPeer:
    """The running process. ``tcp`` is the URI of its server. That of Spring listens at ``ws``, too, and for users only
    at ``strict``.
    """

    kind: OrdersKind
    tcp: str
    ws: str
    strict: str
    _process: subprocess.Popen[str]
    _errors: IO[bytes]
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    async def check(self, name: str, uri: str, mime: str) -> None:
        """Have its client do a check against the server at ``uri``. Fail the test if that does not pass.

        ``mime`` is the data MIME type of the connection; "default" is the one that Spring chooses, "entry" a connection
        of octets whose requests say that they are JSON, which the other two can.
        """
        async with self._turn:
            with trio.move_on_after(COMMAND_TIMEOUT) as scope:
                ask = partial(self._ask, f"{name} {uri} {mime}\n")
                said = await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
        if scope.cancelled_caught:
            self._process.kill()
            raise PeerFailed(f"the {self.kind} peer did not finish {name} within {COMMAND_TIMEOUT:g} s")
        if not said:
            raise PeerFailed(f"the {self.kind} peer ended; it wrote:\n{last_words(self._errors)}")
        if said != f"ok {name}\n":
            raise AssertionError(said.rstrip())

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def orders_peer(kind: OrdersKind, *options: str) -> Iterator[OrdersPeer]:
    """Run a peer for the block. Spring takes the size in bytes of the fragments that it sends as its option."""
    require(missing(kind))
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*COMMANDS[kind], *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            if not (line := process.stdout.readline()):
                raise PeerFailed(f"the {kind} peer did not start; it wrote:\n{last_words(errors)}")
            _, tcp, ws, strict = (*line.split(), "", "")[:4]
            yield OrdersPeer(kind, tcp, ws, strict, process, errors)
        finally:
            end(process)
