"""The libraries that are measured, their workloads and their requirements."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import attrs

from benchmarks.workloads import TYPED, WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
NODE_MODULES = ROOT / "tests" / "interop" / "node_modules"
BUILT = {"java": ROOT / "build" / "rsocket-java", "go": ROOT / "build" / "rsocket-go"}
"""The folders in which make builds the peers, by runtime."""
EVERY = frozenset(workload.name for workload in WORKLOADS)


@attrs.frozen
class Library:
    """A library with a server and a client in ``peers/``; ``module`` has to be importable, or is npm's.

    ``runtime`` is what runs it: python, node, java or go.
    ``beside`` is a package that it is measured with, and ``share`` is the part of streams and channels that it does.
    """

    name: str
    title: str
    module: str
    package: str
    workloads: frozenset[str] = EVERY
    runtime: str = "python"
    beside: str = ""
    share: float = 1

    def missing(self) -> str | None:
        """Return the reason why it can't be measured here, or ``None``."""
        if self.runtime in BUILT:
            if (BUILT[self.runtime] / ".built").exists() and shutil.which(self.runtime) is not None:
                return None
            return f"it is not built (make {BUILT[self.runtime].relative_to(ROOT)}/.built)"
        if self.runtime == "python":
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
        if self.runtime == "java":
            [jar] = (BUILT["java"] / "dependency").glob(f"{self.package}-*.jar")
            return f"{jar.stem.removeprefix(f'{self.package}-')} on Java {java_version()}"
        if self.runtime == "go":
            told = said("go", "version", "-m", str(BUILT["go"] / "server"))
            [version] = re.findall(rf"\sdep\s+{re.escape(self.module)}\s+v(\S+)", told)
            return f"{version} on {told.split()[1].replace('go', 'Go ')}"
        if self.runtime == "node":
            of_package = json.loads((NODE_MODULES / self.module / "package.json").read_text())["version"]
            return f"{of_package} on Node {node_version()}"
        version = importlib.metadata.version(self.package)
        return f"{version} with {self.beside} {importlib.metadata.version(self.beside)}" if self.beside else version

    def command(self, role: str, *arguments: str, python: str = sys.executable) -> list[str]:
        """Return the command that starts its server or client, with this Python where it is written in Python."""
        if self.runtime == "java":
            classes = f"{BUILT['java']}/classes:{BUILT['java']}/dependency/*"
            return ["java", "-cp", classes, role.capitalize(), *arguments]
        if self.runtime == "go":
            return [str(BUILT["go"] / role), *arguments]
        if self.runtime == "node":
            return ["node", str(PEERS / f"{self.name}_{role}.js"), *arguments]
        return [python, "-m", f"benchmarks.peers.{self.name}_{role}", *arguments]


# fmt: off
OURS    = Library("trio",    "rsocket_trio",     "rsocket_trio", "rsocket-trio")
THEIRS  = Library("asyncio", "rsocket-py",       "rsocket",      "rsocket", share=0.25)
JS      = Library("js",      "rsocket-js",       "rsocket-core", "rsocket-core", runtime="node")
FLOOR   = Library("floor",   "floor (Trio)",     "trio",         "trio")
LIBRARIES = (
    OURS,
    THEIRS,
    Library("grpcio",        "grpcio aio",       "grpc",         "grpcio",  share=0.25),
    Library("grpclib",       "grpclib",          "grpclib",      "grpclib", share=0.25),
    JS,
    FLOOR,
)
JAVA    = Library("java",    "rsocket-java",     "io.rsocket",   "rsocket-core", runtime="java")
GO      = Library("go",      "rsocket-go",       "github.com/rsocket/rsocket-go", "rsocket-go", runtime="go")
UNDER_JAVA = (OURS, JAVA, GO)
"""The servers that rsocket-java's client asks."""
ALONE = frozenset({TYPED.name})
OBJECTS = (
    Library("typed",         "rsocket_trio", "rsocket_trio", "rsocket-trio", ALONE, beside="msgspec"),
    Library("typed_asyncio", "rsocket-py",   "rsocket",      "rsocket",      ALONE),
    Library("typed_grpcio",  "grpcio aio",   "grpc",         "grpcio",       ALONE, beside="protobuf"),
)
"""The peers of the typed workload."""
# fmt: on
BY_LIBRARY = {library.name: library for library in (*LIBRARIES, *OBJECTS, JAVA, GO)}


def is_installed(package: str) -> bool:
    """Return whether a package of this name is there, whatever its modules are called."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@cache
def node_version() -> str:
    """Return the output of ``node --version``."""
    return said("node", "--version").strip()


@cache
def java_version() -> str:
    """The version that ``java -version`` has in quotes."""
    found = re.search(r'"(.+?)"', said("java", "-version"))
    return found[1] if found else "of no known version"


def said(*command: str) -> str:
    """Return the output of a command, stdout and stderr together."""
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout
