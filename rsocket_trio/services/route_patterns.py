"""Routes with parameters: their syntax, matching, formatting, and a table that finds the most specific pattern.

A pattern is the text of a route at registration. ``{name}`` is a parameter, ``{{`` and ``}}`` are literal braces. A
route that a caller or a peer sends is text as it is. Routes consist of segments separated by dots. A parameter matches
one or more characters of one segment, any but a dot: ``ticks.{symbol}`` matches ``ticks.ACME`` and ``ticks.a/b``, and
neither ``ticks.`` nor ``ticks.BRK.B``. A segment may mix parameters and text, as in ``v{major}-{minor}``; there an
earlier parameter takes as much as it can. These are the rules of Spring's route matcher for ``{name}``; its ``*`` and
regular expressions are plain text here. ``**`` alone is the catch-all: every route that no other pattern matches.
Behind a prefix, as in ``shop.**``, it is for routes that begin with ``shop.``; including alone makes such a pattern.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import attrs

from rsocket_trio.errors import readable
from rsocket_trio.values import value

T = TypeVar("T")

SEPARATOR = "."
"""The character between two segments of a route, which no parameter matches."""
CATCH_ALL = "**"
"""The route at registration that takes what nothing else matches."""


@value
class Segment:
    """The part of a pattern between two separators: literals, with a parameter between each two.

    A segment of one literal has no parameters. The first and the last literal may be empty, the others are not.
    """

    literals: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """The literal before the first parameter."""
        return self.literals[0]

    @property
    def suffix(self) -> str:
        """The literal after the last parameter."""
        return self.literals[-1]

    @property
    def is_literal(self) -> bool:
        """Return whether the segment has no parameters."""
        return len(self.literals) == 1

    @property
    def size(self) -> int:
        """The number of literal characters."""
        return sum(map(len, self.literals))

    def match(self, text: str) -> tuple[str, ...] | None:
        """Return the values of the parameters in ``text``, a segment of a route, or ``None`` if it does not match."""
        literals = self.literals
        first, last = literals[0], literals[-1]
        if len(literals) == 1:
            return () if text == first else None
        start, end = len(first), len(text) - len(last)
        if start >= end or not text.startswith(first) or not text.endswith(last):
            return None
        if len(literals) == 2:
            return (text[start:end],)
        # The last possible place of each literal, from the right, leaves the most to the parameters before it.
        values: list[str] = []
        for literal in literals[-2:0:-1]:
            at = text.rfind(literal, start + 1, end - 1)
            if at < 0:
                return None
            values.append(text[at + len(literal) : end])
            end = at
        values.append(text[start:end])
        values.reverse()
        return tuple(values)

    def includes(self, other: Segment) -> bool:
        """Return whether every text that matches ``other``, another segment, matches this one."""
        # A separator stands for each parameter of the other: no literal has one, so that only parameters match it.
        return self.match(SEPARATOR.join(other.literals)) is not None

    def common(self, other: Segment) -> str | None:
        """Return a text that matches this segment and ``other``, or ``None`` if there is none."""
        if self.is_literal or other.is_literal:
            one, both = (self, other) if self.is_literal else (other, self)
            return one.prefix if both.match(one.prefix) is not None else None
        prefix, suffix = (
            max(pair, key=len) for pair in zip(*((s.prefix, s.suffix) for s in (self, other)), strict=True)
        )
        if not all(prefix.startswith(s.prefix) and suffix.endswith(s.suffix) for s in (self, other)):
            return None
        # What stands between the first and the last parameter of one lies in a single parameter of the other.
        return "x".join((prefix, *self.literals[1:-1], *other.literals[1:-1], suffix))


@value
class RoutePattern:
    """A route with parameters, or a literal one: ``text`` as it was registered, its ``segments`` and ``parameters``.

    ``parameters`` are the names in their order. ``catches_all`` says that the pattern is a catch-all, and ``segments``
    are those of its prefix.
    """

    text: str
    segments: tuple[Segment, ...]
    parameters: tuple[str, ...]
    catches_all: bool = False

    @property
    def literal(self) -> str | None:
        """The route itself, without doubled braces; ``None`` if the pattern has parameters or is a catch-all."""
        return None if self.parameters or self.catches_all else self.prefix

    @property
    def prefix(self) -> str:
        """The text that routes of a catch-all begin with, ``""`` for all routes."""
        return SEPARATOR.join(segment.prefix for segment in self.segments)

    def match(self, route: str) -> dict[str, str] | None:
        """Return the values of the parameters in ``route``, that of a request, or ``None`` if it does not match."""
        if self.catches_all:
            return {} if route.startswith(self.prefix) else None
        if route.count(SEPARATOR) != len(self.segments) - 1:
            return None
        values: list[str] = []
        for segment, text in zip(self.segments, route.split(SEPARATOR), strict=True):
            found = segment.match(text)
            if found is None:
                return None
            values += found
        return dict(zip(self.parameters, values, strict=True))

    def format(self, /, **values: str) -> str:
        """Return the route of a request with these ``values`` of the parameters, by name.

        Raise ``ValueError`` for a missing value, a value without a parameter, and one with which the route would match
        otherwise: an empty one, one with a dot, or one that contains the text after its parameter. Raise ``TypeError``
        for one that is no ``str``.
        """
        for name in self.parameters:
            if name not in values:
                raise ValueError(f"route '{self.text}': no value for '{name}'")
        for name, given in values.items():
            if name not in self.parameters:
                raise ValueError(f"route '{self.text}' has no parameter '{name}'")
            if not isinstance(given, str):
                raise TypeError(f"route '{self.text}': '{name}' is {type(given).__name__}, not a str")
            if not given:
                raise ValueError(f"route '{self.text}': '{name}' is empty")
            if SEPARATOR in given:
                raise ValueError(f"route '{self.text}': '{name}' is {given!r}, with a '{SEPARATOR}'")
        names = iter(self.parameters)
        route = SEPARATOR.join(_filled(segment, names, values) for segment in self.segments)
        if self.match(route) != values:
            raise ValueError(f"route '{self.text}': {values} make '{route}', which reads as {self.match(route)}")
        return route

    def includes(self, other: RoutePattern) -> bool:
        """Return whether every route that matches ``other``, another pattern, matches this one."""
        return len(self.segments) == len(other.segments) and all(
            mine.includes(its) for mine, its in zip(self.segments, other.segments, strict=True)
        )


def _filled(segment: Segment, names: Iterator[str], values: dict[str, str]) -> str:
    return segment.prefix + "".join(values[next(names)] + literal for literal in segment.literals[1:])


class MethodRoute(str):
    """The route of a contract's method, as it is sent: ``pattern`` is the one that the contract declares."""

    __slots__ = ("pattern",)
    pattern: str

    def __new__(cls, route: str, pattern: str) -> MethodRoute:
        self = super().__new__(cls, route)
        self.pattern = pattern
        return self


# Parsing

TOKEN = re.compile(r"[^{}.]+|\{\{|\}\}|\{(?P<name>[^{}]*)\}|.")


def parse(route: str) -> RoutePattern:
    """Return the pattern that ``route``, the text of a route at registration, stands for.

    Raise ``ValueError``, which names the route and the position of the character, for an unmatched brace, a name that
    is empty, no identifier or there twice, for two parameters without text between them, and for ``**`` in a longer
    route.
    """
    if route == CATCH_ALL:
        return catch_all("")
    if CATCH_ALL in route:
        raise _wrong(route, route.index(CATCH_ALL), f"'{CATCH_ALL}' is a route by itself, and no part of a longer one")
    segments: list[list[str]] = [[""]]
    names: list[str] = []
    for found in TOKEN.finditer(route):
        token, name, at = found.group(), found.group("name"), found.start()
        literals = segments[-1]
        if name is not None:
            _check_name(route, at, name, names)
            if len(literals) > 1 and not literals[-1]:
                raise _wrong(route, at, "there is no text between two parameters")
            names.append(name)
            literals.append("")
        elif token == SEPARATOR:
            segments.append([""])
        elif token in ("{", "}"):
            raise _wrong(route, at, f"'{token}' has no partner; '{token}{token}' is a literal one")
        else:
            literals[-1] += token[0] if token in ("{{", "}}") else token
    return RoutePattern(route, tuple(Segment(tuple(literals)) for literals in segments), tuple(names))


def catch_all(prefix: str) -> RoutePattern:
    """Return the catch-all for routes that begin with ``prefix``, text of a registration: ``shop.**`` for ``shop.``.

    Raise ``ValueError`` for a prefix without a dot at its end.
    """
    if prefix and not prefix.endswith(SEPARATOR):
        raise ValueError(f"prefix '{prefix}' has no '{SEPARATOR}' at its end, and '{CATCH_ALL}' can't follow it")
    before = parse(prefix)
    return RoutePattern(prefix + CATCH_ALL, before.segments, before.parameters, catches_all=True)


def _check_name(route: str, at: int, name: str, names: Sequence[str]) -> None:
    if not name:
        raise _wrong(route, at, "a parameter needs a name; '{{' is a literal brace")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise _wrong(route, at, f"'{name}' is no identifier; '{{{{' is a literal brace")
    if name in names:
        raise _wrong(route, at, f"there are two parameters '{name}'")


def _wrong(route: str, position: int, text: str) -> ValueError:
    return ValueError(f"route '{readable(route)}', position {position}: {text}")


# The table


@attrs.define(eq=False)
class _Node(Generic[T]):
    """The patterns that begin with the same segments, by the next one."""

    literals: dict[str, _Node[T]] = attrs.field(factory=dict)
    # By the lengths of their prefix and suffix, and then by these: thousands of siblings take a few look-ups.
    others: dict[tuple[int, int], dict[tuple[str, str], list[tuple[Segment, _Node[T]]]]] = attrs.field(factory=dict)
    entry: tuple[RoutePattern, T] | None = None

    def children(self) -> Iterator[tuple[Segment, _Node[T]]]:
        """Return every next segment with its node."""
        for text, node in self.literals.items():
            yield Segment((text,)), node
        for group in self.others.values():
            for children in group.values():
                yield from children

    def child(self, segment: Segment) -> _Node[T]:
        """Return the node behind a segment, which is made if there is none."""
        if segment.is_literal:
            return self.literals.setdefault(segment.prefix, _Node())
        prefix, suffix = segment.prefix, segment.suffix
        children = self.others.setdefault((len(prefix), len(suffix)), {}).setdefault((prefix, suffix), [])
        for known, node in children:
            if known == segment:
                return node
        node = _Node[T]()
        children.append((segment, node))
        return node

    def insert(self, pattern: RoutePattern, value: T) -> None:
        """Add a value behind all segments of a pattern."""
        node = self
        for segment in pattern.segments:
            node = node.child(segment)
        node.entry = (pattern, value)

    def matching(self, text: str) -> list[tuple[tuple[str, ...], _Node[T]]]:
        """Return the nodes behind segments that a text matches, with its values, the most specific one last."""
        found: list[tuple[int, tuple[str, ...], _Node[T]]] = []
        size = len(text)
        for (before, after), group in self.others.items():
            if size > before + after:
                for segment, node in group.get((text[:before], text[size - after :]), ()):
                    values = segment.match(text)
                    if values is not None:
                        found.append((segment.size, values, node))
        if len(found) > 1:
            # Of two segments of which one includes the other, the included one has more literal characters.
            found.sort(key=lambda one: one[0])
        result = [(values, node) for _, values, node in found]
        literal = self.literals.get(text)
        if literal is not None:
            result.append(((), literal))
        return result


class PatternTable(Generic[T]):
    """Values by the pattern of a route; of several patterns that match, the most specific one counts.

    A pattern is more specific than another one if it matches only routes that the other matches. A route without
    parameters is the most specific. The time of a look-up does not depend on the number of patterns that differ from
    the route in the text at both ends of a segment, and grows in proportion to the length of the route. Catch-alls come
    last, the one with the longest prefix first.
    """

    def __init__(self) -> None:
        self._literals: dict[str, tuple[RoutePattern, T]] = {}
        self._roots: dict[int, _Node[T]] = {}
        self._catch_alls: dict[str, tuple[RoutePattern, T]] = {}

    def __iter__(self) -> Iterator[tuple[RoutePattern, T]]:
        """Return each pattern with its value, in no particular order."""
        yield from self._literals.values()
        for root in self._roots.values():
            yield from _entries(root)
        yield from self._catch_alls.values()

    def add(self, pattern: RoutePattern, value: T) -> None:
        """Add a ``value`` under a ``pattern``.

        Raise ``ValueError``, which names both patterns, if there is one that matches the same routes, or if a route can
        match both and neither is more specific.
        """
        if pattern.catches_all:
            self._add_catch_all(pattern, value)
            return
        literal = pattern.literal
        if literal is not None:
            if literal in self._literals:
                raise _taken(pattern, self._literals[literal][0])
            self._literals[literal] = (pattern, value)
            return
        root = self._roots.setdefault(len(pattern.segments), _Node())
        for other, route in _overlapping(root, pattern):
            wider, narrower = other.includes(pattern), pattern.includes(other)
            if wider and narrower:
                raise _taken(pattern, other)
            if not wider and not narrower:
                raise ValueError(
                    f"routes '{pattern.text}' and '{other.text}' both match '{route}', and neither is more specific"
                )
        root.insert(pattern, value)

    def _add_catch_all(self, pattern: RoutePattern, value: T) -> None:
        prefix = pattern.prefix
        if prefix in self._catch_alls:
            raise ValueError(f"there is a handler for '{pattern.text}' already")
        catch_alls = {**self._catch_alls, prefix: (pattern, value)}
        self._catch_alls = dict(sorted(catch_alls.items(), key=lambda entry: len(entry[0]), reverse=True))

    def copy(self) -> PatternTable[T]:
        """Return a table with the same values, which changes by itself."""
        result = PatternTable[T]()
        result._literals, result._catch_alls = dict(self._literals), dict(self._catch_alls)
        for depth, root in self._roots.items():
            for entry in _entries(root):
                result._roots.setdefault(depth, _Node()).insert(*entry)
        return result

    def find(self, route: str) -> tuple[T, dict[str, str]] | None:
        """Return the value of the most specific pattern that ``route``, the route of a request, matches.

        Return it with the values of the parameters by name, or return ``None`` if no pattern matches.
        """
        literal = self._literals.get(route)
        if literal is not None:
            return literal[1], {}
        match = self._find_by_segments(route)
        if match is not None:
            return match
        for prefix, (_, found) in self._catch_alls.items():
            if route.startswith(prefix):
                return found, {}
        return None

    def _find_by_segments(self, route: str) -> tuple[T, dict[str, str]] | None:
        # Without splitting routes of a peer that have more segments than any pattern.
        root = self._roots.get(route.count(SEPARATOR) + 1)
        if root is None:
            return None
        segments = route.split(SEPARATOR)
        waiting: list[tuple[_Node[T], int, tuple[str, ...]]] = [(root, 0, ())]
        while waiting:
            node, depth, values = waiting.pop()
            if depth == len(segments):
                assert node.entry is not None, "a node behind the last segment has an entry"
                pattern, value = node.entry
                return value, dict(zip(pattern.parameters, values, strict=True))
            for found, child in node.matching(segments[depth]):
                waiting.append((child, depth + 1, values + found))
        return None


def _taken(pattern: RoutePattern, other: RoutePattern) -> ValueError:
    return ValueError(f"route '{pattern.text}' matches the same as '{other.text}'")


def _entries(node: _Node[T]) -> Iterator[tuple[RoutePattern, T]]:
    if node.entry is not None:
        yield node.entry
    for _, child in node.children():
        yield from _entries(child)


def _overlapping(root: _Node[T], pattern: RoutePattern) -> Iterator[tuple[RoutePattern, str]]:
    """Return the patterns of a table that share routes with another one, each with such a route."""
    waiting: list[tuple[_Node[T], tuple[str, ...]]] = [(root, ())]
    while waiting:
        node, texts = waiting.pop()
        if len(texts) == len(pattern.segments):
            if node.entry is not None:
                yield node.entry[0], SEPARATOR.join(texts)
            continue
        segment = pattern.segments[len(texts)]
        if segment.is_literal:
            waiting += [(child, (*texts, segment.prefix)) for _, child in node.matching(segment.prefix)]
            continue
        for other, child in node.children():
            text = segment.common(other)
            if text is not None:
                waiting.append((child, (*texts, text)))
