"""An ordered trace of the facts of a run: printed after a failure, and hashed to compare two runs."""

from __future__ import annotations

import hashlib

import trio


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
