"""The faults of a simulated network, and the bounds within which they are drawn."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Literal, TypeAlias

import attrs
from attrs.validators import and_, ge, le, min_len

Sizes: TypeAlias = tuple[int, int]
"""Bytes: the fewest and the most."""
Seconds: TypeAlias = tuple[float, float]
"""Seconds: the shortest and the longest."""
Side: TypeAlias = Literal["client", "server"]
End: TypeAlias = Literal["eof", "reset"]

SIDES: tuple[Side, ...] = ("client", "server")
ENDS: tuple[End, ...] = ("eof", "reset")


def _range(least: float) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], bounds: tuple[float, float] | None) -> None:
        if bounds is not None and not least <= bounds[0] <= bounds[1]:
            raise ValueError(f"Faults.{attribute.name} of {bounds}: a range (from, to) from {least} upwards")

    return check


CHANCE = and_(ge(0.0), le(1.0))


@attrs.frozen(kw_only=True)
class Faults:
    """The faults of a network. By default none: a write arrives at once, whole.

    Ranges are ``(from, to)``, both included; values are drawn from them with the network's seed. ``None`` is never.
    Sizes are drawn so that each order of magnitude is as likely as the next. Raise ``ValueError`` for an invalid range.
    """

    split: Sizes | None = attrs.field(default=None, validator=_range(1))
    """Bytes of the pieces that a write arrives in."""
    delay: Seconds | None = attrs.field(default=None, validator=_range(0))
    """Delay of each piece, and of each connect, in seconds."""
    stall: Seconds | None = attrs.field(default=None, validator=_range(0))
    """Delay of a stalled piece in seconds; all behind it wait."""
    stall_chance: float = attrs.field(default=0.02, validator=CHANCE)
    """Probability that a piece is stalled."""
    buffer: Sizes | None = attrs.field(default=None, validator=_range(1))
    """Bytes that may be under way in one direction; a writer waits beyond. Drawn for each direction."""
    vanish_after: Sizes | None = attrs.field(default=None, validator=_range(0))
    """Bytes in one direction after which all further ones vanish without an error: a half-open connection."""
    vanish_chance: float = attrs.field(default=1.0, validator=CHANCE)
    """Probability that this happens to a connection."""
    vanish_from: tuple[Side, ...] = attrs.field(default=SIDES, validator=min_len(1))
    """The sides whose bytes vanish: one of these is drawn."""
    cut_after: Sizes | None = attrs.field(default=None, validator=_range(0))
    """Bytes in one direction after which the connection is cut. The write that reaches it fails half-way."""
    cut_chance: float = attrs.field(default=1.0, validator=CHANCE)
    """Probability that this happens to a connection."""
    cut_from: tuple[Side, ...] = attrs.field(default=SIDES, validator=min_len(1))
    """The sides whose bytes are counted: one of these is drawn."""
    cut_with: tuple[End, ...] = attrs.field(default=ENDS, validator=min_len(1))
    """The end that readers get then: the end of the stream, or ``BrokenResourceError``."""
    cut_delivers: tuple[bool, ...] = attrs.field(default=(True, False), validator=min_len(1))
    """True if readers first get the bytes that are still under way: one of these is drawn."""
    refuse: float = attrs.field(default=0.0, validator=CHANCE)
    """Probability that a connect raises ``OSError``."""
    duplicate: float = attrs.field(default=0.0, validator=CHANCE)
    """Probability that the server sees a connect twice, each with the same first bytes of the client."""
    duplicate_bytes: Sizes = attrs.field(default=(0, 64), validator=_range(0))
    """Bytes that the second one gets before it is cut."""
    quiet_after: Seconds | None = attrs.field(default=None, validator=_range(0))
    """Seconds from the first connect after which all faults end. A connection that is half-open then stays so."""


NO_FAULTS = Faults()


def drawn_size(chance: Random, sizes: Sizes) -> int:
    """Return a size within the range, each order of magnitude as likely as the next."""
    least, most = sizes
    if least == most:
        return least
    return min(most, int(math.exp(chance.uniform(math.log(least + 1), math.log(most + 2)))) - 1)
