"""The sentences that explain what the peers fail, from the data file, and what they leave open."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs

from rsocket_trio.conformance.catalogue import Case, fits

FILE: Final = Path(__file__).with_name("findings.toml")


@attrs.frozen
class Finding:
    """One sentence, and the cases that it explains: patterns of cases and clauses, for each peer and role."""

    says: str
    patterns: Mapping[tuple[str, str], tuple[str, ...]]
    is_now_and_then: bool = False
    """True for a race, which need not show in a run."""


@attrs.frozen
class Findings:
    """All sentences: those on failures of peers, and those on cases that no foreign peer passes, by role."""

    failures: Sequence[Finding]
    alone: Sequence[Finding]
    chapters: Mapping[str, str] = attrs.field(factory=dict)
    """The subjects of the chapters."""


@attrs.frozen
class Told:
    """The explanations of some cases: the cases of each sentence that fits, those without one, and idle patterns."""

    explained: Mapping[str, tuple[str, ...]]
    unexplained: tuple[str, ...]
    idle: tuple[str, ...]


@cache
def findings() -> Findings:
    """Return what the file says."""
    content = tomllib.loads(FILE.read_text("utf-8"))
    failures, alone = ([_finding(row) for row in content[name]] for name in ("failure", "alone"))
    return Findings(failures, alone, content["chapters"])


def _finding(row: Mapping[str, Any]) -> Finding:
    """Read a row: ``says``, ``sometimes`` for a race, and under peers and roles the patterns, spaces between them."""
    patterns = {
        (peer, role): tuple(text.split())
        for peer, roles in row.items()
        if peer not in ("says", "sometimes")
        for role, text in roles.items()
    }
    return Finding(row["says"], patterns, row.get("sometimes", False))


def explain(
    rows: Sequence[Finding], peer: str, role: str, broken: Sequence[Case], ran: Sequence[Case], known: Sequence[Case]
) -> Told:
    """Return how the rows explain the cases that a peer broke, each by the first that fits.

    A pattern is idle if it fits none of them, though it fits a case that ran, or none of all cases that are known.
    """
    explained: dict[str, tuple[str, ...]] = {}
    idle: list[str] = []
    left = {case.id: case for case in broken}
    for row in rows:
        patterns = row.patterns.get((peer, role), ())
        for pattern in patterns:
            if row.is_now_and_then or any(fits(case, (pattern,)) for case in broken):
                continue
            if any(fits(case, (pattern,)) for case in ran) or not any(fits(case, (pattern,)) for case in known):
                idle.append(pattern)
        found = tuple(name for name, case in left.items() if fits(case, patterns))
        for name in found:
            del left[name]
        if found:
            explained[row.says] = found
    return Told(explained, tuple(left), tuple(idle))
