"""Finds the exceptions inside of groups."""

from __future__ import annotations


def only_leaf(error: BaseException) -> BaseException:
    """Return the single exception inside of groups, or the first group that holds more than one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
