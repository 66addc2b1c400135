"""``python -m qa.attacks [NAME ...] [--full]``: each attack, what it did, and whether every bar was met.

``python -m qa.attacks load | reconnect | requests | crowd | bulk | tokens | uncollected | mtu | stalls |
abandoned | long-tokens | rows | leftovers``: honest load in large numbers, what can be learned of tokens, whom a server
judges that stalls, and what it keeps of sessions left behind and of things of no size.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from qa.attacks import harness, held, leftovers
from qa.attacks.rows import ATTACKS


def main() -> int:
    """Make the attacks that were asked for, all by default. 1 if any bar was missed."""
    words = sys.argv[1:]
    if words and words[0] in held.LOADS:
        return held.main(words)
    if words and words[0] == "leftovers":
        return leftovers.main(words[1:])
    names = [attack.name for attack in ATTACKS]
    parser = argparse.ArgumentParser(prog="python -m qa.attacks", description="attacks on a server of our own")
    parser.add_argument("what", nargs="*", metavar="NAME", help=f"{', '.join(names)}; all by default")
    parser.add_argument("--full", action="store_true", help="the sizes of the gate, twice each, and the probe's bars")
    parser.add_argument("--table", type=Path, help="write the results to this file, as a table of Markdown")
    asked = parser.parse_args()
    unknown = set(asked.what) - set(names)
    if unknown:
        parser.error(f"no attack {', '.join(sorted(unknown))}")
    results: list[harness.Result] = []
    print(harness.HEADER)
    for attack in ATTACKS:
        if asked.what and attack.name not in asked.what:
            continue
        result = harness.run(attack, full=asked.full)
        results.append(result)
        print(harness.row(result), flush=True)
        for miss in result.misses:
            print(f"{'':9}missed: {miss}", flush=True)
        if asked.table is not None:
            asked.table.write_text(harness.table(results) + "\n", "utf-8")
    return int(not all(result.passed for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
