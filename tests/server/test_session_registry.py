"""Which waiting session ends when there are too many: the oldest, and before it whoever was never let in."""

from __future__ import annotations

from typing import Any, cast

from rsocket_trio import ConnectionLost, ResumeOptions
from rsocket_trio.server.session_registry import SessionRegistry


class Waiting:
    """A session that lost its transport."""

    is_over = False
    is_suspended = True
    lost: ConnectionLost | None = None

    def __init__(self, *, let_in: bool = True, kept: int = 0) -> None:
        self.is_accepted = let_in
        self.kept_bytes = kept

    @property
    def engine(self) -> Waiting:
        return self

    def lose(self, error: ConnectionLost) -> None:
        self.lost = error


def held(options: ResumeOptions, *sessions: Waiting) -> list[bool]:
    """Return which of these are still there once all of them wait."""
    book = SessionRegistry(options)
    for session in sessions:
        book.on_state(cast("Any", session))
    return [session.lost is None for session in sessions]


def test_above_their_number_the_one_that_waits_longest_ends() -> None:
    assert held(ResumeOptions(sessions=2), Waiting(), Waiting(), Waiting()) == [False, True, True]


def test_above_their_bytes_the_one_that_waits_longest_ends() -> None:
    options = ResumeOptions(sessions_bytes=100)

    assert held(options, Waiting(kept=60), Waiting(kept=30), Waiting(kept=30)) == [False, True, True]


def test_a_session_that_was_never_let_in_ends_before_one_that_was() -> None:
    rightful, first, second = Waiting(), Waiting(let_in=False), Waiting(let_in=False)

    assert held(ResumeOptions(sessions=2), rightful, first, second) == [True, False, True]
