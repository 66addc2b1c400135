"""The cases: rows read from data files, each a sequence of steps with the clauses that it shows.

A file holds one dialect: its frames, the scenes in which cases begin, and the cases. Rows name a scene, what is sent
there and what it leads to; other cases are written out step by step.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Final

import attrs
import msgspec

from rsocket_trio.conformance.notation import Headers, Notation, NotationError, Template
from rsocket_trio.conformance.streamux_notation import Streamux

TESTED_DIALECTS: Final = (
    *("reactivesocket/0.0", "reactivesocket/0.1", "reactivesocket/0.2"),
    *("rsocket/1.0", "rsocket/2.0-draft", "streamux/1"),
)


def _read(file: str) -> str:
    return (resources.files(__package__) / "cases" / file).read_text("utf-8")


TERMS: Final[Mapping[str, Mapping[str, str]]] = tomllib.loads(_read("terms.toml"))
"""The words of cases for a peer's interactions, its options, and what a client asks, with what each means; names of
documents."""
NEEDS: Final = TERMS["needs"]
OPTIONS: Final = TERMS["options"]


class Level(Enum):
    """The weight of a case, by its clauses. Where it is not binding, another reaction is an allowed deviation."""

    MUST = "MUST"
    IMPLIED = "implied"
    """The document draws it or states it as a fact, and does not say MUST."""
    SHOULD = "SHOULD"
    READING = "reading"
    """The documents leave it open; this is how the catalogue reads them."""

    @property
    def is_binding(self) -> bool:
        return self in (Level.MUST, Level.IMPLIED)


class Word(Enum):
    """The kinds of steps, by the word or sign that begins their line; ``cases/steps.md`` says what each is about."""

    SEND = ">"
    RAW = ">>"
    DRIP = ">."
    SPLIT = "split"
    EACH = "each"
    IN_TURN = "in-turn"
    TIMES = "times"
    EXPECT = "<"
    EXPECT_ALL = "<~"
    EXPECT_LATER = "<.."
    ANSWERED = "<="
    COUNTED = "counted"
    GRANTED = "granted"
    ROOM = "room"
    ALIVE = "alive"
    CLOSED = "closed"
    FAILED = "failed"
    SILENT = "silent"
    OVERRUN = "overrun"
    MUTE = "mute"
    BEATS = "beats"
    OUTLIVED = "outlived"
    HALF_CLOSE = "half-close"
    CUT = "cut"
    CONNECT = "connect"
    ON = "on"
    LOSE = "lose"
    WAIT = "wait"
    GONE = "gone"
    AGREED = "agreed"
    REFUSED = "refused"
    ASKED = "<?"


BYTES: Final = (Word.RAW, Word.DRIP, Word.SPLIT)
"""The steps that byte streams alone have."""


@attrs.frozen
class Step:
    """One line of a case."""

    word: Word
    rest: str
    line: str

    @property
    def numbers(self) -> list[int]:
        """Return the numbers that the step has. Raise ``ValueError`` for a word that is none."""
        return [int(word, 0) for word in self.rest.split()]


@attrs.frozen
class Case:
    """One case. ``needs`` are the interactions and options that it uses at the peer under test."""

    id: str
    dialect: str
    role: str
    title: str
    clauses: tuple[str, ...]
    level: Level
    needs: tuple[str, ...]
    steps: tuple[Step, ...]
    heavy: bool = False
    streams_only: bool = False
    """True if it can be played over byte streams alone."""
    asks: str = "nothing"
    """The request of a client under test: a name of ``TERMS["asks"]``."""
    lacks: tuple[str, ...] = ()
    """Names of ``OPTIONS`` that a peer for this case must not have."""
    messages_only: bool = False
    """True if it can be played over transports with messages alone."""
    unused_bits: bool = False
    """True if it is about the bits that should be 0. In other cases they are not looked at."""

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(name for name in self.needs if name in OPTIONS)


@attrs.frozen
class Clause:
    """One clause of a document: its number, level, section and gist."""

    id: str
    level: str
    section: str
    gist: str
    heading: str = ""
    """The heading of its section as the document has it; empty if no sentence of the document says the clause."""
    words: str = ""
    """The words by which its sentence is found in that section."""
    rule: str = ""
    """The whole of it in this project's words; empty if the gist says all."""

    @property
    def document(self) -> str:
        """Return the name and version of its document, empty if it is of none."""
        return TERMS["documents"].get(self.id.partition("-")[0], "")

    @property
    def source(self) -> str:
        if self.words:
            return f'{self.document}, {self.heading}: "{self.words} ..."'
        return f"{self.document} leaves it open" if self.document else "of no document: how this tester reads them all"


@attrs.frozen
class Chapter:
    """All cases of one dialect, and the frames that they are written in."""

    notation: Notation
    cases: tuple[Case, ...]


@cache
def clauses() -> Mapping[str, Clause]:
    """Return the clauses of all documents by their numbers."""
    places, rules = _rows("places.txt"), _rows("rules.txt")
    return {
        number: Clause(number, level, section, gist, *places.get(number, ("", "")), *rules.get(number, ("",)))
        for number, (level, section, gist, *_) in _rows("clauses.txt").items()
    }


def _rows(file: str) -> dict[str, list[str]]:
    """Return what a file says about clauses, cell by cell, by their numbers."""
    lines = (line for line in _read(file).splitlines() if line and not line.startswith("#"))
    rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return {number: others for number, *others in rows}


class CaseRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A case as its file has it: its steps or, in a scene, what is sent there and what it leads to."""

    id: str
    title: str
    clauses: str
    role: str = "server"
    steps: str = ""
    send: tuple[str, ...] = ()
    then: str | tuple[str, ...] = ""
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    asks: str = "nothing"
    level: Level | None = None
    heavy: bool = False
    byte_streams: bool = False
    messages: bool = False
    unused_bits: bool = False


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps with which cases begin, and those behind a frame that is ignored; the rows of its cases."""

    rows: tuple[CaseRow, ...] = ()
    before: str = ""
    after: str = "alive"
    role: str = "server"
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    asks: str = "nothing"


class Taken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"file": "from", "but": "except"}):
    """Cases of another dialect's file that hold in this one too.

    ``cases`` are patterns, or cases and the clauses that they show here. Those that need something of ``without`` are
    left out, and those that do not need all of ``with_``. ``clauses`` makes the clauses of the other dialect hold here
    too, or is the counterpart of each.
    """

    file: str
    cases: tuple[str, ...] | dict[str, str]
    but: tuple[str, ...] = ()
    with_: tuple[str, ...] = msgspec.field(default=(), name="with")
    without: tuple[str, ...] = ()
    clauses: str | dict[str, str] = ""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of a dialect: its frames and its cases."""

    dialect: str
    scenes: dict[str, Scene]
    case: tuple[CaseRow, ...] = ()
    taken: tuple[Taken, ...] = ()
    frames: dict[str, str] = {}
    length: int = 0
    length_counts_itself: bool = False
    first_id: int = 0
    id_steps: int = 0
    resumable: tuple[str, ...] = ()
    header: dict[str, Any] = {}
    types: dict[str, str] = {}

    def notation(self) -> Notation:
        """Return its frames. Raise ``NotationError`` for one that can't be read."""
        templates = {name: Template.parse(name, text) for name, text in self.frames.items()}
        if not self.header:
            return Streamux(self.dialect, 0, False, 0, templates)
        return Notation(
            self.dialect,
            self.length,
            self.length_counts_itself,
            self.first_id,
            templates,
            tuple(Template.parse("resumable", text).fill((), {}) for text in self.resumable),
            self.id_steps,
            Headers(kinds=self.types, **self.header),
        )


@cache
def _file(name: str) -> File:
    return msgspec.convert(tomllib.loads(_read(name)), File)


@cache
def read_chapter(dialect: str) -> Chapter:
    """Return the cases of a dialect, which are read as they are first asked for."""
    file = _file(re.sub(r"\W", "_", dialect) + ".toml")
    notation = file.notation()
    return Chapter(notation, tuple(_cases(file, notation)))


def chosen(dialect: str, *, role: str, patterns: tuple[str, ...] = (), heavy: bool = False) -> list[Case]:
    """Return the cases of a dialect and a role whose id or one of whose clauses fits one of the patterns.

    A heavy case is among them with ``heavy``, or where a pattern is its id. Raise ``ValueError`` for a dialect without
    cases, and for a pattern that fits none, naming it.
    """
    if dialect not in TESTED_DIALECTS:
        raise ValueError(f"there are no cases for {dialect}, only for {', '.join(TESTED_DIALECTS)}")
    cases = [case for case in read_chapter(dialect).cases if case.role == role]
    for pattern in patterns:
        if not any(fits(case, [pattern]) for case in cases):
            raise ValueError(f"no case or clause of {dialect} for a {role} fits {pattern!r}: --list names them")
    selected = [
        case
        for case in cases
        if (not patterns or fits(case, patterns)) and (heavy or not case.heavy or case.id in patterns)
    ]
    if cases and not selected:
        raise ValueError(f"no case of {dialect} for a {role} that fits runs without --heavy")
    return selected


def fits(case: Case | CaseRow, patterns: Iterable[str]) -> bool:
    """Return whether a pattern with ``*`` and ``?`` is the id of a case or a clause that it shows; of a row, the id."""
    names = (case.id, *case.clauses) if isinstance(case, Case) else (case.id,)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _cases(file: File, notation: Notation) -> Iterator[Case]:
    for scene in file.scenes.values():
        for row in scene.rows:
            sent = "\n".join(f"> {frame}" for frame in row.send)
            then = row.then if isinstance(row.then, str) else "\n".join(row.then)
            steps = f"{scene.before}\n{sent}\n{scene.after if then == 'ignored' else then}"
            whole = msgspec.structs.replace(
                row,
                role=scene.role,
                steps=steps,
                needs=scene.needs + row.needs,
                lacks=scene.lacks + row.lacks,
                asks=scene.asks,
            )
            yield from _of_roles(whole, file, notation)
    for row in (*file.case, *(row for taken in file.taken for row in rows_taken(taken))):
        yield from _of_roles(row, file, notation)


def rows_taken(taken: Taken) -> Iterator[CaseRow]:
    """Yield cases of another dialect as they hold in this one, with the clauses that they show here."""
    for row in _file(taken.file).case:
        if isinstance(taken.cases, dict):
            if row.id in taken.cases:
                yield msgspec.structs.replace(row, clauses=taken.cases[row.id])
            continue
        is_named = fits(row, taken.cases) and not fits(row, taken.but)
        if not is_named or not {*taken.with_} <= {*row.needs} or {*taken.without} & {*row.needs}:
            continue
        theirs = row.clauses.split()
        if isinstance(taken.clauses, str):
            level = row.level or level_of(tuple(theirs))
            yield msgspec.structs.replace(row, clauses=f"{row.clauses} {taken.clauses}", level=level)
            continue
        # The clauses of all dialects are their own counterparts.
        ours = (name if name.startswith("ALL-") else taken.clauses[name] for name in theirs)
        names = dict.fromkeys(" ".join(ours).split())
        yield msgspec.structs.replace(row, clauses=" ".join(names))


def _of_roles(row: CaseRow, file: File, notation: Notation) -> Iterator[Case]:
    """Yield the case of a row; for the role ``both`` there are two, as a peer is a peer."""
    steps = tuple(steps_of(row.steps, file.scenes))
    names = tuple(row.clauses.split())
    cuts = not notation.negotiates and any(step.word in BYTES for step in steps)
    for role in ("server", "client") if row.role == "both" else (row.role,):
        yield Case(
            f"client-{row.id}" if notation.negotiates and role == "client" else row.id,
            notation.dialect,
            role,
            row.title,
            names,
            row.level or level_of(names),
            tuple(dict.fromkeys([*row.needs, *_probed_with(notation, steps)])),
            steps,
            row.heavy,
            row.byte_streams or cuts,
            row.asks,
            row.lacks,
            row.messages,
            row.unused_bits,
        )


def _probed_with(notation: Notation, steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Return what a peer needs so that a probe of its connection is answered: an echo where the probe is a request."""
    is_asked = not notation.negotiates and notation.any_of("ask") == notation.any_of("probe")
    return ("echo",) if is_asked and any(step.word is Word.ALIVE for step in steps) else ()


def level_of(names: tuple[str, ...]) -> Level:
    """Return the level of a case that shows these clauses: that of the weightiest.

    A case says ``level`` where it is another one, as for a clause that binds the sender alone.
    """
    levels = {clauses()[name].level for name in names}
    if levels & {"MUST", "MUST NOT"}:
        return Level.MUST
    if levels & {"LAYOUT", "IMPLIED"}:
        return Level.IMPLIED
    return Level.SHOULD if levels & {"SHOULD", "MAY"} else Level.READING


def steps_of(text: str, scenes: Mapping[str, Scene]) -> Iterator[Step]:
    """Yield the steps of a text, a line each. Raise ``ValueError`` for one that begins with no word of ``Word``."""
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        sign, _, rest = line.partition(" ")
        if sign == "scene":
            yield from steps_of(scenes[rest.strip()].before, scenes)
        else:
            yield Step(Word(sign), rest, line)


def each_of(rest: str) -> tuple[range, str, str, str]:
    """Return the stream ids of a step for each of them, what is sent, and behind which sign what comes back.

    Raise ``ValueError`` for ids that are none.
    """
    first, last, frames = (*rest.split(" ", 2), "", "")[:3]
    ids = range(int(first), int(last) + 1, 2)
    if not ids:
        raise NotationError(f"{first} through {last} are no ids")
    for sign in ("->", Word.ANSWERED.value):
        sent, separator, back = frames.partition(f" {sign} ")
        if separator:
            return ids, sent, sign, back
    return ids, frames, "", ""


def pieces(rest: str) -> list[str]:
    return [piece.strip() for piece in rest.split(" ; ")]
