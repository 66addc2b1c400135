"""What tests of loads share: a server in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.blocks import ROOT


@pytest.fixture(scope="session")
def uri() -> Iterator[str]:
    """Where a server of ``loads.py`` listens."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.loadgen.loads"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline().strip()
            assert said, "the server ended"
            yield said
        finally:
            process.kill()
