"""``python -m qa.attacks [NAME ...] [--full]``: each attack, what it did, and whether every bar was met.

The names of loads play honest load in large numbers instead: what can be learned of tokens, and what a server keeps
of sessions left behind and of things of no size.
"""

from __future__ import annotations

import argparse

from qa.attacks import harness, held
from qa.attacks.rows import ATTACKS


def main() -> int:
    """Make the attacks and loads that were asked for, all attacks by default. 1 if any bar was missed."""
    names = [attack.name for attack in ATTACKS]
    parser = argparse.ArgumentParser(prog="python -m qa.attacks", description="attacks on a server of our own")
    parser.add_argument(
        "what", nargs="*", metavar="NAME", help=f"{', '.join(names)}; all by default; or {', '.join(held.LOADS)}"
    )
    parser.add_argument("--full", action="store_true", help="the sizes of the gate, twice each, and the probe's bars")
    asked = parser.parse_args()
    if unknown := set(asked.what) - {*names, *held.LOADS}:
        parser.error(f"no attack {', '.join(sorted(unknown))}")
    good = True
    for name in asked.what:
        if name in held.LOADS:
            good = held.play(name) and good
    chosen = [attack for attack in ATTACKS if not asked.what or attack.name in asked.what]
    if chosen:
        print(harness.HEADER)
    for attack in chosen:
        result = harness.run(attack, full=asked.full)
        good = good and result.passed
        print(harness.row(result), flush=True)
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
