"""Runs of tests that are planted: a part of its own, under a supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from qa.testrun.supervisor import Result
from tests.blocks import ROOT


def run(folder: Path, files: dict[str, str], *, workers: int = 1) -> Result:
    """Run these files as a part, in a project of their own, and return what became of them."""
    project = folder / "project"
    project.mkdir()
    (project / "conftest.py").write_text('pytest_plugins = ["qa.testrun.part"]\n', "utf-8")
    (project / "pytest.ini").write_text("[pytest]\ntrio_mode = true\ntimeout = 60\n", "utf-8")
    for name, text in files.items():
        (project / f"test_{name}.py").write_text(text, "utf-8")
    script = (
        "import json, sys, pathlib; from qa.testrun.supervisor import Supervisor\n"
        "folder, project, python, workers = sys.argv[1:]\n"
        "command = [python, '-m', 'pytest', '-p', 'no:cacheprovider', '-p', 'pytest_trio.plugin', '-p',\n"
        "           'pytest_timeout', '--continue-on-collection-errors', project]\n"
        "Supervisor('planted', command, pathlib.Path(folder), workers=int(workers), grace=1).run()\n"
    )
    # The supervisor takes leave of every child that ends: it has a process of its own, as in make test.
    subprocess.run(
        [sys.executable, "-c", script, str(folder), str(project), sys.executable, str(workers)],
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
    )
    return Result.read(folder / "planted.json")


def outcomes(result: Result, file: str) -> dict[str, str]:
    """Return the outcome of each item of a file, by its name."""
    found = ((*item.split("::"), outcome) for item, outcome in result.outcomes.items())
    return {name: outcome for path, name, outcome in found if path == f"test_{file}.py"}


def failed(result: Result, file: str) -> dict[str, str]:
    """Return the text of each failure of a file, by the name of its item."""
    texts = [name for name, _ in result.failures]
    assert len(set(texts)) == len(texts)
    return {name.partition("::")[2]: text for name, text in result.failures if name.startswith(f"test_{file}.py::")}
