"""Finds the exceptions inside of groups, and keeps failures apart from cancellations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


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


@asynccontextmanager
async def nursery_beside(leave: Callable[[trio.Nursery], object]) -> AsyncIterator[trio.Nursery]:
    """Provide a nursery for tasks beside the block; ``leave`` is called behind it, and has them end.

    The error of the block leaves alone, in no group, once they have ended. So does the error of a single task.
    """
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as exc:
                # Kept until the nursery has ended: raised inside it would leave in a group.
                error = exc
            leave(nursery)
    except BaseExceptionGroup as group:
        leaf = only_leaf(group)
        raise leaf from leaf.__cause__
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
