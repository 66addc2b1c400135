"""Foreign peers: a process of each kind, which serves and connects when told to.

``server_peer`` has it listen, ``client_peer`` has it connect and carry out commands; README.md lists what it serves and
what it can be told. Where a peer cannot run, a test is skipped and says why; where the environment has ``CI`` it fails,
so that a machine that must have the peers never passes without them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, TypeVar

import attrs
import trio

from tests.missing import require

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
COMMAND_TIMEOUT = 60.0
"""Seconds, its start included, that only a peer which hangs takes to answer."""
END_TIMEOUT = 5.0
READ_SIZE = 1 << 20
STDERR_KEPT = 16_384
"""Bytes: what a failing test shows of a peer's last words."""

Kind: TypeAlias = Literal["py", "js"]
TransportName: TypeAlias = Literal["tcp", "ws", "h2"]
Result: TypeAlias = dict[str, Any]

KINDS: tuple[Kind, ...] = ("py", "js")
TRANSPORTS: dict[Kind, tuple[TransportName, ...]] = {"py": ("tcp", "ws"), "js": ("tcp", "ws", "h2")}
"""What each kind travels over. Over HTTP/2 it is rsocket-js on a stream of node's."""


class PeerFailed(Exception):
    """A peer did not do what its script says. Shows what it wrote to standard error."""


def pattern(size: int) -> bytes:
    """The bytes that peers fill payloads with, and check: 0 to 250, again and again."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def require_peer(kind: Kind) -> None:
    """Skip the test, or fail it where ``CI`` is set, if this kind of peer cannot run here."""
    require(missing_for(kind))


def missing_for(kind: Kind) -> str | None:
    if kind == "py":
        found = all(importlib.util.find_spec(name) for name in ("rsocket", "aiohttp"))
        return None if found else "the asyncio peer is missing: pip install '.[interop]'"
    if shutil.which("node") is None:
        return "node is missing: no JavaScript peers"
    if not (FOLDER / "node_modules" / "rsocket-core").is_dir():
        return "the JavaScript peers are missing: npm install in tests/interop"
    return None


def command_for(kind: Kind, script: str = "main", *args: str) -> list[str]:
    """Return what starts a peer of this kind in ``ROOT``."""
    if kind == "py":
        return [sys.executable, "-m", f"tests.interop.py.{script}", *args]
    return ["node", str(FOLDER / "js" / f"{script}.js"), *args]


@attrs.define(eq=False)
class LineProcess:
    """A process that reads and writes lines, which tests share, one after the other.

    Whatever waits for it raises ``PeerFailed`` once it has ended. One that does not answer in time is killed, so that
    a hang costs one test; ``shared`` then starts another.
    """

    name: str
    process: subprocess.Popen[bytes]
    _errors: IO[bytes]
    _buffered: bytearray = attrs.field(factory=bytearray, init=False)
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def line(self) -> str:
        """Return the next line that it writes."""
        assert self.process.stdout is not None
        while (end := self._buffered.find(b"\n")) < 0:
            await trio.lowlevel.wait_readable(self.process.stdout)
            chunk = os.read(self.process.stdout.fileno(), READ_SIZE)
            if not chunk:
                raise PeerFailed(self._said("ended"))
            self._buffered += chunk
        line = self._buffered[:end].decode()
        del self._buffered[: end + 1]
        return line

    async def tell(self, line: str) -> None:
        """Have it read this line."""
        assert self.process.stdin is not None
        unsent = memoryview(line.encode() + b"\n")
        async with self._writing:
            while unsent:
                try:
                    unsent = unsent[os.write(self.process.stdin.fileno(), unsent) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self.process.stdin)
                except BrokenPipeError:
                    raise PeerFailed(self._said("ended")) from None

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Kill a process that takes longer, and raise ``PeerFailed``."""
        with trio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            self.process.kill()
            raise PeerFailed(self._said(f"did not answer within {seconds:g} s"))

    def end(self) -> None:
        """End it: politely by the end of its input, then not."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._errors.close()

    def _said(self, what: str) -> str:
        size = self._errors.seek(0, 2)
        self._errors.seek(max(0, size - STDERR_KEPT))
        words = self._errors.read().decode("utf-8", "replace").strip()
        return f"{self.name} {what}" + (f"; it wrote:\n{words}" if words else "")


Lines = TypeVar("Lines", bound=LineProcess)


def start(kind: Callable[[str, subprocess.Popen[bytes], IO[bytes]], Lines], name: str, command: Sequence[str]) -> Lines:
    """Start a process in ``ROOT``."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # it is closed with the process
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        os.set_blocking(stream.fileno(), False)
    return kind(name, process, errors)


_shared: dict[Hashable, LineProcess] = {}


def shared(key: Hashable, kind: type[Lines], begin: Callable[[], Lines]) -> Lines:
    """Return the process of this key that the tests share. It is started anew if it has ended."""
    if key in _shared and _shared[key].process.poll() is not None:
        _shared.pop(key).end()
    if key not in _shared:
        _shared[key] = begin()
    found = _shared[key]
    assert isinstance(found, kind)
    return found


def end_shared() -> None:
    """End the processes that the tests shared."""
    while _shared:
        _shared.popitem()[1].end()


@attrs.define(eq=False)
class Peer(LineProcess):
    """A process that serves and connects. The tasks of a test may share it, too."""

    _last_id: int = attrs.field(default=0, init=False)
    _results: dict[int, Result | None] = attrs.field(factory=dict, init=False)
    """Of commands that somebody waits for."""
    _servers: dict[str, int] = attrs.field(factory=dict, init=False)
    """The ports that it listens on, by the terms of each."""
    _reading: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _came: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    async def do(self, what: str, *, data: bytes | None = None, metadata: bytes | None = None, **fields: Any) -> Result:
        """Have the peer do something, and give what came of it.

        ``items`` may hold bytes, ``data`` and the rest are as README.md says. In the result ``data``, ``metadata`` and
        ``items`` are bytes again.
        """
        command = as_command(what, data=data, metadata=metadata, **fields)
        self._last_id += 1
        number = self._last_id
        self._results[number] = None
        try:
            with self.deadline(COMMAND_TIMEOUT):
                await self.tell(json.dumps(command | {"id": number}))
                while (result := self._results[number]) is None:
                    await self._take_results()
        finally:
            del self._results[number]
        return with_bytes(result)

    async def listen(self, transport: TransportName, **options: Any) -> int:
        """Have it serve, unless it does so on these terms already. Return the port."""
        terms = f"{transport} {options}"
        if terms not in self._servers:
            self._servers[terms] = (await self.do("listen", transport=transport, **options))["port"]
        return self._servers[terms]

    async def _take_results(self) -> None:
        """Read until a result is there. One task reads, and wakes the others."""
        if self._reading.locked():
            await self._came.park()
            return
        async with self._reading:
            try:
                result = json.loads(await self.line())
                if (number := result.pop("id")) in self._results:
                    self._results[number] = result
            finally:
                self._came.unpark_all()


@contextmanager
def own_peer(kind: Kind, script: str = "main", *args: str) -> Iterator[Peer]:
    """Run a process for the block: one that is to die, or runs another script."""
    require_peer(kind)
    peer = start(Peer, f"the {kind} peer", command_for(kind, script, *args))
    try:
        yield peer
    finally:
        peer.end()


def shared_peer(kind: Kind) -> Peer:
    """Return the process of this kind that the tests share."""
    return shared(kind, Peer, lambda: start(Peer, f"the {kind} peer", command_for(kind)))


async def server_peer(kind: Kind, transport: TransportName, **options: Any) -> str:
    """Return the URI of a server of this kind: with ``fragment=1000``, or ``lease=3``, of its own."""
    return f"{transport}://127.0.0.1:{await shared_peer(kind).listen(transport, **options)}"


@asynccontextmanager
async def client_peer(kind: Kind, uri: str, *, peer: Peer | None = None, **options: Any) -> AsyncIterator[PeerClient]:
    """Have a peer of this kind, the shared one by default, connect to ``uri``, such as ``tcp://127.0.0.1:7878``.

    Options are ``fragment=1000``, ``lease=256``, ``setup="refuse"``, ``keepalive=500``, ``lifetime=2000``,
    ``metadata_mime="message/x.rsocket.routing.v0"``. Of several ``connections`` over one of HTTP/2 a command names its
    own: ``connection=2``.
    """
    peer = peer if peer is not None else shared_peer(kind)
    transport, _, rest = uri.partition("://")
    address, slash, path = rest.partition("/")
    if slash:
        options["path"] = slash + path
    hello = await peer.do("connect", transport=transport, port=int(address.rpartition(":")[2]), **options)
    if not hello["ok"]:
        raise PeerFailed(f"the peer could not connect: {hello['error']}")
    try:
        yield PeerClient(peer, hello["client"])
    finally:
        with trio.CancelScope(shield=True), suppress(PeerFailed):
            await peer.do("leave", client=hello["client"])


@attrs.frozen
class PeerClient:
    """A connected client that carries out commands, several at once if asked from several tasks."""

    peer: Peer
    number: int

    async def do(self, what: str, *, data: bytes | None = None, metadata: bytes | None = None, **fields: Any) -> Result:
        """Have it do something, as ``Peer.do``."""
        return await self.peer.do(what, data=data, metadata=metadata, client=self.number, **fields)


def as_command(what: str, *, data: bytes | None = None, metadata: bytes | None = None, **fields: Any) -> Result:
    """A command as it is told to a peer: bytes in hex."""
    command = fields | {"do": what}
    if data is not None:
        command["data"] = data.hex()
    if metadata is not None:
        command["metadata"] = metadata.hex()
    if "items" in command:
        command["items"] = [item.hex() if isinstance(item, bytes) else item for item in command["items"]]
    return command


def with_bytes(result: Result) -> Result:
    """A peer's result with bytes for what came in hex."""
    for name in ("data", "metadata"):
        if isinstance(result.get(name), str):
            result[name] = bytes.fromhex(result[name])
    for name in ("items", "metadata", "different"):
        if isinstance(result.get(name), list):
            result[name] = [None if item is None else bytes.fromhex(item) for item in result[name]]
    return result
