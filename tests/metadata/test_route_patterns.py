"""Routes with parameters: what they match, how they are formatted, and which of several counts."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.metadata.route_patterns import PatternTable, RoutePattern, catch_all, parse


def escaped(text: str) -> str:
    """Return the text of a route at registration that stands for ``text`` as it is: its braces are doubled."""
    return text.replace("{", "{{").replace("}", "}}")


# What Spring's route matchers (dots between segments) say of the same patterns and routes.
SPRING = [
    ("chat", "chat", {}),
    ("orders.{id}", "orders.17", {"id": "17"}),
    ("orders.{id}", "orders", None),
    ("orders.{id}", "orders.", None),
    ("orders.{id}", "orders.17.items", None),
    ("orders.{id}.items", "orders.17.items", {"id": "17"}),
    ("orders.{id}.items.{item}", "orders.17.items.3", {"id": "17", "item": "3"}),
    ("{service}.{method}", "orders.place", {"service": "orders", "method": "place"}),
    ("ticks.{symbol}", "ticks.BRK/B", {"symbol": "BRK/B"}),
    ("ticks.{symbol}", "ticks.BRK.B", None),
    ("a*", "a*", {}),
    ("**", "orders.17", {}),
]


@pytest.mark.parametrize(("pattern", "route", "expected"), SPRING)
def test_a_pattern_matches_what_springs_matcher_matches(
    pattern: str, route: str, expected: dict[str, str] | None
) -> None:
    assert parse(pattern).match(route) == expected


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("chat", "chat"),
        ("a.{{b}}", "a.{b}"),
        ("{{{{", "{{"),
        ("}}{{", "}{"),
        ("orders.{id}", None),
    ],
)
def test_a_route_without_parameters_has_a_literal_text(text: str, literal: str | None) -> None:
    pattern = parse(text)

    assert pattern.literal == literal
    assert pattern.text == text
    if literal is not None:
        assert (pattern.parameters, pattern.match(literal), pattern.format()) == ((), {}, literal)


@pytest.mark.parametrize(
    ("route", "position", "text"),
    [
        ("orders.{id", 7, "'{' has no partner; '{{' is a literal one"),
        ("orders.id}", 9, "'}' has no partner; '}}' is a literal one"),
        ("a{b{c}", 1, "'{' has no partner"),
        ("{a}}", 0, "'{a}' is a parameter beside text, not a whole segment; '{{' is a literal one"),
        ("x.v{major}", 3, "'{major}' is a parameter beside text"),
        ("{a}{b}", 0, "'{a}' is a parameter beside text"),
        ("x.{}", 2, "'' is no identifier"),
        ("x.{1st}", 2, "'1st' is no identifier"),
        ("x.{id:int}", 2, "'id:int' is no identifier"),
        ("x.{class}", 2, "'class' is no identifier"),
        ("{id}.{id}", 5, "there are two parameters 'id'"),
        ("orders.**", 7, "'**' is a route by itself, and no part of a longer one"),
        ("**.place", 0, "'**' is a route by itself"),
        ("{id}.a**b", 6, "'**' is a route by itself"),
    ],
)
def test_a_wrong_pattern_is_refused_with_its_position(route: str, position: int, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"route '{route}', position {position}: {text}")):
        parse(route)


@pytest.mark.parametrize(("value", "reading"), [("", "None"), ("BRK.B", "None")])
def test_values_that_the_route_does_not_give_back_are_refused(value: str, reading: str) -> None:
    with pytest.raises(ValueError, match=f"make 'ticks.{value}', which reads as {reading}"):
        parse("ticks.{symbol}").format(symbol=value)


# Against plain regular expressions

NAMES = ("p", "q", "r")
LETTERS = st.text("ab{}", max_size=2)


@st.composite
def pattern_texts(draw: st.DrawFn, *, most_segments: int = 3) -> str:
    """Return patterns of a few segments."""
    names = iter(NAMES)
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=most_segments))
    return ".".join(f"{{{next(names)}}}" if is_parameter else escaped(draw(LETTERS)) for is_parameter in kinds)


def reference(pattern: RoutePattern) -> re.Pattern[str]:
    """Return the regular expression of a pattern."""
    names = iter(pattern.parameters)
    parts = (f"(?P<{next(names)}>[^.]+)" if segment is None else re.escape(segment) for segment in pattern.segments)
    return re.compile(re.escape(".").join(parts))


@given(pattern_texts(), st.text("ab{}.c", max_size=12))
def test_a_pattern_matches_as_a_regular_expression_does(text: str, route: str) -> None:
    pattern = parse(text)
    expected = reference(pattern).fullmatch(route)

    assert pattern.match(route) == (None if expected is None else expected.groupdict())


@given(pattern_texts(), st.data())
def test_what_is_formatted_matches_with_the_same_values(text: str, data: st.DataObject) -> None:
    pattern = parse(text)
    values = {name: data.draw(st.text("ab{}.c", max_size=4)) for name in pattern.parameters}
    try:
        route = pattern.format(**values)
    except ValueError:
        assert not all(value and "." not in value for value in values.values())
        return

    assert pattern.match(route) == values


@given(st.text("ab{}."))
def test_any_text_is_a_pattern_or_a_value_error(route: str) -> None:
    try:
        pattern = parse(route)
    except ValueError:
        assert {"{", "}"} & set(route)
    else:
        assert (pattern.literal is None) == bool(pattern.parameters)


# The table


def table_of(*patterns: str) -> PatternTable[str]:
    table: PatternTable[str] = PatternTable()
    for pattern in patterns:
        table.add(parse(pattern), pattern)
    return table


def test_the_most_specific_pattern_counts_in_any_order_of_registration() -> None:
    patterns = ("{a}.{b}", "orders.{id}", "orders.xyz", "{a}.{b}.{c}", "{a}.now.{c}")
    expected = {
        "users.1": ("{a}.{b}", {"a": "users", "b": "1"}),
        "orders.1": ("orders.{id}", {"id": "1"}),
        "orders.xyz": ("orders.xyz", {}),
        "orders.1.2": ("{a}.{b}.{c}", {"a": "orders", "b": "1", "c": "2"}),
        "orders.now.2": ("{a}.now.{c}", {"a": "orders", "c": "2"}),
        "orders": None,
        "orders.": None,
    }

    for order in itertools.permutations(patterns):
        table = table_of(*order)
        assert {route: table.find(route) for route in expected} == expected
        assert sorted(pattern.text for pattern, _ in table) == sorted(patterns)


def test_a_search_goes_back_to_a_parameter_where_the_literal_leads_nowhere() -> None:
    table = table_of("orders.new.{kind}.now", "orders.{id}.{what}.later")

    assert table.find("orders.new.x.later") == ("orders.{id}.{what}.later", {"id": "new", "what": "x"})


def test_a_catch_all_comes_behind_all_patterns_and_the_longest_prefix_first() -> None:
    patterns = [parse("**"), catch_all("shop."), catch_all("shop.eu."), catch_all("a{{b}}."), parse("shop.eu.{id}")]
    expected = {
        "": "**",
        "shop": "**",
        "shops.x": "**",
        "shop.": "shop.**",
        "shop.x": "shop.**",
        "shop..x": "shop.**",
        "shop.eu": "shop.**",
        "shop.eu.": "shop.eu.**",
        "shop.eu.1": "shop.eu.{id}",
        "shop.eu.1.2": "shop.eu.**",
        "a{b}.c": "a{{b}}.**",
        "a{{b}}.c": "**",
        "**": "**",
    }

    for order in itertools.permutations(patterns):
        table: PatternTable[str] = PatternTable()
        for pattern in order:
            table.add(pattern, pattern.text)
        for each in table, table.copy():
            assert {route: (each.find(route) or ("", {}))[0] for route in expected} == expected
            assert sorted(pattern.text for pattern, _ in each) == sorted(pattern.text for pattern in patterns)
    assert [pattern.literal for pattern in patterns] == [None] * len(patterns)


def test_two_catch_alls_of_one_prefix_are_refused() -> None:
    table: PatternTable[int] = PatternTable()
    table.add(catch_all("shop."), 1)
    table.add(parse("**"), 2)

    with pytest.raises(ValueError, match=re.escape("there is a handler for 'shop.**' already")):
        table.add(catch_all("shop."), 3)
    assert table.find("shop.x") == (1, {})


@pytest.mark.parametrize("prefix", ["shop", "shop.eu", "shop.**"])
def test_a_catch_all_follows_a_dot_only(prefix: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"prefix '{prefix}' has no '.' at its end, and '**' can't follow it")
    ):
        catch_all(prefix)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("orders.{id}", "orders.{number}", "route 'orders.{number}' matches the same as 'orders.{id}'"),
        ("orders", "orders", "route 'orders' matches the same as 'orders'"),
        ("{a}.x", "y.{b}", "routes 'y.{b}' and '{a}.x' both match 'y.x', and neither is more specific"),
    ],
)
def test_patterns_that_leave_a_choice_are_refused_by_name(first: str, second: str, text: str) -> None:
    table = table_of(first)

    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        table.add(parse(second), second)

    assert [(pattern.text, value) for pattern, value in table] == [(first, first)]


EVERY_ROUTE = ["".join(letters) for size in range(6) for letters in itertools.product("abc.", repeat=size)]


@given(st.lists(pattern_texts(most_segments=2), min_size=1, max_size=8), st.lists(st.text("ab{}.c", max_size=8)))
def test_a_table_finds_what_a_search_through_all_patterns_finds(texts: list[str], routes: list[str]) -> None:
    table: PatternTable[RoutePattern] = PatternTable()
    accepted: list[tuple[RoutePattern, re.Pattern[str]]] = []
    for pattern in map(parse, texts):
        try:
            table.add(pattern, pattern)
        except ValueError as error:
            said = re.fullmatch(
                r"routes '(.*)' and '(.*)' both match '(.*)', and neither is more specific", str(error), re.DOTALL
            )
            if said is None:
                assert any(one.segments == pattern.segments for one, _ in accepted)
            else:
                assert all(parse(text).match(said.group(3)) is not None for text in said.group(1, 2))
        else:
            accepted.append((pattern, reference(pattern)))

    for route in [*routes, *EVERY_ROUTE]:
        matching = {pattern.text: found for pattern, regex in accepted if (found := regex.fullmatch(route))}
        chosen = table.find(route)
        if chosen is None:
            assert not matching
            continue
        pattern, values = chosen
        assert matching[pattern.text].groupdict() == values
        assert all(other.includes(pattern) for other, _ in accepted if other.text in matching)
    assert {pattern.text for pattern, _ in table} == {pattern.text for pattern, _ in accepted}


@given(pattern_texts(most_segments=2), pattern_texts(most_segments=2))
def test_a_pattern_is_more_specific_when_the_other_matches_all_its_routes(one: str, other: str) -> None:
    narrow, wide = parse(one), parse(other)
    if len(narrow.segments) != len(wide.segments):
        return
    matched = [route for route in EVERY_ROUTE if reference(narrow).fullmatch(route)]

    if wide.includes(narrow):
        assert all(reference(wide).fullmatch(route) for route in matched)
    else:
        # The letter c is in no literal: a route with nothing else for the parameters shows the difference.
        witness = narrow.format(**dict.fromkeys(narrow.parameters, "c"))
        assert reference(wide).fullmatch(witness) is None


# What a look-up costs


def seconds_of(table: PatternTable[str], route: str) -> float:
    table.find(route)  # once, to warm up
    started = time.process_time()
    for _ in range(10):
        table.find(route)
    return (time.process_time() - started) / 10


LONG = 64 * 1024


@pytest.mark.parametrize(
    "route",
    [
        "{" * LONG,
        "{}" * (LONG // 2),
        "a." * (LONG // 2),
        "." * LONG,
    ],
    ids=lambda route: route[:8],
)
def test_a_route_of_64_kib_is_found_or_not_at_once(route: str) -> None:
    table = table_of("{a}.{b}.{c}.{d}", "orders.{a}", "{{}}")

    assert seconds_of(table, route) < 0.02
