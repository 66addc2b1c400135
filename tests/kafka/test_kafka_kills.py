"""A broker, a server and a driver that are killed in mid-commit: each row is in the topic once.

The short form of ``python -m qa.kafka``, which kills each twelve times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.kafka.kills import VICTIMS, Run
from tests.kafka.broker import require_kafka
from tests.spark.session import require_spark


@pytest.mark.timeout(600)
def test_each_row_is_there_once_whatever_is_killed_in_mid_commit(tmp_path: Path) -> None:
    require_kafka()
    require_spark()
    run = Run(tmp_path, rows=1000, step=50, seed=1)

    outcome = run.play(VICTIMS)

    assert (outcome.rounds, outcome.lost, outcome.twice, outcome.foreign) == (3, 0, 0, 0)
