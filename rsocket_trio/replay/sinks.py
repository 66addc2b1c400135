"""The last promoted batch of each sink of a ledger, within bounds on the number of sinks remembered."""

from __future__ import annotations

import attrs

from rsocket_trio import Rejected

SINKS = 10_000
ONE_TIME_SINKS = 10_000
"""Limit of remembered sinks of one batch, whose writers may ask again; the oldest are forgotten."""


@attrs.define
class Sinks:
    """The last batch by sink: ``lasting`` holds sinks that go on, ``one_time`` those of a single batch."""

    lasting: dict[str, int] = attrs.field(factory=dict)
    one_time: dict[str, int] = attrs.field(factory=dict)

    def last(self, sink: str) -> int | None:
        """Return the last batch of a sink, ``None`` before the first."""
        found = self.lasting.get(sink)
        return self.one_time.get(sink) if found is None else found

    def check_room(self, sink: str, once: bool) -> None:
        """Raise ``Rejected`` if one more sink would exceed the limit."""
        if not once and len(self.lasting) >= SINKS and sink not in self.lasting:
            raise Rejected(f"{SINKS} sinks have committed: that is the limit, until Ledger.forget is told of one")

    def remember(self, sink: str, batch: int, once: bool) -> None:
        """Record a promoted batch. A sink of one batch is forgotten once too many others follow it."""
        if not once or sink in self.lasting:
            self.one_time.pop(sink, None)
            self.lasting[sink] = batch
            return
        self.one_time[sink] = batch
        while len(self.one_time) > ONE_TIME_SINKS:
            del self.one_time[next(iter(self.one_time))]

    def forget(self, sink: str) -> None:
        """Remove all that is known of a sink."""
        self.lasting.pop(sink, None)
        self.one_time.pop(sink, None)
