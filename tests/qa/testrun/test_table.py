"""The time of a run ends with its last part, whenever its table is shown."""

from __future__ import annotations

import os
from pathlib import Path

from qa.testrun.supervisor import Result
from qa.testrun.table import ended


def test_a_run_ends_with_its_last_part(tmp_path: Path) -> None:
    for name, end in (("pure", 1120.0), ("spark", 1311.0), ("other", 9999.0)):
        Result(name).write(tmp_path)
        os.utime(tmp_path / f"{name}.json", (end, end))

    assert ended(tmp_path, ["pure", "spark", "a part that left nothing"]) == 1311.0
