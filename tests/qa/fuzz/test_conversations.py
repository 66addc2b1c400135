"""Whatever peers and applications say to a session, it reports events and keeps nothing longer than it needs."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from qa.fuzz.conversations import Talk, converse, talks
from qa.fuzz.spoken import NAMES, STREAMUX
from qa.fuzz.streamux_conversations import StreamuxTalk
from rsocket_trio.mux.events import ItemReceived, RequestReceived, SessionEnded, StreamFailed
from tests.each_row import ALL_CASES

SEED: Final = 1
RUNS: Final = 3_000 if ALL_CASES else 800


def test_conversations_that_go_wrong_leave_nothing_behind() -> None:
    assert list(converse(RUNS, SEED)) == []


def test_conversations_go_right_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[tuple[str, type]] = Counter()

    def counting(kind: Any) -> None:
        saw = kind.saw

        def look(talk: Any, events: list[Any]) -> None:
            seen.update((talk.session.dialect.name, type(event)) for event in events)
            saw(talk, events)

        monkeypatch.setattr(kind, "saw", look)

    counting(Talk)
    counting(StreamuxTalk)
    for _, talk in talks(600, SEED):
        talk.run()

    for name in (*NAMES, STREAMUX):
        for kind in (RequestReceived, ItemReceived, SessionEnded):
            assert seen[name, kind] >= 10, (name, kind)
        assert seen[name, SessionEnded] < 100
    assert all(seen[name, StreamFailed] for name in NAMES)


def test_a_conversation_can_be_repeated_by_its_seed() -> None:
    def heard(talk: Talk | StreamuxTalk) -> list[bytes]:
        talk.run()
        return talk.received

    first = [heard(talk) for _, talk in talks(12, SEED)]

    assert [heard(talk) for _, talk in talks(12, SEED)] == first
