"""Who is measured, on which workloads, and what each needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import attrs

from benchmarks.workloads import TYPED, WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
NODE_MODULES = ROOT / "tests" / "interop" / "node_modules"
EVERY = frozenset(workload.name for workload in WORKLOADS)


@attrs.frozen
class Library:
    """A library with a server and a client in ``peers/``; ``module`` has to be importable, or is npm's.

    ``beside`` is a package that it is measured with, and ``share`` is the part of streams and channels that it does.
    """

    name: str
    title: str
    module: str
    package: str
    workloads: frozenset[str] = EVERY
    is_node: bool = False
    beside: str = ""
    share: float = 1

    def missing(self) -> str | None:
        """Why it can't be measured here, or ``None``."""
        if not self.is_node:
            if importlib.util.find_spec(self.module) is None:
                return f"{self.package} is not installed (pip install '.[bench]')"
            if self.beside and not is_installed(self.beside):
                return f"{self.beside} is not installed (pip install '.[bench]')"
            return None
        if shutil.which("node") is None:
            return "node is not installed"
        found_there = (NODE_MODULES / self.module).is_dir()
        return None if found_there else f"{self.package} is not installed (npm install, in tests/interop)"

    def version(self) -> str:
        """The version that is measured."""
        if self.is_node:
            of_package = json.loads((NODE_MODULES / self.module / "package.json").read_text())["version"]
            return f"{of_package} on Node {node_version()}"
        version = importlib.metadata.version(self.package)
        return f"{version} with {self.beside} {importlib.metadata.version(self.beside)}" if self.beside else version

    def command(self, role: str, *arguments: str, python: str = sys.executable) -> list[str]:
        """Return the command that starts its server or client, with this Python where it is written in Python."""
        if self.is_node:
            return ["node", str(ROOT / "benchmarks" / "peers" / f"{self.name}_{role}.js"), *arguments]
        return [python, "-m", f"benchmarks.peers.{self.name}_{role}", *arguments]


# fmt: off
OURS    = Library("trio",    "rsocket_trio",     "rsocket_trio", "rsocket-trio")
THEIRS  = Library("asyncio", "rsocket-py",       "rsocket",      "rsocket", share=0.25)
JS      = Library("js",      "rsocket-js",       "rsocket-core", "rsocket-core", is_node=True)
FLOOR   = Library("floor",   "floor (Trio)",     "trio",         "trio")
LIBRARIES = (
    OURS,
    THEIRS,
    Library("grpcio",        "grpcio aio",       "grpc",         "grpcio",  share=0.25),
    Library("grpclib",       "grpclib",          "grpclib",      "grpclib", share=0.25),
    Library("purerpc",       "purerpc",          "purerpc",      "purerpc", share=0.25),
    JS,
    FLOOR,
)
ALONE = frozenset({TYPED.name})
OBJECTS = (
    Library("typed",         "rsocket_trio", "rsocket_trio", "rsocket-trio", ALONE, beside="msgspec"),
    Library("typed_asyncio", "rsocket-py",   "rsocket",      "rsocket",      ALONE),
    Library("typed_grpcio",  "grpcio aio",   "grpc",         "grpcio",       ALONE, beside="protobuf"),
)
"""The peers of the typed workload."""
# fmt: on
BY_LIBRARY = {library.name: library for library in (*LIBRARIES, *OBJECTS)}


def is_installed(package: str) -> bool:
    """Return whether a package of this name is there, whatever its modules are called."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@cache
def node_version() -> str:
    """What ``node --version`` says."""
    return subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
