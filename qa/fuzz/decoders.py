"""Mutated bytes for every decoder, as many as wanted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from random import Random
from typing import Final

import attrs

from qa.fuzz.blocks import BLOCKS
from qa.fuzz.codecs import CODECS, LARGE_CODECS
from qa.fuzz.frames import FRAMES
from qa.fuzz.mutation import mutate
from qa.fuzz.streams import STREAMS
from qa.fuzz.targets import Finding, Target

GUIDED: Final = {**FRAMES, **BLOCKS, **CODECS, **STREAMS}
"""Targets of small inputs, which coverage can lead to."""
TARGETS: Final = {**GUIDED, **LARGE_CODECS}


@attrs.define
class Tally:
    """Counts of the inputs by their outcome."""

    target: str
    runs: int = 0
    accepted: int = 0
    findings: list[Finding] = attrs.field(factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        share = self.accepted / self.runs if self.runs else 0
        found = f"{len(self.findings)} findings" if self.findings else "nothing found"
        return f"{self.target:20} {self.runs:>10,} runs  {share:4.0%} accepted  {self.seconds:7.1f} s  {found}"


def fuzz(target: Target, runs: int, seed: int, *, most: int = 10) -> Tally:
    """Give the target so many mutated inputs, and stop at the tenth finding."""
    random = Random(f"{seed} {target.name}")
    tally = Tally(target.name)
    start = time.perf_counter()
    for _ in range(runs):
        tally.runs += 1
        try:
            tally.accepted += target.check(mutate(random, target.seeds, target.largest))
        except Finding as finding:
            tally.findings.append(finding)
            if len(tally.findings) == most:
                break
    tally.seconds = time.perf_counter() - start
    return tally


def fuzz_all(names: Iterable[str], runs: int, seed: int) -> bool:
    """Fuzz these targets one after the other, and print the result. Return whether nothing was found."""
    clean = True
    for name in names:
        target = TARGETS[name]
        tally = fuzz(target, max(1, runs // target.one_run_in), seed)
        print(tally, flush=True)
        for finding in tally.findings:
            clean = False
            print(f"    {finding}", flush=True)
    return clean
