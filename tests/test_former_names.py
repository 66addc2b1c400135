"""Modules that programs import by a documented deep name can still be imported by it for one release."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from tests.missing import require


@pytest.mark.parametrize(
    ("former", "name", "now"),
    [
        ("rsocket_trio.rsocket.extensions", "Entry", "rsocket_trio.rsocket.extensions.blocks"),
        ("rsocket_trio.rsocket.extension_payloads", "Resumable", "rsocket_trio.rsocket.extensions.payloads"),
        ("rsocket_trio.rsocket.extension_broker", "RouteJoin", "rsocket_trio.rsocket.extensions.broker"),
        ("rsocket_trio.spark.analytics", "read_capture", "rsocket_trio.analytics"),
        ("rsocket_trio.spark.loadgen", "Histogram", "rsocket_trio.loadgen"),
        ("rsocket_trio.connection.protocols", "AsyncResponse", "rsocket_trio.connection.handler_types"),
        ("rsocket_trio.connection.entries", "current_request_entries", "rsocket_trio.connection.entries"),
    ],
)
def test_a_former_name_gives_what_stands_elsewhere_now(former: str, name: str, now: str) -> None:
    if ".spark." in former:
        require(None if importlib.util.find_spec("pyspark") else "Spark is missing: pip install '.[spark]'")

    found = getattr(importlib.import_module(former), name)

    assert found is getattr(importlib.import_module(now), name)
