"""``python -m qa.mutants [--list] [NAME ...]``: plant each fault, and see whether the tests find it.

Exits 1 if any survives, 2 if a row is no longer fit to be used.
"""

from __future__ import annotations

import argparse
import sys
import time

from qa.mutants.rows import MUTANTS
from qa.mutants.running import Stale, hunt


def main() -> int:
    """Hunt those that were asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m qa.mutants", description="faults that the tests must find")
    parser.add_argument("names", nargs="*", metavar="NAME", help="as --list gives them; all by default")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    asked = parser.parse_args()
    if asked.list:
        for mutant in MUTANTS:
            print(f"{mutant.name}: {mutant.function}")
        return 0
    unknown = set(asked.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not asked.names or mutant.name in asked.names]
    survivors = 0
    began = time.monotonic()
    try:
        for mutant, found in hunt(chosen):
            survivors += not found
            print(f"{'found' if found else 'SURVIVED':9} {mutant.name} ({mutant.function})", flush=True)
    except Stale as stale:
        print(f"mutants: {stale}")
        return 2
    took = time.monotonic() - began
    print(f"{len(chosen)} faults, {survivors} survived, {took:.0f} s")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
