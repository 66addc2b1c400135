"""Every clause is found in its document, by heading and words; the documents themselves are not in the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rsocket_trio.conformance.catalogue import TERMS, Clause, clauses

VARIABLE = "RSOCKET_TRIO_SPECIFICATIONS"
"""Names a folder with the documents as text, in files of any names."""
MARKS = {
    "RS00": "current version is 0.",
    "RS01": "current version of the protocol is 0.1",
    "RS02": "current version of the protocol is 0.2",
    "RSX": "extension flags on setup",
    "SMX": "a minimalist, asynchronous, multiplexing",
}
"""What each document says and no other one here, by the first letters of its clauses."""
MOST_WORDS = 4
CLAUSES = list(clauses().values())


def test_a_clause_has_a_place_unless_it_is_a_reading() -> None:
    assert [clause.id for clause in CLAUSES if not clause.words and clause.level != "READING"] == []
    assert all(bool(clause.words) == bool(clause.heading) for clause in CLAUSES)


def test_a_clause_of_a_section_has_a_place() -> None:
    # What the draft with extensions leaves open stands in sections of this catalogue.
    of_sections = [clause for clause in CLAUSES if clause.section != "-" and not clause.id.startswith("RSX-")]

    assert [clause.id for clause in of_sections if not clause.words] == []


def test_a_place_is_a_few_words() -> None:
    assert [clause.id for clause in CLAUSES if len(clause.words.split()) > MOST_WORDS] == []


def test_every_clause_of_a_document_says_its_whole_rule() -> None:
    # Quirks of peers are as their gists say.
    assert [clause.id for clause in CLAUSES if not clause.rule and not clause.id.startswith("QRK-")] == []


def test_every_clause_says_where_it_stands() -> None:
    found = clauses()

    assert found["RS01-UNX-10"].source == (
        'ReactiveSocket Protocol 0.1, Handling the Unexpected: "Receiving a CANCEL on ..."'
    )
    assert found["RS10-CON-03"].source == "RSocket Protocol 1.0 leaves it open"
    assert found["ALL-RCT-01"].source == "of no document: how this tester reads them all"
    assert {clause.id.partition("-")[0] for clause in CLAUSES if not clause.document} == {"ALL", "DET", "QRK"}
    assert set(MARKS) <= set(TERMS["documents"])


@pytest.mark.parametrize("document", MARKS)
def test_each_place_is_in_its_document(document: str) -> None:
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no folder with the documents, which are not ours to publish")
    paths = sorted(Path(os.environ[VARIABLE]).glob("*.txt"))
    texts = [text for path in paths if MARKS[document] in (text := readable_text(path))]

    assert len(texts) == 1
    assert [clause.id for clause in CLAUSES if is_of(clause, document) and not is_in(clause, texts[0])] == []


def is_of(clause: Clause, document: str) -> bool:
    return bool(clause.words) and clause.id.startswith(f"{document}-")


def is_in(clause: Clause, text: str) -> bool:
    """Return whether the words stand behind the heading somewhere."""
    return folded(clause.words) in text.partition(folded(clause.heading))[2]


def readable_text(path: Path) -> str:
    """Return the text of a document without what marks it up."""
    text = re.sub(r"^\s*(?:[*•-]|\d+\.)\s+", "", path.read_text("utf-8"), flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return folded(text)


def folded(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"[*_`|#]", "", text)).strip().lower()
