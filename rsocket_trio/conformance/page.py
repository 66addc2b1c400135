"""The report of a run as a page of HTML for the maintainers of what was tested, and the writers of all reports."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rsocket_trio.conformance.catalogue import Level
from rsocket_trio.conformance.frame_lines import explanation, hex_lines, lines
from rsocket_trio.conformance.play import Outcome, Result
from rsocket_trio.conformance.report import (
    BROKEN,
    Run,
    as_json,
    as_junit,
    by_chapter,
    chapter_of,
    clauses_of,
    cost,
)

AREAS: Final = {
    "BRK": "brokers",
    "CAN": "CANCEL",
    "CH": "REQUEST_CHANNEL",
    "CON": "connection establishment",
    "DET": "dialects on one port",
    "ERR": "errors",
    "EXT": "EXT",
    "FLD": "fields",
    "FLG": "flags",
    "FLOW": "flow control",
    "FRAG": "fragments",
    "FRM": "framing",
    "GAP": "what the draft leaves out",
    "GEN": "general",
    "HDR": "the header of frames",
    "IGN": "the ignore flag",
    "INI": "initialize messages",
    "KA": "KEEPALIVE",
    "LEASE": "LEASE",
    "LS": "leases",
    "MD": "metadata",
    "MIME": "MIME types",
    "MP": "METADATA_PUSH",
    "MSG": "messages",
    "N": "REQUEST_N and initial counts",
    "NEG": "negotiation",
    "OK": "SETUP_OK",
    "OOB": "out of band messages",
    "OTH": "other frames",
    "PAY": "PAYLOAD",
    "QI": "quick init",
    "QRK": "known peers",
    "RCT": "reactions, in all dialects",
    "REQ": "requests",
    "RES": "RESUME",
    "RQN": "REQUEST_N",
    "RSM": "resumption",
    "RSP": "RESPONSE",
    "SEQ": "sequences of streams",
    "SERR": "SETUP_ERROR",
    "SETUP": "SETUP",
    "SID": "stream ids",
    "SPU": "spurious messages",
    "STR": "REQUEST_STREAM",
    "SUB": "REQUEST_SUB",
    "TLV": "extension entries",
    "TRN": "transports",
    "TYP": "frame types",
    "UNX": "the unexpected",
}
"""The subjects of the chapters of clauses, by the last letters of their names."""
LEVELS: Final = {
    Level.MUST: "The document says MUST.",
    Level.IMPLIED: "The document draws it so, or states it as a fact.",
    Level.SHOULD: "The document recommends or permits it: another reaction is an allowed deviation.",
    Level.READING: "The document is silent or contradicts itself. This is how the tester reads it: another reaction is "
    "an allowed deviation.",
}
STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: .15em .8em; text-align: right; border-bottom: 1px solid #8884 }
td:first-child, th:first-child, td:nth-child(2) { text-align: left } td.some { font-weight: bold }
pre { overflow-x: auto; background: #8882; padding: .6em } pre b { color: #c33 }
section { padding-left: 1em; margin: 1.5em 0; border-left: 4px solid #c93 } section.fail { border-left-color: #c33 }
small { display: block; opacity: .7 } blockquote { margin: .6em 0; padding-left: 1em; border-left: 2px solid #8884 }
"""


def as_html(run: Run) -> str:
    """Return the run as one HTML page without anything from elsewhere: failures first, then what is allowed."""
    title = f"Conformance of {run.target} to {run.dialect}, as {run.role}"
    failures = [result for result in run.results if result.outcome is Outcome.FAIL]
    deviations = [result for result in run.results if result.outcome is Outcome.DEVIATION]
    others = [result for result in run.results if result.outcome is Outcome.NOT_APPLICABLE]
    parts = [
        "<!doctype html>",
        f"<html lang='en'><meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(run.began)}, by rsocket-trio {escape(version('rsocket-trio'))}. {_summary(run)}</p>",
        _table(run),
    ]
    if not failures and not deviations:
        parts.append("<p>Every case that applies passed.</p>")
    parts += _findings("Failures", "What the document demands is not so:", failures, run)
    parts += _findings(
        "Allowed deviations", "The document leaves these open, or another code is as good:", deviations, run
    )
    if again := [result for result in run.results if result.again and result.outcome is Outcome.PASS]:
        rows = "".join(
            f"<li><code>{escape(one.case.id)}</code>, at first: {escape(one.at_first)}</li>" for one in again
        )
        parts.append(f"<details><summary>Cases that passed at a later play</summary><ul>{rows}</ul></details>")
    if others:
        rows = "".join(f"<li><code>{escape(one.case.id)}</code>: {escape(one.why)}</li>" for one in others)
        parts.append(f"<details><summary>Cases that do not apply</summary><ul>{rows}</ul></details>")
    return "\n".join([*parts, "</html>", ""])


def _summary(run: Run) -> str:
    counts = {outcome: run.count(outcome) for outcome in Outcome}
    return (
        f"{counts[Outcome.PASS]} passed, {counts[Outcome.FAIL]} failed, "
        f"{counts[Outcome.DEVIATION]} allowed deviations, {counts[Outcome.NOT_APPLICABLE]} not applicable. "
        f"It took {cost(run)}."
    )


def _table(run: Run) -> str:
    head = "".join(f"<th>{outcome.value}</th>" for outcome in Outcome)
    rows = [f"<tr><th>chapter</th><th></th>{head}</tr>"]
    for name, counts in by_chapter(run).items():
        cells = "".join(
            f"<td class='some'>{counts[one]}</td>" if counts[one] and one in BROKEN else f"<td>{counts[one]}</td>"
            for one in Outcome
        )
        rows.append(f"<tr><td>{name}</td><td>{AREAS.get(name.rsplit('-', 1)[-1], '')}</td>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _findings(title: str, about: str, results: Sequence[Result], run: Run) -> list[str]:
    """Return the part of the page about results of one kind: a list of them, and a section for each."""
    if not results:
        return []
    results = sorted(results, key=lambda result: chapter_of(result.case))
    links = "".join(f"<li><a href='#{escape(one.case.id)}'>{escape(one.case.title)}</a></li>" for one in results)
    return [f"<h2>{title}</h2><p>{about}</p><ol>{links}</ol>", *(_section(result, run) for result in results)]


def _section(result: Result, run: Run) -> str:
    case = result.case
    kind = "fail" if result.outcome is Outcome.FAIL else "deviation"
    said = "".join(
        f"<blockquote>{escape(clause.rule or clause.gist)} <small>{clause.id}, {clause.level}</small>"
        f"<small>{escape(clause.source)}</small></blockquote>"
        for clause in clauses_of(case)
    )
    steps = "\n".join(
        f"<b>{escape(step.line)}</b>" if step.line == result.step else escape(step.line) for step in case.steps
    )
    frames = escape("\n".join(lines(case.dialect, result.record))) or "nothing"
    wire = escape("\n".join(hex_lines(result.record))) or "nothing"
    own = explanation(case.dialect, result.record)
    own = f"<p>The peer said: {escape(own)}</p>" if own else ""
    return (
        f"<section class='{kind}' id='{escape(case.id)}'><h3>{escape(case.title)}</h3>{own}{said}"
        f"<p><strong>{escape(result.why)}</strong>{_at_first(result)}</p>"
        f"<p>What passed, <code>&gt;</code> sent by the tester and <code>&lt;</code> received:</p><pre>{frames}</pre>"
        f"<details><summary>The bytes</summary><pre>{wire}</pre></details>"
        f"<details><summary>The case</summary><p><code>{escape(case.id)}</code>, {case.level.value}: "
        f"{LEVELS[case.level]}</p><pre>{steps}</pre>"
        f"<p>Again: <code>{escape(_command(result, run))}</code></p></details></section>"
    )


def _at_first(result: Result) -> str:
    """Return why the case was played more than once, if it was."""
    return f"<small>It was played again. At first: {escape(result.at_first)}</small>" if result.again else ""


def _command(result: Result, run: Run) -> str:
    """Return the command that plays the case again."""
    dialect = "" if run.dialect == "rsocket/1.0" else f" --dialect {run.dialect}"
    case = f"{dialect} --clause {result.case.id}"
    if run.role == "client":
        return f"rsocket-trio conformance --role client --listen tcp://127.0.0.1:0{case} -- {run.target}"
    return f"rsocket-trio conformance {shlex.quote(run.target)}{case}"


WRITERS: Final[Mapping[str, Callable[[Run], str]]] = {".html": as_html, ".json": as_json, ".xml": as_junit}
"""The writers of reports, by the endings of their files."""


def write(run: Run, path: Path) -> None:
    """Write the report that the ending of the file names. Raise ``OSError``."""
    path.write_text(WRITERS[path.suffix](run), "utf-8")
