"""The peer in Kotlin as a subprocess: a server and a client that do what lines tell them, and answer with a line each.

``listen FRAGMENT`` answers ``port N``, ``connect PORT FRAGMENT`` connects its client. README.md lists the rest.
"""

from __future__ import annotations

import shutil
from typing import Final

import attrs

from tests.interop.peers import COMMAND_TIMEOUT, ROOT, LineProcess, shared, start

BUILD: Final = ROOT / "build" / "kotlin"
COMMAND: Final = [
    "java",
    # It lives for seconds: quick code counts less than a quick start.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-cp",
    f"{BUILD / 'classes'}:{BUILD / 'dependency'}/*",
    "PeerKt",
]


def missing_kotlin() -> str | None:
    """Return why the peer can't run here, or ``None``."""
    if shutil.which("java") is None:
        return "java is missing: no Kotlin peer"
    if not (BUILD / "classes" / "PeerKt.class").is_file():
        return "the Kotlin peer is missing: make build/kotlin/.built, which needs mvn and a JDK"
    return None


@attrs.define(eq=False)
class KotlinPeer(LineProcess):
    """The running process. One test at a time talks to it."""

    async def do(self, line: str) -> str:
        """Have it do what the line says, and return its answer."""
        with self.deadline(COMMAND_TIMEOUT):
            await self.tell(line)
            return await self.line()

    async def listen(self, fragment: int = 0) -> str:
        """Have it serve, with frames of at most so many bytes, 0 for any. Return the URI."""
        return f"tcp://127.0.0.1:{(await self.do(f'listen {fragment}')).removeprefix('port ')}"

    async def connect(self, uri: str, fragment: int = 0) -> None:
        """Connect its client, which is asked from now on, to a server of ours."""
        assert await self.do(f"connect {uri.rpartition(':')[2]} {fragment}") == "done"


def shared_kotlin() -> KotlinPeer:
    """Return the process that the tests share."""
    return shared("kotlin", KotlinPeer, lambda: start(KotlinPeer, "the Kotlin peer", COMMAND))
