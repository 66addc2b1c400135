"""What may stand between the fragments of one payload, and what waits until they are out."""

from __future__ import annotations

import pytest

from rsocket_trio.mux.outbox import FragmentSource, Outbox, StreamQueue

SIZE = 10
FIRST, SECOND, GRANT, LATER = (letter * SIZE for letter in (b"1", b"2", b"g", b"l"))


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(limit=1000, drained=lambda queue: None)


def test_an_entry_goes_right_behind_the_fragments_that_are_leaving(outbox: Outbox) -> None:
    queue = StreamQueue()
    outbox.put(queue, FragmentSource(iter((FIRST, SECOND)), 2 * SIZE))
    outbox.put(queue, LATER)
    assert outbox.take(SIZE) == [FIRST]

    assert outbox.put_behind_fragments(queue, FragmentSource(iter((GRANT,)), SIZE))

    assert outbox.size == 3 * SIZE
    assert outbox.take() == [SECOND, GRANT, LATER]
    assert outbox.size == 0


def test_where_no_fragment_is_out_yet_nothing_has_to_wait_for_them(outbox: Outbox) -> None:
    queue = StreamQueue()
    grant = FragmentSource(iter((GRANT,)), SIZE)
    assert not outbox.put_behind_fragments(queue, grant)

    outbox.put(queue, FragmentSource(iter((FIRST, SECOND)), 2 * SIZE))
    assert not outbox.put_behind_fragments(queue, grant)

    assert outbox.take() == [FIRST, SECOND]
    assert not outbox.put_behind_fragments(queue, grant)
