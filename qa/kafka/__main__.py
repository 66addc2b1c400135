"""``python -m qa.kafka [--kills] [--rates] [--rounds N]``: logs on Kafka, in full.

Kills broker, servers and Spark's driver in mid-commit, and compares rates with Spark's own source; exits 1 if a row was
lost or came twice, or the rate is too low.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from qa.kafka.kills import VICTIMS, Run, Victim
from qa.kafka.rates import measure
from tests.kafka.broker import missing_kafka

ROUNDS = 12


def main() -> int:
    """Do what was asked for, or both."""
    parser = argparse.ArgumentParser(prog="python -m qa.kafka", description="kill, and measure")
    parser.add_argument("--kills", action="store_true", help="kill only")
    parser.add_argument("--rates", action="store_true", help="measure only")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"kills of each ({ROUNDS})")
    asked = parser.parse_args()
    missing = missing_kafka()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    good = True
    if asked.kills or not asked.rates:
        for victim in VICTIMS:
            good = kill(victim, asked.rounds) and good
    if asked.rates or not asked.kills:
        with tempfile.TemporaryDirectory() as scratch:
            good = measure(Path(scratch)) and good
    return 0 if good else 1


def kill(victim: Victim, rounds: int) -> bool:
    """Play one kind of kills, and print what came of it. Return whether it is good."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(Path(scratch), rows=200 * (4 * rounds + 8), step=100, seed=1)
        outcome = run.play([victim] * rounds)
    good = outcome.is_good and outcome.rounds == rounds
    print(
        f"{victim} killed {outcome.rounds} times in {outcome.batches} batches, driver started again "
        f"{outcome.restarts} times: lost {outcome.lost}, twice {outcome.twice}, foreign {outcome.foreign}, "
        f"{time.monotonic() - began:.0f} s: {'good' if good else 'BAD'}",
        flush=True,
    )
    return good


if __name__ == "__main__":
    sys.exit(main())
