"""The house stands: imports point down, and the pure folders know neither Trio nor any other way to do I/O."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.each_row import each_row

PACKAGE = Path(__file__).parent.parent / "rsocket_trio"
FILES = sorted(PACKAGE.rglob("*.py"))
HOOKS = PACKAGE / "connection" / "hooks.py"
"""The one module that names, for annotations, what stands above it."""

WORDS = (
    "errors",
    "extras",
    "values",
    "signatures",
    "masking",
    "payload",
    "limits",
    "terms",
    "codecs",
    "formats",
    "hostile_data",
    "late_names",
    "streamux_magic",
)
PURE = (*WORDS, "mux", "rsocket", "streamux", "metadata")
PUBLIC = "__init__"
"""The public names: programs may import them, as users do, and nothing below may."""

# Bottom-up. A folder imports only from the rows below its own; the words may use each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    WORDS,
    ("mux",),
    ("rsocket", "streamux", "metadata"),
    ("tools",),
    ("transports", "capture"),
    ("conformance",),
    ("forms",),
    ("connection",),
    ("services",),
    ("responder",),
    ("client",),
    ("server",),
    (PUBLIC,),
    ("replay", "observe", "asyncio"),
    ("analytics", "loadgen"),
    ("spark",),
    ("cli", "testing"),
)
LEVELS = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}

THIRD_PARTY_IN_PURE_FOLDERS = {"attrs", "msgspec"}
ONLY_WHEN_NEEDED = {
    "codecs": {"pydantic"},
    "formats": {"cbor2", "pydantic", "pydantic_core", "typing_extensions"},
}
"""Third parties that modules load inside of their functions, and nothing else in the pure folders."""
CLOCKS = {"hostile_data": {"time"}}
"""It measures its own CPU to see whether to look closer, and decides nothing by that."""
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "os", "pathlib", "random", "select", "selectors", "signal"),
    *("socket", "socketserver", "ssl", "subprocess", "threading", "time"),
}


class Import(NamedTuple):
    """One imported module, as a dotted name."""

    module: str
    line: int
    for_annotations: bool


@each_row("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path: Path) -> None:
    folder = folder_of_file(path)
    assert folder in LEVELS, f"{path.name} stands in no layer: give it a place in the table"

    wrong = [
        f"line {found.line}: {folder} imports {found.module}"
        for found in imports_of(path)
        if found.module.split(".")[0] == PACKAGE.name
        and not may_import(folder, found)
        and not (path == HOOKS and found.for_annotations)
    ]

    assert wrong == []


@each_row(
    "path",
    [path for path in FILES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in PURE],
    ids=lambda path: path.relative_to(PACKAGE).as_posix(),
)
def test_pure_folders_import_nothing_that_does_io(path: Path) -> None:
    outside = {found.module.split(".")[0] for found in imports_of(path)} - {PACKAGE.name}
    late = ONLY_WHEN_NEEDED.get(folder_of_file(path), set())

    assert outside & IMPURE - CLOCKS.get(folder_of_file(path), set()) == set()
    assert outside - set(sys.stdlib_module_names) - THIRD_PARTY_IN_PURE_FOLDERS - late == set()
    assert {name.split(".")[0] for name in loaded_at_once(path)} & late == set()


def test_errors_import_nothing_that_imports_them() -> None:
    below: dict[str, set[str]] = {}
    waiting = ["errors"]
    while waiting:
        word = waiting.pop()
        if word not in below:
            imported = (found.module for found in imports_of(PACKAGE / f"{word}.py"))
            below[word] = {folder_of_module(name) for name in imported if name.startswith(f"{PACKAGE.name}.")}
            waiting += below[word]

    assert [word for word, words in below.items() if "errors" in words] == []


@pytest.mark.parametrize(
    ("folder", "source", "allowed"),
    [
        ("mux", "from rsocket_trio.errors import Invalid", True),
        ("mux", "from rsocket_trio import errors", True),
        ("mux", "from .. import connection", False),
        ("mux", "import rsocket_trio.rsocket.codec", False),
        ("mux", "from rsocket_trio import Payload", False),
        ("rsocket", "def f():\n    from rsocket_trio.transports import base", False),
        ("payload", "from rsocket_trio.errors import Invalid", True),
        ("services", "from rsocket_trio.connection import hooks", True),
        ("connection", "if TYPE_CHECKING:\n    from rsocket_trio.services import Call", False),
        ("connection", "def f():\n    from rsocket_trio.services.calls import served", False),
        ("replay", "from rsocket_trio import Responder", True),
        ("spark", "from rsocket_trio.replay import Log", True),
    ],
)
def test_the_judge_tells_up_from_down(folder: str, source: str, allowed: bool) -> None:
    found = list(imports_in(ast.parse(source), (PACKAGE.name, folder)))

    assert [may_import(folder, one) for one in found] == [allowed]


def loaded_at_once(path: Path) -> set[str]:
    """Return what a module imports outside of its functions, and not for annotations alone."""
    late = late_lines(path)
    return {found.module for found in imports_of(path) if found.line not in late and not found.for_annotations}


def may_import(folder: str, found: Import) -> bool:
    target = folder_of_module(found.module)
    if target == folder or (folder in WORDS and target in WORDS):
        return True
    return LEVELS[target] < LEVELS[folder]


def folder_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def folder_of_module(module: str) -> str:
    """The folder, or the single file, that a dotted name lies in. A name of the package itself is a public one."""
    name = [*module.split("."), PUBLIC][1]
    is_module = (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() or name in LEVELS
    return name if is_module else PUBLIC


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports_of(path: Path) -> list[Import]:
    package = (PACKAGE.name, *path.relative_to(PACKAGE).parts[:-1])
    return list(imports_in(tree_of(path), package))


@cache
def late_lines(path: Path) -> set[int]:
    """Return the lines of imports that run when a function is called."""
    functions = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {found.line for node in functions for found in imports_in(node, (PACKAGE.name,))}


def imports_in(tree: ast.AST, package: tuple[str, ...], *, for_annotations: bool = False) -> Iterator[Import]:
    """Every import, wherever it stands, with relative ones made absolute."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, for_annotations)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            for alias in node.names:
                # What is imported from the package itself is a module of it or a public name.
                yield Import(f"{module}.{alias.name}", node.lineno, for_annotations)
        elif isinstance(node, ast.If) and asks_for_types(node.test):
            yield from imports_in(ast.Module(node.body, []), package, for_annotations=True)
            yield from imports_in(ast.Module(node.orelse, []), package, for_annotations=for_annotations)
        else:
            yield from imports_in(node, package, for_annotations=for_annotations)


def asks_for_types(test: ast.expr) -> bool:
    return any("TYPE_CHECKING" in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in ast.walk(test))


ENGINE = "rsocket_trio.connection.engine"
"""Parts of a connection name it in annotations: it holds them all."""
LARGEST_CIRCLE = 3
"""Modules of one folder that may import each other in a circle, imports for annotations included."""
LONGEST_CHAIN = 14
"""Modules of a chain of which each imports the next as it is loaded."""


def test_no_circle_of_imports_inside_a_folder_is_larger_than_three() -> None:
    every, loaded = graphs()
    within = {
        name: {target for target in targets if folder_of_module(target) == folder_of_module(name)}
        - ({ENGINE} - loaded[name])
        for name, targets in every.items()
        if name != "rsocket_trio.connection.hooks"
    }

    assert [circle for circle in circles(within) if len(circle) > LARGEST_CIRCLE] == []


def test_no_chain_of_imports_is_longer_than_allowed() -> None:
    _, loaded = graphs()

    @cache
    def longest(name: str) -> tuple[str, ...]:
        return (name, *max((longest(target) for target in loaded[name]), key=len, default=()))

    assert circles(loaded) == []
    chain = max(map(longest, loaded), key=len)
    assert len(chain) <= LONGEST_CHAIN, " -> ".join(chain)


def test_the_judge_finds_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


@cache
def graphs() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return what each module imports of the package: anywhere in it, and as it is loaded."""
    modules = {
        ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)): path
        for path in FILES
        if path.name != "__init__.py"
    }
    every: dict[str, set[str]] = {}
    loaded: dict[str, set[str]] = {}
    for name, path in modules.items():
        every[name] = targets_of(imports_of(path), modules) - {name}
        late = late_lines(path)
        at_once = (one for one in imports_of(path) if not one.for_annotations and one.line not in late)
        loaded[name] = targets_of(at_once, modules) - {name}
    return every, loaded


def targets_of(found: Iterable[Import], modules: Container[str]) -> set[str]:
    """Return the modules that imports name: the module itself, or the one that has the imported name."""
    targets: set[str] = set()
    for one in found:
        target = one.module
        while target and target not in modules:
            target = target.rpartition(".")[0]
        if target:
            targets.add(target)
    return targets


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, the largest first."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted({name} | {other for other in reached[name] if name in reached.get(other, ())}))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, groups), key=lambda group: (-len(group), group))


def reachable(graph: Mapping[str, Collection[str]], start: str) -> set[str]:
    """Return all modules that a module imports, and those that they import in their turn."""
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph.get(name, ()))
    return seen


CLIENT = """
import trio
from rsocket_trio import open_connection
"""
ECHO = """
import trio
from rsocket_trio import Payload, Responder, open_connection, serve

responder = Responder()

@responder.request_response("echo")
async def echo(request: {kind}) -> {kind}:
    return request

async def main():
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        async with open_connection(uri) as connection:
            await connection.request_response({request}, route="echo")
        nursery.cancel_scope.cancel()

trio.run(main)
"""
BYTES = ECHO.format(kind="Payload", request='b"x"')
LOADED = """
import sys
print("\\n".join(sorted(sys.modules)))
"""
UNASKED = (
    *("asyncio", "pickle", "prometheus_client", "opentelemetry"),
    "rsocket_trio.asyncio",
    "rsocket_trio.observe",
    "rsocket_trio.client.forwarding",
    "rsocket_trio.client.pool",
    "rsocket_trio.services",
    "rsocket_trio.codecs",
    "rsocket_trio.connection.typed_streams",
    "rsocket_trio.metadata.authentication",
    "rsocket_trio.metadata.tracing",
    "rsocket_trio.streamux",
    "rsocket_trio.server.processes",
    "rsocket_trio.capture",
    "rsocket_trio.rsocket.extensions",
    "rsocket_trio.rsocket.layouts.v0_0",
    "rsocket_trio.rsocket.layouts.v0_1",
    "rsocket_trio.rsocket.layouts.v0_2",
    "rsocket_trio.rsocket.layouts.v2_0_draft",
    "rsocket_trio.rsocket.quirks",
    "rsocket_trio.rsocket.quirks",
    "rsocket_trio.transports.http2",
    "rsocket_trio.transports.aeron",
    "rsocket_trio.transports.memory",
    "rsocket_trio.transports.websocket.transport",
)
"""What a program that sends bytes over TCP, in one dialect, does not load: modules, and folders with all in them."""


@pytest.mark.parametrize("program", [CLIENT, BYTES], ids=["client", "echo"])
def test_a_program_of_bytes_loads_nothing_that_it_did_not_ask_for(program: str) -> None:
    loaded = modules_loaded_by(program)

    unasked = [name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in UNASKED)]
    assert unasked == []


MOST_LOADED = {"client": (CLIENT, 95, 20_000), "echo": (BYTES, 105, 22_500)}
"""How many modules of the package a program may load, and how many lines are in them."""


@pytest.mark.parametrize(("program", "modules", "lines"), MOST_LOADED.values(), ids=MOST_LOADED)
def test_a_program_of_bytes_loads_few_modules_and_lines(program: str, modules: int, lines: int) -> None:
    loaded = [path for path in FILES if module_name(path) in modules_loaded_by(program)]

    assert len(loaded) <= modules
    assert sum(path.read_text("utf-8").count("\n") for path in loaded) <= lines


def module_name(path: Path) -> str:
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


@cache
def modules_loaded_by(program: str) -> set[str]:
    """Return the names of the modules that a program of its own process has loaded at its end."""
    command = [sys.executable, "-c", program + LOADED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())
