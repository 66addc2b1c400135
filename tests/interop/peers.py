"""Foreign peers as subprocesses: how tests start them, tell them what to do, and end them.

``server_peer`` runs one that listens, ``client_peer`` one that connects and carries out commands; README.md lists what
the servers serve and what the clients can be told. Where a peer cannot run, a test is skipped and says why; where the
environment has ``CI`` it fails, so that a machine that must have the peers never passes without them.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import attrs
import pytest
import trio

from tests.missing import require

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
START_TIMEOUT = 20.0
"""Seconds until a peer must have said that it runs."""
COMMAND_TIMEOUT = 60.0
END_TIMEOUT = 5.0
STDERR_KEPT = 16_384
"""Bytes: what a failing test shows of a peer's last words."""

Kind: TypeAlias = Literal["py", "js"]
TransportName: TypeAlias = Literal["tcp", "ws", "h2"]
Result: TypeAlias = dict[str, Any]

KINDS: tuple[Kind, ...] = ("py", "js")
TRANSPORTS: dict[Kind, tuple[TransportName, ...]] = {"py": ("tcp", "ws"), "js": ("tcp", "ws", "h2")}
"""What each kind travels over. Over HTTP/2 it is rsocket-js on a stream of node's."""


def each_peer(*kinds: Kind) -> pytest.MarkDecorator:
    """Play a test with ``kind`` and ``transport``: each of these kinds, or all, over what it travels over."""
    pairs = [(kind, transport) for kind in kinds or KINDS for transport in TRANSPORTS[kind]]
    return pytest.mark.parametrize(("kind", "transport"), pairs)


class PeerFailed(Exception):
    """A peer did not do what its script says. Shows what it wrote to standard error."""


def end(process: subprocess.Popen[str]) -> None:
    """Close the peer's input, at which it ends; kill one that goes on."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def pattern(size: int) -> bytes:
    """The bytes that peers fill payloads with, and check: 0 to 250, again and again."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def require_peer(kind: Kind) -> None:
    """Skip the test, or fail it where ``CI`` is set, if this kind of peer cannot run here."""
    require(missing_for(kind))


def missing_for(kind: Kind) -> str | None:
    if kind == "py":
        found = all(importlib.util.find_spec(name) for name in ("rsocket", "aiohttp"))
        return None if found else "the asyncio peer is missing: pip install 'rsocket-trio[interop]'"
    if shutil.which("node") is None:
        return "node is missing: no JavaScript peers"
    if not (FOLDER / "node_modules" / "rsocket-core").is_dir():
        return "the JavaScript peers are missing: npm install in tests/interop"
    return None


def command_for(kind: Kind, role: str, *args: str, **options: object) -> list[str]:
    """Return what starts a peer of this kind in this role, in ``ROOT``."""
    module, script = f"tests.interop.py.{role}", str(FOLDER / "js" / f"{role}.js")
    command = [sys.executable, "-m", module] if kind == "py" else ["node", script]
    for name, value in options.items():
        if value is not None:
            args = (*args, f"--{name.replace('_', '-')}", str(value))
    return [*command, *args]


@asynccontextmanager
async def server_peer(kind: Kind, transport: TransportName, **options: object) -> AsyncIterator[str]:
    """Run a server of this kind; the URI that it listens on. Options become ``--name value``: ``fragment=1000``."""
    async with _peer(kind, "server", transport, **options) as peer:
        with peer.deadline(START_TIMEOUT):
            word, port = (await peer.line()).split()
        if word != "PORT":
            raise PeerFailed(f"PORT expected, not {word}")
        yield f"{transport}://127.0.0.1:{port}"


@asynccontextmanager
async def client_peer(kind: Kind, uri: str, **options: object) -> AsyncIterator[PeerClient]:
    """Run a client of this kind that is connected to ``uri``, such as ``tcp://127.0.0.1:7878``.

    Options become ``--name value``: ``fragment=1000``, ``lease=256``, ``setup="refuse"``, ``keepalive=500``,
    ``lifetime=2000``, ``metadata_mime="message/x.rsocket.routing.v0"``. Of several ``connections`` over one of HTTP/2
    a command names its own: ``connection=2``.
    """
    transport, _, rest = uri.partition("://")
    address, slash, path = rest.partition("/")
    if slash:
        options["path"] = slash + path
    async with _peer(kind, "client", transport, address.rpartition(":")[2], **options) as peer:
        with peer.deadline(START_TIMEOUT):
            hello = json.loads(await peer.line())
        if not hello["ok"]:
            raise PeerFailed(f"the peer could not connect: {hello['error']}")
        client = PeerClient(peer)
        async with _beside(client._read):
            yield client


@attrs.define(eq=False)
class PeerClient:
    """A connected client that carries out commands, several at once if asked from several tasks."""

    _peer: _Peer
    _last_id: int = 0
    _waiting: dict[int, trio.MemorySendChannel[Result]] = attrs.field(factory=dict)
    _failure: PeerFailed | None = None

    async def do(self, what: str, *, data: bytes | None = None, metadata: bytes | None = None, **fields: Any) -> Result:
        """Have the peer do something, and give what came of it.

        ``items`` may hold bytes, ``data`` and the rest are as README.md says. In the result ``data``, ``metadata`` and
        ``items`` are bytes again.
        """
        command = as_command(what, data=data, metadata=metadata, **fields)
        if self._failure is not None:
            raise self._failure
        self._last_id += 1
        number = self._last_id
        send, receive = trio.open_memory_channel[Result](1)
        self._waiting[number] = send
        try:
            with self._peer.deadline(COMMAND_TIMEOUT):
                await self._peer.tell(command | {"id": number})
                return with_bytes(await receive.receive())
        except trio.EndOfChannel:
            assert self._failure is not None
            raise self._failure from None
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        try:
            while True:
                result = json.loads(await self._peer.line())
                waiting = self._waiting.get(result.pop("id"))
                if waiting is not None:
                    waiting.send_nowait(result)
        except PeerFailed as error:
            self._failure = error
            for waiting in self._waiting.values():
                waiting.close()


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


@attrs.define(eq=False)
class _Peer:
    """One process and its three streams."""

    process: trio.Process
    name: str
    buffered: bytearray = attrs.field(factory=bytearray)
    last_words: bytearray = attrs.field(factory=bytearray)
    writing: trio.Lock = attrs.field(factory=trio.Lock)

    async def line(self) -> str:
        assert self.process.stdout is not None
        searched = 0
        while (end := self.buffered.find(b"\n", searched)) < 0:
            searched = len(self.buffered)
            chunk = await self.process.stdout.receive_some(1 << 20)
            if not chunk:
                await self.fail("ended")
            self.buffered += chunk
        line = self.buffered[:end].decode()
        del self.buffered[: end + 1]
        return line

    async def tell(self, command: Result) -> None:
        assert self.process.stdin is not None
        async with self.writing:
            try:
                await self.process.stdin.send_all(json.dumps(command).encode() + b"\n")
            except trio.BrokenResourceError:
                await self.fail("ended")

    async def fail(self, what: str) -> NoReturn:
        with trio.move_on_after(END_TIMEOUT):
            await self.process.wait()
        raise PeerFailed(self.said(what))

    def said(self, what: str) -> str:
        words = self.last_words.decode("utf-8", "replace").strip()
        return f"{self.name} {what}" + (f"; it wrote:\n{words}" if words else "")

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        with trio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise PeerFailed(self.said(f"did not answer within {seconds:g} s"))

    async def listen(self) -> None:
        """Keep the end of what the process writes to standard error."""
        assert self.process.stderr is not None
        async with self.process.stderr as stream:
            async for chunk in stream:
                self.last_words += chunk
                del self.last_words[:-STDERR_KEPT]

    async def end(self) -> None:
        """End the process: politely by the end of its input, then not."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.aclose()
        with trio.move_on_after(END_TIMEOUT):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        await process.stdout.aclose()


@asynccontextmanager
async def _peer(kind: Kind, role: str, *args: str, **options: object) -> AsyncIterator[_Peer]:
    require_peer(kind)
    command = command_for(kind, role, *args, **options)
    process = await trio.lowlevel.open_process(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    peer = _Peer(process, f"the {kind} {role}")
    try:
        async with _beside(peer.listen):
            yield peer
    finally:
        with trio.CancelScope(shield=True):
            await peer.end()


@asynccontextmanager
async def _beside(task: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a task for as long as the block. The block's own error leaves it alone, in no group."""
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
        try:
            yield
        except BaseException as exc:
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
