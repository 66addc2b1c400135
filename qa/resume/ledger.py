"""Compares offered items with received ones: lost, duplicated, reordered, damaged, restarted."""

from __future__ import annotations

from collections import Counter

import attrs

from qa.items import LABEL, item
from rsocket_trio import Payload

Key = tuple[int, int]


@attrs.define
class Verdict:
    """Counts of faults by kind."""

    items: int
    damaged: int
    restarted: int
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0

    @property
    def is_clean(self) -> bool:
        """Return whether every item came once, in order and whole, and no handler began twice."""
        return not (self.lost or self.duplicated or self.reordered or self.damaged or self.restarted)


class Ledger:
    """Items offered and received, by stream and direction, and the handlers that began."""

    def __init__(self) -> None:
        self._offered: Counter[Key] = Counter()
        self._received: dict[Key, list[int]] = {}
        self._started: Counter[int] = Counter()
        self.damaged = 0

    @property
    def offered(self) -> int:
        """Items so far."""
        return self._offered.total()

    def offer(self, stream: int, direction: int) -> Payload:
        """The next item."""
        number = self._offered[stream, direction]
        self._offered[stream, direction] += 1
        return item(stream, direction, number)

    def offer_numbers(self, stream: int, direction: int, count: int) -> None:
        """So many items are offered by somebody who numbers them himself, from 0."""
        self._offered[stream, direction] += count

    def receive(self, payload: Payload) -> None:
        """An item came."""
        label = payload.metadata or b""
        if len(label) != LABEL.size:
            self.damaged += 1
            return
        stream, direction, number = LABEL.unpack(label)
        self.damaged += payload.data != item(stream, direction, number).data
        self.receive_number(stream, direction, number)

    def receive_number(self, stream: int, direction: int, number: int) -> None:
        """The item with this number came."""
        self._received.setdefault((stream, direction), []).append(number)

    def start(self, stream: int) -> None:
        """The handler of a stream begins."""
        self._started[stream] += 1

    def verdict(self) -> Verdict:
        """Return the verdict once nothing is under way any more."""
        verdict = Verdict(self.offered, self.damaged, self._started.total() - len(self._started))
        for key in self._offered.keys() | self._received.keys():
            due = set(range(self._offered[key]))
            seen: set[int] = set()
            latest = -1
            for number in self._received.get(key, []):
                if number in seen:
                    verdict.duplicated += 1
                elif number < latest:
                    verdict.reordered += 1
                seen.add(number)
                latest = max(latest, number)
            verdict.lost += len(due - seen)
            verdict.damaged += len(seen - due)
        return verdict
