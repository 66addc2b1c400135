"""Which waiting session ends when there are too many: the oldest, and before it whoever was never let in."""

from __future__ import annotations

from typing import Any, cast

import trio
import trio.testing

from rsocket_trio import ConnectionClosed, ConnectionLost, Payload, ResumeOptions
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.resumption import ResumedTransport
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.resume_positions import ResumeRequest
from rsocket_trio.rsocket.stream_table import Stream
from rsocket_trio.server.session_registry import ResumableConnection, SessionRegistry
from rsocket_trio.transports.memory import memory_pair


class Waiting:
    """A session that lost its transport."""

    is_over = False

    def __init__(self, *, let_in: bool = True, kept: int = 0) -> None:
        self.is_suspended = True
        self.is_accepted = let_in
        self.kept = kept
        self.looked_at = 0
        self.token: bytes | None = None
        self.lost: ConnectionLost | None = None
        self.left: ConnectionClosed | None = None

    @property
    def kept_bytes(self) -> int:
        self.looked_at += 1
        return self.kept

    @property
    def engine(self) -> Waiting:
        return self

    def lose(self, error: ConnectionLost) -> None:
        self.lost = error

    def end(self, closed: ConnectionClosed) -> None:
        self.left = closed

    def check(self, back: ResumeRequest) -> None:
        """Its client may come back."""

    def adopt(self, back: ResumeRequest, arrival: ResumedTransport) -> None:
        self.is_suspended = False


def as_resumable(session: Waiting) -> ResumableConnection:
    return cast("ResumableConnection", cast("Any", session))


def held(options: ResumeOptions, *sessions: Waiting) -> list[bool]:
    """Return which of these are still there once all of them wait."""
    book = SessionRegistry(options)
    for session in sessions:
        book.on_state(as_resumable(session))
    return [session.lost is None for session in sessions]


def test_above_their_number_the_one_that_waits_longest_ends() -> None:
    assert held(ResumeOptions(sessions=2), Waiting(), Waiting(), Waiting()) == [False, True, True]


def test_above_their_bytes_the_one_that_waits_longest_ends() -> None:
    options = ResumeOptions(sessions_bytes=100)

    assert held(options, Waiting(kept=60), Waiting(kept=30), Waiting(kept=30)) == [False, True, True]


def test_a_session_that_was_never_let_in_ends_before_one_that_was() -> None:
    rightful, first, second = Waiting(), Waiting(let_in=False), Waiting(let_in=False)

    assert held(ResumeOptions(sessions=2), rightful, first, second) == [True, False, True]


async def test_what_one_session_queues_is_no_reason_to_look_at_all() -> None:
    book = SessionRegistry(ResumeOptions(sessions_bytes=1000))
    waiting = [Waiting(kept=1) for _ in range(100)]
    for session in waiting:
        book.on_state(as_resumable(session))
    for number in range(50):
        waiting[7].kept += 2
        book.on_growth(as_resumable(waiting[7]))
        await trio.testing.wait_all_tasks_blocked()
        assert waiting[7].looked_at == number + 2

    assert sum(session.looked_at for session in waiting) == 150


async def test_the_sum_follows_every_session() -> None:
    book = SessionRegistry(ResumeOptions(sessions_bytes=1000))
    _, second, third = sessions = [Waiting(kept=300) for _ in range(3)]
    for session in sessions:
        book.on_state(as_resumable(session))
    # One comes back, and what it keeps then is nobody's trouble here.
    second.is_suspended = False
    book.on_state(as_resumable(second))
    second.kept = 5000
    book.on_growth(as_resumable(second))
    third.kept = 700
    book.on_growth(as_resumable(third))
    await trio.testing.wait_all_tasks_blocked()
    assert [session.lost for session in sessions] == [None, None, None]

    third.kept = 701
    book.on_growth(as_resumable(third))
    await trio.testing.wait_all_tasks_blocked()
    assert [session.lost is not None for session in sessions] == [True, False, False]


async def test_what_shrank_since_it_was_looked_at_costs_nobody_the_session() -> None:
    book = SessionRegistry(ResumeOptions(sessions_bytes=1000))
    first, second = Waiting(kept=900), Waiting(kept=50)
    for session in (first, second):
        book.on_state(as_resumable(session))
    first.kept = 100
    second.kept = 500
    book.on_growth(as_resumable(second))
    await trio.testing.wait_all_tasks_blocked()

    assert first.lost is second.lost is None


async def test_a_session_whose_client_is_back_is_not_ended_with_those_that_wait() -> None:
    book = SessionRegistry(ResumeOptions())
    back, away = Waiting(), Waiting()
    for token, session in ((b"back", back), (b"away", away)):
        assert book.claim(as_resumable(session), token)
        book.on_state(as_resumable(session))

    book.resume(ResumeRequest(b"back", (1, 0), 0), memory_pair()[0], ())
    book.close()

    assert (back.left, book.waiting) == (None, 1)
    assert away.left is not None


class Busy:
    """A link in the middle of a write, and whatever else an engine has, all of which does nothing."""

    is_awake = True
    finished = 0

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object) -> tuple[()]:
        return ()

    def send_item(self, stream: object, payload: Payload, *, complete: bool) -> None:
        """Nothing is sent."""


def test_what_is_answered_while_the_lost_link_still_writes_counts_as_growth() -> None:
    grown: list[bool] = []
    engine = Engine.__new__(Engine)
    engine._commands = cast("Any", Busy())
    engine.link = engine.session = engine.workers = engine.faults = cast("Any", Busy())
    engine.ended, engine.is_suspended, engine.on_state, engine._finished = None, False, (), 0
    engine._dispatcher = cast("Any", Busy())
    engine.watch_growth(lambda: grown.append(True))
    engine.replace_link(ConnectionLost("reset"))
    grown.clear()

    engine.answer(Stream(1, Interaction.REQUEST_RESPONSE, 0, requester=False), Payload(b"x"))

    assert grown == [True]
