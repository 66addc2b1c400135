"""Which batch was the last of each sink? What a ledger must remember, and what it may forget."""

from __future__ import annotations

import attrs

from rsocket_trio import Rejected

SINKS = 10_000
ONE_TIME_SINKS = 10_000
"""Sinks of one batch that are remembered, should their writers ask again; the oldest are forgotten."""


@attrs.define
class Sinks:
    """The last batch by sink: in ``lasting`` of those that go on, in ``one_time`` of those that never have another."""

    lasting: dict[str, int] = attrs.field(factory=dict)
    one_time: dict[str, int] = attrs.field(factory=dict)

    def last(self, sink: str) -> int | None:
        """The last batch of a sink, None before the first."""
        found = self.lasting.get(sink)
        return self.one_time.get(sink) if found is None else found

    def check_room(self, sink: str, once: bool) -> None:
        """Raise ``Rejected`` where one more would be too many."""
        if not once and len(self.lasting) >= SINKS and sink not in self.lasting:
            raise Rejected(f"{SINKS} sinks have committed: that is the limit, until Ledger.forget is told of one")

    def remember(self, sink: str, batch: int, once: bool) -> None:
        """A batch was promoted."""
        if not once or sink in self.lasting:
            self.one_time.pop(sink, None)
            self.lasting[sink] = batch
            return
        self.one_time[sink] = batch
        while len(self.one_time) > ONE_TIME_SINKS:
            del self.one_time[next(iter(self.one_time))]

    def forget(self, sink: str) -> None:
        """Nothing is known of a sink any more."""
        self.lasting.pop(sink, None)
        self.one_time.pop(sink, None)
