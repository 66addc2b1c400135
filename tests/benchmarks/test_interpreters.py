"""The benchmark of several Pythons finds environments by the folders that make gives them, each version once."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks import interpreters
from benchmarks.libraries import ROOT


def test_an_environment_is_found_once_by_its_version_and_one_without_the_library_is_not(tmp_path: Path) -> None:
    for name in (".venv", ".venv-3.11"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
    (tmp_path / ".venv-3.12" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-3.12" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / ".venv-3.12" / "bin" / "python").chmod(0o755)

    found = interpreters.environments(tmp_path)

    assert found == {platform.python_version(): str(tmp_path / ".venv" / "bin" / "python")}


def test_the_pieces_of_the_interpreter_are_measured_by_a_program_that_prints_them() -> None:
    short = interpreters.PIECES.replace("200_000, 15", "10, 1")

    done = subprocess.run([sys.executable, "-c", short], capture_output=True, text=True, check=True)

    assert min(json.loads(done.stdout).values()) > 0
