"""Encodes and decodes the records of a ledger's journal, each a JSON object of one kind.

::

    {"decided": ...}     a batch is promoted, see ``Decision``
    {"done": ...}        its rows are in the log
    {"forgotten": sink}  nothing is known of a sink any more
    {"last": {sink: batch, ...}}, {"once": {...}}
                         the state when the journal began anew
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs

from rsocket_trio.replay.log import Element
from rsocket_trio.replay.segments import Segments


@attrs.frozen
class Decision:
    """A batch that is promoted: its attempts in order, and the positions where its rows begin and end by partition."""

    sink: str
    batch: int
    attempts: list[str]
    begins: dict[int, int]
    ends: dict[int, int]
    once: bool = False


def entry(kind: str, content: object) -> Element:
    """Return a record for the journal."""
    return Element(json.dumps({kind: content}).encode())


def read_journal(journal: Segments) -> Iterator[tuple[str, Any]]:
    """Yield the records of a journal, each with its kind."""
    position = journal.earliest
    while position < journal.latest:
        for record in journal.read(position):
            [(kind, content)] = json.loads(record.data).items()
            yield kind, content
            position = record.end


def decision_of(content: dict[str, Any]) -> Decision:
    """Return the decision that a record of the journal holds."""
    content |= {name: {int(key): number for key, number in content[name].items()} for name in ("begins", "ends")}
    return Decision(**content)
