"""``python -m qa.testrun``: run a part of the tests, or print the table of all parts.

``begin RUN`` forgets what a run of that name left. ``part NAME`` runs tests, ``command NAME -- PROGRAM ...`` a program,
``gate NAME`` the programs of a part of ``make gate``. ``table RUN NAME ...`` prints what became of the parts named, and
exits with 1 if one of them failed; with ``--write`` it puts the tables into docs/contributing/testing.md too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence

from qa.testrun import parts, table
from qa.testrun.running import run_programs, run_tests, stop_on_signals

FOLDER = parts.ROOT / "build" / "testrun"
PAGE = parts.ROOT / "docs" / "contributing" / "testing.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qa.testrun", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("begin", "part", "command", "gate", "table"):
        sub = verbs.add_parser(verb)
        sub.add_argument("--run", default="test", help="the run that the part belongs to")
        if verb == "part":
            sub.add_argument("name", choices=[part.name for part in parts.PARTS])
        elif verb in ("command", "gate"):
            sub.add_argument("name")
        elif verb == "table":
            sub.add_argument("names", nargs="+")
            sub.add_argument("--write", action="store_true", help="into docs/contributing/testing.md too")
        if verb in ("part", "command"):
            sub.add_argument("more", nargs="*", help="options of pytest, or the program")
    options = parser.parse_args(arguments)
    stop_on_signals()
    folder = FOLDER / options.run
    if options.verb == "begin":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "begun").write_text(str(time.time()), "utf-8")
        return 0
    if options.verb == "table":
        found = table.results(folder, options.names)
        wall = table.ended(folder, options.names) - float((folder / "begun").read_text("utf-8"))
        print("\n".join(table.report(found, wall)), flush=True)
        if options.write:
            table.write(PAGE, f"make {options.run}", found, wall)
        return int(any(one.failures for one in found))
    if options.verb == "part":
        part = parts.part(options.name)
        folder.mkdir(parents=True, exist_ok=True)
        result = run_tests(part.name, parts.command(part, options.more), folder, workers=part.workers)
    else:
        programs = parts.GATE[options.name] if options.verb == "gate" else (tuple(options.more),)
        result = run_programs(options.name, programs, folder)
    counts = result.counts
    print(
        f"{result.part}: {counts['passed'] + counts['xfailed']} passed, {len(result.failures)} failed, "
        f"{counts['skipped']} skipped in {result.wall:.0f} s (CPU {result.cpu:.0f} s)",
        flush=True,
    )
    return int(bool(result.failures))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
