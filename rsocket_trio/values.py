"""How values are declared and checked: frozen for the type checker, cheap at run time."""

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
    """The default of an argument, told from the same value that a caller gives by its class.

    It equals that value and is used as it is, where nothing else decides.
    """

    __slots__ = ()


class UnsaidNumber(Unsaid, int):
    """A whole number that nobody gave."""

    __slots__ = ()


class UnsaidText(Unsaid, str):
    """A text that nobody gave."""

    __slots__ = ()


def between(low: float, high: float = math.inf, *, whole: bool = False) -> Callable[[Any, Any, Any], None]:
    """A check for numbers of attrs classes: ``ValueError`` naming the field, the number and the bounds.

    ``whole`` asks for an ``int``. What is no number at all is a ``TypeError``.
    """

    def check(instance: object, attribute: Any, number: Any) -> None:
        if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
            kind = "a whole number" if whole else "a number"
            raise TypeError(f"{type(instance).__name__}.{attribute.name} is {kind}, not {type(number).__name__}")
        if not low <= number <= high:
            bounds = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:.10g}"
            raise ValueError(f"{type(instance).__name__}.{attribute.name} of {number}: must be {bounds}")

    return check
