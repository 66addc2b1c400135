"""A broker for the tests of logs and ledgers on Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.kafka.broker import Broker, require_kafka


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests; each takes topics of its own."""
    require_kafka()
    with Broker(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture
def topic() -> str:
    """A topic that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"
