"""``python -m qa.resume [--cuts N] [--dialect D] [--seed S] [--scheme S] [--replays] [--aimed]``: do it.

Cuts connections in mid-work and reports items that were lost, duplicated, reordered or restarted; exits 1 if any was.
"""

from __future__ import annotations

import argparse
import functools
import logging

import trio

from qa.resume.aimed import misses
from qa.resume.load import DIALECTS, Outcome, run_load

CUTS = 1_000
PAIRS = 1_000
PATIENCE = 1_800.0


def main() -> int:
    """Do what was asked for: cuts at random bytes unless the others are."""
    parser = argparse.ArgumentParser(prog="python -m qa.resume", description="cut connections, and count")
    parser.add_argument("--cuts", type=int, default=CUTS, help=f"cuts at random bytes, for each dialect ({CUTS})")
    parser.add_argument("--dialect", choices=DIALECTS, help="this dialect only")
    parser.add_argument("--scheme", choices=("tcp", "h2"), default="tcp", help="the transport of cuts at random bytes")
    parser.add_argument("--seed", type=int, default=1, help="what chance begins with (1)")
    parser.add_argument("--replays", action="store_true", help="behind every cut somebody says recorded RESUMEs again")
    parser.add_argument("--aimed", action="store_true", help="cut at each byte of a beginning instead, and at pairs")
    asked = parser.parse_args()
    logging.getLogger("rsocket_trio").setLevel(logging.CRITICAL)
    dialects = DIALECTS if asked.dialect is None else (asked.dialect,)
    good = True
    for dialect in dialects:
        if asked.aimed:
            shots, wrong = trio.run(functools.partial(misses, dialect, seed=asked.seed, pairs=PAIRS))
            print(f"{dialect}: aimed cuts {shots}, wrong {len(wrong)}", *wrong[:20], sep="\n  ", flush=True)
            good = good and not wrong
        else:
            options = {"patience": PATIENCE, "overheard": asked.replays, "scheme": asked.scheme}
            run = functools.partial(run_load, dialect, asked.cuts, asked.seed, **options)
            good = report(dialect, trio.run(run)) and good
    return 0 if good else 1


def report(dialect: str, outcome: Outcome) -> bool:
    """Print what came of it. Return whether it is good."""
    verdict = outcome.verdict
    print(
        f"{dialect}: cuts {outcome.cuts}, lost {verdict.lost}, duplicated {verdict.duplicated}, "
        f"reordered {verdict.reordered}, damaged {verdict.damaged}, restarted {verdict.restarted}; "
        f"items {verdict.items}, resumed {outcome.resumed}, frames sent again {outcome.again}, "
        f"longest pause {outcome.longest_pause:.2f} s, {outcome.seconds:.0f} s"
        + (f"; replays refused {outcome.replays[0]}, taken {outcome.replays[1]}" if any(outcome.replays) else ""),
        *outcome.complaints[:20],
        sep="\n  ",
        flush=True,
    )
    return outcome.is_clean


if __name__ == "__main__":
    raise SystemExit(main())
