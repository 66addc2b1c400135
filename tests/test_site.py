"""The site of the pages: it builds without a warning, fetches nothing, and loads nothing from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.blocks import ROOT
from tests.missing import missing_module, require

LOADED = re.compile(r"""(?:\bsrc=|<link[^>]*\bhref=|@import |url\()["']?(https?:)?//""")


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    require(missing_module("furo"))
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    no_network = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"}

    done = subprocess.run(
        [*build, "-d", tmp_path / "doctrees", ROOT / "docs", tmp_path / "site"],
        env=no_network,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "newsfragments"]
    files = [path for path in (tmp_path / "site").rglob("*") if path.suffix in {".html", ".css"}]
    assert {path.stem for path in pages} <= {path.stem for path in files}
    assert [path.name for path in files if LOADED.search(path.read_text("utf-8"))] == []
