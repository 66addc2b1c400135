"""How a fault is planted and looked for: in a copy of the package, which the tests import in the place of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import attrs

from qa.mutants.rows import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rsocket_trio"
PATIENCE = 300.0
"""Seconds for a run of the tests; a fault that makes them hang is found as well."""
PASSED, FAILED = 0, 1
"""What pytest exits with. Everything else says nothing of the fault: tests that could not be collected, say."""


class Stale(Exception):
    """A row is not fit to be used: its text is gone, or its tests fail or break without it."""


def planted(mutant: Mutant, text: str) -> str:
    """The text of its file with the fault. Raises ``Stale`` unless the old text is there once."""
    count = text.count(mutant.old)
    if count != 1:
        raise Stale(f"{mutant.name}: {PACKAGE}/{mutant.file} has the old text {count} times, and not once")
    return text.replace(mutant.old, mutant.new)


@attrs.frozen
class Copy:
    """A copy of the package."""

    folder: Path

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Self]:
        """A new one, for as long as the block."""
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            target = Path(folder) / PACKAGE
            shutil.copytree(ROOT / PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
            copy = cls(Path(folder))
            copy._check_imported()
            yield copy

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """The fault is in the copy, for as long as the block."""
        path = self.folder / PACKAGE / mutant.file
        text = path.read_text("utf-8")
        path.write_text(planted(mutant, text), "utf-8")
        try:
            yield
        finally:
            path.write_text(text, "utf-8")

    def complaint(self, tests: Sequence[str]) -> str:
        """What the first of these test files says that fails, or nothing. Raises ``Stale`` where they can't be run."""
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
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


def hunt(mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, bool]]:
    """Each fault, and whether its tests find it. Raises ``Stale`` first if they fail without any."""
    files = sorted({test for mutant in mutants for test in mutant.tests})
    with Copy.made() as copy:
        complaint = copy.complaint(files)
        if complaint:
            raise Stale(f"the tests fail without any fault: {complaint}")
        for mutant in mutants:
            with copy.with_fault(mutant):
                complaint = copy.complaint(mutant.tests)
            yield mutant, bool(complaint)
