"""A headless Chromium that opens a page and says what it drew: that of an npm package, or the system's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.blocks import ROOT
from tests.missing import require

INTEROP = ROOT / "tests" / "interop"
SCRIPT = INTEROP / "js" / "report.mjs"
UNPACKED = INTEROP / "node_modules" / ".cache" / "chromium"
"""Where the package's browser is unpacked to, once."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120.0


def require_browser() -> str | None:
    """Skip the test, or fail it where ``CI`` is set, if there is no browser. The system's own, where it is needed."""
    packages = INTEROP / "node_modules"
    system = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    missing = None
    if shutil.which("node") is None:
        missing = "node is missing: no browser to look at the report"
    elif not (packages / "puppeteer-core").is_dir():
        missing = "puppeteer is missing: npm install in tests/interop"
    elif system is None and not (packages / "@sparticuz" / "chromium").is_dir():
        missing = "there is no Chromium: npm install in tests/interop"
    require(missing)
    return None if (packages / "@sparticuz" / "chromium").is_dir() else system


def look_at(page: Path, screenshot: Path, profile: Path) -> dict[str, Any]:
    """Return what the browser drew, said and asked for."""
    system = require_browser()
    UNPACKED.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["node", str(SCRIPT), str(page), str(screenshot), str(profile), *([system] if system is not None else [])],
        env={**os.environ, "TMPDIR": str(UNPACKED)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result
