"""Plants faults in a copy of the package, which the tests import in the place of ours, and looks for them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Self

import attrs

from qa.mutants.rows import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rsocket_trio"
PATIENCE = 300.0
"""Seconds for a run of the tests; a fault that makes them hang is found as well."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest. Every other one says nothing of the fault: tests that could not be collected, say."""


class Stale(Exception):
    """A row is not fit to be used: its text is gone, or its tests fail or break without it."""


@attrs.frozen
class Function:
    """A function, method or class of a file: ``text`` is its source, which begins at ``start`` in the file's text."""

    path: Path
    text: str
    start: int


def functions(package: Path) -> dict[str, list[Function]]:
    """Every function, method and class below a folder, by qualified name."""
    found: dict[str, list[Function]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines(keepends=True)
        starts = [0, *accumulate(len(line) for line in lines)]
        for name, node in _named(ast.parse(text), ()):
            first, last = node.lineno - 1, node.end_lineno
            found[name].append(Function(path, "".join(lines[first:last]), starts[first]))
    return found


def _named(node: ast.AST, inside: tuple[str, ...]) -> Iterator[tuple[str, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = (*inside, child.name)
            yield ".".join(name), child
            yield from _named(child, name)
        else:
            yield from _named(child, inside)


def place(mutant: Mutant, known: Mapping[str, Sequence[Function]]) -> Function:
    """Return the function that has the old text. Raise ``Stale`` unless there is one, which has it once."""
    having = [function for function in known.get(mutant.function, ()) if mutant.old in function.text]
    counts = [function.text.count(mutant.old) for function in having]
    if counts != [1]:
        where = ", ".join(f"{function.path.name}: {count}" for function, count in zip(having, counts, strict=True))
        times = f"is in it {sum(counts)} times ({where})" if having else "is not there"
        raise Stale(f"{mutant.name}: the old text of {mutant.function} {times}; it has to be once in one function")
    return having[0]


def planted(mutant: Mutant, function: Function, text: str) -> str:
    """Return the text of the function's file with the fault."""
    end = function.start + len(function.text)
    return text[: function.start] + function.text.replace(mutant.old, mutant.new) + text[end:]


@attrs.frozen
class Copy:
    """A copy of the package."""

    folder: Path

    @cached_property
    def functions(self) -> Mapping[str, Sequence[Function]]:
        """Those of the package without any fault: each fault is taken out again."""
        return functions(self.folder / PACKAGE)

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Self]:
        """A new one, for as long as the block."""
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            target = Path(folder) / PACKAGE
            # With what is compiled already: a file that gets a fault is newer than that, and compiled anew.
            shutil.copytree(ROOT / PACKAGE, target)
            copy = cls(Path(folder))
            copy._check_imported()
            yield copy

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """The fault is in the copy, for as long as the block."""
        function = place(mutant, self.functions)
        path = function.path
        text = path.read_text("utf-8")
        path.write_text(planted(mutant, function, text), "utf-8")
        try:
            yield
        finally:
            path.write_text(text, "utf-8")

    def complaint(self, tests: Sequence[str]) -> str:
        """Return the output of the first test file that fails, or nothing. Raise ``Stale`` where they can't run."""
        command = [*("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "pythonpath="), *tests]
        try:
            run = self._run(*command)
        except subprocess.TimeoutExpired:
            return f"they hang: not at their end after {PATIENCE:g} s"
        if run.returncode not in (PASSED, FAILED):
            raise Stale(f"{' '.join(tests)}: pytest ended with {run.returncode}: {run.stdout[-2000:]}")
        return run.stdout[-2000:] if run.returncode == FAILED else ""

    def _check_imported(self) -> None:
        """The tests would pass whatever the fault if they imported the package from elsewhere."""
        run = self._run("-c", f"import {PACKAGE}; print({PACKAGE}.__file__)")
        if not run.stdout.startswith(str(self.folder)):
            raise Stale(f"the package is imported from {run.stdout.strip()} and not from {self.folder}")

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # -P: without it the folder that the tests run in, with the package as it is, would come first.
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTEST_ADDOPTS": "",
                "RSOCKET_TRIO_ALL_CASES": "1",  # a fault may show in rows that ``make test`` leaves out
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


def hunt(mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, bool]]:
    """Yield each fault, and whether its tests find it. Raise ``Stale`` if a text is gone, or they fail without."""
    files = sorted({test for mutant in mutants for test in mutant.tests})
    with Copy.made() as copy:
        for mutant in mutants:
            place(mutant, copy.functions)
        complaint = copy.complaint(files)
        if complaint:
            raise Stale(f"the tests fail without any fault: {complaint}")
        for mutant in mutants:
            with copy.with_fault(mutant):
                complaint = copy.complaint(mutant.tests)
            yield mutant, bool(complaint)
