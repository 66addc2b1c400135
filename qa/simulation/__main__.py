"""Many seeds: ``python -m qa.simulation --seeds 1000 [--start 0] [--dialect D] [--trace]``.

With ``--races N`` it is N schedules of each race, with ``--buffers N`` N seeds of bulk through small buffers. Prints
each seed that fails, with what it drew, and exits 1. A seed does the same each time.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence

import attrs

from qa.simulation import small_buffers
from qa.simulation.plans import DIALECTS, RESUMABLE
from qa.simulation.races import RACES, play
from qa.simulation.scenario import run


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m qa.simulation")
    options.add_argument("--seeds", type=int, default=100, help="how many seeds for each dialect")
    options.add_argument("--start", type=int, default=0, help="the first seed")
    options.add_argument("--dialect", choices=DIALECTS, action="append", help="only this one")
    options.add_argument("--trace", action="store_true", help="show all that happened in a run that failed")
    options.add_argument("--resume", action="store_true", help="with resumption: no cut may cost anything")
    options.add_argument("--races", type=int, default=0, metavar="N", help="N schedules of each race instead")
    options.add_argument("--buffers", type=int, default=0, metavar="N", help="N seeds of bulk through small buffers")
    given = options.parse_args(arguments)
    if given.buffers:
        return fill_all(range(given.start, given.start + given.buffers))
    if given.races:
        return race_all(range(given.start, given.start + given.races))
    failed = done = 0
    began = time.process_time()
    for seed in range(given.start, given.start + given.seeds):
        for dialect in given.dialect or (RESUMABLE if given.resume else DIALECTS):
            done += 1
            failed += not passes(seed, dialect, trace=given.trace, resumes=given.resume)
    each = (time.process_time() - began) / max(done, 1)
    print(f"{done} runs, {failed} failed, {each * 1000:.0f} ms each")
    return 1 if failed else 0


def passes(seed: int, dialect: str, *, trace: bool, resumes: bool) -> bool:
    try:
        report = run(seed, dialect, resumes=resumes)
    except Exception as error:
        print(f"seed {seed}, {dialect}: {error!r}", flush=True)
        if trace:
            raise
        return False
    if not report.wrong:
        return True
    print(f"seed {seed}, {dialect}:", *report.wrong, sep="\n    ", flush=True)
    for name, drew in attrs.asdict(report.plan, recurse=False).items():
        print(f"    {name}: {drew}")
    if trace:
        print(report.trace)
    return False


def race_all(schedules: range) -> int:
    failed = 0
    for race in RACES:
        outcomes: Counter[str] = Counter()
        for schedule in schedules:
            try:
                outcome = play(race, schedule)
            except Exception as error:
                outcome = repr(error)
            outcomes[outcome] += 1
            if outcome not in race.outcomes:
                failed += 1
                print(f"{race.name}, schedule {schedule}: {outcome}")
        print(f"{race.name}: {dict(sorted(outcomes.items()))}")
    return 1 if failed else 0


def fill_all(seeds: range) -> int:
    failed = 0
    longest = 0.0
    for seed in seeds:
        try:
            longest = max(longest, small_buffers.play(seed))
        except Exception as error:
            failed += 1
            print(f"small buffers, seed {seed}: {error!r}", flush=True)
    print(f"small buffers: {len(seeds)} seeds, {failed} failed, the longest took {longest:.1f} virtual seconds")
    return 1 if failed else 0


if __name__ == "__main__":
    # Only here: a test that calls main() must not silence the tests behind it.
    logging.getLogger("rsocket_trio").setLevel(logging.CRITICAL)
    sys.exit(main())
