"""Events of sessions, as tests compare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rsocket_trio.mux.events import Event, ItemReceived, ItemsReceived


def one_by_one(events: Iterable[Event]) -> Iterator[Event]:
    """The same events, each with one item: how many a session tells of at once is its own matter."""
    for event in events:
        if isinstance(event, ItemsReceived):
            assert event.payloads
            yield from (ItemReceived(event.stream, payload, False) for payload in event.payloads)
        else:
            yield event
