"""Runs of tests that are planted: a part of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from qa.testrun.record import Result
from tests.blocks import ROOT

SCRIPT = """
import sys, pathlib
from qa.testrun.running import run_tests
folder, project, python, workers = sys.argv[1:]
command = [python, "-m", "pytest", "--continue-on-collection-errors", project]
for plugin in ("no:cacheprovider", "pytest_trio.plugin", "pytest_timeout", "xdist"):
    command += ["-p", plugin]
run_tests("planted", command, pathlib.Path(folder), workers=int(workers))
"""


def run(folder: Path, files: dict[str, str], *, workers: int = 1) -> Result:
    """Run these files as a part, in a project of their own, and return what became of them."""
    project = folder / "project"
    project.mkdir()
    (project / "conftest.py").write_text('pytest_plugins = ["qa.testrun.record"]\n', "utf-8")
    (project / "pytest.ini").write_text("[pytest]\ntrio_mode = true\ntimeout = 60\n", "utf-8")
    for name, text in files.items():
        (project / f"test_{name}.py").write_text(text, "utf-8")
    # It takes leave of every child that ends: it has a process of its own, as in make test.
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(project), sys.executable, str(workers)],
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
    )
    return Result.read(folder / "planted.json")


def outcomes(result: Result, file: str) -> dict[str, str]:
    """Return the outcome of each item of a file, by its name."""
    found = ((item.partition("::"), outcome) for item, outcome in result.outcomes.items())
    return {name: outcome for (path, _, name), outcome in found if path.endswith(f"test_{file}.py")}
