"""The peers of the orders service as subprocesses: each is a server, and a client that does checks when told to.

README.md lists what they serve and which checks there are. Where a peer cannot run, a test is skipped and says why;
where the environment has ``CI`` it fails.
"""

from __future__ import annotations

import shutil
import sys
from typing import Final, Literal, TypeAlias

import attrs

from tests.interop.peers import COMMAND_TIMEOUT, FOLDER, ROOT, LineProcess, missing_for, shared, start

OrdersKind: TypeAlias = Literal["spring", "fragments", "py", "js"]
"""With "fragments" it is Spring as well, and sends all that is large in fragments."""

BUILD: Final = ROOT / "build" / "spring"
SPRING: Final = [
    "java",
    # It lives for seconds: quick code counts less than a quick start.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-cp",
    f"{BUILD / 'classes'}:{BUILD / 'dependency'}/*",
    "Peer",
]
COMMANDS: Final[dict[OrdersKind, list[str]]] = {
    "spring": SPRING,
    "fragments": [*SPRING, "1000"],
    "py": [sys.executable, "-m", "tests.interop.py.orders"],
    "js": ["node", str(FOLDER / "js" / "orders.js")],
}
CHECKS: Final = (
    "response",
    "stream",
    "channel",
    "setup",
    "simple-setup",
    "bearer-setup",
    "simple-setup-refused",
    "bearer-setup-refused",
    "simple",
    "bearer",
    "simple-refused",
    "bearer-refused",
    "anonymous-refused",
)
"""The checks that every peer knows, and that every server of the service passes."""


MORE_CHECKS: Final = (
    "requirement",
    "callback",
    "details",
    "stream-cancelled",
    "fire-and-forget",
    "stream-since",
    "channel-variable",
    "channel-empty",
    "nothing",
    "large",
    "details-stream",
    "details-channel",
    "wrong-field",
    "unknown-route",
)
"""Further checks of Spring's client and that of rsocket-js."""


def missing(kind: OrdersKind) -> str | None:
    """Return why a peer of this kind can't run here, or ``None``."""
    if kind in ("py", "js"):
        return missing_for(kind)
    if shutil.which("java") is None:
        return "java is missing: no Spring peer"
    if not (BUILD / "classes" / "Peer.class").is_file():
        return "the Spring peer is missing: make build/spring/.built, which needs mvn and a JDK"
    return None


@attrs.define(eq=False)
class OrdersPeer(LineProcess):
    """The running process. Its server listens at ``uris``: that of Spring over TCP, over WebSocket, and over TCP for
    users only.
    """

    uris: tuple[str, ...] = attrs.field(default=(), init=False)

    async def check(self, name: str, uri: str, mime: str) -> None:
        """Have its client do a check against the server at ``uri``. Fail the test if that does not pass.

        ``mime`` is the data MIME type of the connection; "default" is the one that Spring chooses, "entry" a connection
        of octets whose requests say that they are JSON, which the other two can.
        """
        with self.deadline(COMMAND_TIMEOUT):
            await self.tell(f"{name} {uri} {mime}")
            answer = await self.line()
        if answer != f"ok {name}":
            raise AssertionError(answer)


def shared_orders(kind: OrdersKind) -> OrdersPeer:
    """Return the process of this kind that the tests share."""
    return shared((kind, "orders"), OrdersPeer, lambda: start(OrdersPeer, f"the {kind} peer", COMMANDS[kind]))


async def running(kind: OrdersKind) -> OrdersPeer:
    """Return the process that the tests share, once it listens."""
    peer = shared_orders(kind)
    if not peer.uris:
        with peer.deadline(COMMAND_TIMEOUT):
            peer.uris = tuple((await peer.line()).split()[1:])
    return peer
