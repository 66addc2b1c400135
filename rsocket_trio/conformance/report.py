"""Results of a run in words: a table and the failures for the terminal, JSON, and JUnit XML.

Frames are decoded for this alone: cases are played and judged without the codecs of this library.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import attrs

from rsocket_trio.conformance.catalogue import TERMS, Case, Clause, clauses
from rsocket_trio.conformance.notation import shown
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.conformance.wire import Passed
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.rsocket.dialect import DIALECTS
from rsocket_trio.rsocket.frame_lines import frame_line
from rsocket_trio.rsocket.frames import ErrorFrame

BROKEN: Final = (CaseOutcome.FAIL, CaseOutcome.DEVIATION)
BYTES_SHOWN: Final = 256
"""Bytes of a frame that are shown as hex."""


@attrs.frozen
class CaseRun:
    """The facts of a run: what was tested, when it began (ISO 8601, UTC), and the results in the order of the cases.

    ``seconds`` is the time that the whole run took, ``baseline`` the outcomes of an earlier run by the ids of cases.
    """

    target: str
    dialect: str
    role: str
    began: str
    results: Sequence[CaseResult]
    seconds: float = 0.0
    baseline: Mapping[str, CaseOutcome] = attrs.field(factory=dict)

    def is_known(self, result: CaseResult) -> bool:
        """Return whether the case was broken in the baseline, too, and failed there if it fails now."""
        return result.outcome in BROKEN and self.baseline.get(result.case.id) in (CaseOutcome.FAIL, result.outcome)

    def count(self, outcome: CaseOutcome) -> int:
        return sum(result.outcome is outcome for result in self.results)


def chapter_of(case: Case) -> str:
    """Return the chapter of the catalogue in which a case stands: the letters of its first clause's number."""
    return case.clauses[0].rsplit("-", 1)[0]


def table(run: CaseRun) -> str:
    """Return the counts by chapter, a line each, and a last line with those of all."""
    rows: dict[str, Counter[CaseOutcome]] = {}
    for result in sorted(run.results, key=lambda result: chapter_of(result.case)):
        rows.setdefault(chapter_of(result.case), Counter())[result.outcome] += 1
    rows["all"] = Counter(result.outcome for result in run.results)
    width = max(len(name) for name in rows)
    head = " ".join([" " * width, *(f"{outcome.value:>17}" for outcome in CaseOutcome)])
    lines = [
        " ".join([f"{name:{width}}", *(f"{row[outcome]:17}" for outcome in CaseOutcome)]) for name, row in rows.items()
    ]
    return "\n".join([head, *lines])


def cost(run: CaseRun) -> str:
    return f"{len(run.results)} case{'s' * (len(run.results) != 1)} in {run.seconds:.1f} s"


def failure_lines(result: CaseResult, *, with_hex: bool = False) -> list[str]:
    """Return the lines that explain a result that is no pass: the sentence that it breaks, and the frames both ways.

    The peer's own explanation stands above all that. ``with_hex`` adds the bytes of the frames.
    """
    lines = [f"{result.outcome.value}: {result.case.id}: {result.case.title}"]
    if words := explanation(result.case.dialect, result.record):
        lines.append(f"  the peer said: {words}")
    for clause in clauses_of(result.case):
        lines += [f"  {line}" for line in _lines_of(clause)]
    if result.step:
        lines.append(f"  at the step: {result.step}")
    lines.append(f"  {result.why}")
    record = record_lines(result.case.dialect, result.record, "sent    ", "received", with_hex=with_hex)
    return lines + [f"  {line}" for line in record]


def explained(case: Case) -> str:
    """Return a case in words and steps."""
    lines = [f"{case.id}: {case.title}", f"{case.dialect}, {case.role}, {case.level.value}"]
    for clause in clauses_of(case):
        lines += _lines_of(clause)
    if case.needs:
        lines.append(f"needs: {', '.join(case.needs)}")
    if case.role == "client":
        lines.append(f"the client asks: {TERMS['asks'][case.asks]}")
    return "\n".join([*lines, *(f"  {step.line}" for step in case.steps)])


def _lines_of(clause: Clause) -> list[str]:
    rule = [f"  {clause.rule}"] if clause.rule else []
    return [f"{clause.id} ({clause.level}): {clause.gist}", *rule, f"  {clause.source}"]


def clauses_of(case: Case) -> list[Clause]:
    return [clauses()[name] for name in case.clauses]


def as_json(run: CaseRun) -> str:
    """Return the run as JSON: what is needed to compare it with another one, and the record of what is no pass."""
    content = {
        "target": run.target,
        "dialect": run.dialect,
        "role": run.role,
        "tool": f"rsocket-trio {version('rsocket-trio')}",
        "began": run.began,
        "seconds": round(run.seconds, 1),
        "counts": {outcome.value: run.count(outcome) for outcome in CaseOutcome},
        "cases": [_json_of(result) for result in run.results],
    }
    return json.dumps(content, indent=1) + "\n"


def _json_of(result: CaseResult) -> dict[str, Any]:
    case = result.case
    content: dict[str, Any] = {
        "id": case.id,
        "title": case.title,
        "clauses": case.clauses,
        "level": case.level.value,
        "outcome": result.outcome.value,
    }
    if result.outcome is not CaseOutcome.PASS:
        content["why"] = result.why
    if result.outcome in BROKEN:
        content["sources"] = [attrs.asdict(clause) | {"document": clause.document} for clause in clauses_of(case)]
        content["step"] = result.step
        content["said"] = explanation(case.dialect, result.record)
        content["frames"] = record_lines(case.dialect, result.record, with_hex=True)
    return content


def as_junit(run: CaseRun) -> str:
    """Return the run as JUnit XML: failures are failures, unless they are in the baseline.

    Those are skipped, as are cases that do not apply.
    """
    known = sum(result.outcome is CaseOutcome.FAIL and run.is_known(result) for result in run.results)
    suite = ET.Element(
        "testsuite",
        name=f"{run.dialect} {run.role} {run.target}",
        tests=str(len(run.results)),
        failures=str(run.count(CaseOutcome.FAIL) - known),
        skipped=str(run.count(CaseOutcome.NOT_APPLICABLE) + known),
        timestamp=run.began,
        time=f"{run.seconds:.3f}",
    )
    for result in run.results:
        named = {"classname": chapter_of(result.case), "name": result.case.id, "time": f"{result.seconds:.3f}"}
        case = ET.SubElement(suite, "testcase", named)
        text = "\n".join(failure_lines(result)) if result.outcome in BROKEN else result.why
        if result.outcome is CaseOutcome.FAIL and run.is_known(result):
            ET.SubElement(case, "skipped", message=f"as in the baseline: {result.why}").text = text
        elif result.outcome is CaseOutcome.FAIL:
            ET.SubElement(case, "failure", message=result.why).text = text
        elif result.outcome is CaseOutcome.NOT_APPLICABLE:
            ET.SubElement(case, "skipped", message=result.why)
        elif result.outcome is CaseOutcome.DEVIATION:
            ET.SubElement(case, "system-out").text = text
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


WRITERS: Final[Mapping[str, Callable[[CaseRun], str]]] = {".json": as_json, ".xml": as_junit}
"""The writers of reports, by the endings of their files."""


def outcomes_in(path: Path, dialect: str, role: str) -> dict[str, CaseOutcome]:
    """Return the outcomes of an earlier run's JSON by the ids of the cases. Raise ``OSError``.

    Raise ``ValueError`` for a file that is no such report, and for one of another dialect or role.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        tested, as_what = content["dialect"], content["role"]
        outcomes = {str(case["id"]): CaseOutcome(case["outcome"]) for case in content["cases"]}
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: not the JSON report of a run") from None
    if tested != dialect:
        raise ValueError(f"{path}: the report of a run of {tested}, not of {dialect}")
    if as_what != role:
        raise ValueError(f"{path}: the report of a run against a {as_what}, not a {role}")
    return outcomes


# What passed in a case


def explanation(dialect: str, record: Sequence[Passed]) -> str:
    """Return the last ERROR of the peer that has a text, one of the connection before one of a stream.

    An empty text if there is none.
    """
    last = ""
    for passed in record:
        if passed.sent or passed.event or not passed.is_frame or dialect not in DIALECTS:
            continue
        try:
            frame = DIALECTS[dialect].codec.decode(passed.data)
        except RemoteProtocolError:
            continue
        if isinstance(frame, ErrorFrame) and frame.data and (frame.stream_id == 0 or not last):
            last = frame_line(DIALECTS[dialect], passed.data)
    return last


def record_lines(
    dialect: str, record: Sequence[Passed], sent: str = ">", received: str = "<", *, with_hex: bool = False
) -> list[str]:
    """Return the record in lines, behind these words for the two directions.

    Equal ones in a row are one. ``with_hex`` adds the bytes of each frame below it.
    """
    lines: list[str] = []
    for (line, data), several in groupby(
        (_line(dialect, passed, sent, received), passed.data if with_hex else b"") for passed in record
    ):
        times = len(list(several))
        lines.append(f"{line} ({times} times)" if times > 1 else line)
        if data and dialect in DIALECTS:
            lines.append(f"{' ' * len(sent)}   {shown(data, BYTES_SHOWN)}")
    return lines


def _line(dialect: str, passed: Passed, sent: str, received: str) -> str:
    if passed.event:
        return passed.event
    if not passed.is_frame:
        words = f"{shown(passed.data, BYTES_SHOWN)} (no frame)"
    elif dialect in DIALECTS:
        words = frame_line(DIALECTS[dialect], passed.data)
    else:
        words = shown(passed.data, BYTES_SHOWN)  # of Streamux, whose layout was negotiated
    return f"{sent if passed.sent else received} {words}"
