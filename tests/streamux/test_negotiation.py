"""Two peers agree on the terms that the specification says, and on none where it says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.conformance.streamux_notation import Disagreed, agreed
from rsocket_trio.errors import NegotiationFailed
from rsocket_trio.streamux.negotiation import WILDCARD, Initialize, Terms, negotiate, quick_terms
from tests.each_row import ALL_CASES
from tests.rsocket.test_vectors import unhex

clause = pytest.mark.clause
PATH = Path(__file__).parent.parent / "conformance" / "vectors" / "streamux_1.txt"
KEYS = ("version", "qr", "qa", "min_id", "max_id", "rec_id", "min_len", "max_len", "rec_len", "reserved")

Numbers = tuple[int, int, int]
"""Min, max and recommended."""
Failed = Literal["failed"]


def offer(ids: Numbers, lengths: Numbers, **others: Any) -> Initialize:
    """A message as the specification's examples write it."""
    return Initialize(*ids, *lengths, **others)


GOOD = offer((6, 12, 8), (6, 20, 14))


def settled(a: Initialize, b: Initialize) -> tuple[int, int, str | None] | Failed:
    """Both widths, and whose quick init it was."""
    try:
        terms, quick = negotiate(a, b)
    except NegotiationFailed:
        return "failed"
    return terms.id_bits, terms.length_bits, quick


# The message: bytes written by hand mean what they say


@attrs.frozen
class Vector:
    """One message of the file: its bytes, its fields, and how the reason begins why no peer may offer it."""

    name: str
    clauses: tuple[str, ...]
    data: bytes
    content: dict[str, Any] | None = None
    error: str | None = None


def read() -> Iterator[Vector]:
    for block in re.split(r"\n\s*\n", PATH.read_text()):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        name, clauses = re.split(r" {4,}", lines.pop(0)[2:])
        error = lines.pop().removeprefix("error ") if lines[-1].startswith("error ") else None
        content = json.loads(lines.pop()) if lines and lines[-1].startswith("{") else None
        yield Vector(name, tuple(clauses.split()), unhex(lines), content, error)


VECTORS = list(read())


def rows(vectors: list[Vector]) -> list[Any]:
    return [pytest.param(vector, marks=clause(*vector.clauses), id=vector.name) for vector in vectors]


@pytest.mark.parametrize("vector", rows([vector for vector in VECTORS if vector.content]))
def test_the_bytes_of_a_message_have_the_published_meaning_both_ways(vector: Vector) -> None:
    message = Initialize.decode(vector.data)

    assert {key: getattr(message, key) for key in KEYS} == vector.content
    assert message.encode().hex(" ") == vector.data.hex(" ")


@pytest.mark.parametrize("vector", rows([vector for vector in VECTORS if vector.error is None]))
def test_a_message_with_every_number_in_its_range_may_be_offered(vector: Vector) -> None:
    Initialize.decode(vector.data).check()


@pytest.mark.parametrize("vector", rows([vector for vector in VECTORS if vector.error]))
def test_a_message_that_no_peer_may_offer_is_refused_with_its_field_and_value(vector: Vector) -> None:
    with pytest.raises(NegotiationFailed, match=f"^{vector.error}"):
        Initialize.decode(vector.data).check()


def test_no_two_vectors_share_a_name() -> None:
    assert len({vector.name for vector in VECTORS}) == len(VECTORS) > 30


@clause("SMX-INI-06")
def test_a_message_is_of_version_1_unless_it_says_otherwise() -> None:
    assert GOOD.version == 1
    assert GOOD.encode()[0] == 1


# fmt: off
WIDTHS = {
    "version": 8, "reserved": 2, "qr": 1, "qa": 1,
    "min_id": 4, "max_id": 5, "rec_id": 5,
    "min_len": 4, "max_len": 5, "rec_len": 5,
}
# fmt: on


def with_number(message: Initialize, field: str, number: int) -> Initialize:
    changed: Any = number
    return attrs.evolve(message, **{field: changed})


@clause("SMX-INI-03")
@pytest.mark.parametrize("field", WIDTHS)
def test_a_number_that_does_not_fit_its_field_is_not_written(field: str) -> None:
    for number in (-1, 1 << WIDTHS[field]):
        with pytest.raises(ValueError, match=f"^{field} of {number}: "):
            with_number(GOOD, field, number).encode()


@clause("SMX-INI-03")
@given(data=st.binary(min_size=5, max_size=5))
def test_any_five_bytes_are_read_and_written_again_the_same(data: bytes) -> None:
    assert Initialize.decode(data).encode() == data


# What a peer may offer


@clause("SMX-INI-05", "SMX-INI-08")
@pytest.mark.parametrize(
    ("ids", "lengths"),
    [
        ((0, 0, 0), (1, 1, 1)),
        ((0, 29, 0), (1, 30, 1)),
        ((0, 29, 29), (1, 30, 1)),
        ((0, 29, 0), (1, 30, 30)),
        ((15, 15, 15), (15, 15, 15)),
        ((15, 29, 15), (15, 30, 15)),
    ],
)
def test_the_ends_of_each_range_belong_to_it(ids: Numbers, lengths: Numbers) -> None:
    message = offer(ids, lengths)

    assert settled(message, message) == (ids[2], lengths[2], None)


# The specification's examples

EXAMPLES: list[tuple[str, tuple[str, ...], Initialize, Initialize, tuple[int, int, str | None] | Failed]] = [
    (
        "all parameters are compatible",
        ("SMX-EX-01",),
        offer((6, 12, 8), (6, 20, 14)),
        offer((6, 15, 7), (5, 15, 15)),
        (7, 14, None),
    ),
    (
        "max id < min id",
        ("SMX-EX-02", "SMX-NEG-04"),
        offer((6, 8, 8), (5, 12, 12)),
        offer((10, 15, 10), (5, 15, 15)),
        "failed",
    ),
    (
        "wildcard, initial negotiated values total > 30",
        ("SMX-EX-03", "SMX-NEG-05", "SMX-NEG-07", "SMX-INI-10"),
        offer((6, 16, 14), (6, 20, 31)),
        offer((6, 18, 15), (15, 18, 31)),
        (14, 16, None),
    ),
    (
        "all recommended values use wildcard",
        ("SMX-EX-04", "SMX-NEG-05", "SMX-INI-10"),
        offer((6, 16, 31), (6, 20, 31)),
        offer((6, 18, 31), (8, 15, 31)),
        (11, 12, None),
    ),
    (
        "peer A requests quick init, and peer B allows quick init",
        ("SMX-EX-05", "SMX-QI-03"),
        offer((8, 15, 8), (10, 18, 14), qr=True),
        offer((6, 18, 10), (8, 15, 10), qa=True),
        (8, 14, "a"),
    ),
    (
        "peer A requests quick init using values peer B doesn't support",
        ("SMX-EX-06", "SMX-QI-03", "SMX-QI-09"),
        offer((8, 15, 8), (10, 18, 16), qr=True),
        offer((6, 18, 10), (8, 15, 10), qa=True),
        "failed",
    ),
    (
        "peer B allows quick init, but peer A doesn't request quick init",
        ("SMX-EX-07", "SMX-QI-05"),
        offer((8, 15, 8), (10, 18, 14)),
        offer((6, 18, 10), (8, 15, 10), qa=True),
        (8, 10, None),
    ),
]


@pytest.mark.parametrize(
    ("a", "b", "result"), [pytest.param(*rest, marks=clause(*names), id=case) for case, names, *rest in EXAMPLES]
)
def test_an_example_of_the_specification_comes_out_as_it_says(
    a: Initialize, b: Initialize, result: tuple[int, int, str | None] | Failed
) -> None:
    assert settled(a, b) == result
    assert by_the_tester(a, b) == (result if result == "failed" else result[:2])


# The rules, one by one


@clause("SMX-NEG-03")
@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (1, 2, "version 1 against 2"),
        (2, 1, "version 2 against 1"),
        (2, 2, "version 2: spoken here is 1"),
        (255, 255, "version 255: spoken here is 1"),
    ],
)
def test_versions_that_differ_or_are_not_spoken_here_fail(a: int, b: int, reason: str) -> None:
    with pytest.raises(NegotiationFailed, match=f"^{reason}"):
        negotiate(attrs.evolve(GOOD, version=a), attrs.evolve(GOOD, version=b))


@clause("SMX-NEG-05")
@pytest.mark.parametrize(
    ("a", "b", "bits"),
    [
        ((2, 10, 4), (2, 10, 7), 4),  # the smaller
        ((2, 10, 31), (2, 10, 7), 7),  # one wildcard defers
        ((2, 10, 31), (4, 12, 31), 7),  # (10 - 4) / 2 + 4
        ((2, 11, 31), (4, 12, 31), 8),  # (11 - 4) / 2 + 4 is 7.5
        ((5, 5, 31), (5, 5, 31), 5),
    ],
)
def test_the_recommendation_is_the_smaller_or_the_others_or_the_middle_rounded_up(
    a: Numbers, b: Numbers, bits: int
) -> None:
    assert settled(offer(a, (5, 5, 5)), offer(b, (5, 5, 5))) == (bits, 5, None)
    assert settled(offer((5, 5, 5), a), offer((5, 5, 5), b)) == (5, bits, None)


SUMS = [
    # recommended   come to
    ((10, 20), (10, 20)),
    ((15, 15), (15, 15)),
    ((0, 30), (0, 30)),
    ((29, 1), (29, 1)),
    ((16, 16), (15, 15)),
    ((29, 30), (15, 15)),
    ((16, 17), (15, 15)),
    ((16, 15), (15, 15)),
    ((15, 16), (15, 15)),
    ((14, 17), (14, 16)),
    ((1, 30), (1, 29)),
    ((29, 2), (28, 2)),
    ((25, 10), (20, 10)),
]


@clause("SMX-NEG-07")
@pytest.mark.parametrize(("recommended", "agreed"), SUMS)
def test_more_than_30_bits_become_15_and_15_or_the_larger_gives_way(
    recommended: tuple[int, int], agreed: tuple[int, int]
) -> None:
    message = offer((0, 29, recommended[0]), (1, 30, recommended[1]))

    assert settled(message, message) == (*agreed, None)


@clause("SMX-QI-08")
@pytest.mark.parametrize(("recommended", "agreed"), SUMS)
def test_the_same_holds_in_a_quick_init_and_is_known_before_the_peer_has_spoken(
    recommended: tuple[int, int], agreed: tuple[int, int]
) -> None:
    asking = offer((0, 29, recommended[0]), (1, 30, recommended[1]), qr=True)
    allowing = offer((0, 29, 3), (1, 30, 3), qa=True)

    assert settled(asking, allowing) == (*agreed, "a")
    assert settled(allowing, asking) == (*agreed, "b")
    assert quick_terms(asking) == Terms(*agreed)


@clause("SMX-NEG-09")
@pytest.mark.parametrize(("least", "most", "octets"), [(1, 6, 1), (7, 14, 2), (15, 22, 3), (23, 30, 4)], ids=str)
def test_the_total_of_bits_tells_the_size_of_headers(least: int, most: int, octets: int) -> None:
    for total in range(least, most + 1):
        for length_bits in range(1, total + 1):
            assert Terms(total - length_bits, length_bits).header_size == octets


def test_the_caps_are_what_the_bits_can_count() -> None:
    assert (Terms(10, 14).id_cap, Terms(10, 14).length_cap) == (1024, 16383)


# Quick init: the specification's table, - where it does not matter

QUICK: list[tuple[str, str, str]] = [
    # A QR, B QR, A QA, B QA
    ("0 0 - -", "SMX-QI-05", "normal"),
    ("1 0 0 1", "SMX-QI-03", "values of a"),
    ("0 1 1 0", "SMX-QI-03", "values of b"),
    ("1 - - 0", "SMX-QI-05", "failed"),
    ("- 1 0 -", "SMX-QI-05", "failed"),
    ("1 1 - -", "SMX-QI-05", "failed"),
    ("1 - 1 -", "SMX-QI-01", "failed"),
    ("- 1 - 1", "SMX-QI-01", "failed"),
]
RESULTS: dict[str, tuple[int, int, str | None] | Failed] = {
    "normal": (8, 10, None),
    "values of a": (8, 14, "a"),
    "values of b": (10, 10, "b"),
    "failed": "failed",
}


def meant(row: str) -> Iterator[tuple[bool, ...]]:
    """Return what a row stands for: both, where it does not matter."""
    return product(*[{"0": (False,), "1": (True,), "-": (False, True)}[cell] for cell in row.split()])


@pytest.mark.parametrize(
    ("row", "result"), [pytest.param(row, result, marks=clause(name), id=row) for row, name, result in QUICK]
)
def test_a_row_of_the_table_of_quick_init_comes_out_as_it_says(row: str, result: str) -> None:
    for a_requests, b_requests, a_allows, b_allows in meant(row):
        a = offer((8, 15, 8), (10, 18, 14), qr=a_requests, qa=a_allows)
        b = offer((6, 18, 10), (8, 15, 10), qr=b_requests, qa=b_allows)

        assert settled(a, b) == RESULTS[result]


def test_the_table_of_quick_init_leaves_nothing_out() -> None:
    assert {flags for row, _, _ in QUICK for flags in meant(row)} == set(product((False, True), repeat=4))


@clause("SMX-QI-03")
@pytest.mark.parametrize(
    ("ids", "lengths", "reason"),
    [
        ((9, 15, 9), (1, 20, 10), "rec_id of 8 for a quick init: the other side has 9 to 15"),
        ((0, 7, 7), (1, 20, 10), "rec_id of 8 for a quick init: the other side has 0 to 7"),
        ((0, 15, 9), (15, 20, 15), "rec_len of 14 for a quick init: the other side has 15 to 20"),
        ((0, 15, 9), (1, 13, 10), "rec_len of 14 for a quick init: the other side has 1 to 13"),
    ],
)
def test_a_quick_init_with_what_the_other_side_can_not_do_fails_and_is_not_clamped(
    ids: Numbers, lengths: Numbers, reason: str
) -> None:
    asking = attrs.evolve(GOOD, qr=True)
    allowing = offer(ids, lengths, qa=True)

    for pair in ((asking, allowing), (allowing, asking)):
        with pytest.raises(NegotiationFailed, match=f"^{reason}"):
            negotiate(*pair)


# Any two messages, as the conformance tester has it from the document


def by_the_tester(a: Initialize, b: Initialize) -> tuple[int, int] | Failed:
    try:
        return tuple(agreed(a.encode(), b.encode()))  # type: ignore[return-value]
    except Disagreed:
        return "failed"


def some_messages(random: Random, count: int) -> Iterator[Initialize]:
    """Mostly what a peer may offer; every tenth has one field with any number that fits."""
    for index in range(count):
        qr, qa = random.choice([(False, False), (False, False), (False, True), (True, False)])
        wildcards = 0 if qr else 0.3
        message = offer(some_numbers(random, 0, 29, wildcards), some_numbers(random, 1, 30, wildcards), qr=qr, qa=qa)
        if index % 10 == 0:
            field = random.choice(list(WIDTHS))
            message = with_number(message, field, random.getrandbits(WIDTHS[field]))
        yield message


def some_numbers(random: Random, least: int, most: int, wildcards: float) -> Numbers:
    low = random.randint(least, random.choice([least + 3, 15]))
    high = random.randint(low, most)
    return low, high, WILDCARD if random.random() < wildcards else random.randint(low, high)


@clause(
    "SMX-NEG-01",
    "SMX-NEG-04",
    "SMX-NEG-05",
    "SMX-NEG-06",
    "SMX-NEG-07",
    "SMX-NEG-10",
    "SMX-INI-09",
    "SMX-QI-03",
    "SMX-QI-05",
)
def test_many_pairs_come_out_as_the_conformance_tester_says() -> None:
    random = Random(20190410)
    offered = list(some_messages(random, 5_000 if ALL_CASES else 1_000))
    seen = {"failed": 0, None: 0, "a": 0, "b": 0, "all 30 bits": 0}
    for _ in range(30_000 if ALL_CASES else 6_000):
        a, b = random.choice(offered), random.choice(offered)
        result = settled(a, b)
        seen["failed" if result == "failed" else result[2]] += 1
        seen["all 30 bits"] += result != "failed" and result[0] + result[1] == 30

        assert (result if result == "failed" else result[:2]) == by_the_tester(a, b), (a, b)
        if result != "failed":
            assert max(a.min_id, b.min_id) <= result[0], (a, b)
            assert max(a.min_len, b.min_len) <= result[1], (a, b)

    assert min(seen.values()) > 50, seen
