"""The page on testing: its tests pass, and its table of faults is that of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import attrs

from rsocket_trio.testing import Faults
from tests.blocks import ROOT, blocks, page

PAGE = page("docs/howto/testing.md")
REFERENCE = page("docs/reference/testing.md")
FAULTS = REFERENCE.partition("\n## Faults\n")[2]
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


def test_the_table_of_faults_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", FAULTS, re.MULTILINE)

    assert rows == [(field.name, str(field.default).replace("'", '"')) for field in attrs.fields(Faults)]
