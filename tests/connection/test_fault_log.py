"""The log of failures by itself: what is told apart, when repeats are logged, what a failure is called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from trio.testing import MockClock

from rsocket_trio.connection.fault_log import MAX_KINDS, REPEATS_INTERVAL, FailureLog, kind_of

WHERE = "a connection"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged since the last call; a traceback as the exception's text in brackets."""

    def since() -> list[str]:
        logged = [f"({record.exc_info[1]})" if record.exc_info else record.getMessage() for record in caplog.records]
        caplog.clear()
        return logged

    with caplog.at_level(logging.ERROR):
        yield since


def raised(error: BaseException) -> BaseException:
    """The same, with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def note(log: FailureLog, text: str, *, handler: int = 0) -> None:
    log.note(f"handler {handler}", raised(ValueError(text)), WHERE)


async def test_repeats_are_counted_and_logged_with_one_of_them_once_a_minute(
    lines: Callable[[], list[str]], autojump_clock: MockClock
) -> None:
    log = FailureLog()
    note(log, "first")
    assert lines() == ["(first)"]
    autojump_clock.jump(REPEATS_INTERVAL - 1)
    note(log, "again")
    assert lines() == []
    autojump_clock.jump(1)
    note(log, "again")
    (line,) = lines()
    assert line.startswith("failed again, 2 times: handler 0, ValueError at ")
    note(log, "again")
    assert lines() == []
    log.log_repeats()
    (line,) = lines()
    assert line.startswith("failed again, 1 time: handler 0, ValueError at ")
    log.log_repeats()
    assert lines() == []


async def test_beyond_so_many_kinds_new_ones_are_counted_together(lines: Callable[[], list[str]]) -> None:
    log = FailureLog()
    for handler in range(MAX_KINDS):
        note(log, f"{handler}", handler=handler)
    assert lines() == [f"({handler})" for handler in range(MAX_KINDS)]
    for handler in (MAX_KINDS, MAX_KINDS + 1, 7):
        note(log, "more", handler=handler)
    assert lines() == ["(more)"]
    log.log_repeats()
    known, others = lines()
    assert known.startswith("failed again, 1 time: handler 7, ")
    assert others == f"failed again, 1 time: handlers that failed in more than {MAX_KINDS} ways"


class Odd(Exception):
    """One of our own."""


def test_a_kind_is_the_type_with_its_module_and_the_line_that_raised() -> None:
    line = f"{__file__}:{raised.__code__.co_firstlineno + 3}"
    assert kind_of(raised(Odd())) == (f"{__name__}.Odd", line)
    assert kind_of(raised(ExceptionGroup("x", [raised(ValueError())]))) == ("ValueError", line)  # type: ignore[type-var]
    assert kind_of(ValueError("never raised")) == ("ValueError", "")
