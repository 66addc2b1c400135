"""Mutate well-formed bytes into nearly well-formed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeAlias

Mutation: TypeAlias = Callable[[Random, bytearray, Sequence[bytes]], None]

SIZES: Final = (1, 2, 3, 4, 8)
"""Bytes of the numbers that stand in frames."""
EDGES: Final = (0, 1, 2, 4, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**24 - 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63)
LARGEST: Final = 4096
"""Bytes of what comes out for most targets: decoders see the limits in their own tables, not in megabytes."""
TIMES: Final = (1, 1, 1, 2, 2, 3, 5)
"""Number of mutations of one input."""


def flip_bit(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def set_byte(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def insert(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.choice((1, 1, 2, 3, 4, 8, 40)))


def delete(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start = random.randrange(len(data))
    del data[start : start + random.choice((1, 1, 2, 3, 4, 8))]


def truncate(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    del data[random.randrange(len(data)) :]


def repeat(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start = random.randrange(len(data))
    end = min(len(data), start + random.randrange(1, 20))
    data[end:end] = data[start:end] * random.choice((1, 1, 2, 30))


def splice(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = random.choice(seeds)
    if other:
        data[random.randrange(len(data)) :] = other[random.randrange(len(other)) :]


def set_number(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """A number at the edge of its range, or near to what is left behind it, as lengths are."""
    size = random.choice(SIZES)
    at = random.randrange(len(data))
    left = len(data) - at - size
    number = random.choice(EDGES) if random.random() < 0.5 else max(left + random.randrange(-2, 6), 0)
    data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "big")


MUTATIONS: Final[tuple[Mutation, ...]] = (
    *(flip_bit, flip_bit, set_byte, insert, delete, truncate, repeat, splice, set_number, set_number),
)


def mutate(random: Random, seeds: Sequence[bytes], largest: int = LARGEST) -> bytes:
    """One of the seeds, changed in one place or a few, of no more bytes than ``largest``."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice(TIMES)):
        if not data:
            data += random.randbytes(random.randrange(1, 8))
        random.choice(MUTATIONS)(random, data, seeds)
    return bytes(data[:largest])
