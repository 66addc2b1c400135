"""Finds the exceptions inside of groups, and keeps failures apart from cancellations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


def only_leaf(error: BaseException) -> BaseException:
    """Return the single exception inside of groups, or the first group that holds more than one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def failures_told_to(hear: Callable[[Exception], object]) -> Iterator[None]:
    """Call a function with the exception that the block raises, and go on. ``Cancelled`` leaves the block, alone."""
    try:
        yield
    except Exception as error:
        hear(error)
    except BaseExceptionGroup as group:
        failures, others = group.split(Exception)
        if failures is not None:
            hear(failures)
        if others is not None:
            raise others from None
