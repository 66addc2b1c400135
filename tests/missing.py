"""What a test needs and this machine may not have: without it the test is skipped, and fails where ``CI`` is set."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import NoReturn

import pytest

from rsocket_trio.transports.aeron.media_driver import open_library


def require(missing: str | None) -> None:
    """Go on if nothing is missing."""
    if missing is not None:
        give_up(missing)


@cache
def missing_aeron() -> str | None:
    """What is missing of the extra ``aeron``: cffi, or the library."""
    try:
        open_library()
    except (ModuleNotFoundError, OSError) as error:
        return str(error)
    return None


def missing_module(name: str) -> str | None:
    """What is missing of a library that has this name."""
    return None if find_spec(name) else f"{name} is not installed"


def give_up(missing: str) -> NoReturn:
    """Skip the test that needs what is missing, or fail it where ``CI`` is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{missing}, and CI is set", pytrace=False)
    pytest.skip(missing)
