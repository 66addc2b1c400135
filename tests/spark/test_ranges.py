"""Positions: limits, splits and offsets, which depend on nothing but their arguments."""

from __future__ import annotations

import json
import random

import pytest

from rsocket_trio.replay.elements import Bounds
from rsocket_trio.spark.errors import CheckpointError
from rsocket_trio.spark.ranges import (
    PositionMap,
    Range,
    advance,
    first_of,
    from_offset,
    parse_bounds,
    resolve,
    split,
    to_offset,
)

BOUNDS = {("", 0): Bounds(5, 20), ("", 1): Bounds(0, 7)}


def at(positions: dict[int, int], route: str = "") -> PositionMap:
    """Positions by partition, as those of the query's only route."""
    return {(route, partition): position for partition, position in positions.items()}


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"[]", b"{}", b'{"0": 1}', b'{"0": {"earliest": 1}}', b'{"a": {"earliest": 0, "latest": 1}}'),
        *(b'{"0": {"earliest": 2, "latest": 1}}', b'{"0": {"earliest": -1, "latest": 1}}', b"\xff"),
        *(b'{"0": {"earliest": 0, "latest": Infinity}}', b'{"0": {"earliest": 0, "latest": 1e400}}'),
        *(b'{"0": {"earliest": 0, "latest": 1.5}}', b'{"0": {"earliest": false, "latest": true}}'),
        *(b'{"00": {"earliest": 0, "latest": 1}}', b'{"0": {"earliest": 0, "latest": 9223372036854775808}}'),
        b'{"0":' * 100_000,
    ],
)
def test_what_is_no_answer_about_partitions_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"partition|answer"):
        parse_bounds(answer)


# Offsets


def test_the_end_of_a_first_batch_says_where_it_begins() -> None:
    offset = json.loads(json.dumps(to_offset("print", at({0: 7}), at({0: 3}))))

    assert offset == {"v": 1, "f": "print", "p": {"0": 7}, "i": {"0": 3}}
    assert from_offset(offset, "print") == at({0: 7})
    assert first_of(offset, "print") == at({0: 3})
    assert first_of(to_offset("print", at({0: 7})), "print") is None


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"v": 3, "f": "print", "p": {"0": 1}}, "version 3, known are 1 and 2"),
        ({"v": 1, "f": "print", "p": {"a": {"0": 1}}}, "not as in its version"),
        ({"v": 1, "f": "other", "p": {"0": 1}}, "other options.*checkpointLocation"),
        ({"v": 1, "f": "print"}, "can't be read"),
    ],
)
def test_an_offset_of_others_is_refused(offset: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        from_offset(offset, "print")


def test_an_offset_of_several_routes_names_them() -> None:
    positions = {("b", 0): 7, ("a", 10): 1, ("a", 2): 3}
    offset = to_offset("print", positions, {("b", 0): 5})

    assert json.dumps(offset) == (
        '{"v": 2, "f": "print", "p": {"a": {"2": 3, "10": 1}, "b": {"0": 7}}, "i": {"b": {"0": 5}}}'
    )
    assert from_offset(json.loads(json.dumps(offset)), "print") == positions
    assert first_of(offset, "print") == {("b", 0): 5}


# Where a read begins and ends


@pytest.mark.parametrize(
    ("wanted", "name", "positions"),
    [
        ("earliest", "startingPosition", {0: 5, 1: 0}),
        ("latest", "startingPosition", {0: 20, 1: 7}),
        (((("", 0), 9),), "startingPosition", {0: 9, 1: 0}),
        (((("", 0), 9),), "endingPosition", {0: 9, 1: 7}),
        (((("", 0), 9), (("", 1), 3)), "endingPosition", {0: 9, 1: 3}),
    ],
)
def test_an_option_means_positions(wanted: object, name: str, positions: dict[int, int]) -> None:
    assert resolve(wanted, BOUNDS, name) == at(positions)  # type: ignore[arg-type]


def test_a_route_that_is_not_there_is_named() -> None:
    bounds = {("a", 0): Bounds(0, 5), ("b", 1): Bounds(0, 5)}

    with pytest.raises(ValueError, match="'startingPosition' names route 'c', those that are read are a, b"):
        resolve(((("c", 0), 1),), bounds, "startingPosition")
    with pytest.raises(ValueError, match=r"'startingPosition' names partition 1 of route 'a', the server has \[0\]"):
        resolve(((("a", 1), 1),), bounds, "startingPosition")


# Limits


@pytest.mark.parametrize("seed", range(50))
def test_a_limit_is_kept_used_up_and_comes_to_the_end(seed: int) -> None:
    chance = random.Random(seed)
    position = {("", partition): chance.randrange(100) for partition in range(chance.randrange(1, 6))}
    latest = {place: first + chance.choice([0, 1, 7, 1000]) for place, first in position.items()}
    limit = chance.randrange(1, 400)

    while position != latest:
        left = sum(latest.values()) - sum(position.values())
        following = advance(position, latest, limit)
        assert all(position[place] <= following[place] <= latest[place] for place in latest)
        assert sum(following.values()) - sum(position.values()) == min(limit, left)
        position = following


# Ranges


@pytest.mark.parametrize("seed", range(50))
def test_a_split_has_every_position_once(seed: int) -> None:
    chance = random.Random(seed)
    ranges = [
        Range(partition, first := chance.randrange(100), first + chance.randrange(1, 1000))
        for partition in range(chance.randrange(1, 6))
    ]
    pieces = chance.randrange(1, 40)

    found = split(ranges, pieces)

    assert len(found) >= min(pieces, sum(one.size for one in ranges))
    assert all(one.size for one in found)
    positions = [(one.partition, position) for one in found for position in range(one.start, one.end)]
    assert positions == [(one.partition, position) for one in ranges for position in range(one.start, one.end)]
