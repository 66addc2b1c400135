"""What a test needs and this machine may not have: without it the test is skipped, and fails where ``CI`` is set."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def require(missing: str | None) -> None:
    """Go on if nothing is missing."""
    if missing is not None:
        give_up(missing)


def give_up(missing: str) -> NoReturn:
    """Skip the test that needs what is missing, or fail it where ``CI`` is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{missing}, and CI is set", pytrace=False)
    pytest.skip(missing)
