"""The clauses of the documents, and which of them are shown by what."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from tests.blocks import ROOT
from tests.rsocket.test_vectors import ALL, FILES

PATH: Final = ROOT / "rsocket_trio" / "conformance" / "cases" / "clauses.txt"
LEVELS: Final = ("MUST", "MUST NOT", "LAYOUT", "SHOULD", "MAY", "IMPLIED", "READING")


class State(enum.Enum):
    """How a clause stands."""

    SHOWN = "shown"
    DOCUMENTED = "documented"
    NOT_APPLICABLE = "not applicable"
    OPEN = "open"


# What the fifth column says, and how the clause stands then unless a test shows it.
REMARKS: Final = {"see ": State.DOCUMENTED, "none: ": State.NOT_APPLICABLE, "later: ": State.OPEN, "as: ": State.OPEN}


@attrs.frozen
class Clause:
    """One row: what a document says, in few words."""

    chapter: str
    id: str
    level: str
    section: str
    gist: str
    remark: str = ""

    @property
    def twins(self) -> list[str]:
        """Clauses that together say the same."""
        return self.remark.removeprefix("as: ").split() if self.remark.startswith("as: ") else []

    @property
    def unless_shown(self) -> tuple[State, str]:
        """Return its state where no test shows it, and the reason."""
        for word, state in REMARKS.items():
            if self.remark.startswith(word):
                return state, self.remark.removeprefix(word)
        return State.OPEN, ""


@attrs.frozen
class Verdict:
    """How a clause stands, and by what: names of tests or vectors, a page, or a reason."""

    clause: Clause
    state: State
    by: tuple[str, ...]


def read(path: Path = PATH) -> list[Clause]:
    return list(_rows(path.read_text("utf-8")))


def _rows(text: str) -> Iterator[Clause]:
    chapter = ""
    for line in text.splitlines():
        if line.startswith("## "):
            chapter = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            yield Clause(chapter, *(cell.strip() for cell in line.split("|")))


def shown_by_vectors() -> Iterator[tuple[str, str]]:
    """Each clause that a vector names, with the vector."""
    files = {dialect.name: file for file, dialect in FILES.items()}
    for vector in ALL:
        for name in vector.clauses:
            yield name, f"conformance/vectors/{files[vector.dialect.name]}: {vector.name}"


def judged(clauses: Iterable[Clause], shown: Mapping[str, Iterable[str]]) -> list[Verdict]:
    """Return the verdict on each clause when these tests and vectors show those clauses."""
    return [_judge(clause, shown) for clause in clauses]


def _judge(clause: Clause, shown: Mapping[str, Iterable[str]]) -> Verdict:
    by = tuple(dict.fromkeys(shown.get(clause.id, ())))
    if by:
        return Verdict(clause, State.SHOWN, by)
    if clause.twins and all(shown.get(twin) for twin in clause.twins):
        return Verdict(clause, State.SHOWN, tuple(clause.twins))
    state, why = clause.unless_shown
    return Verdict(clause, state, (why,) if why else ())


def states_in(text: str) -> dict[str, State]:
    """The state of each clause as a page tells it."""
    rows = re.findall(r"^\| ([A-Z0-9]+(?:-[A-Z]+)?-\d+) \|.*\| \**([a-z ]+?)\**(?:: .*)? \|$", text, re.MULTILINE)
    return {name: State(state) for name, state in rows}


PAGE: Final = ROOT / "docs" / "contributing" / "conformance.md"
