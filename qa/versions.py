"""``python -m qa.versions``: run the quick tests on every supported Python that is found, and name those that are not.

Interpreters are looked for on PATH and among pyenv's. Each has an environment of its own, which ``make quick`` makes.
Exits 1 if the tests fail on one of them, or if none is found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
ROOT = Path(__file__).parent.parent


def main() -> int:
    """Run ``make quick`` on each interpreter."""
    found = {version: path for version in VERSIONS if (path := interpreter(version)) is not None}
    results = {version: _passes(path) for version, path in found.items()}
    for version in VERSIONS:
        outcome = {True: "passed", False: "FAILED", None: "is lacking: not on PATH, and pyenv has none"}
        print(f"Python {version} {outcome[results.get(version)]}", flush=True)
    return int(not results or not all(results.values()))


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version that runs, or ``None``."""
    return next((path for path in _candidates(version) if _version_of(path) == version), None)


def _candidates(version: str) -> Iterator[str]:
    path = shutil.which(f"python{version}")
    if path is not None:
        yield path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for folder in sorted((pyenv / "versions").glob(f"{version}.*"), reverse=True):
        yield str(folder / "bin" / "python")


def _version_of(path: str) -> str | None:
    """Return what a Python says of itself; pyenv's shims exist for versions that are not chosen, and fail."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _passes(path: str) -> bool:
    return subprocess.run(["make", "quick", f"PYTHON={path}"], cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
