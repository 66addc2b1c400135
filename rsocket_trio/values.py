"""Declaration of values, frozen for the type checker and cheap at run time, and checks of their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    # A frozen class costs four times as much to make, and frames are made for every item.
    from attrs import define as value

__all__ = ["Unsaid", "UnsaidNumber", "UnsaidText", "between", "value"]


class Unsaid:
    """The default of an argument, distinguished by its class from the same value given by a caller.

    It equals that value and is used as it is, if nothing else decides.
    """

    __slots__ = ()


class UnsaidNumber(Unsaid, int):
    """A whole number that is a default."""

    __slots__ = ()


class UnsaidText(Unsaid, str):
    """A text that is a default."""

    __slots__ = ()


def between(low: float, high: float = math.inf, *, whole: bool = False) -> Callable[[object, Any, Any], None]:
    """Return a check for numbers of attrs classes.

    The check raises ``ValueError`` naming the field, the number and the bounds, and ``TypeError`` for a value that is
    no number. ``whole`` asks for an ``int``.
    """

    def check(instance: object, attribute: Any, number: object) -> None:
        if isinstance(number, bool) or not isinstance(number, int | float) or (whole and not isinstance(number, int)):
            kind = "a whole number" if whole else "a number"
            raise TypeError(f"{type(instance).__name__}.{attribute.name} is {kind}, not {type(number).__name__}")
        if not low <= number <= high:
            bounds = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:.10g}"
            raise ValueError(f"{type(instance).__name__}.{attribute.name} of {number}: must be {bounds}")

    return check
