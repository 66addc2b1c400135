"""The log of failures by itself, with numbers for time: what is told apart, when repeats are told, what is kept."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator

import pytest

from rsocket_trio.connection.deadlines import Deadlines
from rsocket_trio.connection.fault_log import DIFFERENT, NAMED, FailureLog, kind_of

WHERE = "a connection"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged since it was asked last; a traceback as the exception's text in brackets."""

    def since() -> list[str]:
        lines = [f"({record.exc_info[1]})" if record.exc_info else record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    with caplog.at_level(logging.ERROR):
        yield since


def raised(error: BaseException) -> BaseException:
    """The same, with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def note(log: FailureLog, text: str, now: float, deadlines: Deadlines | None = None, *, handler: int = 0) -> None:
    log.note(handler, f"handler {handler}", raised(ValueError(text)), WHERE, now, deadlines)


def test_a_repeat_within_a_minute_waits_for_its_end_and_one_later_is_told_at_once(
    told: Callable[[], list[str]],
) -> None:
    log, deadlines = FailureLog(), Deadlines()
    note(log, "first", 100)
    assert told() == ["(first)"]
    note(log, "again", 159, deadlines)
    assert (told(), log.due) == ([], 160)
    log.expire(159.9)
    assert told() == []
    log.expire(160)
    (line,) = told()
    assert line.startswith("handlers failed again, 1 time: 1 time handler 0, ValueError at ")
    assert log.due == math.inf
    note(log, "again", 219, deadlines)
    assert log.due == 220
    log.expire(220)
    assert len(told()) == 1
    note(log, "again", 280, deadlines)
    assert len(told()) == 1


def test_a_new_failure_makes_no_line_about_others_come_sooner_or_later(told: Callable[[], list[str]]) -> None:
    log, deadlines = FailureLog(), Deadlines()
    note(log, "first", 0, deadlines)
    note(log, "second", 50, deadlines, handler=1)
    note(log, "second again", 55, deadlines, handler=1)
    assert log.due == 110
    note(log, "first again", 58, deadlines)
    assert log.due == 60
    told()
    log.expire(60)
    (line,) = told()
    assert line.startswith("handlers failed again, 2 times: ")
    note(log, "second again", 61, deadlines, handler=1)
    assert log.due == 120


def test_a_repeat_is_told_by_the_next_one_where_nobody_rang(told: Callable[[], list[str]]) -> None:
    log = FailureLog()
    note(log, "first", 0)
    note(log, "again", 1)
    told()
    note(log, "again", 61)
    (line,) = told()
    assert line.startswith("handlers failed again, 2 times: ")


def test_timers_that_are_gone_are_left_for_others(told: Callable[[], list[str]]) -> None:
    log, gone, deadlines = FailureLog(), Deadlines(), Deadlines()
    note(log, "first", 0)
    note(log, "again", 1, gone)
    assert (len(gone), len(deadlines)) == (1, 0)
    note(log, "again", 2, deadlines)
    assert (len(gone), len(deadlines)) == (0, 1)
    log.log_repeats(3)
    assert (len(gone), len(deadlines)) == (0, 0)
    assert len(told()) == 2
    log.log_repeats(4)
    assert told() == []


def test_a_ring_that_comes_too_soon_is_set_again() -> None:
    log, deadlines = FailureLog(), Deadlines()
    note(log, "first", 0)
    note(log, "again", 10, deadlines)
    deadlines.clear(log)
    log.expire(59)
    assert log.due == 60


def test_a_line_names_those_that_came_most_often(told: Callable[[], list[str]]) -> None:
    log = FailureLog()
    for handler in range(NAMED + 2):
        for _ in range(handler + 2):
            note(log, "x", 0, handler=handler)
    told()
    log.log_repeats(60)
    (line,) = told()
    assert line.startswith("handlers failed again, 55 times: 10 times handler 9, ValueError at ")
    assert line.count(" times handler ") == NAMED
    assert line.endswith("; 3 times 2 more")


def test_beyond_so_many_new_failures_are_counted_and_those_that_are_known_go_on(
    told: Callable[[], list[str]],
) -> None:
    log = FailureLog()
    for handler in range(DIFFERENT):
        note(log, f"{handler}", 0, handler=handler)
    assert told() == [f"({handler})" for handler in range(DIFFERENT)]
    note(log, "one more", 0, handler=DIFFERENT)
    (line,) = told()
    assert line.startswith("'a connection': handler 256 failed, ValueError at ")
    assert line.endswith("; handlers failed in 256 ways before: further new ones are only counted")
    for handler in (7, DIFFERENT + 1, DIFFERENT):
        note(log, "again", 1, handler=handler)
    assert told() == []
    log.log_repeats(2)
    (line,) = told()
    assert line.startswith("handlers failed again, 3 times: 2 times others; 1 time handler 7, ")


def test_lines_are_that_which_raised_and_that_of_the_handler_which_led_there() -> None:
    def parse(text: str) -> int:
        return int(text)

    def handler(text: str) -> int:
        return parse(text)

    with pytest.raises(ValueError, match="invalid literal") as caught:
        handler("x")
    here = sys._getframe().f_lineno - 1
    raised_at = parse.__code__.co_firstlineno + 1
    assert kind_of(caught.value) == ("ValueError", f"{__file__}:{here}", f"{__file__}:{raised_at}")
    assert kind_of(ValueError("never raised")) == ("ValueError", "", "")


def test_groups_are_told_by_what_they_hold_in_whatever_order() -> None:
    errors: list[Exception] = []
    for make in (ValueError, KeyError, OSError):
        try:
            raise make("x")
        except Exception as error:
            errors.append(error)
    one, other = (raised(ExceptionGroup("x", those)) for those in (errors, errors[::-1]))
    assert kind_of(one) == kind_of(other)
    assert kind_of(one)[0] == "ExceptionGroup of KeyError, OSError, ValueError"
    nested = raised(ExceptionGroup("y", [one]))  # type: ignore[type-var]
    assert kind_of(nested)[0] == kind_of(one)[0]


class Odd(Exception):
    """One of our own."""


def test_a_type_is_named_with_its_module() -> None:
    assert kind_of(raised(Odd()))[0] == f"{__name__}.Odd"
