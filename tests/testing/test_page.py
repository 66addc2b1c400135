"""The page on testing: its tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.blocks import ROOT, blocks, page

PAGE = page("docs/howto/testing.md")
FILES = {
    block.text.partition("\n")[0].removeprefix("# "): block.text for block in blocks(PAGE) if block.language == "python"
}


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n", "utf-8")

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""},
        timeout=100,
    )

    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


def test_every_example_names_its_file() -> None:
    assert len(FILES) == sum(block.language == "python" for block in blocks(PAGE))
    assert all(re.fullmatch(r"\w+\.py", name) for name in FILES)
