"""The cases: rows read from data files, each a sequence of steps with the clauses that it shows.

A file holds one dialect: its frames, the scenes in which cases begin, and the cases. Rows name a scene, what is sent
there and what it leads to; other cases are written out step by step.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Final

import attrs

from rsocket_trio.conformance.answers import Answer
from rsocket_trio.conformance.header import Headers
from rsocket_trio.conformance.notation import (
    SAMPLES,
    Notation,
    NotationError,
    Template,
    arguments_in,
    shortened,
    valued,
)
from rsocket_trio.conformance.streamux import Streamux

FOLDER: Final = "cases"
DIALECT: Final = re.compile(r'^dialect = "(.+)"$', re.MULTILINE)
NEEDS: Final = {
    "echo": "a request/response that is answered with its own data and metadata",
    "count": "a stream of items 0, 1, 2 and so on, each number as text: as many as the request's data says, or no end; "
    "in ReactiveSocket 0.0 and 0.1 a subscription, too",
    "talk": "a channel that sends back each item it gets, the first one too, and completes with its requester",
    "silent": "a request/response that is never answered",
}
"""The interactions that a case can need of the peer under test."""
OPTIONS: Final = {
    "resume": "sessions that can be resumed, for a minute at least",
    "leases": "leases, if the other side asks for them: 3 requests for 2 seconds, and that again every 3 seconds",
    "dialects": "all dialects on one port, told apart by the first bytes",
    "quick": "a quick init of Streamux, which a server allows and a client requests",
}
"""Further abilities that a case can need. A peer has none of them unless one says so."""
ASKS: Final = {
    "nothing": "nothing",
    "request": "a request/response with the data q",
    "stream": "a stream with the data s, a first count of 2 and no credit after that",
    "subscription": "a subscription with the data s and the same credit, in ReactiveSocket 0.0 and 0.1",
    "channel": "a channel with the first data c and the same credit, which sends back each item",
    "chunks": "a request whose first chunk is c, and which goes on with each chunk of its response",
    "several": "requests with the data 1, 2, 3 and 4, in this order and at the same time",
    "large": "a request whose data is 1,000 times l",
    "cancel": "a request with the data x, which it cancels after 0.2 seconds, and then one with the data y",
    "ping": "a ping",
}
"""The requests that a case can need of a client under test once it has connected, all without metadata. When the
request is answered, or the stream or subscription has completed, the client makes one more request/response, with the
data of the answer or of the last item, unless it is empty and the dialect Streamux. It keeps the connection open,
whatever becomes of its requests. Those from ``chunks`` on are for Streamux, which has no streams and channels."""


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
        """Return whether a peer that does something else has failed."""
        return self in (Level.MUST, Level.IMPLIED)


class Word(Enum):
    """The kinds of steps, by the word or sign that begins their line."""

    SEND = ">"
    """These frames are sent, in one write."""
    RAW = ">>"
    """These bytes are sent on a byte stream, without a length."""
    DRIP = ">."
    """These frames are sent on a byte stream, a byte at a time."""
    SPLIT = "split"
    """These frames are sent on a byte stream, so many bytes first and the rest a while later."""
    EACH = "each"
    """For each of the tester's stream ids from the first number through the second the frame is sent, with the id for
    ``#``. Behind ``->`` stands the frame that comes for each, behind ``<=`` the answer, both in any order."""
    IN_TURN = "in-turn"
    """The same, one after the other: the next frame is sent once the last one is answered."""
    TIMES = "times"
    """This frame is sent so many times."""
    EXPECT = "<"
    """These frames come next, in this order. ``or`` stands between alternatives."""
    EXPECT_ALL = "<~"
    """These frames come next, in any order."""
    EXPECT_LATER = "<.."
    """This frame comes, and items of streams may come before it."""
    ANSWERED = "<="
    """The stream of this id is answered with this item, and completes with it or right behind it. The item may come in
    fragments. Its metadata, if it has any, stands before its data."""
    ANSWERED_ALL = "<=~"
    """The same for several streams, which may be answered in any order."""
    COUNTED = "counted"
    """On this stream come items with the numbers from the first through the second as text, in this order."""
    GRANTED = "granted"
    """On this stream so many items are granted, all in all. Other frames that come meanwhile are kept for later."""
    ROOM = "room"
    """The same. For a peer that grants fewer the case does not apply."""
    ALIVE = "alive"
    """Nothing is said, and a frame that is always answered is answered."""
    CLOSED = "closed"
    """The connection ends without a word."""
    FAILED = "failed"
    """An error of the connection with one of these codes, then the end."""
    SILENT = "silent"
    """For so many seconds nothing comes but what a peer may send at any time. The frames that stand behind the number
    do not come, either."""
    OVERRUN = "overrun"
    """On this stream so many items more are sent than the peer has granted."""
    MUTE = "mute"
    """From here on the tester answers no KEEPALIVE by itself."""
    BEATS = "beats"
    """So many KEEPALIVEs come by themselves, each in the interval of the client's SETUP, and are answered."""
    OUTLIVED = "outlived"
    """The tester says nothing more, and the client ends the connection once the lifetime of its SETUP is over."""
    HALF_CLOSE = "half-close"
    """The tester says that it sends nothing more, and goes on reading."""
    CUT = "cut"
    """The connection ends without a word. What came and no step has taken never came."""
    CONNECT = "connect"
    """Another connection, which the next steps are about: to a server it is opened, of a client it is waited for."""
    ON = "on"
    """The next steps are about the connection of this number, from 1."""
    LOSE = "lose"
    """This frame came, and the peer is told that it did not, nor what counts for positions and came behind it."""
    WAIT = "wait"
    """The tester waits for so many seconds."""
    GONE = "gone"
    """For so many seconds the client does not ask to resume. It may connect anew."""
    AGREED = "agreed"
    """The peer's initialize message has come, and agrees with the tester's. Without that the case does not apply."""
    REFUSED = "refused"
    """The negotiation fails: nothing comes but the peer's initialize message, or not even that, then the end. If the
    two initialize messages agree all the same, the case does not apply."""
    ASKED = "<?"
    """These requests of the peer's come, in any order and in chunks as it likes, each an id, or a name for it, and its
    data. ``$a`` stands for the id that the peer chose from then on."""


NUMBERS: Final = {
    Word.OVERRUN: ("stream id", "items beyond the grant"),
    Word.COUNTED: ("stream id", "first number", "last number"),
    Word.GRANTED: ("stream id", "items"),
    Word.ROOM: ("stream id", "items"),
    Word.BEATS: ("KEEPALIVEs",),
}
"""The steps that take numbers only, and which."""
BYTES: Final = (Word.RAW, Word.DRIP, Word.SPLIT)
"""The steps that byte streams alone have."""


@attrs.frozen
class Step:
    """One line of a case."""

    word: Word
    rest: str
    line: str


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
    """The request of a client under test: a name of ``ASKS``."""
    lacks: tuple[str, ...] = ()
    """Names of ``OPTIONS`` that a peer for this case must not have."""
    messages_only: bool = False
    """True if it can be played over transports with messages alone."""
    unused_bits: bool = False
    """True if it is about the bits that should be 0. In other cases they are not looked at."""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of ``OPTIONS`` that it needs."""
        return tuple(name for name in self.needs if name in OPTIONS)


DOCUMENTS: Final = {
    "RS00": "ReactiveSocket Protocol 0.0 (first draft)",
    "RS01": "ReactiveSocket Protocol 0.1",
    "RS02": "ReactiveSocket Protocol 0.2",
    "RS10": "RSocket Protocol 1.0",
    "RSX": "RSocket Protocol 2.0 (draft with extensions)",
    "SMX": "Streamux, protocol version 1 (preview)",
}
"""The documents and their versions by the first letters of their clauses. Other clauses are of none."""


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
        return DOCUMENTS.get(self.id.partition("-")[0], "")

    @property
    def source(self) -> str:
        """Return where it stands, in words."""
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
    rows = (line.split("|") for line in _read("clauses.txt").splitlines() if line and not line.startswith("#"))
    found = (Clause(*(cell.strip() for cell in row[:4])) for row in rows)
    places, rules = _rows("places.txt"), _rows("rules.txt")
    nowhere, no_rule = ("", ""), ("",)
    return {
        clause.id: Clause(
            clause.id,
            clause.level,
            clause.section,
            clause.gist,
            *places.get(clause.id, nowhere),
            *rules.get(clause.id, no_rule),
        )
        for clause in found
    }


def _rows(file: str) -> dict[str, tuple[str, ...]]:
    """Return what a file says about clauses, cell by cell, by their numbers."""
    rows = (line.split("|") for line in _read(file).splitlines() if line and not line.startswith("#"))
    cells = (tuple(cell.strip() for cell in row) for row in rows)
    return {number: others for number, *others in cells}  # type: ignore[misc]


class Chapters(Mapping[str, Chapter]):
    """The chapters by their dialects. Each is read as it is first asked for."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._known: dict[str, Chapter] = {}

    def __getitem__(self, dialect: str) -> Chapter:
        """Return a chapter. Raise ``NotationError`` for a file that can't be read."""
        if dialect not in self._known:
            file = self._files[dialect]
            self._known[dialect] = _chapter(file, _content(file))
        return self._known[dialect]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@cache
def chapters() -> Chapters:
    """Return the cases of each dialect."""
    folder = resources.files(__package__) / FOLDER
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    return Chapters({_dialect_of(file): file for file in files})


def _dialect_of(file: str) -> str:
    found = DIALECT.search(_read(file))
    if found is None:
        raise NotationError(f"{file}: no dialect")
    return found[1]


@cache
def _content(file: str) -> Mapping[str, Any]:
    return tomllib.loads(_read(file))


def _read(file: str) -> str:
    return (resources.files(__package__) / FOLDER / file).read_text("utf-8")


def chosen(dialect: str, *, role: str, patterns: tuple[str, ...] = (), heavy: bool = False) -> list[Case]:
    """Return the cases of a dialect and a role whose id or one of whose clauses fits one of the patterns.

    A heavy case is among them with ``heavy``, or where a pattern is its id. Raise ``ValueError`` for a dialect without
    cases, and for a pattern that fits none, naming it.
    """
    if dialect not in chapters():
        raise ValueError(f"there are no cases for {dialect}, only for {', '.join(chapters())}")
    cases = [case for case in chapters()[dialect].cases if case.role == role]
    for pattern in patterns:
        if not any(fits(case, (pattern,)) for case in cases):
            raise ValueError(f"no case or clause of {dialect} for a {role} fits {pattern!r}: --list names them")
    found = [case for case in cases if not patterns or fits(case, patterns)]
    found = [case for case in found if heavy or not case.heavy or case.id in patterns]
    if cases and not found:
        raise ValueError(f"no case of {dialect} for a {role} that fits runs without --heavy")
    return found


def fits(case: Case, patterns: tuple[str, ...]) -> bool:
    """Return whether a pattern with ``*`` and ``?`` is the case's id, or a clause that it shows."""
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in (case.id, *case.clauses))


def _chapter(file: str, content: Mapping[str, Any]) -> Chapter:
    notation: Notation
    if "drawings" in content:
        notation = Streamux.parse(content["dialect"], content["drawings"])
    else:
        templates = {name: Template.parse(name, text) for name, text in content["frames"].items()}
        itself = content.get("length_counts_itself", False)
        marks = tuple(Template.parse("resumable", text).fill(()) for text in content.get("resumable", ()))
        ids = content["first_id"], content.get("id_steps", 0)
        headers = Headers.parse(content["header"], content["types"])
        notation = Notation(content["dialect"], content["length"], itself, ids[0], templates, marks, ids[1], headers)
    cases = tuple(_cases(file, notation, content))
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise NotationError(f"{file}: two cases are called {case.id}")
        seen.add(case.id)
    return Chapter(notation, cases)


def _cases(file: str, notation: Notation, content: Mapping[str, Any]) -> Iterator[Case]:
    for scene in content["scenes"].values():
        before, after = scene.get("before", ""), scene.get("after", "alive")
        for row in scene.get("rows", ()):
            sent = "\n".join(f"> {frame}" for frame in row["send"])
            then = "\n".join(row["then"]) if isinstance(row["then"], list) else row["then"]
            rest = after if then == "ignored" else then
            whole = {
                **row,
                "needs": (*scene.get("needs", ()), *row.get("needs", ())),
                "lacks": (*scene.get("lacks", ()), *row.get("lacks", ())),
                "asks": scene.get("asks", "nothing"),
            }
            for role in _roles(scene):
                yield _case(file, notation, content, whole, f"{before}\n{sent}\n{rest}", role)
    for row in (*content.get("case", ()), *_taken(file, content)):
        for role in _roles(row):
            yield _case(file, notation, content, row, row["steps"], role)


def _roles(row: Mapping[str, Any]) -> list[str]:
    """Return the roles for which a scene or a case is: ``both`` stands for two cases, where a peer is a peer."""
    role = row.get("role", "server")
    return ["server", "client"] if role == "both" else [role]


def _taken(file: str, content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the cases of other dialects that hold in this one too, with the clauses that they show here.

    ``cases`` is a list of patterns, or a table of cases and their clauses. Those that need something of ``without`` are
    left out, and those that do not need all of ``with``. Raise ``NotationError`` for a pattern that fits none, and for
    a clause without a counterpart.
    """
    for taken in content.get("taken", ()):
        rows = _content(taken["from"])["case"]
        for pattern in (*taken["cases"], *taken.get("except", ())):
            if not any(fnmatchcase(row["id"], pattern) for row in rows):
                raise NotationError(f"{file}: {taken['from']} has no case {pattern!r}")
        if isinstance(taken["cases"], Mapping):
            yield from ({**row, "clauses": own} for row in rows if (own := taken["cases"].get(row["id"])))
            continue
        for row in rows:
            names = [any(fnmatchcase(row["id"], one) for one in taken.get(key, ())) for key in ("cases", "except")]
            needs = {*row.get("needs", ())}
            fits_needs = needs >= {*taken.get("with", ())} and not needs & {*taken.get("without", ())}
            if names == [True, False] and fits_needs:
                yield {**row, **_clauses_and_level(file, row, taken["clauses"])}


def _clauses_and_level(file: str, row: Mapping[str, Any], own: str | Mapping[str, str]) -> dict[str, str]:
    """Return the clauses that a case of another dialect shows here, and its level.

    ``own`` is the clauses that make those of the other dialect hold here too, or the counterpart of each.
    """
    theirs = row["clauses"].split()
    if isinstance(own, str):
        return {"clauses": " ".join([*theirs, own]), "level": row.get("level", level_of(tuple(theirs)).value)}
    if unknown := [name for name in theirs if name not in own and not name.startswith("ALL-")]:
        raise NotationError(f"{file}: {row['id']}: {', '.join(unknown)} has no counterpart")
    clauses = dict.fromkeys(name for one in theirs for name in own.get(one, one).split())
    return {"clauses": " ".join(clauses)}


def _case(
    file: str, notation: Notation, content: Mapping[str, Any], row: Mapping[str, Any], steps: str, role: str
) -> Case:
    where = f"{file}: {row.get('id', row.get('title', '?'))}"
    names = tuple(row["clauses"].split())
    if unknown := [name for name in names if name not in clauses()]:
        raise NotationError(f"{where}: there is no clause {', '.join(unknown)}")
    read = tuple(_steps(where, notation, steps, content.get("scenes", {})))
    if role == "server" and any(step.word is Word.GONE for step in read):
        raise NotationError(f"{where}: gone is about clients")
    needs = tuple(dict.fromkeys([*row.get("needs", ()), *_probed_with(notation, read)]))
    if unknown := [name for name in needs if name not in NEEDS and name not in OPTIONS]:
        raise NotationError(f"{where}: {', '.join(unknown)} is nothing that a case can need")
    lacks = tuple(row.get("lacks", ()))
    if unknown := [name for name in lacks if name not in OPTIONS]:
        raise NotationError(f"{where}: {', '.join(unknown)} is no option of a peer")
    asks = row.get("asks", "nothing")
    if asks not in ASKS:
        raise NotationError(f"{where}: {asks!r} is nothing that a client can ask")
    level = Level(row["level"]) if "level" in row else level_of(names)
    cuts = not notation.negotiates and any(step.word in BYTES for step in read)
    streams_only = row.get("byte_streams", False) or cuts
    title = row["title"]
    heavy, messages_only = row.get("heavy", False), row.get("messages", False)
    name = f"client-{row['id']}" if notation.negotiates and role == "client" else row["id"]
    return Case(
        name,
        notation.dialect,
        role,
        title,
        names,
        level,
        needs,
        read,
        heavy,
        streams_only,
        asks,
        lacks,
        messages_only,
        row.get("unused_bits", False),
    )


def _probed_with(notation: Notation, steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Return what a peer needs so that a probe of its connection is answered: an echo where the probe is a request."""
    ask = notation.templates.get("ask")
    probe = notation.templates.get("probe")
    is_asked = ask is not None and probe is not None and ask.tokens == probe.tokens
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


def _steps(where: str, notation: Notation, text: str, scenes: Mapping[str, Any]) -> Iterator[Step]:
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        sign, _, rest = line.partition(" ")
        if sign == "scene":
            yield from _steps(where, notation, scenes[rest.strip()]["before"], scenes)
            continue
        try:
            word = Word(sign)
            _check(notation, word, rest)
        except ValueError as error:
            raise NotationError(f"{where}: {line!r}: {error}") from None
        yield Step(word, rest, line)


def _check(notation: Notation, word: Word, rest: str) -> None:
    """Raise ``ValueError`` for a step that could not be played."""
    rest = valued(shortened(rest), SAMPLES)
    if word in (Word.SEND, Word.RAW, Word.DRIP):
        for piece in pieces(rest):
            _check_exact(notation, piece)
    elif word in (Word.EXPECT, Word.EXPECT_ALL, Word.EXPECT_LATER, Word.LOSE):
        for piece in pieces(rest):
            for one in alternatives(piece):
                notation.frame(one)
    elif word in (Word.ANSWERED, Word.ANSWERED_ALL):
        for piece in pieces(rest):
            Answer.parse(notation.templates, notation.arguments(piece))
    elif word in (Word.EACH, Word.IN_TURN):
        ids, sent, sign, back = each_of(rest)
        _check_exact(notation, with_id(sent, ids[0]))
        if sign == Word.ANSWERED.value:
            Answer.parse(notation.templates, notation.arguments(with_id(back, ids[0])))
        elif sign:
            notation.frame(with_id(back, ids[0]))
    elif word is Word.TIMES:
        number, _, frame = rest.partition(" ")
        int(number)
        _check_exact(notation, frame)
    elif word is Word.SPLIT:
        for piece in pieces(split_of(rest)[1]):
            _check_exact(notation, piece)
    elif word is Word.FAILED and not codes(rest):
        raise NotationError("a code is missing")
    elif word is Word.SILENT:
        for frame in silence_of(rest)[1]:
            notation.frame(frame)
    elif word in (Word.WAIT, Word.GONE):
        float(rest)
    elif word is Word.ON:
        int(rest)
    elif word in (Word.AGREED, Word.REFUSED, Word.ASKED):
        if not notation.negotiates:
            raise NotationError(f"{notation.dialect} has no initialize messages")
        for piece in pieces(rest) if word is Word.ASKED else ():
            notation.frame(f"request {piece}")
    elif word in NUMBERS:
        numbers_in(word, rest)


def _check_exact(notation: Notation, frame: str) -> None:
    if not notation.frame(frame).is_exact:
        raise NotationError("what is sent has bytes that may be any")


def numbers_in(word: Word, rest: str) -> list[int]:
    """Return the numbers of a step that takes nothing else. Raise ``NotationError`` for others than it needs."""
    found = [one for one in arguments_in(rest) if isinstance(one, int)]
    names = NUMBERS[word]
    if len(found) != len(names) or len(found) != len(rest.split()):
        raise NotationError(f"{len(names)} numbers are expected: {', '.join(names)}")
    return found


def each_of(rest: str) -> tuple[range, str, str, str]:
    """Return the stream ids of a step for each of them, what is sent, and behind which sign what comes back.

    Raise ``ValueError`` for ids that are none.
    """
    first, last, frames = (*rest.split(" ", 2), "", "")[:3]
    ids = range(int(first), int(last) + 1, 2)
    if not ids:
        raise NotationError(f"{first} through {last} are no ids")
    for sign in ("->", Word.ANSWERED.value):
        sent, found, back = frames.partition(f" {sign} ")
        if found:
            return ids, sent, sign, back
    return ids, frames, "", ""


def split_of(rest: str) -> tuple[int, str]:
    """Return the bytes that a step of two parts sends first, and its frames. Raise ``ValueError`` for no number."""
    size, _, frames = rest.partition(" ")
    return int(size), frames


def silence_of(rest: str) -> tuple[float, list[str]]:
    """Return the seconds of a silence, and the frames that break it although a peer may send such at any time.

    Raise ``ValueError`` for no number.
    """
    seconds, _, frames = rest.partition(" ")
    return float(seconds), pieces(frames) if frames else []


def with_id(frame: str, stream_id: int) -> str:
    """Return a frame of a step for each id with this id in it."""
    return frame.replace("#", str(stream_id))


def pieces(rest: str) -> list[str]:
    """Return the frames of a line."""
    return [piece.strip() for piece in rest.split(" ; ")]


def alternatives(piece: str) -> list[str]:
    """Return the frames of which one is expected."""
    return piece.split(" or ")


def codes(rest: str) -> list[int]:
    """Return the error codes of a line. Raise ``ValueError`` for one that is no number."""
    return [int(word, 0) for word in rest.split()]
