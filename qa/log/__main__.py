"""``python -m qa.log [PART ...]``: what a log and its ledger promise, in full. Exits 1 if something does not hold.

The parts: kills, flips, wal, large, bars, appends. They take 20 GiB of the folder of temporary files for some minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from qa.log import appends, bars, flips, kills, large, wal

PARTS: dict[str, Callable[[Path], list[str]]] = {
    module.__name__.rpartition(".")[2]: module.play for module in (kills, flips, wal, large, bars, appends)
}


def main() -> int:
    """Play the parts that are named, all by default."""
    parser = argparse.ArgumentParser(prog="python -m qa.log", description="kill, damage, measure")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    asked = parser.parse_args().parts
    if unknown := set(asked) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}")
    bad = 0
    for name in asked or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            wrong = PARTS[name](Path(folder))
        for line in wrong:
            print(f"{name}: {line}")
        print(f"{name}: {'BAD' if wrong else 'good'}", flush=True)
        bad += bool(wrong)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
