"""Results of a run in words: a table and the failures for the terminal, JSON to compare two runs, and JUnit XML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import attrs

from rsocket_trio.conformance.catalogue import ASKS, Case, Clause, clauses
from rsocket_trio.conformance.frame_lines import explanation, hex_lines
from rsocket_trio.conformance.frame_lines import lines as lines_of
from rsocket_trio.conformance.play import AGAIN, Outcome, Result

BROKEN: Final = (Outcome.FAIL, Outcome.DEVIATION)


@attrs.frozen
class Run:
    """The facts of a run: what was tested, when it began (ISO 8601, UTC), and the results in the order of the cases.

    ``seconds`` is the time that the whole run took, ``baseline`` the outcomes of an earlier run by the ids of cases.
    """

    target: str
    dialect: str
    role: str
    began: str
    results: Sequence[Result]
    seconds: float = 0.0
    baseline: Mapping[str, Outcome] = attrs.field(factory=dict)

    def is_known(self, result: Result) -> bool:
        """Return whether the case was broken in the baseline, too, and failed there if it fails now."""
        return result.outcome in BROKEN and self.baseline.get(result.case.id) in (Outcome.FAIL, result.outcome)

    @property
    def connections(self) -> int:
        """Return the number of connections of all cases."""
        return sum(result.connections for result in self.results)

    def count(self, outcome: Outcome) -> int:
        """Return the number of cases that ended so."""
        return sum(result.outcome is outcome for result in self.results)


def by_chapter(run: Run) -> dict[str, Counter[Outcome]]:
    """Return the counts of each chapter, in the order of their names."""
    rows: dict[str, Counter[Outcome]] = {}
    for result in run.results:
        rows.setdefault(chapter_of(result.case), Counter())[result.outcome] += 1
    return dict(sorted(rows.items()))


def chapter_of(case: Case) -> str:
    """Return the chapter of the catalogue in which a case stands: the letters of its first clause's number."""
    return case.clauses[0].rsplit("-", 1)[0]


def table(run: Run) -> str:
    """Return the counts by chapter, a line each, and a last line with those of all."""
    rows = by_chapter(run)
    rows["all"] = Counter(result.outcome for result in run.results)
    width = max(len(name) for name in rows)
    head = " ".join([" " * width, *(f"{outcome.value:>17}" for outcome in Outcome)])
    lines = [
        " ".join([f"{name:{width}}", *(f"{row[outcome]:17}" for outcome in Outcome)]) for name, row in rows.items()
    ]
    return "\n".join([head, *lines])


def cost(run: Run) -> str:
    """Return a line about what the run took, and how many cases needed more than one play."""
    line = f"{_many(len(run.results), 'case')} over {_many(run.connections, 'connection')} in {run.seconds:.1f} s"
    again = [result for result in run.results if result.again]
    if not again:
        return line
    passed = sum(result.outcome is Outcome.PASS for result in again)
    return f"{line}; {_many(len(again), 'case')} ran out of time and had another play, {passed} passed then"


def _many(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def told_again(result: Result) -> list[str]:
    """Return the lines about a case that passed at a later play."""
    return [f"{result.verdict}: {result.case.id}: {result.case.title}", f"  at first: {result.at_first}"]


def told_known(result: Result) -> str:
    """Return the line about a result that is as in the baseline."""
    return f"{result.outcome.value}, as in the baseline: {result.case.id}: {result.case.title}"


def told(result: Result, *, with_hex: bool = False) -> list[str]:
    """Return the lines that explain a result that is no pass: the sentence that it breaks, and the frames both ways.

    The peer's own explanation stands above all that. ``with_hex`` adds the bytes of the frames.
    """
    lines = [f"{result.outcome.value}: {result.case.id}: {result.case.title}"]
    if said := explanation(result.case.dialect, result.record):
        lines.append(f"  the peer said: {said}")
    for clause in clauses_of(result.case):
        lines += [f"  {line}" for line in _lines_of(clause)]
    if result.step:
        lines.append(f"  at the step: {result.step}")
    lines.append(f"  {result.why}")
    if result.again:
        lines.append(f"  played {_times(result.again + 1)}, at first: {result.at_first}")
    record = lines_of(result.case.dialect, result.record, "sent    ", "received", with_hex=with_hex)
    return lines + [f"  {line}" for line in record]


def _times(number: int) -> str:
    return "twice" if number == 2 else f"{number} times"


def explained(case: Case) -> str:
    """Return a case in words and steps."""
    lines = [f"{case.id}: {case.title}", f"{case.dialect}, {case.role}, {case.level.value}"]
    for clause in clauses_of(case):
        lines += _lines_of(clause)
    if case.needs:
        lines.append(f"needs: {', '.join(case.needs)}")
    if case.role == "client":
        lines.append(f"the client asks: {ASKS[case.asks]}")
    return "\n".join([*lines, *(f"  {step.line}" for step in case.steps)])


def _lines_of(clause: Clause) -> list[str]:
    """Return the gist of a clause, its rule, and where it stands."""
    rule = [f"  {clause.rule}"] if clause.rule else []
    return [f"{clause.id} ({clause.level}): {clause.gist}", *rule, f"  {clause.source}"]


def clauses_of(case: Case) -> list[Clause]:
    """Return the clauses that a case shows."""
    return [clauses()[name] for name in case.clauses]


def as_json(run: Run) -> str:
    """Return the run as JSON: what is needed to compare it with another one, and the record of what is no pass."""
    content = {
        "target": run.target,
        "dialect": run.dialect,
        "role": run.role,
        "tool": f"rsocket-trio {version('rsocket-trio')}",
        "began": run.began,
        "seconds": round(run.seconds, 1),
        "connections": run.connections,
        "counts": {outcome.value: run.count(outcome) for outcome in Outcome},
        "cases": [_json_of(result) for result in run.results],
    }
    return json.dumps(content, indent=1) + "\n"


def _json_of(result: Result) -> dict[str, Any]:
    case = result.case
    content: dict[str, Any] = {
        "id": case.id,
        "title": case.title,
        "clauses": case.clauses,
        "level": case.level.value,
        "outcome": result.verdict,
    }
    if result.again:
        content |= {"again": result.again, "at_first": result.at_first}
    if result.outcome is not Outcome.PASS:
        content["why"] = result.why
    if result.outcome in BROKEN:
        content["sources"] = [_source_of(clause) for clause in clauses_of(case)]
        content["step"] = result.step
        content["said"] = explanation(case.dialect, result.record)
        content["frames"] = lines_of(case.dialect, result.record)
        content["wire"] = hex_lines(result.record)
    return content


def _source_of(clause: Clause) -> dict[str, str]:
    return {
        "id": clause.id,
        "level": clause.level,
        "gist": clause.gist,
        "rule": clause.rule,
        "document": clause.document,
        "section": clause.heading,
        "words": clause.words,
    }


def as_junit(run: Run) -> str:
    """Return the run as JUnit XML: failures are failures, unless they are in the baseline.

    Those are skipped, as are cases that do not apply.
    """
    known = sum(result.outcome is Outcome.FAIL and run.is_known(result) for result in run.results)
    suite = ET.Element(
        "testsuite",
        name=f"{run.dialect} {run.role} {run.target}",
        tests=str(len(run.results)),
        failures=str(run.count(Outcome.FAIL) - known),
        skipped=str(run.count(Outcome.NOT_APPLICABLE) + known),
        timestamp=run.began,
        time=f"{run.seconds:.3f}",
    )
    for result in run.results:
        named = {"classname": chapter_of(result.case), "name": result.case.id, "time": f"{result.seconds:.3f}"}
        case = ET.SubElement(suite, "testcase", named)
        text = "\n".join(told(result)) if result.outcome in BROKEN else result.why
        if result.outcome is Outcome.FAIL and run.is_known(result):
            ET.SubElement(case, "skipped", message=f"as in the baseline: {result.why}").text = text
        elif result.outcome is Outcome.FAIL:
            ET.SubElement(case, "failure", message=result.why).text = text
        elif result.outcome is Outcome.NOT_APPLICABLE:
            ET.SubElement(case, "skipped", message=result.why)
        elif result.outcome is Outcome.DEVIATION:
            ET.SubElement(case, "system-out").text = text
        elif result.again:
            ET.SubElement(case, "system-out").text = "\n".join(told_again(result))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def outcomes_in(path: Path, dialect: str, role: str) -> dict[str, Outcome]:
    """Return the outcomes of an earlier run's JSON by the ids of the cases. Raise ``OSError``.

    Raise ``ValueError`` for a file that is no such report, and for one of another dialect or role.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        tested, as_what = content["dialect"], content["role"]
        outcomes = {str(case["id"]): outcome_of(case["outcome"]) for case in content["cases"]}
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: not the JSON report of a run") from None
    if tested != dialect:
        raise ValueError(f"{path}: the report of a run of {tested}, not of {dialect}")
    if as_what != role:
        raise ValueError(f"{path}: the report of a run against a {as_what}, not a {role}")
    return outcomes


def outcome_of(verdict: str) -> Outcome:
    """Return the outcome behind a verdict of JSON. Raise ``ValueError`` for a text that is none."""
    return Outcome(str(verdict).removesuffix(AGAIN))
