"""The kinds of requests that a load mixes, each with its weight, route and data, checked before the load starts."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from rsocket_trio.terms import MAX_REQUESTS

CLOSED = "closed"
"""Arrivals of a load without a rate."""
INTERACTIONS = ("response", "stream", "fnf", "channel")


@attrs.frozen(kw_only=True)
class Share:
    """One kind of request in a mix: ``weight`` of the sum of all weights are of it, drawn at random.

    ``name`` is what it is called in the results, by default ``interaction:route``. The other fields are those of a
    ``Plan``: ``interaction``, ``route``, ``data``, ``sizes``, ``items`` and ``take``. Raise ``ValueError`` that names
    an invalid one and the reason.
    """

    interaction: str = "response"
    """``response``, ``stream``, ``fnf`` or ``channel``."""
    route: str | None = None
    weight: float = 1.0
    data: bytes = b""
    """The data of each request."""
    sizes: tuple[int, ...] = ()
    """Sizes in bytes, instead of ``data``: each request carries random bytes of a size drawn from these."""
    items: int = 1
    """Payloads that a request of a channel sends; the first one opens it."""
    take: int | None = None
    """Items after which a stream or channel is cancelled and counts as answered; all by default."""
    name: str = attrs.field()

    @name.default
    def _name(self) -> str:
        return self.interaction if self.route is None else f"{self.interaction}:{self.route}"

    def __attrs_post_init__(self) -> None:
        one_of("interaction", self.interaction, INTERACTIONS)
        more_than_zero("weight", self.weight)
        count("items", self.items)
        count("take", self.take)
        if any(size < 0 for size in self.sizes):
            raise ValueError(f"sizes of {self.sizes}: each is 0 or more bytes")
        if self.data and self.sizes:
            raise ValueError("data and sizes exclude each other")
        if self.items > 1 and self.interaction != "channel":
            raise ValueError(f"items is for channels: a {self.interaction} sends one payload")
        if self.take is not None and self.interaction not in ("stream", "channel"):
            raise ValueError(f"take is for streams and channels: a {self.interaction} has no items")
        if "\t" in self.name or not self.name.isprintable():
            raise ValueError(f"share {self.name!r}: its name must be printable")


def check_names(shares: Sequence[Share]) -> None:
    """Raise ``ValueError`` for shares that could not be told apart in the results."""
    names = [share.name for share in shares]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"mix has {name} {names.count(name)} times: give each a name of its own")


def one_of(name: str, said: str, known: Sequence[str]) -> None:
    """Raise ``ValueError`` for a word that is not one of those known."""
    if said not in known:
        raise ValueError(f"{name} {said!r}: one of {', '.join(known)}")


def more_than_zero(name: str, number: float) -> None:
    """Raise ``ValueError`` for a number that is not finite and above 0."""
    if not 0 < number < float("inf"):
        raise ValueError(f"{name} of {number}: more than 0")


def count(name: str, number: int | None) -> None:
    """Raise ``ValueError`` for a number that counts nothing; ``None`` is right."""
    if number is not None and not 1 <= number <= MAX_REQUESTS:
        raise ValueError(f"{name} of {number}: a whole number from 1 on")
