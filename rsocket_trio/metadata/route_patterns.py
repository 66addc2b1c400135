"""Routes with parameters: their syntax, matching, formatting, and a table that finds the most specific pattern.

A pattern is the text of a route at registration. Routes consist of segments separated by dots. The segment ``{name}``
is a parameter, ``{{`` and ``}}`` in others are literal braces. A route that a caller or a peer sends is text as it is.
A parameter matches a segment of one or more characters: ``ticks.{symbol}`` matches ``ticks.ACME`` and ``ticks.a/b``,
and neither ``ticks.`` nor ``ticks.BRK.B``. These are the rules of Spring's route matcher for segments that are
``{name}`` and nothing else; its ``*`` and regular expressions are plain text here. ``**`` alone is the catch-all: every
route that no other pattern matches. Behind a prefix, as in ``shop.**``, it is for routes that begin with ``shop.``;
including alone makes such a pattern.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from rsocket_trio.errors import readable
from rsocket_trio.values import value

T = TypeVar("T")

SEPARATOR = "."
"""The character between two segments of a route, which no parameter matches."""
CATCH_ALL = "**"
"""The route at registration that takes what nothing else matches."""
PARAMETER = re.compile(r"\{([^{}]*)\}")
BRACES = re.compile(r"\{\{|\}\}|[{}]")


@value
class RoutePattern:
    """A route with parameters, or a literal one: ``text`` as it was registered, its ``segments`` and ``parameters``.

    A segment is the text that matches it, ``None`` for a parameter; ``parameters`` are the names in their order.
    ``catches_all`` says that the pattern is a catch-all, and ``segments`` are those of its prefix.
    """

    text: str
    segments: tuple[str | None, ...]
    parameters: tuple[str, ...]
    catches_all: bool = False

    @property
    def literal(self) -> str | None:
        """The route itself, without doubled braces; ``None`` if the pattern has parameters or is a catch-all."""
        return None if self.parameters or self.catches_all else self.prefix

    @property
    def prefix(self) -> str:
        """The text that routes of a catch-all begin with, ``""`` for all routes."""
        return SEPARATOR.join(segment or "" for segment in self.segments)

    def match(self, route: str) -> dict[str, str] | None:
        """Return the values of the parameters in ``route``, that of a request, or ``None`` if it does not match."""
        if self.catches_all:
            return {} if route.startswith(self.prefix) else None
        if route.count(SEPARATOR) != len(self.segments) - 1:
            return None
        return self.match_segments(route.split(SEPARATOR))

    def match_segments(self, texts: Sequence[str]) -> dict[str, str] | None:
        """Return the same for a route of as many segments, which were split."""
        values: list[str] = []
        for segment, text in zip(self.segments, texts, strict=True):
            if segment is None and text:
                values.append(text)
            elif segment != text:
                return None
        return dict(zip(self.parameters, values, strict=True))

    def format(self, /, **values: str) -> str:
        """Return the route of a request with these ``values`` of the parameters, by name.

        Raise ``ValueError`` for one with which the route would match otherwise: an empty one, or one with a dot.
        """
        texts = iter([values[name] for name in self.parameters])
        route = SEPARATOR.join(next(texts) if segment is None else segment for segment in self.segments)
        if self.match(route) != values:
            raise ValueError(f"route '{self.text}': {values} make '{route}', which reads as {self.match(route)}")
        return route

    def includes(self, other: RoutePattern) -> bool:
        """Return whether every route that matches ``other``, of as many segments, matches this pattern."""
        pairs = zip(self.segments, other.segments, strict=True)
        return all((own is None and text != "") or own == text for own, text in pairs)

    def common(self, other: RoutePattern) -> str | None:
        """Return a route that matches this pattern and ``other``, of as many segments; ``None`` if there is none."""
        texts: list[str] = []
        for own, text in zip(self.segments, other.segments, strict=True):
            if own != text and (None not in (own, text) or "" in (own, text)):
                return None
            texts.append(own or text or ("x" if own is text is None else ""))
        return SEPARATOR.join(texts)


class MethodRoute(str):
    """The route of a contract's method, as it is sent: ``pattern`` is the one that the contract declares."""

    __slots__ = ("pattern",)
    pattern: str

    def __new__(cls, route: str, pattern: str) -> MethodRoute:
        self = super().__new__(cls, route)
        self.pattern = pattern
        return self


def parse(route: str) -> RoutePattern:
    """Return the pattern that ``route``, the text of a route at registration, stands for.

    Raise ``ValueError``, which names the route and the position of the character, for an unmatched brace, a name that
    is empty, no identifier or there twice, for a parameter beside text, and for ``**`` in a longer route.
    """
    if route == CATCH_ALL:
        return catch_all("")
    if CATCH_ALL in route:
        raise _wrong(route, route.index(CATCH_ALL), f"'{CATCH_ALL}' is a route by itself, and no part of a longer one")
    segments: list[str | None] = []
    names: list[str] = []
    position = 0
    for text in route.split(SEPARATOR):
        if parameter := PARAMETER.fullmatch(text):
            name = parameter[1]
            if not name.isidentifier() or keyword.iskeyword(name):
                raise _wrong(route, position, f"'{name}' is no identifier; '{{{{' is a literal brace")
            if name in names:
                raise _wrong(route, position, f"there are two parameters '{name}'")
            names.append(name)
            segments.append(None)
        else:
            for braces in BRACES.finditer(text):
                if len(brace := braces[0]) == 1:
                    beside = PARAMETER.match(text, braces.start())
                    fault = "is a parameter beside text, not a whole segment" if beside else "has no partner"
                    at = position + braces.start()
                    raise _wrong(
                        route, at, f"'{beside[0] if beside else brace}' {fault}; '{brace * 2}' is a literal one"
                    )
            segments.append(BRACES.sub(lambda braces: braces[0][0], text))
        position += len(text) + 1
    return RoutePattern(route, tuple(segments), tuple(names))


def catch_all(prefix: str) -> RoutePattern:
    """Return the catch-all for routes that begin with ``prefix``, text of a registration: ``shop.**`` for ``shop.``.

    Raise ``ValueError`` for a prefix without a dot at its end.
    """
    if prefix and not prefix.endswith(SEPARATOR):
        raise ValueError(f"prefix '{prefix}' has no '{SEPARATOR}' at its end, and '{CATCH_ALL}' can't follow it")
    before = parse(prefix)
    return RoutePattern(prefix + CATCH_ALL, before.segments, before.parameters, catches_all=True)


def _wrong(route: str, position: int, text: str) -> ValueError:
    return ValueError(f"route '{readable(route)}', position {position}: {text}")


class PatternTable(Generic[T]):
    """Values by the pattern of a route; of several patterns that match, the most specific one counts.

    A pattern is more specific than another one if it matches only routes that the other matches. A route without
    parameters is the most specific. The time of a look-up does not depend on the number of patterns whose parameters
    stand at the same places, and grows in proportion to the length of the route. Catch-alls come last, the one with the
    longest prefix first.
    """

    def __init__(self) -> None:
        self._literals: dict[str, tuple[RoutePattern, T]] = {}
        # By the number of segments, then by the places of the literal ones, then by their texts.
        self._patterns: dict[int, dict[tuple[int, ...], dict[tuple[str, ...], tuple[RoutePattern, T]]]] = {}
        self._catch_alls: dict[str, tuple[RoutePattern, T]] = {}

    def __iter__(self) -> Iterator[tuple[RoutePattern, T]]:
        """Return each pattern with its value, in no particular order."""
        yield from self._literals.values()
        for by_places in self._patterns.values():
            for by_texts in by_places.values():
                yield from by_texts.values()
        yield from self._catch_alls.values()

    def add(self, pattern: RoutePattern, value: T) -> None:
        """Add a ``value`` under a ``pattern``.

        Raise ``ValueError``, which names both patterns, if there is one that matches the same routes, or if a route can
        match both and neither is more specific.
        """
        if pattern.catches_all:
            if pattern.prefix in self._catch_alls:
                raise ValueError(f"there is a handler for '{pattern.text}' already")
            catch_alls = {**self._catch_alls, pattern.prefix: (pattern, value)}
            self._catch_alls = dict(sorted(catch_alls.items(), key=lambda entry: len(entry[0]), reverse=True))
            return
        if pattern.literal is not None:
            if pattern.literal in self._literals:
                raise _taken(pattern, self._literals[pattern.literal][0])
            self._literals[pattern.literal] = (pattern, value)
            return
        by_places = self._patterns.setdefault(len(pattern.segments), {})
        places = tuple(place for place, segment in enumerate(pattern.segments) if segment is not None)
        texts = tuple(segment for segment in pattern.segments if segment is not None)
        for others, by_texts in by_places.items():
            if others == places:
                if texts in by_texts:
                    raise _taken(pattern, by_texts[texts][0])
                continue
            for other, _ in by_texts.values():
                route = pattern.common(other)
                if route is not None and not other.includes(pattern) and not pattern.includes(other):
                    raise ValueError(
                        f"routes '{pattern.text}' and '{other.text}' both match '{route}', and neither is more specific"
                    )
        by_places.setdefault(places, {})[texts] = (pattern, value)
        # Those with more literal segments first: of two that match one route they are the more specific.
        self._patterns[len(pattern.segments)] = dict(sorted(by_places.items(), key=lambda entry: -len(entry[0])))

    def copy(self) -> PatternTable[T]:
        """Return a table with the same values, which changes by itself."""
        result = PatternTable[T]()
        for pattern, item in self:
            result.add(pattern, item)
        return result

    def find(self, route: str) -> tuple[T, dict[str, str]] | None:
        """Return the value of the most specific pattern that ``route``, the route of a request, matches.

        Return it with the values of the parameters by name, or return ``None`` if no pattern matches.
        """
        if route in self._literals:
            return self._literals[route][1], {}
        # Without splitting routes of a peer that have more segments than any pattern.
        by_places = self._patterns.get(route.count(SEPARATOR) + 1)
        if by_places is not None:
            segments = route.split(SEPARATOR)
            for places, by_texts in by_places.items():
                entry = by_texts.get(tuple(segments[place] for place in places))
                if entry is not None and (values := entry[0].match_segments(segments)) is not None:
                    return entry[1], values
        for prefix, (_, item) in self._catch_alls.items():
            if route.startswith(prefix):
                return item, {}
        return None


def _taken(pattern: RoutePattern, other: RoutePattern) -> ValueError:
    return ValueError(f"route '{pattern.text}' matches the same as '{other.text}'")
