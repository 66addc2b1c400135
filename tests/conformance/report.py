"""``python -m tests.conformance.report`` writes docs/contributing/conformance.md: every clause, and what shows it.

Tests are collected, not run. ``--check`` writes nothing and says where the page and the tests differ.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import pytest

from tests.blocks import ROOT
from tests.conformance.catalogue import LEVELS, PAGE, State, Verdict, judged, read, shown_by_vectors, states_in
from tests.conformance.collecting import TESTS, Clauses

ABOUT: Final = """\
# Conformance

Every statement of the documents that rsocket_trio follows, and what shows that it does. This page is made by
`python -m tests.conformance.report` from the clauses that tests and vectors name; a test keeps it up to date.

| state | means |
|---|---|
| shown | a test fails if it were not so, or a vector: bytes written by hand from the document |
| documented | there is nothing to test: the documentation says it |
| not applicable | why it does not matter here |
| open | nothing shows it yet |

Levels: MUST, MUST NOT, SHOULD and MAY are the document's; LAYOUT is what a drawing fixes, IMPLIED what the text states
as a fact, READING how we read what is unclear or left out.
"""


def collected() -> Clauses:
    """Return what all tests name. Raise ``SystemExit`` when a file can't be collected.

    Files that don't speak of clauses are passed over: the tests of Spark alone take seconds to import.
    """
    clauses = Clauses()
    said = io.StringIO()
    files = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "clause" in path.read_text("utf-8")]
    options = ["--quiet", "-p", "no:cacheprovider", *files, f"--rootdir={ROOT}"]
    with contextlib.redirect_stdout(said):
        pytest.main(["--collect-only", "--assert=plain", *options], plugins=[clauses])
    if clauses.broken:
        raise SystemExit(f"can't be collected: {', '.join(clauses.broken)}")
    return clauses


def verdicts(clauses: Clauses) -> list[Verdict]:
    """Return the verdict on every clause. Raise ``SystemExit`` for a name that is no clause's."""
    shown: defaultdict[str, list[str]] = defaultdict(list)
    for name, tests in clauses.shown.items():
        shown[name] += tests
    for name, vector in shown_by_vectors():
        shown[name].append(vector)
    catalogue = read()
    unknown = sorted({*clauses.tests, *shown} - {clause.id for clause in catalogue})
    if unknown:
        raise SystemExit(f"no such clause: {', '.join(unknown)}")
    return judged(catalogue, shown)


def page(found: Sequence[Verdict]) -> str:
    """docs/contributing/conformance.md."""
    parts = [ABOUT, "## Totals\n", *totals(found), ""]
    for chapter, rows in groupby(found, key=lambda verdict: verdict.clause.chapter):
        parts += [f"## {chapter}\n", "| clause | level | section | gist | state |", "|---|---|---|---|---|"]
        parts += [row(verdict) for verdict in rows]
        parts.append("")
    return "\n".join(parts)


def totals(found: Sequence[Verdict]) -> Iterator[str]:
    """A row for each chapter: of every level how many clauses are not open, of how many; then how all stand."""
    yield f"| chapter | {' | '.join(LEVELS)} | {' | '.join(state.value for state in State)} |"
    yield "|---|" + "--:|" * (len(LEVELS) + len(State))
    for chapter, rows in groupby(found, key=lambda verdict: verdict.clause.chapter):
        yield total(chapter, list(rows))
    yield total("all", found)


def total(name: str, found: Sequence[Verdict]) -> str:
    states = Counter(verdict.state for verdict in found)
    cells = []
    for level in LEVELS:
        of_level = [verdict for verdict in found if verdict.clause.level == level]
        settled = sum(verdict.state is not State.OPEN for verdict in of_level)
        cells.append(f"{settled}/{len(of_level)}" if of_level else "")
    return f"| {name} | {' | '.join(cells)} | {' | '.join(str(states[state]) for state in State)} |"


def row(verdict: Verdict) -> str:
    clause = verdict.clause
    state = f"**{verdict.state.value}**" if verdict.state is State.OPEN else verdict.state.value
    why = reason(verdict)
    return f"| {clause.id} | {clause.level} | {clause.section} | {clause.gist} | {state}{': ' if why else ''}{why} |"


def reason(verdict: Verdict) -> str:
    """Return what shows a clause, or why nothing does."""
    if not verdict.by:
        return ""
    first = verdict.by[0].replace("|", "\\|")
    if verdict.state is State.DOCUMENTED:
        path, _, anchor = first.partition("#")
        return f"[{anchor}]({os.path.relpath(path, PAGE.parent.relative_to(ROOT))}#{anchor})"
    if verdict.state is State.SHOWN:
        more = len(verdict.by) - 1
        return first + (f", and {more} more" if more else "")
    return f"comes with {first}" if verdict.clause.remark.startswith("later: ") else first


def differences(found: Sequence[Verdict], text: str) -> list[str]:
    """Return where a page tells another state than the tests."""
    told = states_in(text)
    is_so = {verdict.clause.id: verdict.state for verdict in found}
    return [
        f"{name}: {told[name].value if name in told else 'missing'} on the page, {state.value} by the tests"
        for name, state in is_so.items()
        if told.get(name) is not state
    ] + [f"{name}: on the page, and no clause" for name in told if name not in is_so]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; say where the page is out of date")
    options = parser.parse_args(arguments)
    found = verdicts(collected())
    if options.check:
        stale = differences(found, PAGE.read_text("utf-8") if PAGE.exists() else "")
        print(
            "\n".join([*stale, "python -m tests.conformance.report brings it up to date"] if stale else ["up to date"])
        )
        return 1 if stale else 0
    PAGE.write_text(page(found), "utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {sum(verdict.state is State.OPEN for verdict in found)} of {len(found)} open")
    return 0


if __name__ == "__main__":
    sys.exit(main())
