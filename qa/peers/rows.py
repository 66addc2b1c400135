"""The peers of the conformance page: what each needs, how it is built and started, and which version of it that is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from rsocket_trio.conformance.catalogue import NEEDS

ROOT: Final = Path(__file__).resolve().parent.parent.parent
EXAMPLES: Final = ROOT / "examples" / "conformance"
BUILD: Final = ROOT / "build" / "peers"
NODE_MODULES: Final = ROOT / "tests" / "interop" / "node_modules"
ENVIRONMENT: Final = {"NODE_PATH": str(NODE_MODULES)}
"""The environment of the peers' commands: node looks for packages where ``make test`` installs them."""
OURS: Final = "trio"
BUILD_TIMEOUT: Final = 900
"""Seconds for one command of a build, which may download what it needs."""


class NotBuilt(Exception):
    """The peer is not there, or could not be built."""


@attrs.frozen
class Peer:
    """One implementation. ``tools`` are the commands that it needs on PATH.

    ``server`` and ``client`` are command lines. ``source`` is the folder of examples/conformance from which it is
    built, by the command ``build`` in a copy of it. ``serves`` and ``takes`` are what its server and its client have
    beside the interactions: names of the catalogue's ``OPTIONS``.
    """

    name: str
    title: str
    version: Callable[[Path], str]
    runtime: Callable[[], str]
    tools: tuple[str, ...] = ()
    server: str = ""
    client: str = ""
    source: str = ""
    build: str = ""
    answers: frozenset[str] = frozenset({"echo"})
    """The interactions that its client answers, names of the catalogue's ``NEEDS``; its server has them all."""
    serves: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    scheme: str = "tcp"
    """That of the addresses at which it serves and to which it connects."""
    over: str = ""
    """The name of the peer that this one is, over another transport: sentences on what fails are about both."""
    is_fragile: bool = False
    """True if a fault of one connection ends its server: each case then has a server of its own."""

    @property
    def folder(self) -> Path:
        """Return the folder in which it is built."""
        return BUILD / self.name if self.source else ROOT

    def missing(self) -> str | None:
        """Return why it can't run here, or ``None``."""
        lacking = [tool for tool in self.tools if shutil.which(tool) is None]
        if lacking:
            return f"{' and '.join(lacking)} not found on PATH"
        try:
            if not self.source:
                self.version(self.folder)
        except (OSError, importlib.metadata.PackageNotFoundError):
            return "it is not installed"
        return None

    def make(self) -> None:
        """Build it from a copy of its example. Raise ``NotBuilt`` with the end of what the build said."""
        if not self.source:
            return
        shutil.copytree(EXAMPLES / self.source, self.folder, dirs_exist_ok=True)
        try:
            done = subprocess.run(
                self.build.split(), cwd=self.folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotBuilt(f"{self.build}: not over after {BUILD_TIMEOUT} s") from None
        if done.returncode:
            raise NotBuilt(f"{self.build}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")

    def command(self, role: str) -> list[str]:
        """Return what starts its server or its client."""
        places = {"folder": self.folder, "examples": EXAMPLES, "python": sys.executable}
        return [word.format_map(places) for word in getattr(self, role).split()]


def _said(*command: str) -> str:
    """Return the first line that a command says."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return (done.stdout + done.stderr).splitlines()[0].strip()


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _node() -> str:
    return f"Node {_said('node', '--version').removeprefix('v')}"


def _java() -> str:
    found = re.search(r'"(.+?)"', _said("java", "-version"))
    return f"Java {found[1]}" if found else "Java"


def _go() -> str:
    return _said("go", "version").removeprefix("go version ").split()[0].replace("go", "Go ", 1)


def _rust() -> str:
    return " ".join(_said("rustc", "--version").split()[:2]).replace("rustc", "Rust")


def _of_npm(package: str) -> Callable[[Path], str]:
    def version(folder: Path) -> str:
        return str(json.loads((NODE_MODULES / package / "package.json").read_text())["version"])

    return version


def _of_pip(package: str) -> Callable[[Path], str]:
    def version(folder: Path) -> str:
        return importlib.metadata.version(package)

    return version


def _of_maven(folder: Path) -> str:
    [jar] = folder.glob("target/dependency/rsocket-core-*.jar")
    return jar.stem.removeprefix("rsocket-core-")


def _of_go(folder: Path) -> str:
    told = subprocess.run(["go", "version", "-m", "peer"], cwd=folder, capture_output=True, text=True, check=True)
    [version] = re.findall(r"\sdep\s+github\.com/rsocket/rsocket-go\s+v(\S+)", told.stdout)
    return str(version)


def _of_cargo(folder: Path) -> str:
    packages = tomllib.loads((folder / "Cargo.lock").read_text())["package"]
    return next(str(package["version"]) for package in packages if package["name"] == "rsocket_rust")


JAVA: Final = (
    "java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp {folder}/target/classes:{folder}/target/dependency/* Peer"
)
"""A client lives for one case: what it costs is its start."""


def _over_websocket(peer: Peer) -> Peer:
    return attrs.evolve(
        peer,
        name=f"{peer.name}-ws",
        title=f"{peer.title}, WebSocket",
        server=f"{peer.server} ws",
        scheme="ws",
        over=peer.name,
    )


EVERY: Final = frozenset(NEEDS)
RESUME: Final = frozenset({"resume"})
LEASES: Final = frozenset({"leases"})

# fmt: off
JAVA_OVER_TCP: Final = Peer(
    "java", "rsocket-java", _of_maven, _java, ("java", "mvn"),
    f"{JAVA} server 0", f"{JAVA} client",
    "rsocket_java", "mvn -q -B compile", EVERY, RESUME | LEASES, RESUME | LEASES)
JS_OVER_TCP: Final = Peer(
    "js", "rsocket-js 1.0", _of_npm("rsocket-core"), _node, ("node",),
    "node {examples}/rsocket_js_server.js 0", "node {examples}/rsocket_js_client.js", serves=RESUME, takes=RESUME)
PEERS: Final = (
    JAVA_OVER_TCP,
    _over_websocket(JAVA_OVER_TCP),
    JS_OVER_TCP,
    _over_websocket(JS_OVER_TCP),
    Peer("js-0027", "rsocket-js 0.0", _of_npm("rsocket-core-0027"), _node, ("node",),
         "node {examples}/rsocket_js_0027_server.js 0", "node {examples}/rsocket_js_0027_client.js", serves=LEASES),
    Peer("py", "rsocket-py", _of_pip("rsocket"), _python, (),
         "{python} {examples}/rsocket_py_server.py 0", "{python} {examples}/rsocket_py_client.py", serves=LEASES),
    Peer("go", "rsocket-go", _of_go, _go, ("go",),
         "{folder}/peer server 0", "{folder}/peer client",
         "rsocket_go", "go build -mod=mod -o peer .", EVERY, RESUME | LEASES, RESUME, is_fragile=True),
    Peer("rust", "rsocket-rust", _of_cargo, _rust, ("cargo",),
         "{folder}/target/release/peer server 0", "{folder}/target/release/peer client",
         "rsocket_rust", "cargo build --release --quiet", EVERY),
    Peer(OURS, "rsocket-trio", _of_pip("rsocket-trio"), _python),
)
# fmt: on
BY_NAME: Final = {peer.name: peer for peer in PEERS}
