"""Real HTTP/2 proxies in front of our server: how tests start them, with the configurations of the documentation.

``in_front_of`` runs one. Its configuration is the block of ``PAGE`` in the proxy's own language; only ports, paths and
periods are those of the test. Where a program is not installed, a test is skipped, and fails where ``CI`` is set.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from rsocket_trio.transports.schemes import parse_uri
from tests.blocks import blocks, make_certificates, page
from tests.missing import require

PAGE = "docs/howto/ingress.md"
SERVER, CLEAR, TLS = "7878", "8080", "8443"
"""The ports of the page: those of our server, and of the proxy without and with TLS."""
ETC = "/etc/rsocket"
"""Where certificates are on the page."""
START_TIMEOUT = 60.0
END_TIMEOUT = 5.0
TRIES = 3
"""Starts of a proxy: another process may have taken a port that was free."""
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"))
"""Where proxies are, also for a user whose own path has no system programs."""

NGINX_FOLDERS = " ".join(f"{each}_temp_path {each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
"""Folders beside the configuration."""


@attrs.frozen
class Program:
    """One proxy: how it is started, and what tests change in its configuration."""

    name: str
    language: str
    """The word behind the fence of its configuration on the page."""
    options: tuple[str, ...]
    """Those that start it in the foreground; ``{folder}`` and ``{config}`` stand for paths."""
    listening: str
    """What stands before a port that it listens on, on the page."""
    on_loopback: str
    """What stands there in tests."""
    shares: bool = True
    """True if streams of its clients may share a connection to the server."""
    changes: tuple[tuple[str, str], ...] = ()
    """Further texts of the page, and what stands for them in tests."""

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> str | None:
        """Where it is installed."""
        return shutil.which(self.name, path=SYSTEM_PATH)


PROGRAMS = (
    Program(
        name="nginx",
        language="nginx",
        options=("-p", "{folder}", "-c", "{config}", "-e", "stderr", "-g", "daemon off; pid nginx.pid;"),
        listening="listen ",
        on_loopback="listen 127.0.0.1:",
        shares=False,
        # By default its folders are those of the system, which only root may write to.
        changes=(("http {", f"http {{ access_log off; {NGINX_FOLDERS}"),),
    ),
    Program(
        name="haproxy",
        language="haproxy",
        options=("-W", "-db", "-f", "{config}"),
        listening="bind :",
        on_loopback="bind 127.0.0.1:",
        # By default it asks for a server three times, a second apart.
        changes=(("timeout connect 5s", "timeout connect 5s\n    retries 0"),),
    ),
    Program(
        name="nghttpx",
        language="ini",
        options=("--conf={config}", "--accesslog-file=/dev/null"),
        listening="frontend=*,",
        on_loopback="frontend=127.0.0.1,",
    ),
)


class ProxyFailed(Exception):
    """A proxy ended, or never listened. Shows what it wrote to standard error."""


def require_program(program: Program) -> None:
    """Skip the test, or fail it where ``CI`` is set, if this proxy is not installed."""
    require(None if program.path else f"{program.name} is missing: make system-packages")


def config_of(program: Program) -> str:
    """Return the configuration as the page shows it."""
    (found,) = [block.text for block in blocks(page(PAGE)) if block.language == program.language]
    return found


@attrs.define(eq=False)
class Proxy:
    """One proxy in front of a server, which can be killed and started again."""

    program: Program
    folder: Path
    server: int
    config: str
    clear: int = 0
    tls: int = 0
    _process: trio.Process | None = None

    @property
    def uri(self) -> str:
        """The address without TLS."""
        return f"h2://127.0.0.1:{self.clear}/rsocket"

    @property
    def tls_uri(self) -> str:
        """The address with TLS, of a certificate of the authority in ``ca.pem``."""
        return f"h2s://localhost:{self.tls}/rsocket"

    async def start_anywhere(self) -> None:
        """Start on ports that are free."""
        for last in range(TRIES - 1, -1, -1):
            self.clear, self.tls = free_ports()
            try:
                await self.start()
            except ProxyFailed:
                if not last:
                    raise
            else:
                return

    async def start(self) -> None:
        """Start, and wait until it listens. Raise ``ProxyFailed``."""
        path = self.folder / "proxy.conf"
        path.write_text(self._written())
        executable, options = self.program.path, self.program.options
        assert executable is not None
        command = [executable, *(word.format(folder=self.folder, config=path) for word in options)]
        with (self.folder / "stderr").open("wb") as stderr:
            # A session of its own: killing its group leaves no worker behind.
            self._process = await trio.lowlevel.open_process(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, start_new_session=True
            )
        with trio.move_on_after(START_TIMEOUT):
            while self._process.poll() is None:
                try:
                    for port in (self.clear, self.tls):
                        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                except OSError:
                    await trio.sleep(0.01)
                else:
                    return
        said = self.said()
        await self.kill()
        raise ProxyFailed(f"{self.program}: {said}")

    async def kill(self) -> None:
        """End all its processes without a word to anyone."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it, at once too, but in its own way."""
        with trio.move_on_after(END_TIMEOUT):
            await self._end(signal.SIGTERM)
        await self.kill()

    def said(self) -> str:
        """Return what it wrote to standard error."""
        return (self.folder / "stderr").read_text("utf-8", "replace")

    async def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        try:
            if how is signal.SIGKILL:
                os.killpg(self._process.pid, how)
            else:
                self._process.send_signal(how)
        except ProcessLookupError:
            pass
        await self._process.wait()

    def _written(self) -> str:
        program, text = self.program, self.config
        for before, after in program.changes:
            assert before in text
            text = text.replace(before, after)
        for port, mine in ((CLEAR, self.clear), (TLS, self.tls)):
            assert program.listening + port in text
            text = text.replace(program.listening + port, f"{program.on_loopback}{mine}")
        assert ETC in text
        assert SERVER in text
        return text.replace(ETC, str(self.folder)).replace(SERVER, str(self.server))


@asynccontextmanager
async def in_front_of(program: Program, uri: str, folder: Path) -> AsyncIterator[Proxy]:
    """Run a proxy in front of our server at ``uri`` for as long as the block."""
    require_program(program)
    make_certificates(folder)
    proxy = Proxy(program, folder, parse_uri(uri).port, config_of(program))
    try:
        await proxy.start_anywhere()
        yield proxy
    finally:
        with trio.CancelScope(shield=True):
            await proxy.stop()


def free_ports() -> tuple[int, int]:
    """Return two ports that nobody listens on."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
