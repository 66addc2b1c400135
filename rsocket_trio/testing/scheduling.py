"""Runs that repeat: Trio's order of tasks, time and chance, all from one seed; and the traces of two, to compare."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TypeVar

import trio
import trio.testing

from rsocket_trio.connection import protocols
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE

T = TypeVar("T")

SWITCH, SHUFFLER = "_ALLOW_DETERMINISTIC_SCHEDULING", "_r"
"""Trio's private names for what makes schedules repeat: whether it may sort its tasks, and what shuffles them."""
MAX_SECONDS = 3600.0
"""Virtual seconds that a simulation may take by default."""


class FrameTrace:
    """Facts with the time at which they were noted, counted from the first one.

    Sizes and times are facts, bytes are not: bytes that a program draws at random, such as a token, do not change the
    trace. ``facts`` is a list of pairs of seconds and fact.
    """

    def __init__(self) -> None:
        self.facts: list[tuple[float, tuple[object, ...]]] = []
        self._begin = 0.0

    def note(self, *fact: object) -> None:
        """Note a ``fact``: words and numbers."""
        now = trio.current_time()
        if not self.facts:
            self._begin = now
        self.facts.append((round(now - self._begin, 9), fact))

    @property
    def hash(self) -> str:
        """Return a hash of the facts, their times and their order: two equal runs have equal hashes."""
        digest = hashlib.sha256()
        for when, fact in self.facts:
            digest.update(f"{when!r} {fact!r}\n".encode())
        return digest.hexdigest()

    def __str__(self) -> str:
        return "\n".join(f"{when:12.6f}  {' '.join(map(str, fact))}" for when, fact in self.facts)


@contextmanager
def deterministic_scheduling(seed: int) -> Iterator[None]:
    """Run Trio's tasks in an order that depends on ``seed`` and the program alone, for as long as the block.

    Another seed gives another order, so a race is tested by a loop over seeds. Put it around ``trio.run``, or around
    the body of a test. Raise ``RuntimeError`` if this version of Trio lacks the private names that it needs.
    """
    scheduler = _scheduler()
    shuffler: Random = getattr(scheduler, SHUFFLER)
    before, state = getattr(scheduler, SWITCH), shuffler.getstate()
    setattr(scheduler, SWITCH, True)
    shuffler.seed(seed)
    try:
        yield
    finally:
        setattr(scheduler, SWITCH, before)
        shuffler.setstate(state)


def simulate(main: Callable[..., Awaitable[T]], *args: object, seed: int = 0, longest: float = MAX_SECONDS) -> T:
    """Run the async function ``main`` as ``trio.run`` does, with tasks ordered by ``seed`` and a clock that jumps.

    Return its result; ``args`` are its arguments. The ``random`` module and resume tokens depend on the seed as well:
    the same bytes are sent at the same times. Raise ``trio.TooSlowError`` if it takes more than ``longest`` virtual
    seconds.
    """

    async def bounded() -> T:
        with trio.fail_after(longest):
            return await main(*args)

    with deterministic_scheduling(seed), _repeatable_chance(seed):
        return trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))


@contextmanager
def _repeatable_chance(seed: int) -> Iterator[None]:
    state, token = random.getstate(), protocols.new_token
    random.seed(seed)
    tokens = Random(seed)
    protocols.new_token = lambda: tokens.randbytes(TOKEN_SIZE)
    try:
        yield
    finally:
        random.setstate(state)
        protocols.new_token = token


def _scheduler() -> object:
    """Return the module of Trio that orders its tasks, with the names that are needed of it."""
    scheduler = getattr(getattr(trio, "_core", None), "_run", None)
    missing = [name for name in (SWITCH, SHUFFLER) if not hasattr(scheduler, name)]
    if missing or not isinstance(getattr(scheduler, SHUFFLER, None), Random):
        names = " and ".join(f"trio._core._run.{name}" for name in missing or [SHUFFLER])
        raise RuntimeError(f"Trio {trio.__version__} has no usable {names}: schedules cannot be repeated with it")
    return scheduler
