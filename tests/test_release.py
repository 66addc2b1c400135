"""What a release brings: one version, a wheel with links that lead somewhere, a change log. `make release-check` tries
the wheel on every Python."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import rsocket_trio
from qa.release import long_description
from tests.blocks import ROOT, links, page
from tests.missing import missing_module, require

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_version_stands_in_two_places_alike() -> None:
    assert rsocket_trio.__version__ == PROJECT["version"]


def test_a_wheel_has_the_library_alone_and_a_readme_whose_links_lead_to_the_repository(tmp_path: Path) -> None:
    for name in ("build", "hatchling", "twine"):
        require(missing_module(name))
    build: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")

    check: list[str | Path] = [sys.executable, "-m", "twine", "check", "--strict", wheel]
    assert subprocess.run(check, check=False, capture_output=True).returncode == 0
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert tops == {"rsocket_trio", "pyspark_rsocket", f"rsocket_trio-{PROJECT['version']}.dist-info"}
    shown = set(re.findall(r"\]\(([^)#]+)", long_description(wheel)))
    within = {link for link in links(page("README.md")) if not link.startswith("http")}
    assert {f"{PROJECT['urls']['Source']}/blob/main/{link}" for link in within} <= shown
    assert all(link.startswith("https://") for link in shown)
