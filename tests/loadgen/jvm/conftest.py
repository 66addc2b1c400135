"""Tests with a real Spark: what its session keeps until the end of the run is no leak."""

from __future__ import annotations

from tests.analytics.conftest import nothing_is_left, pytest_runtest_call, spare_java

__all__ = ["nothing_is_left", "pytest_runtest_call"]

pytest_collection_modifyitems = spare_java(__file__)
